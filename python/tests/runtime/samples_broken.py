"""A preload that cannot be imported."""

raise ValueError("broken on purpose")
