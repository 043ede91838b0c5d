"""What a script defines under ``if __name__ == "__main__":``, where nobody who imports it gets it."""

from __future__ import annotations

import ast
import functools
from typing import TypeGuard


@functools.lru_cache(maxsize=4)
def guarded(path: str) -> frozenset[str]:
    """The functions and classes that the script at a path defines there, by name."""
    found: set[str] = set()
    lines = [line for top in _body(path) if is_guard(top) for line in top.body]
    while lines:
        line = lines.pop()
        if isinstance(line, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(line.name)
        else:  # what is inside of if, with, try, match and loops
            inside = ast.iter_child_nodes(line)
            lines += [one for one in inside if not isinstance(one, ast.expr)]  # type: ignore[misc]
    return frozenset(found)


@functools.lru_cache(maxsize=4)
def has_guard(path: str) -> bool:
    """Whether there is one in the script at a path; as if there were where that cannot be read."""
    body = _body(path)
    return not body or any(map(is_guard, body))


def _body(path: str) -> list[ast.stmt]:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []


def is_guard(line: ast.stmt) -> TypeGuard[ast.If]:
    """Whether a line is ``if __name__ == "__main__":``, or that and something else."""
    if not isinstance(line, ast.If):
        return False
    test = line.test
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(ast.unparse(part) in _GUARDS for part in parts)


_GUARDS = ("__name__ == '__main__'", "'__main__' == __name__")
