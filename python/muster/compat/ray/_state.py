"""Who this process is: an actor, a task's worker or the script; and what its job is.

What all workers of a job have to know travels in the environment, which workers inherit
also where somebody else makes them.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any

NAMESPACE = "MUSTER_COMPAT_NAMESPACE"  # MUSTER_RAY_NAMESPACE is where the backend is in Ray
INSTALLED = "MUSTER_RAY_INSTALLED"
RUNTIME_ENV = "MUSTER_RAY_RUNTIME_ENV"
ABOUT = "MUSTER_RAY_ACTOR"  # an actor's class and its methods, for those who find it by its name
#: Of scripts that do not name one: sessions are apart anyway.
_DEFAULT_NAMESPACE = "default"


@dataclass
class Actor:
    """An actor's identity; empty in scripts and in workers that are no actor's."""

    ident: str = ""
    name: str = ""
    namespace: str = ""
    resources: dict[str, float] = field(default_factory=dict)


class _Process:
    actor = Actor()


def enter(actor: Actor) -> None:
    """Be an actor's process, or a task's."""
    _Process.actor = actor


def actor() -> Actor:
    """The actor that this process is."""
    return _Process.actor


def namespace(given: str | None = None) -> str:
    """A namespace that was given, or the job's, where names are looked for by default."""
    if given is not None and not isinstance(given, str):
        raise TypeError(f"namespace is {given!r}; it is text")
    if given == "":
        raise ValueError('"" is not a namespace')
    return given or os.environ.get(NAMESPACE) or _DEFAULT_NAMESPACE


def runtime_env() -> dict[str, Any]:
    """What `init` was told for all actors and tasks, but for variables."""
    found: dict[str, Any] = json.loads(os.environ.get(RUNTIME_ENV) or "{}")
    return found


def identity(text: str, digits: int = 56) -> str:
    """A name as an id of the length that Ray's have."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
