"""How a worker's process ends: politely, and at once.

Exit handlers run and output is flushed, as at the end of any interpreter. What
is left out is the teardown of modules: it touches every page that a forked
worker shares with its zygote (with torch loaded that is a quarter of a second
for each worker), and threads that still run calls would be stopped in the middle
of it, some with a lock in hand that it needs, for which CPython aborts.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from typing import NoReturn


def leave(code: object) -> NoReturn:
    """End the process with the exit code that ``SystemExit(code)`` stands for."""
    try:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    if code is not None and not isinstance(code, int):  # as sys.exit("message")
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit((code or 0) & 0xFF)
