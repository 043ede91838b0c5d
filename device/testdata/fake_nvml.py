"""A made-up NVML: GPU 0 whole, GPU 1 cut in two, GPU 2 lost, GPU 3 without memory of its own.

Run with the path of nvml.py and the error code of nvmlInit_v2; "absent" for
a machine without the library.
"""

import json
import runpy
import sys

nvml = runpy.run_path(sys.argv[1])
NOT_SUPPORTED, NOT_FOUND, LOST = 3, 6, 15
ERRORS = {9: b"Driver Not Loaded", NOT_SUPPORTED: b"Not Supported", NOT_FOUND: b"Not Found", LOST: b"GPU is lost"}
NAMES = {1: "Whole", 2: "Cut", 4: "Shared", 21: "Cut MIG 1g", 23: "Cut MIG 2g"}


def number(argument):
    return argument.value


class Fake:
    def __init__(self):
        # Called through ctypes a function has attributes; so has one of Python.
        self.nvmlErrorString = lambda code: ERRORS[code]

    def nvmlInit_v2(self):
        return int(sys.argv[2])

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 4
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = number(index) + 1
        return LOST if number(index) == 2 else 0

    def nvmlDeviceGetUUID(self, handle, buffer, size):
        assert number(size) >= 80
        buffer.value = b"UUID-%d" % handle.value
        return 0

    def nvmlDeviceGetName(self, handle, buffer, size):
        buffer.value = NAMES[handle.value].encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total, memory._obj.used = handle.value << 30, 5
        return NOT_SUPPORTED if handle.value == 4 else 0

    def nvmlDeviceGetMigMode(self, handle, current, pending):
        if handle.value == 4:
            return NOT_SUPPORTED
        current._obj.value = int(handle.value == 2)
        pending._obj.value = 1
        return 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle, count):
        count._obj.value = 7
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index, part):
        if number(index) not in (1, 3):
            return NOT_FOUND
        part._obj.value = handle.value * 10 + number(index)
        return 0

    def nvmlDeviceGetGpuInstanceId(self, part, value):
        value._obj.value = part.value - 14
        return 0

    def nvmlDeviceGetComputeInstanceId(self, part, value):
        value._obj.value = 0
        return 0


def load(place):
    if sys.argv[2] == "absent" or "/" in place:
        raise OSError(place + ": cannot open")
    return Fake()


print(json.dumps(nvml["answer"](load)))
