"""Plays agent and head for real processes of the worker runtime.

Starts zygotes and spawned workers as the agent does, takes their two
connections, and speaks the wire with them.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster import _values, _wire

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent
DEADLINE = float(os.environ.get("MUSTER_TEST_DEADLINE", "20"))
START = "import sys; sys.path.insert(0, sys.argv[1]); from muster._runtime.{} import main; main()"


def become_subreaper() -> None:
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0


def runtime(**changes: Any) -> dict[str, Any]:
    """A Runtime message of this interpreter."""
    site = [path for path in sys.path if path.endswith(("site-packages", "lib-dynload"))]
    plain = [path for path in sys.path if "/lib/python3" in path or path.endswith(".zip")]
    message: dict[str, Any] = {
        "python": sys.executable,
        "flags": [],
        "package": str(PACKAGE),
        "sys_path": [str(HERE), str(PACKAGE), *plain, *site],
        "dir": str(HERE),
        "preload": [],
        "env": {**os.environ, "FROM": "runtime"},
        "main": {"path": "", "module": ""},
    }
    return message | changes


class Peer:
    """One end of a connection, with a deadline on every read."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(DEADLINE)
        self.sock = sock
        self.stream = _wire.FrameStream(sock)
        self.hello: dict[str, Any] = {}
        self._next = 0

    def read(self) -> _wire.Frame:
        return self.stream.read()

    def send(self, kind: int, ident: int, message: Any, flags: int = 0) -> None:
        _wire.send_frame(self.sock, kind, ident, _wire.pack(message), flags=flags)

    def post(self, verb: str, body: dict[str, Any], descriptor: int | None = None) -> int:
        """Send a request without waiting; return its id."""
        self._next += 1
        (data,) = _wire.pack_frame(_wire.KIND_REQUEST, self._next, _wire.pack([verb, body]))
        if descriptor is None:
            self.sock.sendall(data)
        else:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))]
            sent = self.sock.sendmsg([data], rights)
            if sent < len(data):  # else the other end may be done with the line by now
                self.sock.sendall(data[sent:])
        return self._next

    def ask(self, verb: str, body: dict[str, Any], descriptor: int | None = None) -> dict[str, Any]:
        """Send a request; return the response, with "error" set where it is one."""
        ident = self.post(verb, body, descriptor)
        frame = self.read()
        assert (frame.kind, frame.id) == (_wire.KIND_RESPONSE, ident)
        answer = _wire.unpack(frame.body)
        assert isinstance(answer, dict)
        return {"error": answer} if frame.flags & _wire.FLAG_ERROR else answer

    def notice(self) -> tuple[str, dict[str, Any]]:
        frame = self.read()
        assert frame.kind == _wire.KIND_NOTICE
        verb, body = _wire.unpack(frame.body)
        return verb, body

    # --- calls, on a call connection ------------------------------------------

    def leg(self, call: int, method: str, *args: Any, ack: int = 0, **kwargs: Any) -> None:
        bufs: list[Any] = []
        body = _values.encode([method, 0, origin(call), [list(args), kwargs]], bufs)
        _wire.send_frame(self.sock, _wire.KIND_LEG, call, body, bufs, ack=ack)

    def result(self) -> tuple[int, Any]:
        """The next result's call and value; an error comes as its map."""
        frame = self.read()
        assert frame.kind == _wire.KIND_RESULT
        if frame.flags & _wire.FLAG_ERROR:
            return frame.id, Failure(_wire.unpack(frame.body))
        value = _values.decode(frame.body, frame.bufs)
        if frame.flags & _wire.FLAG_INFO:
            return frame.id, Informed(value[1], value[0])
        return frame.id, value

    def call(self, call: int, method: str, *args: Any, **kwargs: Any) -> Any:
        self.leg(call, method, *args, **kwargs)
        ident, value = self.result()
        assert ident == call
        return value

    def back(self) -> tuple[dict[str, Any], list[_wire.Frame]]:
        """What a worker tells that was here before, and the results that it sends again."""
        verb, body = self.notice()
        assert verb == "back"
        again = []
        while (frame := self.read()).kind == _wire.KIND_RESULT:
            assert frame.flags & _wire.FLAG_AGAIN
            again.append(frame)
        assert _wire.unpack(frame.body) == ["resent", {}]
        return body, again


def origin(call: int) -> int:
    """Of which call of whom a call is, in these tests."""
    return 7 << 32 | call


class Failure(dict[str, Any]):
    """An Error map, told apart from a value."""

    @property
    def code(self) -> str:
        return str(self["code"])

    @property
    def message(self) -> str:
        return str(self["message"])


class Informed:
    """A value that came with rank info."""

    def __init__(self, value: Any, info: dict[str, int]) -> None:
        self.value = value
        self.info = info


class Worker:
    """A worker process as its agent and head see it."""

    def __init__(self, pid: int, log: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.control: Peer
        self.calls: Peer
        self._log = log
        self.status: int | None = None
        self.description: dict[str, Any] = {}

    def ready(self) -> dict[str, Any]:
        verb, body = self.calls.notice()
        assert verb == "ready", body
        self.description = body["description"]
        return body

    def failed(self) -> Failure:
        verb, body = self.calls.notice()
        assert verb == "failed", body
        return Failure(body["error"])

    def exit(self) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        if self.status is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            assert poll.poll(DEADLINE * 1000), "the worker did not end"
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def exit_now(self) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.exit()

    def output(self) -> str:
        """All that it wrote; only after its end, and that of its children."""
        with open(self._log, "rb", closefd=False) as file:
            return file.read().decode()

    def said(self) -> str:
        """What it wrote so far."""
        return (
            os.read(self._log, 1 << 16).decode() if select.select([self._log], [], [], 0)[0] else ""
        )

    def line(self) -> str:
        """The next line that it writes."""
        text = b""
        while not text.endswith(b"\n"):
            assert select.select([self._log], [], [], DEADLINE)[0], "no line came"
            text += os.read(self._log, 1)
        return text.decode().rstrip("\n")

    def close(self) -> None:
        if self.status is None:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.exit()
        os.close(self.pidfd)
        os.close(self._log)
        for peer in ("control", "calls"):
            if hasattr(self, peer):
                getattr(self, peer).sock.close()


class Agent:
    """Listens where workers dial, and makes them."""

    def __init__(self, folder: Path) -> None:
        become_subreaper()
        self.folder = folder
        self.workers: list[Worker] = []
        self._pythons: list[tuple[int, Peer]] = []
        self._next = 0
        self._listeners = {role: self._listen(role) for role in ("control", "worker")}
        self.accepting = True

    def _listen(self, role: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(self.folder / f"{role}.sock"))
        sock.listen(64)
        sock.settimeout(DEADLINE)
        return sock

    def python(self, module: str = "zygote") -> tuple[int, Peer]:
        """Start a process of the runtime; its pid, and the line to it."""
        ours, theirs = socket.socketpair()
        output = os.open(str(self.folder / f"{module}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", START.format(module), str(PACKAGE), "_" * 200],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3),
            ],
        )
        os.close(output)
        theirs.close()
        peer = Peer(ours)
        self._pythons.append((pid, peer))
        return pid, peer

    def zygote(self, **changes: Any) -> Peer:
        """A zygote that has loaded, and can be forked."""
        _, peer = self.python()
        answer = peer.ask("load", {"runtime": runtime(**changes)})
        assert answer["fork_safe"] is True, answer
        return peer

    def order(self, cls: str, **changes: Any) -> dict[str, Any]:
        """The body of fork and become. ``cls`` is module:name."""
        self._next += 1
        module, _, name = cls.partition(":")
        rank = changes.pop("rank", 0)
        info = {"world_size": 2, "dp_size": 2, "rank": rank, "dp_rank": rank}
        info |= dict.fromkeys(("tp_size", "pp_size", "cp_size"), 1)
        info |= dict.fromkeys(("tp_rank", "pp_rank", "cp_rank"), 0)
        env = {**os.environ, "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4711"}
        env |= changes.pop("env", {})
        setup: dict[str, Any] = {
            "class": {"module": module, "name": name, "pickle": b""},
            "main": {"path": "", "module": ""},
            "config": _values.encode({"scale": 2}, []),
            "pickle": "on",
            "max_concurrency": 0,
            "cluster": "actor",
            "cluster_number": 1,
            "call_address": str(self.folder / "worker.sock"),
            "control_address": str(self.folder / "control.sock"),
            "node": "node-0",
            "log_dir": "",
        }
        worker = {
            "number": self._next,
            "rank": rank,
            "name": f"actor-{rank}",
            "token": f"secret-{self._next}",
            "env": {},
            "info": info,
        }
        return {
            "setup": setup | changes,
            "worker": worker,
            "env": env,
            "agent_pid": os.getpid(),
        }

    def make(self, line: Peer, verb: str, body: dict[str, Any]) -> Worker:
        """Have a worker made, and take its connections."""
        log, write = os.pipe()
        answer = line.ask(verb, body, write)
        os.close(write)
        assert "pid" in answer, answer
        worker = self.adopt(answer["pid"], log)
        worker.control = self.accept("control", stacks=True)
        worker.calls = self.accept("worker")
        return worker

    def adopt(self, pid: int, log: int) -> Worker:
        worker = Worker(pid, log)
        self.workers.append(worker)
        return worker

    def zygote_pid(self, line: Peer) -> int:
        return next(pid for pid, peer in self._pythons if peer is line)

    def fork(self, line: Peer, cls: str, **changes: Any) -> Worker:
        return self.make(line, "fork", self.order(cls, **changes))

    def again(self, worker: Worker) -> tuple[dict[str, Any], list[_wire.Frame]]:
        """Have a worker come back after its connection was cut; what it tells."""
        worker.calls.sock.close()
        worker.calls = self.accept("worker")
        assert worker.calls.hello["back"] == 1
        return worker.calls.back()

    def stop_listening(self, role: str) -> socket.socket:
        """Have nobody listen where workers dial, as when a head is dead; the old listener."""
        (self.folder / f"{role}.sock").unlink()
        return self._listeners[role]

    def listen_again(self, role: str) -> None:
        """Listen where workers dial, as a new head does."""
        self._listeners[role].close()
        self._listeners[role] = self._listen(role)

    def accept_silently(self, role: str) -> socket.socket:
        """Take a connection and say nothing."""
        return self._listeners[role].accept()[0]

    def accept(self, role: str, stacks: bool = False) -> Peer:
        try:
            sock, _ = self._listeners[role].accept()
        except TimeoutError:
            raise AssertionError(
                f"no {role} connection; the worker said:\n{self.workers[-1].said()}"
            ) from None
        peer = Peer(sock)
        try:
            frame = peer.read()
        except EOFError:  # of a worker that dialled to come back, and was ended
            sock.close()
            return self.accept(role, stacks)
        peer.hello = _wire.unpack(frame.body)
        assert peer.hello["role"] == role
        assert peer.hello["token"] == f"secret-{peer.hello['worker']}"
        if stacks:
            assert peer.hello["stacks_fd"] > 2
        welcome = {"version": 1, "release": "0", "session": "s", "address": "", "log_dir": ""}
        try:
            peer.send(_wire.KIND_WELCOME, 0, welcome)
        except BrokenPipeError:  # the same, a moment later
            sock.close()
            return self.accept(role, stacks)
        return peer

    def close(self) -> None:
        for sock in self._listeners.values():
            sock.close()
        for worker in self.workers:
            worker.close()
        for pid, peer in self._pythons:
            peer.sock.close()
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            except ChildProcessError:
                pass


@contextmanager
def agent(folder: Path) -> Iterator[Agent]:
    made = Agent(folder)
    try:
        yield made
    finally:
        made.close()


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[1])


def wait_for(event: threading.Event) -> None:
    assert event.wait(DEADLINE)
