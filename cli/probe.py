"""Run by `muster doctor` with -c: what an interpreter has, as one line of JSON."""

import json
import sys

if sys.path and sys.path[0] in ("", "."):
    del sys.path[0]  # a folder that happens to be called as a package is none

import importlib.metadata
import importlib.util

packages = {}
for name in ("muster", "msgpack", "cloudpickle", "numpy", "torch", "ray"):
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        continue
    try:
        packages[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        packages[name] = ""
    if name == "muster":
        folder = found.origin.rsplit("/", 1)[0]
print(
    json.dumps(
        {
            "version": sys.version.split()[0],
            "enough": sys.version_info >= (3, 10),
            "packages": packages,
            "folder": folder if "muster" in packages else "",
        }
    )
)
