"""What is shown on stderr: lines whole, progress tidy."""

from __future__ import annotations

import io
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from muster import _wire
from muster._events import Events, Screen, describe


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(done: int, subject: str = "cluster a", final: bool = False) -> dict[str, Any]:
    doing = "ready" if final else "starting workers"
    waiting = "" if final else "a-0"
    return {
        "subject": subject,
        "doing": doing,
        "done": done,
        "total": 8,
        "waiting": waiting,
        "final": final,
    }


def test_a_status_says_what_is_waited_for() -> None:
    assert describe(progress(3), 0.2) == (
        "muster: cluster a: starting workers 3/8, waiting for a-0"
    )
    assert describe(progress(8, final=True), 12.4) == "muster: cluster a: ready 8/8 (12 s)"


def test_on_a_terminal_lines_go_above_the_live_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    screen = Screen()
    screen.allow_live(1)
    screen.progress(progress(1))
    screen.lines(["[a-0] hello"])
    screen.progress(progress(8, final=True))
    live = "muster: cluster a: starting workers 1/8, waiting for a-0"
    erase = "\r\x1b[2K"
    assert terminal.getvalue() == f"{erase}{live}{erase}[a-0] hello\n{live}{erase}"


def test_nothing_is_live_once_the_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes late would otherwise erase what the script has written since."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    screen = Screen()
    screen.allow_live(1)
    screen.progress(progress(1))
    screen.allow_live(-1)
    assert terminal.getvalue().endswith("waiting for a-0\r\x1b[2K")
    written = len(terminal.getvalue())
    screen.progress(progress(7))
    screen.progress(progress(8, final=True))
    assert len(terminal.getvalue()) == written


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    screen.allow_live(1)
    screen.progress(progress(1))
    assert terminal.getvalue() == "muster: cluster a: starting workers 1/8, waiting for a-0\n"


def test_a_live_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "30")
    screen = Screen()
    screen.allow_live(1)
    screen.progress(progress(1))
    assert len(terminal.getvalue()) - len("\r\x1b[2K") == 29


def test_elsewhere_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, clock = io.StringIO(), Clock()
    monkeypatch.setattr("sys.stderr", plain)
    screen = Screen(clock)
    for done in range(8):
        clock.now += 0.5
        screen.progress(progress(done))
    screen.progress(progress(8, final=True))
    shown = [line.split("workers ")[-1].split(",")[0] for line in plain.getvalue().splitlines()]
    assert shown == ["0/8", "4/8 (2 s)", "muster: cluster a: ready 8/8 (4 s)"]


def test_what_is_quick_and_no_cluster_is_not_worth_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, clock = io.StringIO(), Clock()
    monkeypatch.setattr("sys.stderr", plain)
    screen = Screen(clock)
    screen.progress(progress(0, "pool"))
    screen.progress(progress(8, "pool", final=True))
    assert plain.getvalue() == ""


def test_a_closed_stderr_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    Screen().lines(["lost"])
    monkeypatch.setattr("sys.stderr", None)
    Screen().lines(["lost"])


def test_a_head_that_goes_while_it_is_dialled_is_followed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first connection, and at a later one: it hangs up unheard, or refuses to be dialled."""
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    address = str(tmp_path / "head")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    welcome = {"version": _wire.VERSION, "release": _wire.RELEASE, "epoch": 1}

    def heads() -> None:
        for i in range(4):
            sock, _ = listener.accept()
            with sock:
                stream = _wire.FrameStream(sock)
                stream.read()
                if i % 2 == 0:
                    continue  # killed before it has said a word
                _wire.send_frame(sock, _wire.KIND_WELCOME, 0, _wire.pack(welcome | {"epoch": i}))
                line = {"worker": "a-0", "text": f"of head {i}"}
                notice = ["log", {"lines": [line]}]
                _wire.send_frame(sock, _wire.KIND_NOTICE, 0, _wire.pack(notice))
                if i == 3:
                    mark = ["mark", {"mark": 7}]
                    _wire.send_frame(sock, _wire.KIND_NOTICE, 0, _wire.pack(mark))
                    done.wait(30)

    done = threading.Event()
    thread = threading.Thread(target=heads)
    thread.start()
    events = Events(address, "t", logs=True, progress=True)
    with events._marked:
        assert events._marked.wait_for(lambda: events._mark == 7, 30)
    done.set()
    events.join(30)
    thread.join(30)
    listener.close()
    assert terminal.getvalue() == "[a-0] of head 1\n[a-0] of head 3\n"


def test_a_wait_counts_from_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told of late, when somebody has waited for long, is shown at once."""
    plain, clock = io.StringIO(), Clock()
    monkeypatch.setattr("sys.stderr", plain)
    screen = Screen(clock)
    screen.allow_live(1)
    clock.now += 3
    screen.progress({"subject": "pool", "doing": "waiting for nodes"})
    screen.allow_live(-1)
    screen.progress({"subject": "other", "doing": "waiting for nodes"})
    assert plain.getvalue() == "muster: pool: waiting for nodes\n"
