"""The floor between hosts: plain TCP, nothing in it.

    floor_nodes.py serve ADDRESS             on the second host: says its port, then serves
    floor_nodes.py calls PARAMETERS-AS-JSON  64 bytes to it and back, one at a time
    floor_nodes.py bytes PARAMETERS-AS-JSON  so many MiB from it, over one stream and over four

The bytes are sent by sendfile from a memfd, and read into memory that was touched
before, by one thread a stream.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import sys
import threading
import time
from typing import Any

import probe

FRAME = 64
STREAMS = (1, 4)
PIECE = 1 << 20


def _exactly(conn: socket.socket, into: memoryview) -> bool:
    """Reads until it is full; False at the end before anything came."""
    have = 0
    while have < len(into):
        n = conn.recv_into(into[have : have + PIECE])
        if n == 0 and have:
            raise EOFError(f"the stream ended after {have} of {len(into)} bytes")
        if n == 0:
            return False
        have += n
    return True


def _touched(size: int) -> tuple[int, mmap.mmap]:
    """A memfd of that size, and its memory, with every page there."""
    fd = os.memfd_create("floor")
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = 1
    return fd, memory


def serve(address: str) -> None:
    """Echoes frames; one of "send N" is answered by N bytes of the memfd."""
    listener = socket.create_server((address, 0))
    print(listener.getsockname()[1], flush=True)
    memory: dict[int, int] = {}
    lock = threading.Lock()

    def attend(conn: socket.socket) -> None:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = memoryview(bytearray(FRAME))
        while _exactly(conn, frame):
            words = bytes(frame).split()
            if words[0] != b"send":
                conn.sendall(frame)
                continue
            size = int(words[1])
            with lock:
                if size not in memory:
                    memory[size] = _touched(size)[0]
            at = 0
            while at < size:
                at += os.sendfile(conn.fileno(), memory[size], at, size - at)

    while True:
        conn, _ = listener.accept()
        threading.Thread(target=attend, args=(conn,), daemon=True).start()


def _connect(p: dict[str, Any]) -> socket.socket:
    conn = socket.create_connection((p["address"], p["port"]))
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return conn


def calls(results: probe.Results, p: dict[str, Any]) -> None:
    """One frame there and back."""
    conn = _connect(p)
    frame, answer = b"x" * FRAME, memoryview(bytearray(FRAME))

    def call() -> None:
        conn.sendall(frame)
        _exactly(conn, answer)

    times = probe.sample(call, p["calls"], p["seconds"])
    results.value("call.p50", probe.percentile(times, 0.50))
    results.value("call.p99", probe.percentile(times, 0.99))


def carried(results: probe.Results, p: dict[str, Any]) -> None:
    """All bytes, in equal parts over the streams."""
    size = p["mib"] << 20
    into = memoryview(_touched(size)[1])
    for count in STREAMS:
        conns = [_connect(p) for _ in range(count)]
        part = size // count

        def receive(i: int, conns: list[socket.socket] = conns, part: int = part) -> None:
            conns[i].sendall(f"send {part}".encode().ljust(FRAME))
            _exactly(conns[i], into[i * part : (i + 1) * part])

        times = []
        for step in range(p["most"] + 1):
            threads = [threading.Thread(target=receive, args=(i,)) for i in range(count)]
            before = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if step:
                times.append(time.perf_counter() - before)
        for conn in conns:
            conn.close()
        results.value(f"streams.{count}", probe.percentile(times, 0.5))


def main() -> None:
    case, given = sys.argv[1], sys.argv[2]
    if case == "serve":
        serve(given)
        return
    results = probe.Results(probe.private_output())
    try:
        {"calls": calls, "bytes": carried}[case](results, json.loads(given))
    except BaseException as e:
        results.failure(e)
        raise


if __name__ == "__main__":
    main()
