"""A session on a real Ray as it is seen from outside, and what is large where it is made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hosts import Hosts
from ray_cluster import Cluster, until
from running import BINARY

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def rays() -> Iterator[Cluster]:
    with Hosts(3) as hosts:
        yield Cluster(hosts, hosts.ray_up())


@pytest.fixture
def cluster(rays: Cluster) -> Iterator[Cluster]:
    yield rays
    rays.nothing_is_left(files=False)


ONE_BY_ONE = """
if __name__ == "__main__":
    muster.nodes()
    for size in map(int, sys.stdin):
        with ResourceManager(num_gpus_per_node=8, num_nodes=size) as rm:
            print("has", len(rm.nodes), flush=True)
            sys.stdin.readline()
        print("let go", flush=True)
"""


def test_nodes_that_no_pool_has_had_are_shown(cluster: Cluster) -> None:
    running = cluster.start(ONE_BY_ONE)
    addresses = [host.address for host in cluster.hosts.hosts]

    def say(line: str, heard: str) -> None:
        assert running.stdin is not None and running.stdout is not None
        running.stdin.write(line + "\n")
        running.stdin.flush()
        assert running.stdout.readline() == heard + "\n"

    def look(*how: str) -> str:
        done = cluster.hosts.run(0, [BINARY, "status", *how], env=cluster.env(), check=True)
        return done.stdout

    def nodes() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(look("--json"))[0]["nodes"]
        return found

    def states() -> list[tuple[str, str]]:
        return [(node["name"], node["state"]) for node in nodes()]

    try:
        say("2", "has 2")
        shown = nodes()
        assert sorted(node["name"] for node in shown) == sorted(addresses)
        states_now = sorted(node["state"] for node in shown)
        assert states_now in (["unused", "up", "up"], ["up", "up", "up"]), shown
        for node in shown:
            assert node["address"] == node["name"] and len(node["devices"]) == 8, node
            assert node["cores"] > 0 and node["memory_bytes"] > 0, node
        unused = [node for node in shown if node["state"] == "unused"]
        text = look()
        for node in unused:
            (line,) = [one for one in text.splitlines() if one.split()[:1] == [node["name"]]]
            assert line.split()[1:3] == ["unused", "8"], text
        say("", "let go")
        # Their agents go, and they are there for others: but for the script's own.
        expected = [(addresses[0], "up"), *((one, "unused") for one in addresses[1:])]
        until(lambda: states() == expected, lambda: str(states()))
        say("3", "has 3")
        until(lambda: [state for _, state in states()] == ["up"] * 3, lambda: str(states()))
        say("", "let go")
    finally:
        done = cluster.finish(running)
    assert done.returncode == 0, done.stderr


LARGE = """
import json, signal, subprocess
import numpy as np

class Scribbler:
    def __init__(self, given):
        self.first = int(given.sum())
        given[:] = 0
    def seen(self):
        return self.first
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

def objects():
    told = json.loads(subprocess.check_output([sys.argv[1], "store", "--json"]))
    return [o for head in told for node in head["nodes"] for o in node["objects"]]

def soon(reached):
    for _ in range(600):
        if reached():
            return True
        time.sleep(0.05)
    return False

def alive(one):
    try:
        return one.seen() is not None
    except muster.WorkerDiedError:
        return False

if __name__ == "__main__":
    large = np.arange(1 << 21)
    nodes = [node["name"] for node in muster.nodes()]
    made = [
        muster.service(Scribbler, f"on-{i}", large, config=WorkerConfig(node=name, on_failure="restart_worker"))
        for i, name in enumerate(nodes)
    ]
    sums = [one.seen() for one in made]
    for one in made:
        try:
            one.die()
        except muster.WorkerDiedError:
            pass
    again = [one.seen() if soon(lambda: alive(one)) else None for one in made]
    placed = [one.node for one in made]
    for one in made:
        one.shutdown()
    print(json.dumps({
        "sums": sums, "again": again, "expected": int(large.sum()), "placed": placed == nodes,
        "left": [] if soon(lambda: not objects()) else objects(),
    }))
"""


def test_a_service_on_any_host_is_made_of_large_things(cluster: Cluster) -> None:
    """They travel from store to store, and a process that takes another's place gets them too."""
    path = cluster.script(LARGE)
    running = cluster.program([cluster.ray.python, path, BINARY], None, path.parent)
    done = cluster.finish(running)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    got = json.loads(done.stdout.splitlines()[-1])
    assert got["sums"] == got["again"] == [got["expected"]] * 3
    assert got["placed"] and got["left"] == [], got
