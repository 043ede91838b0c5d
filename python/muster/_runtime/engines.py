"""Engines: further objects that a worker hosts beside its own, each under a name.

A call of one is a call of the worker whose method is ``engine/method``, so it has
its place in the one order, its deadline and its cancel as any other. What the
worker itself does for engines are the methods of the engine ``muster``.

How calls run is the runner's to say. Where that is no event loop, the coroutines
of engines have one of their own: on the thread of the calls where there is one,
else on a thread for all.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._methods import method_of
from . import classes
from .board import Refusal

if TYPE_CHECKING:
    import asyncio

#: The worker itself, as calls name it.
OWN = "muster"


class Engines:
    """The engines of this process."""

    def __init__(self) -> None:
        self._engines: dict[str, Any] = {}
        self._lock = threading.Lock()  # guards what is made, not what is called
        self._making: set[str] = set()
        self._own: dict[str, Callable[..., Any]] = {
            "create_engine": self.create,
            "destroy_engine": self.destroy,
            "engines": self.classes,
            "env": lambda: dict(os.environ),
            "set_env": set_env,
        }
        #: Whether a method may hand out its coroutine: the runner then awaits it.
        self.on_loop = False
        #: Whether calls run on several threads.
        self.threads = False
        #: Told what there is, when it changes.
        self.changed: Callable[[], None] = _nothing
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- what there is ---------------------------------------------------------

    def create(self, path: str | type, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Make an engine; raises what its constructor raises."""
        if not isinstance(name, str) or not name or name == OWN:
            raise Refusal(
                "invalid", f"{name!r} cannot be an engine's name: that is text, and not {OWN!r}"
            )
        with self._lock:
            if name in self._engines or name in self._making:
                raise Refusal(
                    "invalid",
                    f"there is an engine {name!r} already: destroy it first, or use another name",
                )
            self._making.add(name)
        try:
            made = classes.named(path)(*args, **kwargs)
            with self._lock:
                self._engines[name] = made
        finally:
            with self._lock:
                self._making.discard(name)
        self.changed()

    def destroy(self, name: str, /) -> Any:
        """End an engine: its ``destroy()`` or ``close()`` is run, if it has one."""
        engine = self.get(name)
        with self._lock:
            self._engines.pop(name, None)
        self.changed()
        ending = _ending(engine)
        return None if ending is None else self._call(ending)

    def get(self, name: str) -> Any:
        """An engine by its name."""
        try:
            return self._engines[name]
        except KeyError:
            raise Refusal("not_found", self._no_such(name)) from None

    def classes(self) -> dict[str, str]:
        """Name to class, in the order in which they were made."""
        return {name: class_path(type(engine)) for name, engine in list(self._engines.items())}

    def told(self) -> list[dict[str, str]]:
        """The same as the head is told it."""
        return [{"name": name, "class": path} for name, path in self.classes().items()]

    def _no_such(self, name: str) -> str:
        known = list(self._engines)
        near = difflib.get_close_matches(str(name), known, n=1)
        if near:
            return f"there is no engine {name!r}; did you mean {near[0]!r}?"
        return f"there is no engine {name!r}; " + (
            f"there are {', '.join(known)}" if known else "there are none in this worker"
        )

    # --- calls -----------------------------------------------------------------

    def method(self, path: str) -> Callable[..., Any] | None:
        """What a call of ``engine/method`` runs; None where that is no such path."""
        name, slash, method = path.rpartition("/")
        if not slash:
            return None
        if name == OWN:
            return self._own.get(method)
        return self.bound(name, method)

    def bound(self, name: str, method: str) -> Callable[..., Any]:
        """A public method of an engine, as the runner can call it."""
        engine = self.get(name)
        found = None if method.startswith("_") else getattr(engine, method, None)
        if not callable(found):
            public = [n for n in dir(type(engine)) if not n.startswith("_")]
            near = difflib.get_close_matches(method, public, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise Refusal(
                "not_found",
                f"the engine {name!r}, a {class_path(type(engine))}, has no public method "
                f"{method!r}{hint}",
            )
        return found if self.on_loop else functools.partial(self._call, found)

    def check_timeout(self, path: str, args: Sequence[Any]) -> None:
        """Refuse a call's ``timeout`` where it may be meant for the method."""
        name, _, method = path.rpartition("/")
        cls: Any = None if name == OWN else type(self.get(name))
        if cls is None or not hasattr(cls, method):
            return
        try:
            method_of(cls, method).check_timeout(args)
        except TypeError as error:
            raise Refusal("type", getattr(error, "message", str(error))) from None

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = method(*args, **kwargs)
        if not self.on_loop and inspect.isawaitable(value):
            return self._finish(value)
        return value

    def _finish(self, awaitable: Awaitable[Any]) -> Any:
        """Run a coroutine of an engine to its end."""
        import asyncio

        if self.threads or threading.current_thread() is not threading.main_thread():
            loop = self._loop_of_threads()
            return asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop).result()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(_awaited(awaitable))
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            task.cancel()  # where it was left by a cancel; else it is done
            raise

    def _loop_of_threads(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="muster-engines", daemon=True
                ).start()
            return self._loop

    # --- the end ---------------------------------------------------------------

    def end(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Run the ``destroy()`` of every engine, the last one first; on the main thread."""
        while self._engines:
            name, engine = self._engines.popitem()
            run_ending(_ending(engine), f"engine {name}", self, loop)


def run_ending(
    ending: Callable[[], Any] | None,
    what: str,
    engines: Engines,
    loop: asyncio.AbstractEventLoop | None,
) -> None:
    """Run what an object has for its end; what that raises is shown, and is no reason to stay."""
    if ending is None:
        return
    try:
        value = ending()
        if inspect.isawaitable(value):
            if loop is not None:
                loop.run_until_complete(_awaited(value))
            else:
                engines._finish(value)
    except (Exception, SystemExit):
        sys.stderr.write(f"the end of {what} failed: {traceback.format_exc()}")


def set_env(env: Mapping[str, str | None], /) -> None:
    """Change this process's environment; None takes a variable away."""
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | None):
            raise TypeError(f"env[{name!r}] is {value!r}; both sides must be text")
    for name, value in env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)


def class_path(cls: type) -> str:
    """A class as people know it."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("__muster_main__.")


def _ending(engine: Any) -> Callable[[], Any] | None:
    for name in ("destroy", "close"):
        found = getattr(engine, name, None)
        if callable(found):
            ending: Callable[[], Any] = found
            return ending
    return None


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _nothing() -> None:
    pass
