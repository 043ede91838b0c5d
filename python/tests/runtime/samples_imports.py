"""A module whose own import is missing."""

import no_such_dependency  # type: ignore[import-not-found]  # noqa: F401
