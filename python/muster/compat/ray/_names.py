"""Names of actors as names of services, and back.

A service's name has letters, digits, ``_``, ``-`` and ``.``; a dot is what begins an escape,
so two dots part namespace and name.
"""

from __future__ import annotations

import re
import uuid

from .._quoting import quoted, unquoted

_PREFIX = "ray."


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
    """A name that nobody has, for an actor or a worker without one."""
    return f"{re.sub('[^A-Za-z0-9_-]', '_', what)[:60]}.{uuid.uuid4().hex[:12]}"
