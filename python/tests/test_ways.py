"""The way to a head that this process starts itself, with a program that plays the head."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from fakehead import DEADLINE
from fakeheads import CALLER, Heads

import muster
from muster import _wire
from muster._client import Connection
from muster._embedded import HeadProcess
from muster._ways import Embedded, Hello

PROGRAM = f"""#!{sys.executable}
import os, signal, socket, sys
sys.path.insert(0, {str(Path(muster.__file__).parent.parent)!r})
from muster import _wire

plays = open({{plays!r}}).read().splitlines()
open({{plays!r}}, "w").write("\\n".join(plays[1:]))
with open({{log!r}}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
sock = socket.socket(fileno=3)
stream = _wire.FrameStream(sock)
hello = _wire.unpack(stream.read().body)
for play in plays[0].split():
    if play == "welcome":
        assert hello["role"] == "owner" and hello.get("back", 0) in (0, {CALLER})
        message = {{{{"version": _wire.VERSION, "release": "0", "session": "calm", "caller": {CALLER}}}}}
        message |= {{{{"address": {{address!r}}, "token": "t", "log_dir": ""}}}}
        _wire.send_frame(sock, _wire.KIND_WELCOME, 0, _wire.pack(message))
    elif play == "refuse":
        error = {{{{"code": "invalid", "message": "no journal", "rank": -1, "exit_code": 0}}}}
        _wire.send_frame(sock, _wire.KIND_WELCOME, 0, _wire.pack(error), (), _wire.FLAG_ERROR)
    elif play == "call":
        while stream.read().kind != _wire.KIND_CALL:
            pass
    elif play == "answer":
        while (frame := stream.read()).kind != _wire.KIND_CALL:
            pass
        _wire.send_frame(sock, _wire.KIND_ANSWER, frame.id, _wire.pack("answered"))
    elif play == "hangup":
        sock.close()
    elif play == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif play == "until_end":
        try:
            while True:
                stream.read()
        except EOFError:
            pass
    elif play == "sleep":
        signal.pause()
    else:
        os._exit(int(play))
"""


class Played:
    """A program that plays one head after the other, each by its line."""

    def __init__(self, folder: Path, *plays: str, address: str = "") -> None:
        script, self._log = folder / "plays", folder / "started"
        script.write_text("\n".join(plays))
        program = folder / "muster"
        program.write_text(PROGRAM.format(plays=str(script), log=str(self._log), address=address))
        program.chmod(0o755)
        self.way = Embedded(str(program), Hello(_wire.ROLE_OWNER, ""))
        stream, _ = self.way.welcome(DEADLINE)
        self.connection = Connection(stream, self.way)
        self.said: list[str] = []
        self.connection.comeback.say = self.said.append
        self.connection.comeback.begin()

    def started(self) -> list[str]:
        return self._log.read_text().splitlines()

    def call(self) -> object:
        route = b"\x97" + b"".join(map(_wire.pack, (7, "m", 2, [0], 0, 0, 8)))
        return muster.get(self.connection.call(route, b"\x92\x90\x80", ()), DEADLINE)

    def close(self) -> None:
        self.connection.close(lambda: RuntimeError("the test is over"))
        if not self.way.head.wait(1):
            self.way.head.kill()
            self.way.head.wait(DEADLINE)
        self.way.head.forget()


@pytest.fixture
def played(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Played]:
    made = Played(tmp_path, *request.param)
    yield made
    made.close()


def plays(*lines: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("played", [lines], indirect=True)


def test_two_who_see_an_end_at_the_same_moment_see_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, pair = HeadProcess.start("/bin/true")
    waitpid, seen = os.waitpid, []

    def between(pid: int, options: int) -> tuple[int, int]:
        found = waitpid(pid, options)
        if found[0]:
            seen.append((head.orderly(), head.manner()))
        return found

    monkeypatch.setattr(os, "waitpid", between)
    assert head.wait(DEADLINE)
    told = (True, f"the head (process {head.pid}) ended with exit code 0")
    assert (head.orderly(), head.manner()) == told
    assert seen == [told]
    pair.close()
    head.forget()


RESUMED = "head --embedded --resume calm"


@plays("welcome call killed", "welcome answer until_end")
def test_one_that_is_killed_is_followed(played: Played) -> None:
    first = played.way.head.pid
    assert played.call() == "answered"
    assert played.started() == ["head --embedded", RESUMED]
    end = time.monotonic() + 30
    while not played.said and time.monotonic() < end:
        time.sleep(0.001)  # the call may be answered before it is told
    (told,) = played.said
    assert told.startswith(f"muster: the head (process {first}) was killed by SIGKILL; a new one ")


@plays("welcome call 3", "killed", "welcome killed", "welcome answer until_end")
def test_it_may_take_several(played: Played) -> None:
    assert played.call() == "answered"
    assert played.started() == ["head --embedded", *[RESUMED] * 3]


@plays("welcome call 0", "welcome answer until_end")
def test_one_that_left_in_order_is_not_followed(played: Played) -> None:
    with pytest.raises(muster.HeadLostError, match="exit code 0"):
        played.call()
    assert played.started() == ["head --embedded"]


@plays("welcome call killed", "refuse 1")
def test_one_that_does_not_take_us_back(played: Played) -> None:
    with pytest.raises(muster.HeadLostError, match="did not take this process back: no journal"):
        played.call()
    assert len(played.started()) == 2


@plays("welcome call killed", *["welcome killed"] * 11)
def test_it_is_given_up_after_ten(played: Played) -> None:
    with pytest.raises(muster.HeadLostError, match="started anew 10 times within 60 s"):
        played.call()
    assert len(played.started()) == 11


@plays("welcome call killed", "sleep")
def test_one_that_says_nothing_ends_with_who_started_it(played: Played) -> None:
    ref = played.connection.call(b"\x97\x07\xa1m\x02\x91\x00\x00\x00\x08", b"\x92\x90\x80", ())
    until = monotonic() + DEADLINE
    while len(played.started()) < 2 and monotonic() < until:
        played.connection.wait_one(ref, monotonic() + 0.01)
    began = monotonic()
    played.connection.close(lambda: RuntimeError("closed"))
    assert monotonic() - began < DEADLINE / 2
    with pytest.raises(RuntimeError, match="closed"):
        muster.get(ref, 0)


def test_one_that_still_runs_is_dialled(tmp_path: Path) -> None:
    """Only the connection was cut."""
    folder = tmp_path / "s"
    folder.mkdir()
    heads = Heads(folder)
    played = Played(tmp_path, "welcome hangup sleep", address=heads.path)
    try:
        line = heads.returned()
        assert line.hello["role"] == _wire.ROLE_CONTROLLER
        assert line.hello["token"] == "t"
        line.back()
    finally:
        os.kill(played.way.head.pid, 9)
        played.close()
        heads.close()
