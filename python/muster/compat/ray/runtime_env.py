"""`RuntimeEnv`: what surrounds actors and tasks."""

from __future__ import annotations

from typing import Any


class RuntimeEnv(dict[str, Any]):
    """A dict of ``env_vars``, ``working_dir``, ``py_modules``."""

    def __init__(self, **fields: Any) -> None:
        super().__init__({key: value for key, value in fields.items() if value is not None})
