"""`muster node` with wrong ranks, names, tokens and deadlines: exit code and last line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosts import Hosts, python_with_ray
from replicas import TOKEN, job
from running import BINARY

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    python_with_ray()
    with Hosts(3) as made:
        yield made


def test_two_leaders_on_two_hosts(hosts: Hosts) -> None:
    with job(hosts) as start:
        leader = start(0, "true", world=2)
        second = start(1, "true", world=2, rank=0)
        code, last = second.ended()
        assert code == 1
        assert last == (
            "this replica (host1, 10.77.0.2) has rank 0, but the leader host0 (10.77.0.1) is another"
            " host: two replicas were given rank 0, or the leader's address is wrong; --node-ip says"
            " that it is right"
        )
        third = start(2, "true", world=2, rank=1)
        assert leader.ended() == third.ended() == (0, "")


def test_two_leaders_on_one_host(hosts: Hosts) -> None:
    with job(hosts) as start:
        leader = start(0, "true", world=2)
        leader.until("waiting")
        code, last = start(0, "true", world=2).ended()
        assert code == 1
        assert last.startswith("port 6379 of this host is taken: another muster node has rank 0")
        follower = start(1, "true", world=2)
        assert leader.ended() == follower.ended() == (0, "")


def test_ranks_and_numbers_that_the_leader_refuses(hosts: Hosts) -> None:
    with job(hosts) as start:
        leader = start(0, "true")
        first = start(1, "true")
        first.until("joined")
        assert start(2, "true", rank=1).ended() == (
            1,
            "the leader refuses this replica: rank 1 on host2 is already here, on host1: two"
            " replicas were given that rank",
        )
        assert start(2, "true", world=4).ended() == (
            1,
            "the leader refuses this replica: rank 2 on host2 was told of 4 replicas, and the leader"
            " of 3: all need the same number",
        )
        last = start(2, "true")
        assert [r.ended() for r in (leader, first, last)] == [(0, "")] * 3


def test_a_token_that_is_not_the_leaders(hosts: Hosts) -> None:
    with job(hosts) as start:
        leader = start(0, "true", world=2)
        leader.until("waiting")
        wrong = start(1, "true", world=2, env={"RAY_AUTH_TOKEN": "another"})
        code, last = wrong.ended()
        assert (code, last) == (
            1,
            "the token is not the leader's at host0:6380: the replicas need the same RAY_AUTH_TOKEN",
        )
        assert "another" not in str(wrong) and TOKEN not in str(leader)
        right = start(1, "true", world=2)
        assert leader.ended() == right.ended() == (0, "")


def test_deadlines_of_the_join(hosts: Hosts) -> None:
    with job(hosts) as start:
        short = ("--join-timeout", "3s")
        nobody = start(1, "true", flags=short)
        nameless = start(2, "true", leader="nosuchhost", flags=short)
        nowhere = start(0, "true", leader="10.77.0.99", rank=1, flags=short)
        assert nobody.ended() == (
            1,
            "rank 1 waited 3 s for the leader at host0:6380 in vain: connection refused",
        )
        code, last = nameless.ended()
        assert code == 1 and last.startswith(
            "rank 2 waited 3 s for the leader at nosuchhost:6380 in vain: its name cannot be looked up"
        )
        code, last = nowhere.ended()
        assert code == 1 and "10.77.0.99:6380 in vain: " in last
        own = start(0, "true", leader="nosuchhost", flags=short)
        code, last = own.ended()
        assert code == 1 and last.startswith("the leader's name nosuchhost cannot be looked up: ")


def test_a_leader_that_waits_in_vain_tells_those_who_came(hosts: Hosts) -> None:
    with job(hosts) as start:
        first = start(0, "true", world=1)
        first.code()
    # Long enough for Ray to be up on two nodes, however slow this machine is now.
    seconds = int(first.until("ray")["seconds"] * 4 + 15)
    with job(hosts) as start:
        leader = start(0, "true", flags=("--join-timeout", f"{seconds}s"))
        follower = start(1, "true")
        code, why = leader.ended()
        assert code == 1 and why.startswith("within ")
        assert why.endswith(" only 2 of 3 nodes joined; not heard of: rank 2")
        assert follower.ended() == (1, f"the leader ended: {why}")


def test_what_cannot_be_known_is_told_at_once(hosts: Hosts) -> None:
    def wrong(*flags: str, **env: str) -> str:
        told = {"RAY_AUTH_TOKEN": TOKEN, **env}
        done = hosts.run(1, [BINARY, "node", *flags, "--", "true"], env=told)
        assert done.returncode == 2 and not done.stdout
        return done.stderr.splitlines()[-1]

    place = ("--rank", "1", "--world", "3", "--leader", "host0")
    assert "the number of replicas is not known: give --world" in wrong()
    assert "the rank is not known: give --rank" in wrong("--world", "3")
    assert "rank 3 (--rank) is not one of 0 to 2" in wrong("--rank", "3", "--world", "3")
    assert "the leader's address is not known" in wrong("--rank", "1", "--world", "3")
    assert "BEAKER_REPLICA_RANK=1 and NODE_RANK=0 disagree" in wrong(
        "--world", "3", BEAKER_REPLICA_RANK="1", NODE_RANK="0"
    )
    assert "there is no token: the replicas need one secret" in wrong(*place, RAY_AUTH_TOKEN="")
    assert "/no/such/file" in wrong(*place, "--token-file", "/no/such/file")
    assert "RAY_AUTH_MODE is disabled" in wrong(*place, RAY_AUTH_MODE="disabled")
    assert "there is no profile" in wrong(*place, "--profile", "fast")
    assert "10.0.0.9 is not an address of this host" in wrong(*place, "--node-ip", "10.0.0.9")
    assert "--min-nodes 4 is not one of 1 to 3" in wrong(*place, "--min-nodes", "4")
    assert "muster node sets --head by itself" in wrong(*place, "--ray-flag=--head")
    done = hosts.run(0, [BINARY, "node", "--rank", "0", "--world", "1", "--", "nosuchprogram"])
    assert done.returncode == 2 and "nosuchprogram is no program" in done.stderr
    done = hosts.run(0, [BINARY, "node", "--rank", "0", "--world", "1"])
    assert done.returncode == 2 and "there is no command" in done.stderr


def test_a_python_without_ray(hosts: Hosts) -> None:
    with job(hosts) as start:
        alone = start(0, "true", world=1, flags=("--python", "/usr/bin/python3"))
        code, last = alone.ended()
        assert code == 1 and last.startswith("Ray's head did not start: exit code 1: ")
        assert "ray" in last.split("exit code 1: ")[1]
