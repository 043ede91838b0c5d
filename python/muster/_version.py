"""The version, in one place: pyproject.toml, the Makefile and Hello read it here."""

__version__ = "0.1.0"
