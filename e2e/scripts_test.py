"""Scripts in every form in which people run them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from running import BINARY, IMPORTS, PACKAGE, output_of, run, run_script

ACTOR = """
class MyError(Exception):
    pass

class Actor(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def initialize(self, config): self.scale = config["scale"]
    @register(Dispatch.DP_MP_COMPUTE)
    def train_step(self, rows): return [r * self.scale for r in rows]
    def fail(self): raise MyError("mine")
    def make(self): return Made(self.rank)
    def took(self, made): return type(made) is Made

class Made:
    def __init__(self, rank): self.rank = rank
"""
MAIN = """
def main():
    rm = ResourceManager(num_gpus_per_node=8, num_nodes=1)
    actor = Cluster(name="actor_train", worker_cls=Actor, resource_manager=rm,
                    worker_config=WorkerConfig(device_mapping="0-7", tp=2))
    actor.execute_all_sync("initialize", {"scale": 2})
    print(actor.dp_size, actor.tp_size, actor.train_step([1, 2, 3, 4, 5]))
    try:
        actor.execute_all_sync("fail")
    except MyError as error:
        print("caught", isinstance(error, muster.MusterError))
    made = actor.execute_rank_zero_sync("make")
    print(type(made) is Made, made.rank, actor.execute_rank_zero_sync("took", Made(1)))
"""
GUARD = """
if __name__ == "__main__":
    main()
"""
EXPECTED = "4 2 [2, 4, 6, 8, 10]\ncaught True\nTrue 0 True\n"
WHOLE = IMPORTS + ACTOR + MAIN + GUARD


def test_the_issues_example(tmp_path: Path) -> None:
    source = """
class Actor(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def initialize(self, config): self.scale = config["scale"]
    @register(Dispatch.DP_MP_COMPUTE)
    def train_step(self, rows): return [r * self.scale for r in rows]

if __name__ == "__main__":
    rm = ResourceManager(num_gpus_per_node=8, num_nodes=1)
    actor = Cluster(name="actor_train", worker_cls=Actor, resource_manager=rm,
                    worker_config=WorkerConfig(device_mapping="0-7", tp=2))
    actor.execute_all_sync("initialize", {"scale": 2})
    print(actor.dp_size, actor.tp_size, actor.train_step([1, 2, 3, 4, 5]))
"""
    finished = run_script(tmp_path, source, virtual="4x8")
    assert output_of(finished) == "4 2 [2, 4, 6, 8, 10]\n"
    assert "actor_train" in finished.stderr, "progress is shown"


def test_file(tmp_path: Path) -> None:
    assert output_of(run_script(tmp_path, ACTOR + MAIN + GUARD)) == EXPECTED


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_either_start(tmp_path: Path, start: str) -> None:
    source = (ACTOR + MAIN + GUARD).replace("tp=2", f"tp=2, start={start!r}")
    assert output_of(run_script(tmp_path, source)) == EXPECTED


def test_relative_path_and_another_cwd(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "pipeline.py").write_text(WHOLE)
    for script, cwd in (("sub/pipeline.py", tmp_path), ("../sub/pipeline.py", tmp_path / "sub")):
        assert output_of(run(sys.executable, script, cwd=cwd)) == EXPECTED


def test_script_that_changes_its_folder(tmp_path: Path) -> None:
    """Before and after: the script is found, and workers run where it was."""
    (tmp_path / "pipeline.py").write_text(
        WHOLE.replace("def main():\n", "def main():\n    os.chdir('/')\n")
    )
    assert output_of(run(sys.executable, "pipeline.py", cwd=tmp_path)) == EXPECTED


def test_odd_names(tmp_path: Path) -> None:
    for name in ("my pipeline.py", "1-pipe.line.py", "ünicode.py", "no_suffix"):
        (tmp_path / name).write_text(WHOLE)
        assert output_of(run(sys.executable, name, cwd=tmp_path)) == EXPECTED, name


def test_dash_m(tmp_path: Path) -> None:
    package = tmp_path / "pkg" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "pipeline.py").write_text("from . import helper\n" + WHOLE)
    (package / "helper.py").write_text("")
    (package / "__main__.py").write_text(WHOLE)
    for module in ("pkg.inner.pipeline", "pkg.inner"):
        assert output_of(run(sys.executable, "-m", module, cwd=tmp_path)) == EXPECTED


def test_dash_c(tmp_path: Path) -> None:
    assert output_of(run(sys.executable, "-c", IMPORTS + ACTOR + MAIN + "main()")) == EXPECTED


def test_stdin(tmp_path: Path) -> None:
    assert output_of(run(sys.executable, stdin=IMPORTS + ACTOR + MAIN + "main()")) == EXPECTED
    assert output_of(run(sys.executable, "-", stdin=WHOLE)) == EXPECTED


def test_interactive(tmp_path: Path) -> None:
    lines = (IMPORTS + ACTOR + MAIN).replace("\n    def ", "\n    \n    def ")
    source = re.sub(r"\n(?=\S)", r"\n\n", lines.strip()) + "\n\nmain()\n"
    source = source.replace("\n\n                    WorkerConfig", "\n WorkerConfig")
    finished = run(sys.executable, "-i", "-q", stdin="exec(" + repr(source) + ")\nexit()\n")
    assert EXPECTED in finished.stdout, finished.stderr


def test_zip_and_folder(tmp_path: Path) -> None:
    import zipfile

    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "__main__.py").write_text(WHOLE)
    assert output_of(run(sys.executable, folder)) == EXPECTED
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", WHOLE)
    assert output_of(run(sys.executable, tmp_path / "app.zip")) == EXPECTED


def test_local_modules(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("FACTOR = 3\n")
    (tmp_path / "actors.py").write_text(
        IMPORTS
        + "from lib.helper import FACTOR\n"
        + ACTOR.replace("r * self.scale", "r * self.scale * FACTOR")
    )
    source = "from actors import Actor, Made, MyError\n" + MAIN + GUARD
    expected = EXPECTED.replace("[2, 4, 6, 8, 10]", "[6, 12, 18, 24, 30]")
    assert output_of(run_script(tmp_path, source, cwd=Path("/"))) == expected
    by_path = source.replace("worker_cls=Actor", "worker_cls='actors.Actor'")
    assert output_of(run_script(tmp_path, by_path, cwd=Path("/"))) == expected


def test_class_inside_a_function(tmp_path: Path) -> None:
    """What has no import path travels by value."""
    source = """
def main():
    factor = 7
    class Local(Worker):
        @register(Dispatch.DP_MP_COMPUTE)
        def go(self, rows): return [r * factor for r in rows]
    with Cluster(name="local", worker_cls=Local, resource_manager=ResourceManager(0, 1),
                 worker_config=WorkerConfig(world_size=2)) as c:
        print(c.go([1, 2, 3]))
"""
    assert output_of(run_script(tmp_path, source + GUARD)) == "[7, 14, 21]\n"


@pytest.mark.parametrize("how", ["file", "-m", "run"])
def test_missing_guard(tmp_path: Path, how: str) -> None:
    (tmp_path / "unguarded.py").write_text(IMPORTS + ACTOR + MAIN + "main()\nprint('end')\n")
    command = {
        "file": [sys.executable, "unguarded.py"],
        "-m": [sys.executable, "-m", "unguarded"],
        "run": [str(BINARY), "run", "unguarded.py"],
    }[how]
    finished = run(*command, cwd=tmp_path, MUSTER_PYTHON=sys.executable, timeout=30)
    assert finished.returncode != 0
    assert 'if __name__ == "__main__"' in finished.stderr
    assert "end" not in finished.stdout.splitlines()


def test_muster_run(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(
        WHOLE.replace("def main():\n", "def main():\n    print(sys.argv[1:])\n")
    )
    command: list[str | Path] = [BINARY, "run", "--virtual", "1x8", "pipeline.py", "--lr", "1e-5"]
    finished = run(*command, cwd=tmp_path, virtual=None, MUSTER_PYTHON=sys.executable)
    assert output_of(finished) == "['--lr', '1e-5']\n" + EXPECTED


def test_muster_run_passes_the_exit_code_on(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(7)\n")
    finished = run(BINARY, "run", "exits.py", cwd=tmp_path, MUSTER_PYTHON=sys.executable)
    assert finished.returncode == 7


def test_arguments_and_environment_of_the_script_in_workers(tmp_path: Path) -> None:
    source = """
import json
SEEN = sys.argv[1:]
class Seer(Worker):
    def see(self): return [SEEN, __name__, os.getcwd(), sys.executable, os.environ["EXTRA"]]
if __name__ == "__main__":
    with Cluster(name="seer", worker_cls=Seer, resource_manager=ResourceManager(0, 1)) as c:
        print(json.dumps(c.execute_rank_zero_sync("see")))
"""
    finished = run_script(tmp_path, source, "--a", "b", cwd=tmp_path, EXTRA="more")
    argv, name, cwd, python, extra = json.loads(output_of(finished))
    assert argv == ["--a", "b"], "module-level code that reads its arguments sees them"
    assert name != "__main__"
    assert (cwd, python, extra) == (str(tmp_path), sys.executable, "more")


def test_unhandled_errors_end_the_script_with_their_text(tmp_path: Path) -> None:
    source = ACTOR + MAIN.replace("except MyError as error", "except KeyError as error") + GUARD
    finished = run_script(tmp_path, source)
    assert finished.returncode == 1
    assert "MyError: mine" in finished.stderr
    assert "in fail" in finished.stderr and "actor_train-" in finished.stderr


def test_gpus_that_are_not_there(tmp_path: Path) -> None:
    """Without stand-ins the error says what there is and names the option."""
    source = "if __name__ == '__main__':\n    ResourceManager(64, 2)\n"
    finished = run_script(tmp_path, source, virtual=None)
    assert finished.returncode == 1
    assert "MUSTER_VIRTUAL" in finished.stderr or "virtual=" in finished.stderr
    assert "64" in finished.stderr


def test_pickles_match_both_ways_after_dash_m(tmp_path: Path) -> None:
    """A class of the script that a worker makes is the script's class, under any name."""
    (tmp_path / "mod.py").write_text(WHOLE)
    (tmp_path / "other.py").write_text("import mod\nif __name__ == '__main__':\n    mod.main()\n")
    assert output_of(run(sys.executable, "other.py", cwd=tmp_path)) == EXPECTED
    assert output_of(run(sys.executable, "-m", "other", cwd=tmp_path)) == EXPECTED


def test_import_muster_is_quiet_and_light() -> None:
    code = "import sys, muster; print('numpy' in sys.modules, 'asyncio' in sys.modules)"
    finished = run(sys.executable, "-c", code)
    assert output_of(finished) == "False False\n"
    assert finished.stderr == ""


IN_PYTEST = (
    IMPORTS
    + ACTOR
    + """
import muster.compat.ray as ray

@ray.remote
class Counter:
    def __init__(self, made): self.made = made
    def get(self): return self.made
    def fail(self): raise MyError("mine")

@ray.remote
def rank_of(made): return Made(made.rank + 1)

def test_workers_find_this_module():
    with ResourceManager(num_gpus_per_node=2, num_nodes=1) as rm:
        actor = Cluster(name="a", worker_cls=Actor, resource_manager=rm,
                        worker_config=WorkerConfig(device_mapping="0-1"))
        made = actor.execute_rank_zero_sync("make")
        assert type(made) is Made and actor.execute_rank_zero_sync("took", made)
        try:
            actor.execute_all_sync("fail")
        except MyError as error:
            assert isinstance(error, muster.RemoteError)
        else:
            raise AssertionError("no error")
    assert muster.service(Made, "made", 4).name == "made"
    counter = Counter.remote(made)
    assert type(ray.get(counter.get.remote())) is Made
    try:
        ray.get(counter.fail.remote())
    except MyError as error:
        assert isinstance(error, ray.exceptions.RayTaskError)
    assert ray.get(rank_of.remote(made)).rank == 1
    muster.shutdown()
"""
)


def test_pytest_that_imports_by_file(tmp_path: Path) -> None:
    """Two of a name: only their files tell them apart."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_it.py").write_text(IN_PYTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "elsewhere").mkdir()  # the folder that a program runs in is on its sys.path
    command = (sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", tmp_path)
    done = run(*command, cwd=tmp_path / "elsewhere", virtual="1x2", PYTHONPATH=PACKAGE)
    assert "2 passed" in output_of(done)
