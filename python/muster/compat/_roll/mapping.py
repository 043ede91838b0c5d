"""device_mapping as ROLL writes it: Python that names a list, or what Muster's parser reads.

ROLL evaluates the text. Here the expressions that name lists are read, and nothing is run;
all else goes to the parser that the head has, too.
"""

from __future__ import annotations

import ast
import operator
import subprocess
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..._embedded import find_binary

#: More entries than this are a slip of the pen, as the head has it.
_MOST = 1 << 20


def parse_mapping(mapping: Any) -> list[int]:
    """The ids that a device_mapping names.

    As text: ``list(range(0, 8))``, ``[0, 1] + [4, 5]``, ``list(range(16 // 2))``, and what
    else is a list in Python; ``0-7,16-23``, ``[0-3]``, ``0-3+8-11`` as in `muster.WorkerConfig`.
    """
    if not isinstance(mapping, str):
        return _ids(mapping, mapping)
    listed, plain = _as_python(mapping)
    if listed is not None and plain:
        return listed
    try:
        return list(_natively(mapping))
    except ValueError:
        if listed is None:
            raise
        return listed


@lru_cache(maxsize=256)
def _natively(text: str) -> tuple[int, ...]:
    """What Muster's own parser has of it."""
    done = subprocess.run(
        [find_binary(), "mapping", "--", text], capture_output=True, text=True, check=False
    )
    if done.returncode:
        told = done.stderr.strip().removeprefix("muster: ").removeprefix("device_mapping: ")
        raise ValueError(f"device_mapping={text!r} names no list of ids: {told}")
    return tuple(map(int, done.stdout.split()))


def _as_python(text: str) -> tuple[list[int] | None, bool]:
    """The list that ROLL would have of it, or None; and whether nothing in it may be a span."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        found = _value(node)
        listed = _ids(found, text) if isinstance(found, list) else None
    except (SyntaxError, ValueError, TypeError, ArithmeticError):
        return None, False
    return listed, not _has_minus(node)


def _has_minus(node: ast.AST) -> bool:
    """Whether there is a minus that stands between two numbers of a list."""
    match node:
        case ast.Call(func=ast.Name(id="range")):
            return False
        case ast.BinOp(op=ast.Sub()):
            return True
    return any(map(_has_minus, ast.iter_child_nodes(node)))


_SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _value(node: ast.expr) -> Any:
    """What an expression of ints, lists and ranges stands for."""
    match node:
        case ast.Constant(value=number) if type(number) is int:
            return number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.UnaryOp(op=ast.USub(), operand=one):
            return -_value(one)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SUMS:
            return _limited(_SUMS[type(op)], _value(left), _value(right))
        case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]):
            return list(_no_more(range(*map(_value, args))))
        case ast.Call(func=ast.Name(id="list"), args=[one], keywords=[]):
            return list(_value(one))
    raise ValueError(f"{ast.unparse(node)!r} is not understood")


def _limited(act: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if act is operator.mul:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, list):
                _no_more(range(len(one) * other))
    return act(left, right)


def _no_more(entries: range) -> range:
    if len(entries) > _MOST:
        raise ValueError(f"a mapping has at most {_MOST} entries")
    return entries


def _ids(value: Any, mapping: Any) -> list[int]:
    several = list(value) if hasattr(value, "__iter__") else [value]
    for at in several:
        if isinstance(at, (bool, str)) or not hasattr(at, "__index__") or at < 0:
            raise ValueError(f"device_mapping={mapping!r}: {at!r} is no id, a whole number from 0")
    return [int(at) for at in several]
