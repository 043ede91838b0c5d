"""How an agent's orders reach a Python process: frames with descriptors beside them."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from typing import Any

_INT = array.array("i").itemsize
_ROOM = socket.CMSG_SPACE(16 * _INT)


class Order:
    """All that a process is told to become a worker.

    ``gate``, where there is one, reaches its end when the worker's parent is the
    agent. ``preload`` names modules that nobody has imported yet.
    """

    def __init__(
        self, body: dict[str, Any], log: int, gate: int = -1, preload: tuple[str, ...] = ()
    ) -> None:
        self.setup: dict[str, Any] = body["setup"]
        self.worker: dict[str, Any] = body["worker"]
        self.env: dict[str, str] = body["env"]
        self.agent_pid: int = body["agent_pid"]
        self.log = log
        self.gate = gate
        self.preload = preload


class OrderSocket(socket.socket):
    """A unix socket that keeps the descriptors which come with the bytes, in order."""

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self.set_inheritable(False)
        self._descriptors: deque[int] = deque()

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive bytes, and keep what comes beside them."""
        data, beside, _, _ = self.recvmsg(bufsize, _ROOM, flags | socket.MSG_CMSG_CLOEXEC)
        self._keep(beside)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a buffer, and keep what comes beside the bytes."""
        view = memoryview(buffer)
        got, beside, _, _ = self.recvmsg_into(
            [view[:nbytes] if nbytes else view], _ROOM, flags | socket.MSG_CMSG_CLOEXEC
        )
        self._keep(beside)
        return got

    def take_descriptor(self) -> int | None:
        """Return the oldest descriptor that nobody has taken; the caller closes it."""
        return self._descriptors.popleft() if self._descriptors else None

    def _keep(self, beside: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors.extend(
                    array.array("i", data[: len(data) - len(data) % _INT]).tolist()
                )

    def close(self) -> None:
        """Close the socket and every descriptor that was not taken."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
        super().close()
