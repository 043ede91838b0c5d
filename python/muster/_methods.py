"""A worker class's methods as a caller sees them: what fits, before it is sent.

Pure: descriptions and arguments in, an error or nothing out. The head checks
again and is the authority; what is found here is found without a round trip.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from . import _errors, _values
from ._refs import Ref
from ._register import RESERVED_NAMES, RESERVED_PARAMS

_POSITIONAL_ONLY, _EITHER, _REST, _KEYWORD_ONLY, _KEYWORDS = range(5)  # as inspect has them
_BY_RANK = frozenset(("ALL_TO_ALL", "CUSTOM"))
_BY_ROWS = frozenset(
    (
        "DP_MP_COMPUTE",
        "DP_MP_DISPATCH_FIRST",
        "DP_MP_COMPUTE_COLLECT_ALL",
        "DP_MP_DISPATCH_FIRST_COLLECT_ALL",
    )
)


class Method:
    """One public method, from the class's Description."""

    __slots__ = (
        "_at_least",
        "_at_most",
        "_by_keyword",
        "_keywords",
        "_params",
        "_positional",
        "_required",
        "custom",
        "cut",
        "name",
        "registered",
        "spreads",
        "where",
    )

    def __init__(self, message: Mapping[str, Any], class_name: str) -> None:
        self.name: str = message["name"]
        self.where = f"{class_name.rpartition('.')[2]}.{self.name}"
        self.registered: bool = message["registered"]
        self.custom: bytes = message["custom"] if message["dispatch"] == "CUSTOM" else b""
        # RANK_ZERO runs on one rank: what it gets is for the head to say.
        cuts = message["execute"] != "RANK_ZERO"
        self.cut: str = message["dispatch"] if cuts else ""
        self.spreads = self.cut in _BY_RANK or self.cut in _BY_ROWS
        self._params: Sequence[Mapping[str, Any]] = message["params"]
        positional = [p for p in self._params if p["kind"] in (_POSITIONAL_ONLY, _EITHER)]
        kinds = {p["kind"] for p in self._params}
        self._positional = [p["name"] for p in positional]
        self._at_least = sum(not p["default"] for p in positional)
        self._at_most = sys.maxsize if _REST in kinds else len(positional)
        self._keywords = _KEYWORDS in kinds
        named = [p for p in self._params if p["kind"] in (_EITHER, _KEYWORD_ONLY)]
        self._by_keyword = frozenset(p["name"] for p in named)
        only = [p for p in self._params if p["kind"] == _KEYWORD_ONLY and not p["default"]]
        self._required = frozenset(p["name"] for p in only)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the method does not take."""
        if kwargs or self._required:
            fits = self._fits(args, kwargs)
        else:
            fits = self._at_least <= len(args) <= self._at_most
        if not fits:
            raise self._misfit(args, kwargs)

    def check_timeout(self, args: Sequence[Any]) -> None:
        """Refuse a call's ``timeout`` where it may be meant for the method."""
        if "timeout" in self._by_keyword and "timeout" not in self._positional[: len(args)]:
            raise _errors.ArgumentTypeError(
                f"{self.where}() has a parameter timeout of its own, and timeout= is how long the "
                "call may take: give the parameter by position, or rename it; muster.get(ref, "
                "timeout=...) says how long the call may take, too",
                code="type",
                method=self.name,
            )

    def _fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        given = len(args)
        if given > self._at_most:
            return False
        if not self._keywords and not self._by_keyword.issuperset(kwargs):
            return False
        taken = self._positional[:given]
        if any(name in kwargs and name in self._by_keyword for name in taken):
            return False
        missing = self._positional[given : self._at_least]
        return all(name in kwargs and name in self._by_keyword for name in missing) and (
            self._required.issubset(kwargs)
        )

    def _misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception:
        """Word it as Python does for a function of that signature."""
        import inspect

        signature = inspect.Signature(
            [
                inspect.Parameter(
                    p["name"],
                    inspect._ParameterKind(p["kind"]),
                    default=None if p["default"] else inspect.Parameter.empty,
                )
                for p in self._params
            ]
        )
        shown = str(signature).replace("=None", "=...")
        try:
            signature.bind(*args, **kwargs)
            why = "the arguments do not fit"
        except TypeError as error:
            why = str(error)
        return _errors.ArgumentTypeError(
            f"{self.where}() cannot be called so: {why}. Its signature is {self.name}{shown}",
            code="type",
            method=self.name,
        )

    def check_cut(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        world: int,
        own_rows: bool = False,
    ) -> None:
        """Refuse arguments that the method's mode cannot spread over ``world`` ranks."""
        if self.cut in _BY_RANK:
            for label, arg in _spread(args, kwargs):
                self._check_cuttable(label, arg)
                if len(arg) != world:
                    raise _errors.InvalidArgumentError(
                        f"{self.where}: {label} has length {len(arg)}, but {self.cut} gives one "
                        f"element to each of {world} ranks: pass {world} elements, or "
                        "Broadcast(x) to give every rank all of it",
                        method=self.name,
                    )
        elif self.cut in _BY_ROWS:
            if len(args) == 1 and not kwargs and _is_batch(args[0]):
                return  # there is nothing that it has to be as long as
            first: tuple[str, int] | None = None
            for label, arg in _spread(args, kwargs):
                if hasattr(type(arg), "__muster_batch__"):
                    continue  # its rows are counted when it is sent
                if not _is_batch(arg):
                    self._check_cuttable(label, arg)
                elif not arg.columns:
                    continue  # nothing to cut: it goes to every rank
                first = first or (label, len(arg))
                if len(arg) != first[1] and not own_rows:
                    raise _errors.InvalidArgumentError(
                        f"{self.where}: {first[0]} has length {first[1]} and {label} has length "
                        f"{len(arg)}: {self.cut} cuts all arguments by the same rows; pass equal "
                        "lengths, or Broadcast(x) to give every rank all of one",
                        method=self.name,
                    )

    def _check_cuttable(self, label: str, arg: Any) -> None:
        if type(arg) is not list and type(arg) is not tuple:
            those = "a list, a tuple or a Batch" if self.cut in _BY_ROWS else "a list or a tuple"
            raise _errors.ArgumentTypeError(
                f"{self.where}: {label} is of type {type(arg).__name__}, which {self.cut} cannot "
                f"cut: pass {those}, or Broadcast(x) to give every rank all of it",
                method=self.name,
            )


def _is_batch(arg: Any) -> bool:
    module = sys.modules.get("muster._batch")  # there is none before it is loaded
    return module is not None and isinstance(arg, module.Batch)


def _spread(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments that the mode cuts, with their names; marks and futures say themselves."""
    for index, arg in enumerate(args):
        if not isinstance(arg, (_values.PerRank, _values.Broadcast, Ref)):
            yield f"argument {index}", arg
    for name, arg in kwargs.items():
        if not isinstance(arg, (_values.PerRank, _values.Broadcast, Ref)):
            yield f"argument {name!r}", arg


def check_per_rank(where: str, args: Sequence[Any], kwargs: Mapping[str, Any], world: int) -> None:
    """Refuse a PerRank that does not have one element for each rank, called or not."""
    for label, arg in ((f"argument {i}", a) for i, a in enumerate((*args, *kwargs.values()))):
        if isinstance(arg, _values.PerRank) and len(arg.values) != world:
            raise _errors.InvalidArgumentError(
                f"{where}: {label} is PerRank of length {len(arg.values)}, but the world size is "
                f"{world}: it needs one element for each rank"
            )


#: Told to the method of an engine beside its arguments: the call has a timeout, and the worker,
#: which alone knows the method, sees to it that none of its own was meant.
TIMED = "muster/timeout"


def engine_method(name: str) -> Method:
    """``engine/method`` as a method: what it takes is known where the engine is."""
    anything = [
        {"name": "args", "kind": _REST, "default": False},
        {"name": "kwargs", "kind": _KEYWORDS, "default": False},
    ]
    method = Method({"name": name, "params": anything, **_UNREGISTERED}, "")
    method.where = ".".join(name.rsplit("/", 1))
    return method


@lru_cache(maxsize=1024)
def method_of(cls: type, name: str) -> Method:
    """A method of a class that is here, as a caller of its objects elsewhere sees it."""
    from ._runtime.describe import params_of

    message = {"name": name, "params": params_of(cls, name), **_UNREGISTERED}
    return Method(message, cls.__name__)


_UNREGISTERED = {"registered": False, "dispatch": "", "execute": "", "custom": b""}


def unknown_method(class_name: str, name: str, known: Iterable[str]) -> _errors.MethodNotFoundError:
    """The error for a method that the class does not have, with the nearest that it has."""
    import difflib

    candidates = sorted(known)
    near = difflib.get_close_matches(name, candidates, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(candidates)}"
    return _errors.MethodNotFoundError(
        f"{class_name} has no public method {name!r}{hint}", method=name
    )


def check_class(cls: type) -> None:
    """Refuse a class whose registered methods take what belongs to the SDK."""
    for name in dir(cls):
        attribute = getattr(cls, name, None)
        if name.startswith("_") or not hasattr(attribute, "__muster__"):
            continue
        if name in RESERVED_NAMES:
            raise _errors.InvalidArgumentError(
                f"{cls.__qualname__}.{name} is registered, but {name!r} is an attribute of every "
                "Cluster: rename the method"
            )
        code = getattr(getattr(attribute, "__wrapped__", attribute), "__code__", None)
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
        for parameter in RESERVED_PARAMS:
            if parameter in taken:
                raise _errors.InvalidArgumentError(
                    f"{cls.__qualname__}.{name} is registered and has a parameter {parameter!r}, "
                    "which a cluster's methods take for themselves: rename the parameter"
                )
