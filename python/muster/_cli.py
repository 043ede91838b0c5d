"""The `muster` command of an installed package: becomes the binary in it.

It only finds the program and hands over, telling it which interpreter scripts
are to run with; what commands there are is the binary's to say.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the muster program in place of this process."""
    from ._embedded import find_binary
    from ._errors import MusterError

    try:
        binary = find_binary()
    except MusterError as error:
        sys.exit(f"muster: {error}")
    os.environ.setdefault("MUSTER_PYTHON", sys.executable)
    try:
        os.execv(binary, ["muster", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"muster: cannot start {binary}: {error.strerror}")


if __name__ == "__main__":
    main()
