"""The hosts that other tests stand on: apart from each other, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Hosts, Unavailable, network, remains
from running import eventually

ROOT = Path(__file__).resolve().parent.parent
#: One that lies outside of the tree, so that a bare host has it too.
PYTHON = Path(sys.base_prefix, "bin", "python3")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(3, bare=[2], kept=[]) as made:
        yield made


def output(hosts: Hosts, host: int, *command: str) -> str:
    return hosts.run(host, command, check=True).stdout.strip()


def reaches(hosts: Hosts, source: int, target: int) -> bool:
    """Whether a datagram of one host arrives at another, within a second."""
    listen = (
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.bind(('', 9))\n"
        "s.settimeout(1)\nprint('on', flush=True)\ns.recv(9)"
    )
    send = (
        "import socket, time\ns = socket.socket(type=socket.SOCK_DGRAM)\n"
        f"for _ in range(40):\n  s.sendto(b'x', ('host{target}', 9)); time.sleep(0.02)"
    )
    receiver = hosts.popen(target, [PYTHON, "-Ic", listen])
    assert receiver.stdout is not None and receiver.stdout.readline() == "on\n"
    hosts.run(source, [PYTHON, "-Ic", send])
    return receiver.wait() == 0


def test_each_has_its_name_address_and_peers(hosts: Hosts) -> None:
    assert [output(hosts, i, "hostname") for i in range(3)] == ["host0", "host1", "host2"]
    assert "10.77.0.2/24" in output(hosts, 1, "ip", "-o", "-4", "addr", "show", "eth0")
    assert reaches(hosts, 0, 1) and reaches(hosts, 2, 0)


def test_processes_and_memory_are_apart(hosts: Hosts) -> None:
    sleeper = hosts.popen(0, ["sleep", "1000"])
    assert sleeper.pid in hosts.processes(0) and sleeper.pid not in hosts.processes(1)
    assert "sleep 1000" in output(hosts, 0, "ps", "-eo", "args")
    assert "sleep 1000" not in output(hosts, 1, "ps", "-eo", "args")
    output(hosts, 0, "touch", "/dev/shm/mine", f"{hosts.scratch}/mine")
    assert output(hosts, 0, "ls", "/dev/shm") == "mine"
    assert output(hosts, 1, "ls", "/dev/shm", str(hosts.scratch)).count("mine") == 0
    assert (hosts[0].path(hosts.scratch) / "mine").exists()
    sleeper.terminate()
    assert sleeper.wait() == -signal.SIGTERM


def test_a_bare_host_has_no_tree(hosts: Hosts) -> None:
    assert "Makefile" in output(hosts, 1, "ls", str(ROOT))
    assert output(hosts, 2, "ls", str(ROOT)) == ""


def test_orphans_are_reaped(hosts: Hosts) -> None:
    output(hosts, 0, "sh", "-c", "(sh -c 'exit 0' &) ; (sleep 0.01 &)")
    assert eventually(lambda: "defunct" not in output(hosts, 0, "ps", "ax"))


def test_a_link_goes_down_and_up(hosts: Hosts) -> None:
    hosts.link(1, up=False)
    try:
        assert not reaches(hosts, 0, 1)
        assert reaches(hosts, 0, 2)
    finally:
        hosts.link(1, up=True)
    assert reaches(hosts, 0, 1)


def test_a_one_way_partition(hosts: Hosts) -> None:
    hosts.shape(1, loss=100, way="in")
    try:
        assert not reaches(hosts, 0, 1)
        hosts.shape(1, loss=100, way="out")
        assert reaches(hosts, 0, 1)
        assert not reaches(hosts, 1, 0)
    finally:
        hosts.shape(1)
    assert reaches(hosts, 1, 0)


def test_loss_and_rate(hosts: Hosts) -> None:
    count = (
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)\ns.bind(('', 9))\n"
        "print('on', flush=True)\nn = 0\nwhile s.recv(9) != b'end': n += 1\nprint(n)"
    )
    send = (
        "import socket, time\ns = socket.socket(type=socket.SOCK_DGRAM)\n"
        "s.connect(('host1', 9))\nfor _ in range(2000): s.send(b'x')\n"
        "for _ in range(100):\n  s.send(b'end'); time.sleep(0.01)"
    )
    hosts.shape(1, loss=20, rate="100mbit")
    try:
        receiver = hosts.popen(1, [PYTHON, "-Ic", count])
        assert receiver.stdout is not None and receiver.stdout.readline() == "on\n"
        hosts.run(0, [PYTHON, "-Ic", send])
        out, _ = receiver.communicate()
    finally:
        hosts.shape(1)
    assert 1400 < int(out) < 1800  # 1600 but for ten times the usual spread


def test_a_crash_ends_all_of_a_host() -> None:
    with Hosts(2) as hosts:
        program = hosts.popen(1, ["sleep", "1000"])
        hosts.crash(1)
        assert program.wait() == -signal.SIGKILL
        with pytest.raises(OSError, match="host1 is down"):
            hosts.run(1, ["true"])
        assert output(hosts, 0, "hostname") == "host0"


def test_nothing_is_left() -> None:
    with Hosts(2) as hosts:
        name = hosts.name
        hosts.popen(0, ["sleep", "1000"])
    assert not [space for space in remains.namespaces() if space.startswith(name)]
    assert not (remains.SCRATCH / name).exists() and not (remains.LOCKS / name).exists()


def test_nothing_is_left_when_making_them_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    network.check()
    monkeypatch.setattr(network, "INIT", Path("/no/such/init.py"))
    hosts = Hosts(2)
    with pytest.raises(OSError, match="did not come up"), hosts:
        pass
    assert not [space for space in remains.namespaces() if space.startswith(hosts.name)]


@pytest.mark.chaos
def test_the_next_run_clears_what_a_killed_one_left() -> None:
    network.check()
    source = (
        "from hosts import Hosts\nh = Hosts(2).__enter__()\nh.popen(0, ['sleep', '1000'])\n"
        "print(h.name, flush=True)\ninput()"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "e2e")}
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as run:
        assert run.stdout is not None
        name = run.stdout.readline().strip()
        assert name.startswith(remains.PREFIX)
        assert remains.clear_dead_runs() == []  # it lives
        run.kill()
    with Hosts(1):
        assert not [space for space in remains.namespaces() if space.startswith(name)]
        assert not (remains.SCRATCH / name).exists() and not (remains.LOCKS / name).exists()


def test_a_skip_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match=r"^needs hosts: only root"), Hosts(1):
        pass
