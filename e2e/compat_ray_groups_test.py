"""Placement groups of `muster.compat.ray` that are waited for: what becomes of them."""

from __future__ import annotations

import sys
from pathlib import Path

from running import PACKAGE, output_of, run

GROUPS = """
import sys
import threading
import muster
import muster.compat.ray as ray
from muster.compat.ray.util.placement_group import (
    placement_group, placement_group_table, remove_placement_group)

groups = sys.modules["muster.compat.ray.util.placement_group"]

@ray.remote
class Holder:
    def hold(self):
        self.pool = None
        self.pool = muster.ResourceManager(2, 1, wait=True, timeout=60)
        return [self.pool.id]
    def leave(self):
        self.pool = None
        return muster.nodes()[0]["free"]  # which tells the head
    def pools(self, group):
        return group.wait(1) and [group.pool().id]

def fails(ref):
    try:
        return not ray.get(ref, timeout=60)
    except ray.exceptions.RayError as error:
        return str(error)

if __name__ == "__main__":
    ray.init(num_gpus=2)
    holder = Holder.remote()
    ray.get(holder.hold.remote())
    gone = placement_group([{"GPU": 2}])
    ref = gone.ready()
    remove_placement_group(gone)
    assert ray.get(holder.hold.remote(), timeout=60)  # what it gives back, nobody else has
    assert "was removed" in fails(ref), fails(ref)
    assert placement_group_table(gone)["state"] == "REMOVED"

    group = placement_group([{"GPU": 1}])
    short = []
    one = threading.Thread(target=lambda: short.append(group.wait(1)))
    one.start()
    ref = group.ready()
    one.join()
    assert short == [False] and ray.wait([ref], timeout=0.1) == ([], [ref])
    remove_placement_group(group)

    groups.PATIENCE = 0.5
    group = placement_group([{"GPU": 1}])
    ref, long = group.ready(), []
    one = threading.Thread(target=lambda: long.append(group.wait(60)))
    one.start()
    other = placement_group([{"GPU": 1}])
    assert "holds 0-1" in fails(other.ready())
    ray.get(holder.leave.remote())
    one.join()
    assert long == [True] and other.wait(60)
    remove_placement_group(other)

    groups.PATIENCE = 30.0
    other = placement_group([{"GPU": 2}])
    ref = other.ready()
    remove_placement_group(group)
    assert ray.wait([ref], timeout=60)[0] == [ref]
    assert ray.get(holder.pools.remote(other)) == [other.pool().id]
    assert ray.get(holder.leave.remote()) == 0
    remove_placement_group(other)
    assert ray.get(holder.leave.remote()) == 2
    print("grouped")
"""


def test_groups_that_wait(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(GROUPS)
    done = run(sys.executable, tmp_path / "script.py", virtual=None, PYTHONPATH=PACKAGE)
    assert output_of(done).splitlines()[-1] == "grouped"


AGAIN = """
import muster
import muster.compat.ray as ray
from muster.compat.ray.util.placement_group import (
    placement_group, placement_group_table, remove_placement_group)

if __name__ == "__main__":
    ray.init(num_gpus=2)
    group = placement_group([{"GPU": 2}], name="first")
    ray.get(group.ready())
    assert ray.available_resources().get("GPU", 0) == 0
    ray.shutdown()
    ray.init(num_gpus=2)
    assert ray.available_resources()["GPU"] == 2
    for use in (lambda: group.wait(1), lambda: ray.get(group.ready())):
        try:
            use()
        except (muster.ReleasedError, ray.exceptions.RaySystemError) as error:
            assert "first" in str(error) and "session is over" in str(error), error
        else:
            raise AssertionError("it counts as reserved")
    assert placement_group_table(group)["state"] == "REMOVED"
    remove_placement_group(group)
    other = placement_group([{"GPU": 2}])
    assert other.wait(60)
    print("again")
"""


def test_a_group_of_a_session_before(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(AGAIN)
    done = run(sys.executable, tmp_path / "script.py", virtual=None, PYTHONPATH=PACKAGE)
    assert output_of(done).splitlines()[-1] == "again"
