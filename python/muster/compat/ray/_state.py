"""Who this process is, what its job is, and how actors are named.

What all workers of a job have to know travels in the environment, which workers inherit
also where somebody else makes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from typing import Any

from .._quoting import quoted, unquoted

NAMESPACE = "MUSTER_COMPAT_NAMESPACE"  # MUSTER_RAY_NAMESPACE is where the backend is in Ray
RUNTIME_ENV = "MUSTER_RAY_RUNTIME_ENV"
ABOUT = "MUSTER_RAY_ACTOR"  # an actor's class and its methods, for those who find it by its name
#: Of scripts that do not name one: sessions are apart anyway.
_DEFAULT_NAMESPACE = "default"
_PREFIX = "ray."


class Me:
    """The actor that this process is; empty in scripts, and in workers that are no actor's."""

    ident = ""
    name = ""
    is_worker = False  # of a cluster


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


# --- names of actors as names of services --------------------------------------------------
# A service's name has letters, digits, "_", "-" and "."; a dot is what begins an escape, so
# two dots part namespace and name.


def service_name(namespace: str, name: str) -> str:
    """The service that an actor of that name is."""
    return f"{_PREFIX}{quoted(namespace)}..{quoted(name)}"


def actor_name(service: str) -> tuple[str, str] | None:
    """Namespace and name of the actor that a service is; None for all other services."""
    namespace, dots, name = service.removeprefix(_PREFIX).partition("..")
    if not dots or not service.startswith(_PREFIX):
        return None
    return unquoted(namespace), unquoted(name)


def nameless(what: str) -> str:
    """A name that nobody has, for an actor without one."""
    return f"{re.sub('[^A-Za-z0-9_-]', '_', what)[:60]}.{uuid.uuid4().hex[:12]}"
