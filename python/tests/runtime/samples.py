"""Worker classes that the runtime's tests run."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import functools
import gc
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from muster import _wire
from muster._register import Dispatch, register
from muster._runtime import current_call
from muster._worker import RankInfo, Worker

ENV_AT_IMPORT = dict(os.environ)
ARGV_AT_IMPORT = list(sys.argv)


class CustomError(Exception):
    pass


class Plain(Worker):
    """A sync class."""

    def __init__(self, worker_config: Any) -> None:
        self.before_super = (self.rank, self.world_size, self.cluster_name, self.master_port)
        self.config = worker_config
        self.log: list[Any] = []

    @register(Dispatch.ONE_TO_ALL)
    def add(self, a: int, b: int = 1) -> int:
        return a + b

    @register(Dispatch.DP_MP_COMPUTE, collective=True, on_timeout="kill")
    def train(self, rows: list[int], /, *rest: int, flag: bool, other: int = 3, **more: Any) -> Any:
        return rows

    def facts(self) -> dict[str, Any]:
        return {
            "before_super": self.before_super,
            "config": self.config,
            "env": dict(os.environ),
            "env_at_import": ENV_AT_IMPORT,
            "argv": ARGV_AT_IMPORT,
            "cwd": os.getcwd(),
            "name": self.worker_name,
            "pid": os.getpid(),
            "sid": os.getsid(0),
            "ppid": os.getppid(),
            "stdin": sys.stdin.read() if sys.stdin else "",
            "random": np.random.random(),
        }

    def fail(self) -> None:
        raise CustomError("on purpose")

    def leave(self, code: Any) -> None:
        atexit.register(lambda: print("atexit ran"))
        try:
            sys.exit(code)
        finally:
            print("finally ran")

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    def unencodable(self) -> Any:
        return {"deep": [1, threading.Lock()]}

    def huge(self) -> Any:
        return np.zeros((1 << 30) + 1, dtype=np.uint8)

    def array(self, n: int) -> Any:
        return np.arange(n)

    def total(self, array: Any) -> int:
        array += 1  # arguments are writable
        return int(array.sum())

    def sleep(self, seconds: float) -> str:
        self.log.append("sleeping")
        print("sleeping", flush=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.05)
        return "slept"

    def until(self, path: str) -> str:
        self.log.append(path)
        print("waiting", flush=True)
        while not os.path.exists(path):
            time.sleep(0.005)
        print("done", flush=True)
        return "there"

    def kept_array(self) -> Any:
        self.array_given = np.zeros(20_000)  # beside the body, and not copied
        return self.array_given

    def change_array(self) -> None:
        self.array_given += 1

    def stubborn(self) -> str:
        try:
            print("stubborn", flush=True)
            time.sleep(60)
        except BaseException:
            return "caught it"
        return "slept"

    def sleep_when_signalled(self) -> str:
        """Get a signal after the interpreter has looked for signals, and sleep."""
        print("sleeping", flush=True)
        _at_once(ctypes.CDLL(None).pause, functools.partial(time.sleep, 60))
        return "slept"

    def signalled_as_it_waits(self) -> None:
        """Have the worker get SIGTERM when it has looked for signals and waits for a call."""
        fill = _wire.FrameStream.fill

        def late(stream: _wire.FrameStream, flags: int = 0) -> None:
            if threading.current_thread() is threading.main_thread():
                _at_once(_terminate(), functools.partial(stream.sock.recv, 1, socket.MSG_PEEK))
            fill(stream, flags)

        setattr(_wire.FrameStream, "fill", late)  # noqa: B010

    def note(self, what: Any) -> list[Any]:
        self.log.append(what)
        return self.log

    def which_call(self) -> int:
        return current_call()

    def relayout(self, in_place: bool) -> None:
        if in_place:
            self.rank_info.dp_rank = 5
        else:
            self.rank_info = RankInfo(world_size=2, tp_size=2, rank=0)

    def bad_layout(self) -> None:
        self.rank_info = None if False else object()  # type: ignore[assignment]

    def speak(self) -> None:
        print("out \ud800 line")
        print("err line", file=sys.stderr)

    def fork_and_return(self) -> int:
        return os.fork()

    def fork_and_look(self) -> int:
        """In a child: are the runtime's sockets gone, and its signals?"""
        import signal

        pid = os.fork()
        if pid == 0:
            sockets = [
                fd
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}") is False
                and _link(fd).startswith("socket:")
            ]
            plain = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and current_call() == 0
            os._exit(len(sockets) * 10 + (0 if plain else 1))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def fork_twice(self) -> int:
        """In a child's child: are descriptors open that the child has opened?"""
        pid = os.fork()
        if pid == 0:
            opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
            pid = os.fork()
            if pid == 0:
                closed = sum(not os.path.exists(f"/proc/self/fd/{fd}") for fd in opened)
                os._exit(closed)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def orphan(self) -> int:
        """Start a grandchild whose parent ends; its new parent should be this worker."""
        read, write = os.pipe()
        if os.fork() == 0:
            pid = os.fork()
            if pid == 0:
                os.close(write)
                time.sleep(0.01)
                while os.getppid() != int(os.environ["WANT_PARENT"]):
                    time.sleep(0.001)
                os._exit(7)
            os.write(write, b"%d" % pid)
            os._exit(0)
        os.close(write)
        pid = int(os.read(read, 32))
        os.close(read)
        os.wait()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def set_env(self, name: str, value: str) -> None:
        os.environ[name] = value

    @staticmethod
    def static(x: int) -> int:
        return x * 2

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    @property
    def not_a_method(self) -> int:
        raise AssertionError("properties are not read")

    def _private(self) -> None: ...


def _terminate() -> Callable[[], Any]:
    return functools.partial(ctypes.CDLL(None).kill, os.getpid(), signal.SIGTERM)


def _at_once(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Call both, C code, with no step of the interpreter between them; what the second gives."""
    both = [functools.partial(first), functools.partial(second)]
    return list(map(functools.partial.__call__, both))[1]


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


class Async(Worker):
    """A class with coroutines."""

    def __init__(self, worker_config: Any) -> None:
        self.loop = asyncio.get_event_loop_policy().get_event_loop()
        self.order: list[Any] = []
        self.gate: asyncio.Event = asyncio.Event()

    async def wait(self) -> int:
        self.order.append("wait")
        await self.gate.wait()
        return current_call()

    def open(self) -> list[Any]:
        self.order.append("open")
        self.gate.set()
        assert self.loop.is_running()
        return self.order

    async def forever(self) -> None:
        try:
            print("forever", flush=True)
            await asyncio.sleep(3600)
        finally:
            print("cleaned up", flush=True)

    async def forever_and_a_bit(self) -> None:
        try:
            print("forever", flush=True)
            await asyncio.sleep(3600)
        finally:
            for _ in range(10):
                await asyncio.sleep(0.01)
            print("cleaned up", flush=True)

    async def signalled_as_it_waits(self) -> None:
        """Have the loop get SIGTERM when it has looked for signals and goes to sleep."""
        loop: Any = asyncio.get_running_loop()
        poll = loop._selector._selector.poll

        class Late:
            def __getattr__(self, name: str) -> Any:
                return getattr(poll.__self__, name)

            def poll(self, *timeout: Any) -> Any:
                return _at_once(_terminate(), functools.partial(poll, *timeout))

        loop._selector._selector = Late()

    async def cancels_itself(self) -> None:
        raise asyncio.CancelledError

    async def leave(self, code: int) -> None:
        await asyncio.sleep(0)
        sys.exit(code)

    async def fail(self) -> None:
        raise CustomError("in a loop")

    async def fail_with(self, x: Any) -> None:
        gc.disable()
        self.seen = weakref.ref(x)
        raise CustomError("in a loop")

    def fail_inline_with(self, x: Any) -> None:
        gc.disable()
        self.seen = weakref.ref(x)
        raise CustomError("in a loop")

    def forgotten(self) -> bool:
        return self.seen() is None

    async def big(self, n: int) -> Any:
        return np.zeros(n, dtype=np.uint8)

    async def echo(self, x: Any) -> Any:
        return x

    def hands_out(self, x: int) -> Any:
        return self.echo(x)

    def block(self) -> None:
        print("blocking", flush=True)
        while True:
            time.sleep(0.05)


class Threaded(Worker):
    """For max_concurrency > 1."""

    def __init__(self, worker_config: Any) -> None:
        self.barrier = threading.Barrier(3)

    def meet(self) -> int:
        self.barrier.wait(20)
        return current_call()

    def spin(self) -> None:
        print("spinning", flush=True)
        while True:
            time.sleep(0.01)

    def break_starts(self) -> None:
        """Threads start as they do where SIGTERM comes while they take their locks."""

        def start(_thread: threading.Thread) -> None:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Event().wait(20)
            except SystemExit:
                raise RuntimeError("release unlocked lock") from None

        threading.Thread.start = start  # type: ignore[assignment, method-assign]

    def until(self, path: str) -> str:
        print("waiting", flush=True)
        while not os.path.exists(path):
            time.sleep(0.005)
        return "there"

    def quick(self, x: int) -> int:
        return x

    def leave(self, code: int) -> None:
        sys.exit(code)


class NoBase:
    def __init__(self) -> None:
        self.x = 3

    def get(self) -> int:
        return self.x


class NoBaseWithConfig:
    def __init__(self, config: Any) -> None:
        self.config = config

    def get(self) -> Any:
        return self.config


class Broken:
    def __init__(self, config: Any) -> None:
        raise CustomError(f"cannot start with {config}")


class Exits:
    def __init__(self) -> None:
        sys.exit(23)


class Relaid(Worker):
    def __init__(self, config: Any) -> None:
        self.rank_info = RankInfo(world_size=2, tp_size=2, rank=1, tp_rank=1)


class TakesTimeout(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def run(self, timeout: float) -> None: ...


class Outer:
    class Inner:
        def get(self) -> str:
            return "inner"


not_a_class = 3
