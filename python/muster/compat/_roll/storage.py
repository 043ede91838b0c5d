"""The one actor that keeps small values for all workers, as ROLL's pipelines expect it."""

from __future__ import annotations

from typing import Any

from .. import ray

#: What ROLL calls it, and the namespace of all its actors.
NAME, NAMESPACE = "SHARED_STORAGE_ACTOR", "roll"


@ray.remote
class SharedStorage:
    """Values by key. Calls come one after another."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def put(self, key: Any, data: Any) -> None:
        """Keep a value."""
        self._values[key] = data

    def put_if_absent(self, key: Any, data: Any) -> bool:
        """Keep a value where there is none; whether it was kept."""
        if key in self._values:
            return False
        self._values[key] = data
        return True

    def get(self, key: Any) -> Any:
        """A value, or None."""
        return self._values.get(key)


def shared_storage() -> Any:
    """The session's one, made at its first use."""
    actor: Any = SharedStorage
    return actor.options(name=NAME, get_if_exists=True, namespace=NAMESPACE).remote()
