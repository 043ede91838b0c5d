"""What one small call costs in a worker's serial runner, against a bare echo.

Both serve the same frames over a socket pair from a process of their own: the
echo sends back what it received, the runner decodes a leg, runs a method that
adds two numbers, encodes the result and sends it. Run it by itself:

    PYTHONPATH=python python python/tests/runtime/bench_serial.py
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable

from muster import _values, _wire
from muster._runtime.board import Board
from muster._runtime.calls import Host, Who
from muster._runtime.describe import Described
from muster._runtime.line import Line
from muster._runtime.serial import Serial
from muster._runtime.wayback import WayBack
from muster._worker import Worker

ROUNDS, CALLS, WINDOW = 9, 5000, 100


class Adder(Worker):
    def add(self, a: int, b: int) -> int:
        return a + b


def echo(sock: socket.socket) -> None:
    while data := sock.recv(1 << 16):
        sock.sendall(data)


def serve(sock: socket.socket) -> None:
    board = Board("bench-0")
    board.listen()
    obj = Adder(None)
    who = Who("bench", "bench-0", "node-0", 0)
    host = Host(obj, Described(Adder, ()), who, board, "on", vars(obj.rank_info))
    stream = _wire.FrameStream(sock)
    way = WayBack(stream, "", {}, board, None)
    line = Line(sock, None, way)
    Serial(host, line, stream).run()


def measure(server: Callable[[socket.socket], None], window: int) -> float:
    """Microseconds a call, with ``window`` of them in flight; the median of rounds."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        server(theirs)
        os._exit(0)
    theirs.close()
    body = _values.encode(["add", 0, 1, [[1, 2], {}]], [])
    # Each lets a result go that was read, as a head's do.
    legs = [
        _wire.pack_frame(_wire.KIND_LEG, 1, body, ack=max(0, n - window))[0]
        for n in range(ROUNDS * CALLS + 1)
    ]
    size = len(legs[0]) if server is echo else len(_wire.pack_frame(11, 1, _wire.pack(3))[0])
    bursts = deque(b"".join(legs[n : n + window]) for n in range(1, len(legs), window))
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS // window):
            ours.sendall(bursts.popleft())
            left = size * window
            while left:
                left -= len(ours.recv(left))
        times.append((time.perf_counter() - began) / CALLS * 1e6)
    os.kill(pid, signal.SIGKILL)  # a worker whose head has gone would wait for another
    os.waitpid(pid, 0)
    ours.close()
    return statistics.median(times)


def main() -> None:
    print(f"{'us a call':24}{'echo':>8}{'runner':>8}{'more':>8}")
    for label, window in (("one at a time", 1), (f"{WINDOW} in flight", WINDOW)):
        bare, runner = measure(echo, window), measure(serve, window)
        print(f"{label:24}{bare:8.2f}{runner:8.2f}{runner - bare:8.2f}")


if __name__ == "__main__":
    main()
