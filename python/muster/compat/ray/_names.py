"""Names of actors as names of services, and back.

A service's name has letters, digits, ``_``, ``-`` and ``.``; a dot is what begins an escape,
so two dots part namespace and name.
"""

from __future__ import annotations

import re
import uuid

_PREFIX = "ray."
_NAMED = re.compile(r"ray\.(.*?)\.\.(.*)", re.DOTALL)
_STRANGE = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED = re.compile(rb"\.([0-9a-f]{2})")


def service_name(namespace: str, name: str) -> str:
    """The service that an actor of that name is."""
    return f"{_PREFIX}{_quoted(namespace)}..{_quoted(name)}"


def actor_name(service: str) -> tuple[str, str] | None:
    """Namespace and name of the actor that a service is; None for all other services."""
    found = _NAMED.fullmatch(service)
    return None if found is None else (_plain(found[1]), _plain(found[2]))


def nameless(what: str) -> str:
    """A name that nobody has, for an actor or a worker without one."""
    return f"{re.sub('[^A-Za-z0-9_-]', '_', what)[:60]}.{uuid.uuid4().hex[:12]}"


def _quoted(text: str) -> str:
    return _STRANGE.sub(lambda at: b".%02x" % at[0][0], text.encode()).decode()


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda at: bytes([int(at[1], 16)]), text.encode()).decode()
