"""Names that others give, as names that Muster takes: letters, digits, ``_``, ``-`` and ``.``."""

from __future__ import annotations

from urllib.parse import quote, unquote


def quoted(text: str) -> str:
    """A name in which a dot begins an escape; no two texts have the same."""
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E").replace("%", ".")


def unquoted(name: str) -> str:
    """The text that `quoted` was given."""
    return unquote(name.replace(".", "%"))
