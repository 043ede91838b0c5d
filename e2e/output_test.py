"""Workers' output: on the script's stderr, prefixed, harmless, and all of it before the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from running import output_of, run_script

WORKER = r"""
class Printer(Worker):
    def say(self, text, end="\n"):
        sys.stdout.write(text + end)
    def shout(self, text):
        print(text, file=sys.stderr)
    def raw(self, data, fd=1):
        os.write(fd, data)
    def lines(self, n):
        for i in range(n):
            print(f"line {i} of {self.rank}")
    def shell(self):
        os.system("echo from a shell; echo and its stderr >&2")
    def log(self):
        import logging, warnings
        logging.getLogger("mine").warning("logged %s", 5)
        warnings.warn("warned")
    def die(self):
        sys.stdout.write("last words")
        sys.stdout.flush()
        os._exit(17)

if __name__ == "__main__":
    rm = ResourceManager(0, 1)
    c = Cluster(name="p", worker_cls=Printer, resource_manager=rm,
                worker_config=WorkerConfig(world_size=2))
    w = c.workers[1]
    {body}
    c.shutdown()
    sys.stderr.write("== after shutdown\n")
"""


def stderr_of(tmp_path: Path, body: str, **how: str) -> list[str]:
    """The lines that workers wrote, all before shutdown() returned; prefixes and all."""
    finished = run_script(tmp_path, WORKER.replace("{body}", body), **how)
    output_of(finished)
    assert finished.stdout == "", "the script's own stdout is its own"
    before, mark, after = finished.stderr.partition("== after shutdown\n")
    assert mark and after == "", "drained before shutdown() returned"
    return [line for line in before.split("\n") if line and not line.startswith("muster: ")]


def test_stdout_and_stderr_are_prefixed(tmp_path: Path) -> None:
    lines = stderr_of(tmp_path, 'w.call("say", "hello"); w.call("shout", "help ä")')
    assert len(lines) == 2
    assert re.fullmatch(r"\W*p-1\W.*hello", lines[0]), lines
    assert re.fullmatch(r"\W*p-1\W.*help ä", lines[1]), lines


def test_without_a_newline_at_the_end(tmp_path: Path) -> None:
    [line] = stderr_of(tmp_path, 'w.call("say", "no newline", end="")')
    assert line.endswith("no newline") and "p-1" in line


def test_each_line_has_its_prefix(tmp_path: Path) -> None:
    lines = stderr_of(tmp_path, r'w.call("say", "one\ntwo\n\nthree")')
    texts = [line.partition("p-1")[2] for line in lines]
    assert all(texts) and [t for t in texts if t.strip("] :|")] != []
    assert [next(w for w in ("one", "two", "three", "") if w in t) for t in texts] == [
        "one",
        "two",
        "",
        "three",
    ]


@pytest.mark.parametrize(
    "data",
    [
        rb"\x00\x01\x02",
        rb"\xff\xfe\x80",
        rb"\x1b[31mred\x1b[0m\x1b]0;title\x07",
        rb"\x1b[2J\x1b[H",
        rb"\xc3",
        rb"a\rb",
        rb"back\x08space",
        rb"\xe2\x80\xae right to left",
        rb"\x9b31m",
    ],
)
def test_rubbish_is_escaped(tmp_path: Path, data: bytes) -> None:
    lines = stderr_of(tmp_path, f"w.call('raw', b'{data.decode()}')")
    # Colours may pass; they end with their line.
    assert all(not re.search(r"\x1b\[3\dm[^\x1b]*$", line) for line in lines)
    text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(lines))
    assert lines and all("p-1" in line for line in lines)
    bad = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    assert not bad, repr(text)
    assert "\u202e" not in text and not re.search("[\udc80-\udcff]", text), repr(text)


def test_random_bytes(tmp_path: Path) -> None:
    body = "import random; w.call('raw', random.Random(1).randbytes(100_000)); w.call('say', 'ok')"
    lines = stderr_of(tmp_path, body)
    assert lines[-1].endswith("ok") or any(line.endswith("ok") for line in lines)
    assert all("p-1" in line for line in lines)


def test_a_line_of_a_megabyte(tmp_path: Path) -> None:
    """Told in pieces or cut, but told, and what follows is whole."""
    lines = stderr_of(tmp_path, 'w.call("say", "x" * (1 << 20)); w.call("say", "after")')
    assert all("p-1" in line for line in lines)
    assert lines[-1].endswith("after")
    assert sum(line.count("x") for line in lines) > 1000


def test_ten_thousand_lines_in_order(tmp_path: Path) -> None:
    lines = stderr_of(tmp_path, 'c.execute_all_sync("lines", 10_000)')
    for rank in range(2):
        mine = [line for line in lines if line.endswith(f" of {rank}")]
        assert len(mine) == 10_000
        assert [int(line.rsplit(" ", 3)[1]) for line in mine] == list(range(10_000))
        assert all(f"p-{rank}" in line for line in mine)


def test_children_of_workers_and_logging(tmp_path: Path) -> None:
    text = "\n".join(stderr_of(tmp_path, 'w.call("shell"); w.call("log")'))
    for told in ("from a shell", "and its stderr", "logged 5", "warned"):
        assert re.search(rf"p-1\W.*{told}", text), told


def test_last_words_are_in_the_error(tmp_path: Path) -> None:
    body = 'try: w.call("die")\n    except muster.MusterError as e: sys.stderr.write(f"{e}\\n")'
    text = "\n".join(stderr_of(tmp_path, body))
    assert text.count("last words") >= 2, "live, and in the error"
    assert "exit code 17" in text


def test_several_writers_do_not_mix_within_lines(tmp_path: Path) -> None:
    body = 'c.execute_all_sync("say", "a" * 500)\n    c.execute_all_sync("say", "b" * 500)'
    lines = stderr_of(tmp_path, body)
    assert len(lines) == 4
    assert all(re.search(r"(a{500}|b{500})$", line) for line in lines)


def test_logs_stay_in_files(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    stderr_of(tmp_path, 'c.execute_all_sync("lines", 3)', MUSTER_LOG_DIR=str(logs))
    files = {path.name: path.read_text() for path in logs.rglob("p-*")}
    assert sorted(files) == ["p-0.log", "p-1.log"]
    assert files["p-1.log"] == "line 0 of 1\nline 1 of 1\nline 2 of 1\n"


def test_script_whose_stderr_is_closed(tmp_path: Path) -> None:
    """Nobody to tell: the script runs on."""
    source = WORKER.replace("{body}", "os.close(2); print(w.call('say', 'x'), flush=True)")
    finished = run_script(tmp_path, source.replace('sys.stderr.write("== after shutdown\\n")', ""))
    assert (finished.returncode, finished.stdout) == (0, "None\n")


def test_no_progress_and_no_output_where_not_wanted(tmp_path: Path) -> None:
    source = WORKER.replace("rm = Res", "muster.init(log_to_stderr=False)\n    rm = Res")
    finished = run_script(tmp_path, source.replace("{body}", "w.call('say', 'x')"))
    assert finished.stderr == "== after shutdown\n"
