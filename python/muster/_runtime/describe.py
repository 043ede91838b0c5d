"""What a worker class offers, as the worker reports it when it is ready.

Reads classes, never objects, and calls nothing of the user's. Refuses classes
whose registered methods would shadow what the SDK keeps for itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any

from .. import _values
from .._register import RESERVED_PARAMS, Registration
from .board import Refusal


class Described:
    """A class's public methods: their description, and which are coroutines."""

    def __init__(self, cls: type, reserved: Collection[str]) -> None:
        self.cls = cls
        self.methods: list[dict[str, Any]] = []
        for name, attribute in _public(cls):
            self.methods.append(_method(cls, name, attribute, reserved))
        self.coroutines = frozenset(m["name"] for m in self.methods if m["async"])
        self.names = frozenset(m["name"] for m in self.methods)

    def message(self, serial: bool) -> dict[str, Any]:
        """Return the Description message."""
        return {
            "class": f"{self.cls.__module__}.{self.cls.__qualname__}",
            "methods": self.methods,
            "serial": serial,
            "doc": self.cls.__doc__ if isinstance(self.cls.__doc__, str) else "",
            "engines": True,
        }


def _public(cls: type) -> list[tuple[str, Any]]:
    """Return public methods by name, each as the class that wins defines it."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base is not object:
            found.update(base.__dict__)
    return sorted((n, a) for n, a in found.items() if not n.startswith("_") and _is_method(a))


def _is_method(attribute: Any) -> bool:
    if isinstance(attribute, property | type | functools.cached_property):
        return False
    if isinstance(attribute, staticmethod | classmethod | functools.partialmethod):
        return True
    # isroutine covers methods of compiled classes; a mark is the user's own word.
    return inspect.isroutine(attribute) or (
        callable(attribute) and hasattr(attribute, "__muster__")
    )


def params_of(cls: type, name: str) -> list[dict[str, Any]]:
    """The parameters of one method, as a description has them."""
    attribute = inspect.getattr_static(cls, name)
    return _params(_function(cls, attribute), bound=not isinstance(attribute, staticmethod))


def _method(cls: type, name: str, attribute: Any, reserved: Collection[str]) -> dict[str, Any]:
    function = _function(cls, attribute)
    params = _params(function, bound=not isinstance(attribute, staticmethod))
    mark = getattr(function, "__muster__", None) or getattr(attribute, "__muster__", None)
    registration = mark if isinstance(mark, Registration) else None
    if registration is not None:
        _check(cls, name, params, reserved)
    return {
        "name": name,
        "registered": registration is not None,
        "dispatch": registration.dispatch if registration else "",
        "execute": registration.execute if registration else "",
        "collective": registration.collective if registration else False,
        "idempotent": registration.idempotent if registration else False,
        "on_timeout": registration.on_timeout if registration else "",
        "async": inspect.iscoroutinefunction(function),
        "params": params,
        "custom": _custom(cls, name, registration) if registration else b"",
    }


def _function(cls: type, attribute: Any) -> Any:
    if isinstance(attribute, staticmethod | classmethod):
        return attribute.__func__
    if isinstance(attribute, functools.partialmethod):
        return attribute.__get__(None, cls)
    return attribute


def _check(cls: type, name: str, params: list[dict[str, Any]], reserved: Collection[str]) -> None:
    where = f"{cls.__qualname__}.{name}"
    for param in params:
        if param["name"] in RESERVED_PARAMS:
            raise Refusal(
                "invalid",
                f"{where} is registered and has a parameter {param['name']!r}, which a cluster's "
                "methods take for themselves: rename the parameter",
            )
    if name in reserved:
        raise Refusal(
            "invalid",
            f"{where} is registered, but {name!r} is an attribute of every Cluster: "
            "rename the method",
        )


def _custom(cls: type, name: str, registration: Registration) -> bytes:
    if registration.dispatch_fn is None or registration.collect_fn is None:
        return b""
    buffers: list[Any] = []
    try:
        body = _values.encode((registration.dispatch_fn, registration.collect_fn), buffers)
    except Exception as error:
        raise Refusal(
            "invalid",
            f"the dispatch_fn or collect_fn of {cls.__qualname__}.{name} cannot be sent to the "
            f"controller: {error}",
        ) from error
    return bytes(body)


_VARARGS = inspect.CO_VARARGS
_VARKEYWORDS = inspect.CO_VARKEYWORDS


def _params(function: Callable[..., Any], bound: bool) -> list[dict[str, Any]]:
    """Return a function's parameters, without self.

    Plain functions are read from their code object: that is some 20 times as
    fast as `inspect.signature`, for every method in every worker.
    """
    if type(function) is not FunctionType or function.__dict__:
        extra = getattr(function, "__dict__", {})
        if type(function) is not FunctionType or "__wrapped__" in extra or "__signature__" in extra:
            return _params_by_signature(function, bound)
    code = function.__code__
    names = code.co_varnames
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    first_default = positional - len(function.__defaults__ or ())
    params = [
        _param(names[i], 0 if i < code.co_posonlyargcount else 1, i >= first_default)
        for i in range(positional)
    ]
    after = positional + keyword
    if code.co_flags & _VARARGS:
        params.append(_param(names[after], 2, False))
        after += 1
    with_default = function.__kwdefaults__ or {}
    params += [_param(n, 3, n in with_default) for n in names[positional : positional + keyword]]
    if code.co_flags & _VARKEYWORDS:
        params.append(_param(names[after], 4, False))
    # def f(*args) takes self as one of args, which then stays.
    return params[1:] if bound and positional else params


def _params_by_signature(function: Callable[..., Any], bound: bool) -> list[dict[str, Any]]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled code may not tell: let anything through
        return [_param("args", 2, False), _param("kwargs", 4, False)]
    params = list(signature.parameters.values())
    if bound and params and params[0].kind <= 1:
        params = params[1:]
    return [_param(p.name, int(p.kind), p.default is not p.empty) for p in params]


def _param(name: str, kind: int, default: bool) -> dict[str, Any]:
    return {"name": name, "kind": kind, "default": default}
