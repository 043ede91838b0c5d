"""What a script defines under ``if __name__ == "__main__":``, where nobody who imports it gets it."""

from __future__ import annotations

import ast
import functools
from typing import TypeGuard


@functools.lru_cache(maxsize=4)
def guarded(path: str) -> frozenset[str]:
    """The names that the script at a path defines there, or assigns: a class may be made by a call,
    as of namedtuple. One that it defines elsewhere and assigns there is what it was."""
    body = _body(path)
    defined, assigned = _names([line for top in body if is_guard(top) for line in top.body])
    elsewhere, _ = _names([top for top in body if not is_guard(top)])
    return frozenset(defined | (assigned - elsewhere))


def _names(lines: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """What lines define, and what they assign, by name."""
    defined: set[str] = set()
    assigned: set[str] = set()
    while lines:
        line = lines.pop()
        if isinstance(line, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(line.name)
        elif isinstance(line, (ast.Assign, ast.AnnAssign)):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            inside = [one for target in targets for one in ast.walk(target)]
            assigned |= {
                one.id
                for one in inside
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
        else:  # what is inside of if, with, try, match and loops
            nodes = ast.iter_child_nodes(line)
            lines += [one for one in nodes if not isinstance(one, ast.expr)]  # type: ignore[misc]
    return defined, assigned


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
