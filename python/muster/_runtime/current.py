"""Which call the code that asks is running in.

Calls made from inside a worker carry this number, so that the head sees who
waits for whom. It follows into tasks and threads as context variables do.
"""

from __future__ import annotations

from contextvars import ContextVar

call: ContextVar[int] = ContextVar("muster_call", default=0)


def current_call() -> int:
    """Return the head's number of the call being run, 0 outside of any."""
    return call.get()
