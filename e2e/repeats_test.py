"""Something between the head and the others delivers every frame more than once: nothing runs
twice, nothing is answered twice, and no object is given back twice."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import muster
from muster import Batch
from running import BINARY, cluster, environment, eventually, pool
from stages import Stage, objects
from witness import Quick, Witness, runs

RANKS = 4
HEADER = struct.Struct("<I20x")


class Repeats:
    """Listens in the place of a head, and hands each frame on twice, and once more when two
    others have passed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.real = path.with_name("real.sock")
        self.frames = 0
        self._socks: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        path.rename(self.real)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._run(self._accept)

    def _run(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self.real))
            self._socks += [near, far]
            self._run(self._carry, near, far)
            self._run(self._carry, far, near)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        before: deque[bytes] = deque(maxlen=3)
        with source.makefile("rb") as stream:
            try:
                while len(header := stream.read(HEADER.size)) == HEADER.size:
                    frame = header + stream.read(*HEADER.unpack(header))
                    before.append(frame)
                    again = before[0] if len(before) == 3 else b""
                    target.sendall(frame + frame + again)
                    self.frames += 1
                target.shutdown(socket.SHUT_WR)
            except (OSError, ValueError):
                pass

    def close(self) -> None:
        """Give the head its place back."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._socks:
            with_end(sock)
        for thread in self._threads:
            thread.join(20)
        self.real.rename(self.path)


def with_end(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()


@contextmanager
def repeating(virtual: str) -> Iterator[Repeats]:
    """A head of its own, this process and all workers behind a proxy that repeats."""
    process = subprocess.Popen(
        [str(BINARY), "head", "--name", "twice", "--virtual", virtual],
        env=environment(None),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        address = process.stdout.readline().split('"')[1]
        proxy = Repeats(Path(address))
        try:
            muster.init(address=address)
            yield proxy
        finally:
            muster.shutdown()
            proxy.close()
    finally:
        process.terminate()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()
    assert process.returncode == 0


@pytest.mark.parametrize("kind", [Witness, Quick])
@pytest.mark.parametrize("virtual", ["2x2", "2x2+relay"])
def test_calls(kind: type[Witness], virtual: str, tmp_path: Path) -> None:
    with (
        repeating(virtual) as proxy,
        pool(2, 2) as rm,
        cluster(kind, rm, name="w", device_mapping="0-3") as c,
    ):
        c.begin(str(tmp_path))
        refs = [c.step(n, blocking=False) for n in range(300)]
        for n in range(300, 320):
            assert c.step(n) == [(n, rank) for rank in range(RANKS)]
        made = c.rows(list(range(6)), blocking=False)
        used = c.rows(made, blocking=False)
        assert muster.get(refs, 30) == [[(n, r) for r in range(RANKS)] for n in range(300)]
        assert [row for _, (_, row) in muster.get(used, 30)] == list(range(6))
        held = c.until("gate", "held", blocking=False)
        each = c.execute_all_async("step", "each")
        (tmp_path / "gate").touch()
        assert muster.get(held, 30) == [("held", rank) for rank in range(RANKS)]
        assert muster.get(each, 30) == [("each", rank) for rank in range(RANKS)]
        with pytest.raises(muster.DeadlineError):
            c.until("never", timeout=0.2)
        (tmp_path / "never").touch()
        assert c.step("last") == [("last", rank) for rank in range(RANKS)]
        assert proxy.frames > 1000
    for ran in runs(tmp_path, "w", RANKS):
        steps = [line for line in ran if line.isdigit() or line in ("each", "last")]
        assert steps == [*map(str, range(320)), "each", "last"]
        assert len(ran) == len(set(ran)), ran


def test_batches() -> None:
    """What is given back is counted: twice would be too often, or too early."""
    with (
        repeating("2x2"),
        pool(2, 2) as rm,
        cluster(Stage, rm, name="s", device_mapping="0-3") as c,
    ):
        x = np.arange(4 * 64 * 1024).reshape(-1, 1024)
        kept = Batch({"x": x})
        for _ in range(20):
            out = c.double(c.double(kept))
            assert np.array_equal(out["x"], 4 * x)
        c.keep_handle(kept)
        del kept
        assert c.sums() == [[int(x.sum())]] * RANKS
        assert np.array_equal(c.give_back(0)[0]["x"], x)
        c.let_go()
        del out
        assert eventually(lambda: not objects()), objects()
