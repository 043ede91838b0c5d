"""The floor: bare sockets between the same kinds of process, same number of hops.

Script -> relay (bench/floor, Go) -> forked Python worker, and back; frames of
64 bytes, one send per call and per answer, no encoding of any value. A worker
is an os.fork of this process after the heavy import, which is the least that
starting a Python worker can cost.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

import probe

SIZE = 64
ONE = bytes([0]) + bytes(SIZE - 1)
ALL = bytes([1]) + bytes(SIZE - 1)


def _receive(sock: socket.socket, size: int) -> bytes:
    """Exactly size bytes; the first recv nearly always has them."""
    data = sock.recv(size)
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("the relay is gone")
        data += more
    return data


def _join(path: str, kind: bytes) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.sendall(kind + bytes(SIZE - 1))
    _receive(sock, SIZE)
    return sock


def _work(path: str, ready: int) -> NoReturn:
    """A worker: answers each frame with itself until the relay is gone."""
    try:
        sock = _join(path, b"w")
        os.write(ready, b".")
        os.close(ready)
        rest = b""
        while data := sock.recv(65536):
            if len(data) == SIZE and not rest:
                sock.sendall(data)
                continue
            rest += data
            while len(rest) >= SIZE:
                sock.sendall(rest[:SIZE])
                rest = rest[SIZE:]
    finally:
        os._exit(0)


class Floor:
    """The relay as a child, workers as forks, a connection for each thread that calls."""

    def up(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="floor-")
        self._path = os.path.join(self._folder.name, "s")
        self._relay = subprocess.Popen(
            [os.environ["BENCH_FLOOR"], self._path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._relay.stdout is not None
        self._relay.stdout.readline()

    def start(self, workers: int, heavy: str, callers: int) -> list[int]:
        for module in heavy.split():
            import_module(module)
        ready, told = os.pipe()
        pids = []
        for _ in range(workers):
            pid = os.fork()
            if pid == 0:
                os.close(ready)
                _work(self._path, told)
            pids.append(pid)
        os.close(told)
        joined = 0
        while joined < workers:
            some = os.read(ready, workers)
            if not some:
                raise ConnectionError(f"{workers - joined} workers did not join the relay")
            joined += len(some)
        os.close(ready)
        self._sock = _join(self._path, b"c")
        return pids

    def caller(self, group: list[int]) -> Callable[[], object]:
        sock = _join(self._path, b"c")

        def call() -> object:
            sock.send(ONE)
            _receive(sock, SIZE)
            return probe.TOKEN

        return call

    def pipeline(self, group: list[int], calls: int) -> list[object]:
        for _ in range(calls):
            self._sock.send(ONE)
        _receive(self._sock, calls * SIZE)
        return [probe.TOKEN] * calls

    def broadcast(self, group: list[int]) -> list[object]:
        self._sock.send(ALL)
        _receive(self._sock, SIZE)
        return [probe.TOKEN] * len(group)

    def pids(self, group: list[int]) -> list[int]:
        return group

    def stop(self, group: list[int]) -> None:
        for pid in group:
            os.kill(pid, signal.SIGTERM)
        for pid in group:
            os.waitpid(pid, 0)

    def down(self) -> None:
        assert self._relay.stdin is not None
        self._relay.stdin.close()
        self._relay.wait(10)
        self._folder.cleanup()


if __name__ == "__main__":
    probe.main(Floor())
