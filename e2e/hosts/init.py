"""The first process of a host: mounts what is the host's own, then reaps for ever.

Started as pid 1 of the host's pid namespace with one argument, a JSON object:

    name     the host's name, which becomes the kernel's
    scratch  a folder that gets a tmpfs of this host's own
    files    {path: text}: files that are this host's alone (/etc/hosts)
    hidden   folders that are empty on this host
    kept     folders below hidden ones that are there all the same

It says "up" on stdout when all is mounted. It ends, and the kernel with it every
process of the host, when its stdin does: whoever made the host is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from pathlib import Path

MS_BIND = 4096
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    encoded = (source.encode(), target.encode(), kind.encode(), flags, data.encode())
    if libc.mount(*encoded) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot mount {kind or source} on {target}: {os.strerror(code)}")


def hide(hidden: list[str], kept: list[str], aside: Path) -> None:
    """Empties folders, and puts back what was to be kept of them."""
    places = {}
    for number, path in enumerate(kept):
        places[path] = aside / f"kept-{number}"
        places[path].mkdir(parents=True)
        mount(path, str(places[path]), flags=MS_BIND)
    for path in hidden:
        mount("hidden", path, "tmpfs", data="mode=755,size=16m")
    for path, place in places.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        mount(str(place), path, flags=MS_BIND)


def main() -> None:
    told = json.loads(sys.argv[1])
    name, scratch = told["name"].encode(), Path(told["scratch"])
    if libc.sethostname(name, len(name)) != 0:
        raise OSError(ctypes.get_errno(), "cannot set the host's name")
    mount("shm", "/dev/shm", "tmpfs", data="mode=1777")
    mount("scratch", str(scratch), "tmpfs", data="mode=1777")
    own = scratch / ".host"
    own.mkdir()
    for number, (path, text) in enumerate(told["files"].items()):
        (own / str(number)).write_text(text)
        mount(str(own / str(number)), path, flags=MS_BIND)
    hide(told["hidden"], told["kept"], own)

    # A pipe that SIGCHLD writes to, so that one poll waits for both.
    ended, note = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(note, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    print("up", flush=True)
    poll = select.poll()
    for fd in (0, ended):
        poll.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        while reap():
            pass
        for fd, _ in poll.poll():
            if fd == ended:
                os.read(ended, 4096)
            elif not os.read(0, 1):
                return


def reap() -> bool:
    """Collects one dead child; false when there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    main()
