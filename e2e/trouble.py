"""Worker classes in which something goes wrong: raising, dying, hanging, not starting."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import things
from muster import Dispatch, Worker, register


class Trouble(Worker):
    """Everything that can go wrong inside a method."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.calls = 0

    @register(Dispatch.ONE_TO_ALL)
    def fail(self, error: BaseException, rank: int | None = None) -> int:
        if rank is None or rank == self.rank:
            raise error
        return self.rank

    def fail_with(self, name: str, *args: Any, **kwargs: Any) -> None:
        cls = getattr(things, name, None) or getattr(builtins, name)
        raise cls(*args, **kwargs)

    def count_or_fail(self, rank: int) -> int:
        if self.rank == rank:
            raise things.Mine("not me")
        return self.count()

    def unwelcome(self) -> Any:
        return things.Unwelcome()

    def chained(self) -> None:
        try:
            dict[str, int]()["inner"]
        except KeyError as inner:
            raise RuntimeError("outer") from inner

    def die(self, how: str, rank: int = 0) -> int:
        if self.rank == rank:
            print(f"{how} is coming", flush=True)
            if how == "exit":
                os._exit(17)
            if how == "sys.exit":
                sys.exit(23)
            os.kill(os.getpid(), getattr(signal, how))
            time.sleep(60)
        return self.rank

    def pid(self) -> int:
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL)
    def stuck_in_here(self, rank: int = 0) -> int:
        if self.rank == rank:
            threading.Event().wait(60)
        return self.rank

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def lock(self) -> Any:
        return {"deep": [threading.Lock()]}

    def take(self, value: Any) -> Any:
        self.calls += 1
        return value

    def use_memory(self, limit: int, size: int) -> int:
        import resource

        old = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as f:
            used = int(f.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + limit, old[1]))
        try:
            return len(bytearray(size))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, old)


class Picky(Worker):
    """Cannot always be made."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        what = worker_config.strategy_args or {}
        if what.get("raise") == self.rank:
            raise ValueError(f"rank {self.rank} found no checkpoint")
        if what.get("exit") == self.rank:
            print("about to leave", flush=True)
            os._exit(17)
        if what.get("kill") == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if what.get("hang") == self.rank:
            self.wait_for_checkpoint()

    def wait_for_checkpoint(self) -> None:
        threading.Event().wait(60)


class Leaver(Worker):
    """Starts processes and does not look after them."""

    def leave_children(self) -> list[int]:
        plain = subprocess.Popen(["sleep", "1000"])
        own = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return [plain.pid, own.pid]


class Vandal(Worker):
    """Writes into whatever sockets its process has."""

    def scribble(self, do: bool) -> int:
        if do:
            for fd in range(3, 64):
                try:
                    if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                        os.write(fd, b"\xff" * 256)
                except OSError:
                    continue
        return self.rank
