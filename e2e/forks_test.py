"""Children that a user's code forks, of a script and of a worker, with a store that spills."""

from __future__ import annotations

from pathlib import Path

from running import HERE, PACKAGE, output_of, run_script

SCRIPT = """
import signal
import numpy as np
from muster import Batch
from running import eventually
from stages import Stage


def reads(batch, times):
    for _ in range(times):
        x = batch.select("x")["x"]
        if x.min() != 7 or x.max() != 7:
            return f"{x.min()} to {x.max()}"
        del x
    return "7"


def fork(what, folder, name):
    pid = os.fork()
    if pid == 0:
        signal.alarm(40)
        try:
            said = what()
        except BaseException as error:
            said = repr(error)
        with open(f"{folder}/{name}.part", "w") as out:
            out.write(said)
        os.rename(f"{folder}/{name}.part", f"{folder}/{name}")
        os._exit(0)
    return pid


def said(folder, name):
    path = f"{folder}/{name}"
    assert eventually(lambda: os.path.exists(path), 45), f"nothing came of the {name}"
    return open(path).read()


class Keeper(Stage):
    @register(Dispatch.ONE_TO_ALL)
    def fill(self, value):
        return Batch({"x": np.full((512, 1024), value, np.int64)})

    @register(Dispatch.ONE_TO_ALL)
    def keep_and_fork(self, batch, folder):
        self.batch = batch
        assert reads(batch, 1) == "7"

        def later():
            assert eventually(lambda: os.path.exists(f"{folder}/go"), 30)
            return reads(batch, 5)

        self.child = fork(later, folder, "child of a worker")

    @register(Dispatch.ONE_TO_ALL)
    def end(self):
        assert os.waitpid(self.child, 0)[1] == 0
        return reads(self.batch, 1)


if __name__ == "__main__":
    folder = sys.argv[1]
    rm = ResourceManager(1)
    c = Cluster(name="c", worker_cls=Keeper, resource_manager=rm,
                worker_config=WorkerConfig(device_mapping="0"))
    batch = c.fill(7)[0]
    c.keep_and_fork(batch, folder)
    seen = c.fill(7)[0]
    assert seen["x"].max() == 7  # by which the child has it, too

    def later():
        assert eventually(lambda: os.path.exists(f"{folder}/go"), 30)
        return f"{seen['x'].min()} to {seen['x'].max()}"

    reader = fork(later, folder, "child of one that had read")
    held = [c.fill(100 + at)[0] for at in range(20)]  # more than the store may have
    open(f"{folder}/go", "w").close()
    print(said(folder, "child of a worker"), c.end()[0])
    print(said(folder, "child of one that had read"))
    os.waitpid(reader, 0)
    del held

    def child():
        first = reads(batch, 1)
        pid = fork(lambda: reads(batch, 100), folder, "grandchild")
        own = reads(batch, 100)
        os.waitpid(pid, 0)
        return f"{first} {own}"

    pid = fork(child, folder, "child")
    print(reads(batch, 100), said(folder, "child"), said(folder, "grandchild"))
    os.waitpid(pid, 0)
"""


def test_children_read_what_their_parent_holds(tmp_path: Path) -> None:
    """Of a worker, when its call is over and the rows were spilled; and a child's child."""
    spilled = tmp_path / "spilled"
    spilled.mkdir()
    done = run_script(
        tmp_path,
        SCRIPT,
        str(tmp_path),
        virtual="1x1",
        timeout=120,
        PYTHONPATH=f"{PACKAGE}:{HERE}",
        MUSTER_STORE_BYTES="48MiB",
        MUSTER_SPILL_DIR=str(spilled),
    )
    assert output_of(done).splitlines() == ["7 7", "7 to 7", "7 7 7 7"]
