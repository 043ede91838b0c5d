"""Getting into Ray, or saying in seconds why that cannot be.

Ray itself waits for long and says little: a wrong token is a general
ConnectionError after 20 s, with the cause in lines of its log. So the address is
tried first, Ray's own attempt is bounded, and its lines are read.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from typing import Any

#: The releases of Ray that the backend's tests were run with.
TESTED = ((2, 54), (2, 56), (2, 58), (2, 60))
#: Seconds for a port to answer, and for Ray to let us in.
_PORT_PATIENCE = 3.0
_JOIN_PATIENCE = 12.0
_DEFAULT_PORT = 6379
#: How Ray's lines tell of a token that is not there or not the right one.
_TOKEN_LINES = re.compile(
    r"unauthenticated|invalid ?auth|auth(entication|orization)? ?token|token.*(missing|required)",
    re.IGNORECASE,
)


class Refused(Exception):
    """Why Ray cannot be had; the text is for people."""

    def __init__(self, text: str, code: str = "resources") -> None:
        super().__init__(text)
        self.code = code


def untested(version: str) -> str:
    """A warning, where the release of Ray is none of those that are tested."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers in TESTED:
        return ""
    known = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
    return (
        f"Ray {version} is none of the releases that Muster is tested with ({known}); it may work"
    )


def find_address(address: str) -> str:
    """The address to give to Ray: as asked for, by RAY_ADDRESS, or what runs on this machine."""
    found = (address or os.environ.get("RAY_ADDRESS", "")).strip()
    if found.startswith("ray://"):
        raise Refused(
            f"{found} is an address of Ray's client, which can hold no placement groups and no "
            "actors for Muster. Run the script on a node of the Ray cluster and give the address "
            "of its GCS (host:6379), or none",
            "invalid",
        )
    return "" if found in ("auto", "local") else found


def check_port(address: str) -> None:
    """Whether something listens at host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        host, port = address, str(_DEFAULT_PORT)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PORT_PATIENCE).close()
    except OSError as error:
        raise Refused(
            f"no Ray at {address}: {error.strerror or error}. Is `ray start --head` running there, "
            "and does RAY_ADDRESS name its GCS (host:6379)?"
        ) from None


def join(address: str, namespace: str, log: str) -> Any:
    """Make this process a driver of the Ray cluster; returns the module ray."""
    found = find_address(address)
    if found:
        check_port(found)
    try:
        import ray
    except ImportError as error:
        raise Refused(
            f"the interpreter {os.path.realpath('/proc/self/exe')} cannot import ray ({error}): "
            "install it there (pip install 'ray[default]'), or start the script with one that has it",
            "import",
        ) from None
    begin = _size(log)
    outcome: list[BaseException | None] = []
    there = threading.Event()

    def attempt() -> None:
        try:
            ray.init(
                address=found or "auto",
                namespace=namespace,
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=False if not found else None,
            )
            outcome.append(None)
        except BaseException as failure:
            outcome.append(failure)
        there.set()

    threading.Thread(target=attempt, daemon=True).start()
    waited = 0.0
    while not there.wait(0.25):
        waited += 0.25
        lines = _lines(log, begin)
        if (told := _token_line(lines)) and waited > 1:
            raise Refused(_token_text(found, told), "auth")
        if waited >= _JOIN_PATIENCE:
            last = f": {lines[-1]}" if lines else ""
            raise Refused(
                f"Ray at {found or 'this machine'} did not let us in within {waited:g} s{last}"
            )
    problem = outcome[0]
    if problem is None:
        return ray
    if told := _token_line([*_lines(log, begin), *str(problem).splitlines()]):
        raise Refused(_token_text(found, told), "auth")
    if not found:
        raise Refused(
            "there is no Ray on this machine to join "
            f"({str(problem).splitlines()[0]}). Start it (ray start --head, or --address=HEAD:6379 on "
            "a node that joins another), or name it by RAY_ADDRESS"
        )
    raise Refused(f"Ray at {found} cannot be joined: {type(problem).__name__}: {problem}")


def _token_line(lines: list[str]) -> str:
    return next((line for line in reversed(lines) if _TOKEN_LINES.search(line)), "")


def _token_text(address: str, told: str) -> str:
    had = next(
        (name for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH") if os.environ.get(name)),
        "~/.ray/auth_token",
    )
    return (
        f"Ray at {address or 'this machine'} does not take our token ({had}): {told.strip()[:300]}. "
        "Set RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the token that the cluster was started with"
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _lines(path: str, begin: int) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            return file.read(1 << 20).decode(errors="replace").splitlines()
    except OSError:
        return []
