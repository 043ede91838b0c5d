"""What a script defines for itself alone, and how it travels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster import _guards, _values

SCRIPT = """
import os
def above(): pass
if os.name == "posix":
    def anywhere(): pass
if __name__ == "__main__":
    def one(): pass
    async def two():
        def inner(): pass
    class Three:
        def method(self): pass
    try:
        if os.name:
            def four(): pass
    except OSError:
        def five(): pass
    finally:
        with open(__file__) as file:
            class Six: pass
    for _ in range(3):
        def seven(): pass
    Nine = namedtuple("Nine", "x")
    Ten: type = Enum("Ten", "a b")
    (eleven, [twelve, *rest]), os.thing = made()
    above = decorated(above)
    above.attribute = os.environ["x"] = 1
else:
    def other(): pass
if "__main__" == __name__ and os.name:
    def eight(): pass
if __name__ != "__main__":
    def imported(): pass
"""


def test_what_is_under_the_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    found = _guards.guarded(str(tmp_path / "script.py"))
    assert _guards.has_guard(str(tmp_path / "script.py"))
    (tmp_path / "bare.py").write_text("import os\nif os.name == '__main__':\n    pass\n")
    assert not _guards.has_guard(str(tmp_path / "bare.py"))
    defined = {"one", "two", "Three", "four", "five", "Six", "seven", "eight"}
    assert found == defined | {"Nine", "Ten", "eleven", "twelve", "rest"}


@pytest.mark.parametrize("content", [None, b"", b"def f(:", b"\x00", "é = 1".encode("latin-1")])
def test_scripts_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "script.py"
    if content is not None:
        path.write_bytes(content)
    assert _guards.guarded(str(path)) == frozenset() and _guards.has_guard(str(path))
    assert _guards.guarded("") == frozenset()


SENDER = """
import collections, dataclasses, enum, sys
from muster import _values
class Above:
    pass
if __name__ == "__main__":
    class Under(Above):
        x = 1
    @dataclasses.dataclass
    class Record:
        x: int
    def function(y):
        return Record(Under.x + y)
    class Refused(Exception):
        pass
    Pair = collections.namedtuple("Pair", "x y")
    Kind = enum.Enum("Kind", "a b")
    Made = dataclasses.make_dataclass("Made", ["x"])
    Bare: type = type("Bare", (), {"x": 2})
    A = B = 0
    bufs = []
    what = {what}
    sys.stdout.write(_values.encode(what, bufs).hex())
"""


@pytest.mark.parametrize(
    "what",
    [
        *("Record(2)", "[Under, 2]", "Under()", "function", "Refused(2)", "{'a': lambda: Under}"),
        *("Pair(2, 3)", "Kind.b", "Made(2)", "Bare()", "Bare", "[Pair, Kind, Made]"),
    ],
)
def test_it_travels_by_value(tmp_path: Path, what: str) -> None:
    """To here, whose ``__main__`` is another one."""
    (tmp_path / "script.py").write_text(SENDER.replace("{what}", what).replace("(Above)", ""))
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    got = _values.decode(bytes.fromhex(done.stdout))
    if what == "function":
        assert got(2).x == 3
    elif what in ("Record(2)", "Pair(2, 3)", "Made(2)", "Bare()"):
        assert got.x == 2
    elif what == "Kind.b":
        assert (got.name, got.value) == ("b", 2) and got is type(got).b


def test_what_is_above_it_travels_by_name(tmp_path: Path) -> None:
    """Also where the names of variables are parts of its own."""
    (tmp_path / "script.py").write_text(SENDER.replace("{what}", "Above"))
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"__main__" in bytes.fromhex(done.stdout) and len(done.stdout) < 200
