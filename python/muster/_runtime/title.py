"""What a process shows as its command line.

The title is written over the arguments that the process was started with, so
its start line carries padding to make room. The environment stays readable,
unlike with libraries that write over it too.
"""

from __future__ import annotations

from . import linux


def set_title(title: str) -> None:
    """Show ``title`` as the whole of /proc/PID/cmdline, cut to the room there is."""
    linux.set_thread_name(title)
    start, end = _arguments()
    data = fitted(title.encode("utf-8", "replace"), end - start)
    if data:
        linux.write_memory(start, data)


def fitted(title: bytes, room: int) -> bytes:
    """Return ``room`` bytes that make the kernel show ``title`` alone.

    It reads up to the first NUL, and no further arguments, when the last byte
    of the area is not NUL: so the rest is NUL but for that byte.
    """
    if room < 2:
        return b""
    text = title.replace(b"\0", b"?")[: room - 2]
    return text + b"\0" * (room - 1 - len(text)) + b"."


def _arguments() -> tuple[int, int]:
    """Return where the kernel believes the process's arguments begin and end."""
    with open("/proc/self/stat", "rb") as file:
        stat = file.read()
    # The command's name is in parentheses and may hold anything, so count the
    # fields from its end: arg_start and arg_end are the 48th and 49th of all.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return int(fields[45]), int(fields[46])
