"""A network of a test's own, whose packets can be dropped: in one direction, in both, or some.

The calling thread, and what it starts, is in a network namespace with nothing but a loopback
device. A filter there (classic BPF, which needs no module of the kernel) says what is dropped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

import pytest

CLONE_NEWNET = 0x40000000
PORT = 7000  # of the head; the namespace is ours alone

# Offsets in a packet of the loopback device, whose header has 14 bytes: as Ethernet's.
PROTOCOL, SOURCE, TARGET = 14 + 9, 14 + 20, 14 + 22
TCP = 6
RANDOM = 0xFFFFF038  # where a filter reads a random number

PASS, DROP = "6 0 0 0", "6 0 0 2"


def _call(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


class Link:
    """What lies between the head and the agents."""

    def _tc(self, *words: str) -> None:
        subprocess.run(["tc", *words], check=True, capture_output=True, text=True)

    def begin(self) -> None:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, capture_output=True)
        self._tc("qdisc", "add", "dev", "lo", "clsact")

    def _filter(self, *program: str) -> None:
        self.heal()
        code = f"{len(program)}," + ",".join(program)
        self._tc("filter", "add", "dev", "lo", "egress", "bpf", "da", "bytecode", code)

    def heal(self) -> None:
        """Everything passes."""
        self._tc("filter", "del", "dev", "lo", "egress")

    def cut(self) -> None:
        """Nothing passes, in either direction."""
        self._filter(f"48 0 0 {PROTOCOL}", f"21 0 1 {TCP}", DROP, PASS)

    def silence_agents(self) -> None:
        """What goes to the head is dropped."""
        self._one_way(TARGET)

    def silence_head(self) -> None:
        """What comes from the head is dropped."""
        self._one_way(SOURCE)

    def _one_way(self, offset: int) -> None:
        self._filter(
            f"48 0 0 {PROTOCOL}", f"21 0 3 {TCP}", f"40 0 0 {offset}", f"21 0 1 {PORT}", DROP, PASS
        )

    def lose(self, share: float) -> None:
        """One packet in so many is dropped."""
        self._filter(f"32 0 0 {RANDOM}", f"53 1 0 {int(share * (1 << 32))}", DROP, PASS)


@contextlib.contextmanager
def network() -> Iterator[Link]:
    """A network of this thread's own, and of what it starts meanwhile."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a network namespace has to be made")
    link = Link()
    with open("/proc/thread-self/ns/net") as before:
        try:
            _call("unshare", CLONE_NEWNET)
        except OSError as error:
            pytest.skip(f"needs namespaces: {error}")
        try:
            try:
                link.begin()
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"needs tc: {getattr(error, 'stderr', error)}")
            yield link
        finally:
            _call("setns", before.fileno(), CLONE_NEWNET)
