"""The inside of a worker process: how it comes to be, runs calls, and ends.

A zygote (`zygote`) forks workers, or an interpreter of its own becomes one
(`spawn`). `worker` then takes the process from its first line to its last:
environment, connections, the user's class, and one of three ways to run calls:

========  ======================================  ===========================
module    for                                     user code runs on
========  ======================================  ===========================
serial    sync classes, one call at a time        the main thread
loop      classes with any ``async def``          the main thread's event loop
pool      sync classes, ``max_concurrency`` > 1   threads of its own
========  ======================================  ===========================

`control` answers the agent from a thread of its own; `calls` holds what the
three ways share; `kept` has what was received and answered until the head has no
more need of it, `wayback` brings it to the next head; `describe` reports the class; `mainmodule` stands in for the
controller's script; `title` and `linux` speak to the kernel.

It stands on the wire, values, errors and the worker base of this package. Of the
controller's side it only tells `_context` who this worker is; it makes no call.
"""

from .current import current_call

__all__ = ["current_call"]
