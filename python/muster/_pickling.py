"""Pickle and its fall-backs: what the value codec and the errors share.

Plain pickle first (it is fast and refers to classes by name), cloudpickle for
what has no importable name: lambdas, local classes, a ``__main__`` that workers
cannot import, or what it defines for itself alone. This module never decides *whether* a value may be pickled.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import re
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _arrays

MAINS = ("__main__", "__muster_main__")
_INLINE = 1024  # buffers below this cost less inside the pickle than beside it
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code (or a newer C module) made


class _Main:
    """Whether workers can import the controller's ``__main__`` by path or name."""

    importable = True
    alone = False  # to import it would be to run it


def set_main_importable(importable: bool) -> None:
    """Say whether workers can import ``__main__``; if not, its classes and functions travel by
    value."""
    _Main.importable = importable


def main_importable() -> bool:
    """Whether workers can import ``__main__``."""
    return _Main.importable and not _Main.alone


def main_alone() -> bool:
    """Whether nobody is to import ``__main__``."""
    return _Main.alone


def leave_main_alone() -> None:
    """Have all of a ``__main__`` without a guard travel by value, as workers that imported it
    would run what it runs."""
    from . import _guards

    _Main.alone = not _guards.has_guard(_main_file())


def by_value(obj: Any) -> bool:
    """Whether obj, a class or function, is one of ``__main__`` that workers do not find there:
    they cannot import it, or it is defined where ``__name__`` has to be ``"__main__"``."""
    if obj.__module__ not in MAINS:
        return False
    return not main_importable() or obj.__qualname__.partition(".")[0] in _guarded()


def _guarded() -> frozenset[str]:
    from . import _guards  # which most never need

    return _guards.guarded(_main_file())


def _main_file() -> str:
    return getattr(sys.modules.get("__main__"), "__file__", None) or ""


def _names_what_is_not_there(data: bytes) -> bool:
    """Whether a pickle may name something of ``__main__`` that has to go by value."""
    if b"__main__" not in data:
        return False
    return not main_importable() or _naming(_guarded()).search(data) is not None


@functools.lru_cache(maxsize=4)
def _naming(names: frozenset[str]) -> re.Pattern[bytes]:
    """What finds a text in a pickle that is one of some names, or begins with one and a dot."""
    encoded = [name.encode() for name in sorted(names)]
    whole = [re.escape(bytes([len(name)]) + name) for name in encoded if len(name) < 256]
    first = [re.escape(name) for name in encoded]
    if not names:
        return re.compile(rb"(?!)")
    return re.compile(
        rb"\x8c(?:%s|.(?:%s)\.)" % (b"|".join(whole), b"|".join(first)),  # SHORT_BINUNICODE
        re.DOTALL,
    )


def dumps(obj: object, room: int = 0) -> tuple[bytes, list[Any]]:
    """Pickle obj, with up to ``room`` of its large buffers out of band.

    Raises whatever pickling raised; nothing is left half done.
    """
    buffers: list[Any] = []
    callback = _collector(buffers, room) if room > 0 else None
    try:
        data = _dumps(obj, callback)
    except Exception:
        # Said by cloudpickle again, and better, where it cannot do it either.
        buffers.clear()
        return _cloud_pickler().dump_all(obj, callback), buffers
    if _names_what_is_not_there(data):
        buffers.clear()
        return _cloud_pickler().dump_all(obj, callback), buffers
    return data, buffers


def _dumps(obj: object, callback: Callable[[Any], bool] | None) -> bytes:
    tensor = _tensor_class()
    if tensor is None:
        return pickle.dumps(obj, 5, buffer_callback=callback)
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5, buffer_callback=callback)
    pickler.dispatch_table = {**copyreg.dispatch_table, tensor: _reduce_tensor}
    pickler.dump(obj)
    return file.getvalue()


def dumps_exception(exc: BaseException) -> bytes:
    """Pickle an exception so that it can be rebuilt without running its ``__init__``."""
    try:
        data: bytes = _exception_pickler().dump_all(exc, None)
    except Exception:
        data = b""
    if not data or _names_what_is_not_there(data):
        data = _cloud_pickler().dump_all(exc, None)
    return data


def loads(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """Unpickle; raises whatever that raises."""
    return pickle.loads(data, buffers=buffers)


def _collector(buffers: list[Any], room: int) -> Callable[[Any], bool]:
    def collect(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _INLINE or len(buffers) >= room:
            return True  # in band
        buffers.append(raw)
        return False

    return collect


def named(obj: Any) -> bool:
    """Whether obj, a class or function, is what its module and qualified name lead to."""
    found: Any = sys.modules.get(obj.__module__)
    try:
        for name in obj.__qualname__.split("."):
            found = getattr(found, name)
    except AttributeError:
        return False
    return found is obj


# --- picklers ----------------------------------------------------------------


def _dump_all(cls: Any, obj: object, callback: Callable[[Any], bool] | None) -> bytes:
    file = io.BytesIO()
    cls(file, protocol=5, buffer_callback=callback).dump(obj)
    return file.getvalue()


@functools.cache
def _exception_pickler() -> Any:
    class ExceptionPickler(pickle.Pickler):
        dump_all = classmethod(_dump_all)

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, BaseException):
                return reduce_exception(obj)
            return NotImplemented

    return ExceptionPickler


@functools.cache
def _cloud_pickler() -> Any:
    import cloudpickle  # a tenth of a second, so only where it is needed

    class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
        dump_all = classmethod(_dump_all)

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, BaseException):
                return reduce_exception(obj)
            if isinstance(obj, memoryview):
                return _reduce_view(obj)
            if type(obj) is _tensor_class():
                return _reduce_tensor(obj)
            if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
                # cloudpickle would send what is in the file, as something else.
                raise TypeError("cannot pickle an open file")
            if (
                isinstance(obj, (type, types.FunctionType))
                and obj.__module__ in MAINS
                and not by_value(obj)
                and named(obj)
            ):
                # A copy by value would be another class than the one that
                # workers import from the same script.
                return NotImplemented
            return super().reducer_override(obj)

    return CloudPickler


def _reduce_view(view: memoryview) -> tuple[Any, ...]:
    if view.c_contiguous:
        held: Any = pickle.PickleBuffer(view)  # out of band where it is large
    else:
        data = view.tobytes()
        held = data if view.readonly else bytearray(data)
    return _restore_view, (held, view.format, view.shape)


def _restore_view(data: Any, format: str, shape: Sequence[int]) -> memoryview:
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if format == "B" and len(shape) == 1:
        return view
    if 0 in shape:
        return view.cast(format)  # type: ignore[call-overload, no-any-return]
    return view.cast(format, list(shape))  # type: ignore[call-overload, no-any-return]


def _tensor_class() -> Any:
    """torch's, where it is loaded."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


def _reduce_tensor(tensor: Any) -> Any:
    """A plain tensor as its bytes, out of band where it is large: torch's own way is to write
    a file with a copy of all of the storage that it is a part of."""
    parts = _arrays.tensor_parts(sys.modules["torch"], tensor)
    if parts is None:
        return tensor.__reduce_ex__(5)
    return _restore_tensor, (parts[0], pickle.PickleBuffer(parts[1]))


def _restore_tensor(meta: Any, data: Any) -> Any:
    return _arrays.tensor_from(meta, memoryview(data))


# --- exceptions ----------------------------------------------------------------


def take_apart(exc: BaseException) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The args, the members (C fields and slots) and the ``__dict__`` of an exception."""
    members: dict[str, Any] = {}
    for cls in type(exc).__mro__:
        for name, field in vars(cls).items():
            if name.startswith("__") or name in ("args", "obj") or name in members:
                continue
            if isinstance(field, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                try:
                    value = field.__get__(exc, type(exc))
                except Exception:
                    continue  # an empty slot
                if value is not None:  # what is not set reads as None, but is not the same
                    members[name] = value
    return exc.args, members, dict(getattr(exc, "__dict__", {}))


def put_together(
    cls: type[BaseException],
    args: tuple[Any, ...],
    members: dict[str, Any],
    state: dict[str, Any],
) -> BaseException:
    """An exception of class cls from its parts; neither its ``__new__`` nor ``__init__`` runs."""
    native: Any = cls
    while native.__flags__ & _HEAP_TYPE:
        native = native.__base__
    exc: BaseException = native.__new__(cls, *args)
    for name, value in (("args", args), *members.items()):
        try:
            object.__setattr__(exc, name, value)
        except (AttributeError, TypeError):
            continue  # computed, as the members of an ExceptionGroup
    if state:
        exc.__dict__.update(state)
    return exc


def reduce_exception(exc: BaseException) -> Any:
    """How to pickle exc: by parts, or its own way where its class has one."""
    cls = type(exc)
    for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__"):
        owner = next((c for c in cls.__mro__ if name in vars(c)), object)
        if owner.__flags__ & _HEAP_TYPE:
            return NotImplemented
    return put_together, (cls, *take_apart(exc))
