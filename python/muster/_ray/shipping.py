"""What a node lacks, taken there: the muster program, the script's folders and modules.

Content goes by its sha, so that it travels once per node and stays for the next
session. What belongs to an interpreter (its library, its site-packages) is never
shipped: an interpreter of the same version on the node takes its place.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from .joining import Refused
from .remote import PROGRAM

_PART = 8 << 20
#: More than this is data, or an installation, and not somebody's code.
MOST = 256 << 20
#: Where a machine's own programs lie.
_SYSTEM = ("/usr/", "/bin/", "/sbin/")
_SKIPPED = {"__pycache__", ".git", ".hg", ".venv", "node_modules", ".mypy_cache", ".ruff_cache"}
#: Part of an interpreter: .../lib/python3.11, its zip, and all below.
_INTERPRETER = re.compile(r"/lib(64)?/python3(\.?\d+)(\.zip|/|$)")


def file_sha(path: str) -> str:
    """The sha of a file on this machine."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def send_program(ray: Any, actor: Any, path: str, sha: str) -> str:
    """Take a program to a node; returns where it is there."""
    with open(path, "rb") as file:
        data = file.read()
    place: str = ray.get(actor.take.remote(sha, _parts(data), True))
    return os.path.join(place, PROGRAM)


def program(ray: Any, actor: Any, path: str) -> str:
    """Where a worker's program is on a node that may lack it, or have another by its path.

    One of the system's is that of the node. What cannot be shipped is the agent's to tell.
    """
    if path.startswith(_SYSTEM) or not os.path.isfile(path) or os.path.getsize(path) > MOST:
        return path
    sha = file_sha(path)
    there: str = ray.get(actor.program.remote(path, sha))
    return there or send_program(ray, actor, path, sha)


def _parts(data: bytes) -> list[bytes]:
    return [data[i : i + _PART] for i in range(0, len(data), _PART)] or [b""]


class Packer:
    """Folders of this machine as zips that are the same for the same content."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[tuple[Any, ...], bytes, str]] = {}

    def pack(self, path: str, only: str = "") -> tuple[bytes, str]:
        """The zip of a folder or file (of one of its entries alone), and its sha."""
        with self._lock:
            files = list(_files(path, only))
            state = tuple(files)
            kept = self._kept.get(f"{path}|{only}")
            if kept is None or kept[0] != state:
                data = _zip(path, files)
                kept = (state, data, hashlib.sha256(data).hexdigest())
                self._kept[f"{path}|{only}"] = kept
            return kept[1], kept[2]


def _files(path: str, only: str) -> Iterator[tuple[str, int, int]]:
    """What there is to pack: path in the zip, size and time of change."""
    if os.path.isfile(path):
        yield _entry(os.path.dirname(path), path)
        return
    total = 0
    for folder, below, names in os.walk(os.path.join(path, only) if only else path):
        below[:] = sorted(b for b in below if b not in _SKIPPED)
        for name in sorted(names):
            full = os.path.join(folder, name)
            if name.endswith(".pyc") or not os.path.isfile(full):
                continue
            found = _entry(path, full)
            total += found[1]
            if total > MOST:
                raise Refused(
                    f"{path} is more than {MOST >> 20} MiB, which is not shipped to nodes that "
                    "lack it: put it where all nodes have it, or give a smaller working_dir",
                    "startup",
                )
            yield found


def _entry(base: str, full: str) -> tuple[str, int, int]:
    info = os.stat(full)
    return os.path.relpath(full, base), info.st_size, info.st_mtime_ns


def _zip(path: str, files: list[tuple[str, int, int]]) -> bytes:
    base = os.path.dirname(path) if os.path.isfile(path) else path
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name, _, _ in files:
            full = os.path.join(base, name)
            entry = zipfile.ZipInfo(name)  # of the same date always
            entry.external_attr = stat.S_IMODE(os.stat(full).st_mode) << 16
            with open(full, "rb") as file:
                packed.writestr(entry, file.read())
    return out.getvalue()


def fit(
    ray: Any, actor: Any, node: str, runtime: Mapping[str, Any], packer: Packer
) -> dict[str, Any]:
    """A runtime as it is on a node: paths that the node has, and where the others went."""
    python, package, folder = runtime["python"], runtime["package"], runtime["dir"]
    script, searched = runtime["main"], runtime["sys_path"] or []
    modules = runtime.get("modules") or []
    named = {python, package, folder, script, *searched, *modules} - {""}
    lacking = set(ray.get(actor.lacking.remote(sorted(named))))
    here = bool(script) and os.path.isfile(script)
    if here and not ray.get(actor.same.remote(script, file_sha(script))):
        # What is there in the place of its folder is another's.
        lacking |= {script} | ({os.path.dirname(script)} & {folder, *searched})
    fitted = dict(runtime)
    exe = runtime.get("program") or ""
    fitted["program"] = program(ray, actor, exe)
    fitted["moved"] = {fitted["program"]: exe} if fitted["program"] != exe else {}
    if not lacking:
        return fitted
    if python in lacking:
        fitted["python"] = _other_python(ray, actor, node, python)

    def ship(path: str, only: str = "") -> str:
        data, sha = packer.pack(path, only)
        place: str = ray.get(actor.has.remote(sha))
        return place or str(ray.get(actor.take.remote(sha, _parts(data), False)))

    def moved(path: str) -> str:
        """Where a path that the node lacks went; empty if it can do without."""
        if path == package:
            return ship(package, "muster")
        if not os.path.exists(path):
            return ""  # nor is it here
        if path in modules and os.path.isdir(path):  # without its neighbours
            parent, name = os.path.split(path)
            return os.path.join(ship(parent, name), name)
        if not _INTERPRETER.search(path):
            where = ship(path)
            return os.path.join(where, os.path.basename(path)) if os.path.isfile(path) else where
        if python in lacking:
            return ""  # the other interpreter has its own
        raise Refused(
            f"{path} is part of an installation of Python and is not there on {node}: install it "
            "there, or start the script with an interpreter that all nodes have",
            "startup",
        )

    where = {path: moved(path) for path in sorted(lacking - {python})}
    # So that what a worker there names can be found here.
    fitted["moved"] |= {place: path for path, place in where.items() if place}
    if python in lacking:
        fitted["moved"][fitted["python"]] = python
    fitted["package"] = where.get(package, package)
    fitted["dir"] = where.get(folder, folder)
    if folder and not fitted["dir"]:
        raise Refused(f"the working directory {folder} is not there on {node}, nor here", "startup")
    fitted["sys_path"] = [p for p in (where.get(p, p) for p in searched) if p]
    fitted["modules"] = [where.get(module, module) for module in modules]
    if "" in fitted["modules"]:
        gone = modules[fitted["modules"].index("")]
        raise Refused(f"the module {gone} is not there on {node}, nor here", "startup")
    fitted["main"] = _script(script, where)
    return fitted


def _script(path: str, where: Mapping[str, str]) -> str:
    """Where the script went: with its folder, if that went, so that it finds its neighbours."""
    if path not in where:
        return path
    folder = where.get(os.path.dirname(path))
    if folder:
        return os.path.join(folder, os.path.basename(path))
    return where[path]


def _other_python(ray: Any, actor: Any, node: str, python: str) -> str:
    """Ray's interpreter on a node that lacks the script's, where both are of one version."""
    version = ""
    if python == sys.executable:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
    about = ray.get(actor.about.remote())
    if about["version"] == version:
        return str(about["python"])
    raise Refused(
        f"the interpreter {python} is not there on {node}, and Ray's own there ({about['python']}) "
        f"is Python {about['version']}, not {version or 'the same'}: install it there, or start the "
        "script with an interpreter that all nodes have",
        "startup",
    )
