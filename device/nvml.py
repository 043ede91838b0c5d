"""Asks NVML what NVIDIA GPUs there are and prints the answer as a line of JSON.

Package device runs it in a process of its own, under any Python 3, with no
more than the standard library. It decides nothing: what it prints is what the
library said, refusals included. Printed is {"gpus": [...]}, or {"refused": why}
if the library is there and does not work, or {"missing": why} if it is not.
"""

from __future__ import annotations

import ctypes
import json
import sys

TYPE_CHECKING = False  # as importing it takes longer than the rest together
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

PLACES = (
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",  # mounted so by Kubernetes on some clouds
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",  # NixOS
)


class Refused(Exception):
    """The library answered with an error."""


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Library:
    """The library's functions, with its error codes as exceptions."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        functions.nvmlErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns an error code."""
        try:
            function = getattr(self._functions, name)
        except AttributeError:
            raise Refused(f"this version has no {name}") from None
        code = function(*arguments)
        if code != 0:
            text: bytes = self._functions.nvmlErrorString(code) or b""
            raise Refused(f"{text.decode(errors='replace')} ({name}: error {code})")

    def text(self, name: str, handle: Any) -> str:
        """Asks for a text."""
        buffer = ctypes.create_string_buffer(96)
        self.call(name, handle, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode(errors="replace")

    def number(self, name: str, *arguments: Any) -> int:
        """Asks for a number."""
        value = ctypes.c_uint()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def handle(self, name: str, *arguments: Any) -> Any:
        """Asks for a device."""
        value = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(value))
        return value

    def memory(self, handle: Any) -> int:
        """All the memory of a device in bytes; 0 where it is the CPU's."""
        value = Memory()
        try:
            self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(value))
        except Refused:
            return 0
        return int(value.total)

    def device(self, handle: Any) -> dict[str, Any]:
        """What is told of GPUs and of their instances alike."""
        return {
            "uuid": self.text("nvmlDeviceGetUUID", handle),
            "name": self.text("nvmlDeviceGetName", handle),
            "memory": self.memory(handle),
        }


def gpu(library: Library, index: int) -> dict[str, Any]:
    """One GPU, and what it is cut into; or why it cannot be used."""
    try:
        handle = library.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
        found = library.device(handle)
    except Refused as error:
        return {"index": index, "refused": str(error)}
    found["index"] = index
    found["mig"] = in_mig_mode(library, handle)
    if found["mig"]:
        found["instances"] = list(instances(library, handle))
    return found


def in_mig_mode(library: Library, handle: Any) -> bool:
    """Whether only parts of the GPU can be used."""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    try:
        library.call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    except Refused:  # not a GPU that can be cut
        return False
    return current.value == 1


def instances(library: Library, handle: Any) -> Iterator[dict[str, Any]]:
    """The parts of a GPU in MIG mode that this process may use."""
    try:
        most = library.number("nvmlDeviceGetMaxMigDeviceCount", handle)
    except Refused:
        return
    for index in range(most):
        try:
            number = ctypes.c_uint(index)
            part = library.handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            found = library.device(part)
            found["gpu_instance"] = library.number("nvmlDeviceGetGpuInstanceId", part)
            found["compute_instance"] = library.number("nvmlDeviceGetComputeInstanceId", part)
        except Refused:  # there are fewer than there could be
            continue
        yield found


def answer(load: Callable[[str], Any]) -> dict[str, Any]:
    """What is printed; load opens a library."""
    missing = ""
    for place in PLACES:
        try:
            library = Library(load(place))
        except (OSError, AttributeError) as error:
            missing = missing or str(error)
            continue
        try:
            library.call("nvmlInit_v2")
            count = library.number("nvmlDeviceGetCount_v2")
            return {"gpus": [gpu(library, index) for index in range(count)]}
        except Refused as error:
            return {"refused": str(error)}
    return {"missing": missing}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(ctypes.CDLL)) + "\n")
