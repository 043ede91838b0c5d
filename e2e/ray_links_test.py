"""Nodes of Ray behind links that fail: cut, one way, lossy, slow; for a while and for ever.

Each test says what is noticed, what the call says, and what is left on the hosts and in Ray.
The table of it is in docs/nodes.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hosts import Hosts, Running
from ray_cluster import Cluster, until
from running import BINARY

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

NEAR, FAR = 0, 1
#: Of the far host, as Ray and the errors name it.
NAME = "10.77.0.2"
#: Ray declares a node dead that its head has not heard of for a few seconds.
HASTY = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}

# One worker on each host; calls are made and waited for as lines of stdin say.
SCRIPT = """
import json
class Held(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def step(self, folder, what, gate, ballast):
        with open(f"{folder}/ran", "ab", 0) as trace:
            trace.write(f"{what}\\n".encode())
        deadline = time.monotonic() + 200
        while gate and not os.path.exists(f"{folder}/{gate}") and time.monotonic() < deadline:
            time.sleep(0.005)
        return [what, len(ballast)]
if __name__ == "__main__":
    rm = ResourceManager(8, 2)
    made = [Cluster(f"c{i}", Held, rm, WorkerConfig(device_mapping=str(8 * i))) for i in range(2)]
    print("ready", flush=True)
    refs = {}
    for line in sys.stdin:
        verb, what, *how = json.loads(line)
        if verb == "call":
            host, folder, gate, size = how
            refs[what] = made[host].step(folder, what, gate, b"x" * size, blocking=False)
            said = "sent"
        else:
            try:
                said = ["", *muster.get(refs.pop(what), timeout=200)[0]]
            except muster.MusterError as error:
                said = [type(error).__name__, str(error), error.node, error.rank]
        print(json.dumps(said), flush=True)
"""


class Play:
    """The script, while it runs, and what its workers have run."""

    def __init__(self, cluster: Cluster, env: dict[str, str]) -> None:
        self.cluster, self._env, self._over = cluster, env, False
        self.folder = cluster.hosts.scratch / "play"
        for host in cluster.up():
            outside = cluster.hosts[host].path(self.folder)
            outside.mkdir(exist_ok=True)
            for file in outside.iterdir():
                file.unlink()
        self.running: Running = cluster.start(SCRIPT, env)
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.running.stdout is not None
        line = self.running.stdout.readline().strip()
        if not line:
            done = self.cluster.finish(self.running)
            raise AssertionError(f"it ended: {done.stdout}\n{done.stderr}")
        return line

    def _ask(self, *words: Any) -> Any:
        assert self.running.stdin is not None
        self.running.stdin.write(json.dumps(words) + "\n")
        self.running.stdin.flush()
        return json.loads(self._line())

    def call(self, what: str, host: int = FAR, gate: str = "", size: int = 0) -> None:
        """Makes a call; gate names a file that its method waits for."""
        assert self._ask("call", what, host, str(self.folder), gate, size) == "sent"

    def get(self, what: str) -> list[Any]:
        """The result after an empty text, or: error, text, node, rank."""
        answer: list[Any] = self._ask("get", what)
        return answer

    def hold(self) -> None:
        """A call that has begun on the far host and waits there."""
        self.call("held", gate="gate")
        until(lambda: self.ran() == ["held"], lambda: f"it did not begin: {self.ran()}")

    def open(self) -> None:
        """Lets it go on. No link is needed for that."""
        (self.cluster.hosts[FAR].path(self.folder) / "gate").touch()

    def ran(self) -> list[str]:
        path = self.cluster.hosts[FAR].path(self.folder) / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def near(self, what: str) -> None:
        """Others are not held up by a node that is away."""
        self.call(what, NEAR)
        assert self.get(what) == ["", what, 0]

    def node(self) -> dict[str, Any]:
        """What `muster status` has of the far node."""
        status = [str(BINARY), "status", "--json"]
        done = self.cluster.hosts.run(NEAR, status, env=self._env, check=True)
        found: dict[str, Any] = json.loads(done.stdout)[0]["nodes"][FAR]
        return found

    def becomes(self, *states: str) -> dict[str, Any]:
        until(lambda: self.node()["state"] in states, lambda: str(self.node()))
        return self.node()

    def end(self) -> None:
        """The script ends, in order."""
        if not self._over:
            self._over = True
            done = self.cluster.finish(self.running)
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@contextlib.contextmanager
def play(cluster: Cluster, files: bool = True, **env: str) -> Iterator[Play]:
    """The script, and after it nothing of it: on the hosts, in memory, in Ray."""
    made = Play(cluster, cluster.env(**env))
    try:
        yield made
    finally:
        heal(cluster.hosts)
        made.end()
    cluster.nothing_is_left(files)


def down(hosts: Hosts) -> None:
    hosts.link(FAR, up=False)


def deaf(hosts: Hosts) -> None:
    hosts.shape(FAR, loss=100, way="in")


def mute(hosts: Hosts) -> None:
    hosts.shape(FAR, loss=100, way="out")


def heal(hosts: Hosts) -> None:
    if hosts[FAR].init.poll() is None:
        hosts.shape(FAR)
        hosts.link(FAR, up=True)


CUTS = pytest.mark.parametrize("cut", [down, deaf, mute], ids=lambda cut: cut.__name__)


@pytest.fixture(scope="module")
def patient() -> Iterator[Cluster]:
    """Ray as it is by default."""
    with Hosts(2) as hosts:
        yield Cluster(hosts, hosts.ray_up())


@pytest.fixture
def cluster(patient: Cluster) -> Iterator[Cluster]:
    """The same, whole again where a test before was so slow that Ray gave a node up, whose
    raylet ends when it hears of it."""
    try:
        patient.ray.wait_for_nodes(2, 10)
    except AssertionError:
        until(lambda: not patient.ray.pids(FAR, "raylet"), lambda: "its raylet goes on", 60)
        patient.ray.start(FAR)
        patient.ray.wait_for_nodes(2)
    yield patient


def test_a_cut_of_two_seconds(cluster: Cluster) -> None:
    """Nobody notices, and nothing is lost."""
    with play(cluster) as it:
        it.hold()
        down(cluster.hosts)
        it.call("queued")
        it.open()
        it.near("meanwhile")
        time.sleep(2)  # the fault itself
        heal(cluster.hosts)
        assert it.get("held") == ["", "held", 0]
        assert it.get("queued") == ["", "queued", 0]
        assert it.ran() == ["held", "queued"]
        it.becomes("up")


def test_a_cut_of_thirty_seconds(cluster: Cluster) -> None:
    """The node is suspect, and its calls wait; Ray and Muster both have it again."""
    with play(cluster) as it:
        it.hold()
        down(cluster.hosts)
        over = time.monotonic() + 30
        why = it.becomes("suspect")["why"]
        assert f"nothing has come from {NAME} for" in why, why
        assert "its machine is down, or the network between is cut" in why, why
        it.call("queued")
        it.open()
        it.near("meanwhile")
        until(lambda: time.monotonic() > over, lambda: "", 40)  # the fault itself
        heal(cluster.hosts)
        assert it.get("held") == ["", "held", 0]
        assert it.get("queued") == ["", "queued", 0]
        assert it.ran() == ["held", "queued"]
        it.becomes("up")
        cluster.ray.wait_for_nodes(2)
        with_new_pool = cluster.musters(FAR)
        assert with_new_pool, "the agent is the same, and there"


@pytest.mark.parametrize("cut", [deaf, mute], ids=lambda cut: cut.__name__)
def test_one_direction_is_cut_for_a_while(cluster: Cluster, cut: Callable[[Hosts], None]) -> None:
    with play(cluster) as it:
        it.hold()
        cut(cluster.hosts)
        it.becomes("suspect", "away")
        it.call("queued")
        it.open()
        it.near("meanwhile")
        heal(cluster.hosts)
        assert it.get("held") == ["", "held", 0]
        assert it.get("queued") == ["", "queued", 0]
        assert it.ran() == ["held", "queued"]
        it.becomes("up")


def test_one_packet_in_twenty_is_lost(cluster: Cluster) -> None:
    with play(cluster) as it:
        cluster.hosts.shape(FAR, loss=5)
        names = [f"step {i}" for i in range(100)]
        for name in names:
            it.call(name)
            assert it.get(name) == ["", name, 0]
        assert it.ran() == names
        assert it.node()["state"] in ("up", "suspect")


def test_a_slow_link(cluster: Cluster) -> None:
    """It is called slow while it is, and is neither suspect for it nor lost."""
    with play(cluster) as it:
        cluster.hosts.shape(FAR, rate="1mbit", queue="4s")
        it.call("large", size=2_000_000)
        until(lambda: "slow: its machine takes" in it.node().get("why", ""), lambda: str(it.node()))
        assert it.node()["state"] == "up"
        it.near("meanwhile")
        assert it.get("large") == ["", "large", 2_000_000]
        assert it.ran() == ["large"]


@CUTS
def test_a_cut_for_ever(cluster: Cluster, cut: Callable[[Hosts], None]) -> None:
    """Nobody can prove that the node is dead: it is lost when its grace is over, on both sides."""
    with play(cluster, MUSTER_NODE_GRACE="6") as it:
        it.hold()
        cut(cluster.hosts)
        it.becomes("suspect", "away")
        kind, text, node, rank = it.get("held")
        assert (kind, node, rank) == ("NodeLostError", NAME, 0), text
        if cut is deaf:  # its agent may have hung up, which is heard; the machine is in any case
            lost = f"the connection to the agent of {NAME} ended", "the network between loses one"
            assert any(words in text for words in lost), text
        else:
            assert f"{NAME} is lost: nothing has come from {NAME} for" in text, text
            assert "its machine is down, or the network between is cut" in text, text
            assert "not proved to be dead" in text, text
        it.call("late")
        assert it.get("late")[0] == "NodeLostError"
        it.near("meanwhile")
        it.becomes("lost")
        # Still cut off, the agent has given up the head too, and ended all that was its.
        until(lambda: not cluster.musters(FAR), lambda: f"left: {cluster.musters(FAR)}", 40)
        assert it.ran() == ["held"]
        it.end()
        cluster.nothing_is_left(devices=False)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Cluster]:
    """A Ray that soon declares nodes dead."""
    with Hosts(2) as hosts:
        yield Cluster(hosts, hosts.ray_up(env=HASTY))


def declared_dead(it: Play) -> None:
    """The call fails by the word of Ray, long before the node's grace is over."""
    kind, text, node, rank = it.get("held")
    assert (kind, node, rank) == ("NodeLostError", NAME, 0), text
    assert f"the agent of {NAME} is gone" in text, text
    assert "Ray has declared its node dead" in text, text
    it.near("meanwhile")
    it.becomes("lost")


def back_in_ray(cluster: Cluster) -> None:
    """Its Ray ends when it hears that it is dead. It is started again, as an operator does.

    Ray has killed the warden there, whose folder is the next one's to remove.
    """
    until(lambda: not cluster.ray.pids(FAR, "raylet"), lambda: "its raylet goes on", 60)
    cluster.ray.start(FAR)
    cluster.ray.wait_for_nodes(2)
    with play(cluster) as it:
        it.call("again")
        assert it.get("again") == ["", "again", 0]


def test_ray_declares_a_node_dead_that_is_cut_off(hasty: Cluster) -> None:
    """That is proof, whatever is behind the cut; it ends when the link is there again."""
    with play(hasty, files=False) as it:
        it.hold()
        down(hasty.hosts)
        declared_dead(it)
        assert hasty.musters(FAR), "behind the cut nobody has heard of it"
        heal(hasty.hosts)
        until(lambda: not hasty.musters(FAR), lambda: f"left: {hasty.musters(FAR)}", 40)
        assert it.ran() == ["held"]
    back_in_ray(hasty)


def test_ray_declares_a_node_dead_that_answers_us(hasty: Cluster) -> None:
    """Its raylet hangs. Ray's word counts, and the agent is told to go, which it can be."""
    with play(hasty, files=False) as it:
        it.hold()
        (raylet,) = hasty.ray.pids(FAR, "raylet")
        os.kill(raylet, signal.SIGSTOP)
        try:
            declared_dead(it)
            until(lambda: not hasty.musters(FAR), lambda: f"left: {hasty.musters(FAR)}", 40)
        finally:
            os.kill(raylet, signal.SIGCONT)
    back_in_ray(hasty)


def test_a_node_loses_power(hasty: Cluster) -> None:
    """The last test of these hosts: one is gone."""
    with play(hasty, files=False) as it:
        it.hold()
        hasty.hosts.crash(FAR)
        declared_dead(it)
