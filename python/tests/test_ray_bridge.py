"""What the bridge to Ray decides by itself, without Ray."""

from __future__ import annotations

import hashlib
import os
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from muster._ray import groups, joining, reasons, remote, scaling, shipping
from muster._ray.scaling import Scaling


def node(name: str, here: bool = False, **more: Any) -> groups.Node:
    facts = {
        "NodeID": name.encode().hex(),
        "NodeManagerAddress": name,
        "Resources": {"CPU": 8.0, "GPU": 8.0},
        **more,
    }
    return groups.Node(facts, here)


def want(**more: Any) -> dict[str, Any]:
    return {"id": 1, "nodes": 2, "devices": 4, "seconds": 1.0, **more}


def test_a_bundle_is_what_was_asked_for() -> None:
    assert reasons.bundle(want()) == {"GPU": 4}
    assert reasons.bundle(want(devices=0)) == {"CPU": 0.01}
    assert reasons.bundle(want(cpus=3.0, accelerator="H100")) == {
        "GPU": 4,
        "CPU": 3.0,
        "accelerator_type:H100": 0.001,
    }


def test_an_explanation_names_what_is_wanted_what_there_is_and_who_holds_it() -> None:
    full, small = node("10.0.0.1", here=True), node("10.0.0.2", Resources={"CPU": 4.0})
    full.available["GPU"] = 2.0
    text = reasons.explain(
        want(),
        "STRICT_SPREAD",
        [full, small],
        {full.id: ["group trainer holds 6 GPUs"]},
        Scaling(False),
    )
    assert "num_gpus_per_node=4, num_nodes=2" in text
    assert "2 bundles of 4 GPUs, each on a node of its own" in text
    assert "0 nodes of 2 could take one now" in text
    assert "10.0.0.1: 8 GPUs, 2 free; group trainer holds 6 GPUs" in text
    assert "10.0.0.2: 0 GPUs, 0 free" in text
    assert "comes free" in text
    assert "is waited for" in reasons.explain(want(), "PACK", [full], {}, Scaling(True))
    assert "add nodes" in reasons.explain(want(devices=16), "PACK", [full], {}, Scaling(False))


@pytest.mark.parametrize(
    ("labels", "fits"),
    [
        ({}, True),
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": "!b"}, True),
        ({"zone": "!a"}, False),
        ({"zone": "in(a, b)"}, True),
        ({"zone": "!in(a,b)"}, False),
        ({"disk": "ssd"}, False),
    ],
)
def test_labels_choose_nodes(labels: dict[str, str], fits: bool) -> None:
    assert reasons.matches(node("n", Labels={"zone": "a"}), want(labels=labels)) is fits


@pytest.mark.parametrize(
    ("strategy", "count", "free", "ever"),
    [
        ("STRICT_SPREAD", 2, True, True),
        ("STRICT_SPREAD", 3, False, False),
        ("PACK", 3, True, True),
        ("PACK", 4, False, True),
        ("SPREAD", 5, False, False),
        ("STRICT_PACK", 2, True, True),
        ("STRICT_PACK", 3, False, False),
    ],
)
def test_room_by_strategy(strategy: str, count: int, free: bool, ever: bool) -> None:
    """Two nodes of 8 GPUs, of which one has 6 left: room for 2 and 1 bundles of 4."""
    there = [node("10.0.0.1"), node("10.0.0.2")]
    there[1].available["GPU"] = 6.0
    assert reasons.room(want(nodes=count), strategy, there, True) is free
    assert reasons.room(want(nodes=count), strategy, there, False) is ever


@pytest.mark.parametrize(
    ("strategy", "sizes", "free", "ever"),
    [
        ("PACK", [8, 6], True, True),
        ("PACK", [8, 8], False, True),
        ("PACK", [9, 1], False, False),
        ("STRICT_PACK", [5, 3], True, True),
        ("STRICT_PACK", [5, 4], False, False),
        ("STRICT_SPREAD", [6, 8], True, True),
        ("STRICT_SPREAD", [1, 2, 0], False, False),
    ],
)
def test_room_for_bundles(strategy: str, sizes: list[int], free: bool, ever: bool) -> None:
    there = [node("10.0.0.1"), node("10.0.0.2")]
    there[1].available["GPU"] = 6.0
    asked = want(devices=0, nodes=len(sizes), bundles=[{"gpus": size} for size in sizes])
    assert reasons.room(asked, strategy, there, True) is free
    assert reasons.room(asked, strategy, there, False) is ever


def test_bundles_that_differ() -> None:
    asked = want(devices=0, nodes=2, bundles=[{"gpus": 9, "cpus": 2.0}, {"gpus": 0}])
    assert reasons.bundles(asked) == [{"GPU": 9, "CPU": 2.0}, {"CPU": 0.01}]
    text = reasons.explain(asked, "STRICT_SPREAD", [node("10.0.0.1")], {}, Scaling(False))
    assert "2 bundles of 9 GPUs and 2 CPUs; no GPUs, each on a node of its own" in text
    assert "0 nodes of 1 could take the largest now" in text and "no node of this Ray" in text
    same = want(devices=0, nodes=2, bundles=[{"gpus": 4}] * 2)
    assert reasons.wanted(same, "PACK") == reasons.wanted(want(), "PACK")


def test_who_holds_what_is_named() -> None:
    users = {"1": "actor_train, critic", "2": ""}
    for name, said in {
        "muster-7-abc-1": "pool 1 (actor_train, critic)",
        "muster-7-abc-2": "pool 2",
        "muster-9-def-4": "pool 4 of session 9-def",
        "vllm": "group vllm",
    }.items():
        assert reasons.group_name(name, "muster-7-abc", users) == said
    held, at = reasons.Usage(), node("10.0.0.1")
    at.available.update(GPU=1.0, CPU=6.5)
    held.add(at.id, "pool 1", {"GPU": 4.0, "accelerator_type:H100": 0.001})
    held.add(at.id, "actor Engine (job 02000000)", {"GPU": 2.0, "CPU": 1.0})
    held.waits("group late", "8 GPUs")
    told = held.told([at])
    assert told[at.id] == [
        "pool 1 holds 4 GPUs",
        "actor Engine (job 02000000) holds 2 GPUs and 1 CPU",
        "tasks of Ray's hold 1 GPU and 0.5 CPUs",
    ]
    assert told[""] == ["group late waits for 8 GPUs"]


def test_an_autoscaler_is_told_from_a_monitor() -> None:
    made_up = {"autoscaler_report": {"active_nodes": {"node_ab12": 1}, "pending_nodes": []}}
    assert scaling.reported(made_up) == Scaling(False)
    assert scaling.reported({}) == Scaling(False)
    real = {
        "autoscaler_report": {
            "active_nodes": {"head": 1},
            "pending_nodes": [["10.0.0.9", "gpu", "setting-up"]],
            "pending_launches": {"gpu": 2},
        }
    }
    assert scaling.reported(real) == Scaling(True, "3 x gpu")
    hopeless = Scaling(True, hopeless=("ab12:STRICT_PACK|PENDING",))
    assert hopeless.refuses("ab12") and not hopeless.refuses("cd")
    assert "3 x gpu on the way" in reasons.explain(want(), "PACK", [], {}, Scaling(True, "3 x gpu"))


def test_releases_outside_the_tested_ones_are_warned_of() -> None:
    for version in ("2.54.1", "2.56.0", "2.58.1", "2.60.0"):
        assert joining.untested(version) == ""
    assert "tested with (2.54, 2.56, 2.58, 2.60)" in joining.untested("2.53.0")
    assert "2.61.0" in joining.untested("2.61.0")
    assert "3.0.0" in joining.untested("3.0.0")


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert joining.find_address("") == ""
    assert joining.find_address("auto") == ""
    assert joining.find_address("10.0.0.1:6379") == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(joining.Refused, match="GCS"):
        joining.find_address("")


def test_a_port_where_nobody_listens_is_told_at_once() -> None:
    with pytest.raises(joining.Refused, match=r"no Ray at 127\.0\.0\.1:1"):
        joining.check_port("127.0.0.1:1")


def test_the_same_content_is_the_same_zip(tmp_path: Path) -> None:
    shas = []
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "pkg" / "__pycache__").mkdir(parents=True)
        (folder / "pkg" / "m.py").write_text("x = 1\n")
        (folder / "pkg" / "__pycache__" / "m.pyc").write_text(name)
        data, sha = shipping.Packer().pack(str(folder))
        assert zipfile.ZipFile(BytesIO(data)).namelist() == ["pkg/m.py"]
        shas.append(sha)
    assert shas[0] == shas[1]


def test_a_change_is_packed_again(tmp_path: Path) -> None:
    packer = shipping.Packer()
    (tmp_path / "m.py").write_text("x = 1\n")
    first = packer.pack(str(tmp_path))
    assert packer.pack(str(tmp_path)) == first
    (tmp_path / "m.py").write_text("x = 22\n")
    assert packer.pack(str(tmp_path))[1] != first[1]


def test_what_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "MOST", 10)
    (tmp_path / "data").write_bytes(b"x" * 11)
    with pytest.raises(joining.Refused, match="working_dir"):
        shipping.Packer().pack(str(tmp_path))


def test_shipped_content_is_checked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    agent = remote.Agent()
    program = b"#!/bin/sh\nexit 0\n"
    sha = hashlib.sha256(program).hexdigest()
    assert agent.program("/no/such/muster", sha) == ""
    with pytest.raises(ValueError, match="not what was sent"):
        agent.take(sha, [b"other"], True)
    place = agent.take(sha, [program[:4], program[4:]], True)
    assert agent.program("/no/such/muster", sha) == os.path.join(place, remote.PROGRAM)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "m.py").write_text("x = 1\n")
    data, sha = shipping.Packer().pack(str(tmp_path / "src"))
    assert agent.has(sha) == ""
    place = agent.take(sha, [data], False)
    assert agent.has(sha) == place
    assert Path(place, "m.py").read_text() == "x = 1\n"
    assert sorted(os.listdir(tmp_path / "cache" / "muster")) == sorted(
        [hashlib.sha256(program).hexdigest(), sha]
    )


class Here:
    """An actor's methods, called here as Ray would have them called there."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return type("Method", (), {"remote": staticmethod(getattr(self._of, name))})

    def get(self, value: Any, timeout: float = 0) -> Any:
        return value


def test_a_workers_program_is_shipped_where_it_is_not_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "verifier"
    path.write_bytes(b"one")
    path.chmod(0o755)
    there = Here(remote.Agent())
    assert shipping.program(there, there, str(path)) == str(path)
    monkeypatch.setattr(remote.Agent, "program", lambda *_: "")  # it has another by that path
    went = shipping.program(there, there, str(path))
    assert went.startswith(str(tmp_path / "cache")) and Path(went).read_bytes() == b"one"
    assert os.access(went, os.X_OK)
    for left in ("", "/bin/sh", str(tmp_path / "none")):
        assert shipping.program(there, there, left) == left


def test_what_is_shipped_is_told_with_where_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("x = 1\n")
    there = Here(remote.Agent())
    # The node has neither the folder nor the script, the rest of its paths it has.
    monkeypatch.setattr(
        remote.Agent, "lacking", lambda _, paths: [p for p in paths if p.startswith(str(work))]
    )
    monkeypatch.setattr(remote.Agent, "same", lambda *_: False)
    runtime = {
        "python": "/bin/sh",
        "package": "",
        "dir": str(work),
        "main": str(work / "train.py"),
        "sys_path": [str(work), "/usr"],
        "modules": [],
        "program": "",
    }
    fitted = shipping.fit(there, there, "n", runtime, shipping.Packer())
    assert fitted["dir"].startswith(str(tmp_path / "cache"))
    assert fitted["main"] == os.path.join(fitted["dir"], "train.py")
    assert fitted["moved"][fitted["dir"]] == str(work)
    assert set(fitted["moved"].values()) == {str(work), str(work / "train.py")}


def test_one_node_is_chosen_by_its_name() -> None:
    there = [node("10.0.0.1", here=True), node("10.0.0.2")]
    asked = want(nodes=1, node="10.0.0.2")
    assert groups._only(asked, there) == {"ray.io/node-id": there[1].id}
    assert groups._only(want(), there) == {}
    with pytest.raises(joining.Refused, match=r"no node 'x' .* 10\.0\.0\.1, 10\.0\.0\.2"):
        groups._only(want(node="x"), there)
    there[1].available["GPU"] = 0.0
    assert not reasons.room(asked, "PACK", there, True)
    assert reasons.room(asked, "PACK", there, False)
    text = reasons.explain(asked, "PACK", there, {}, Scaling(False))
    assert "1 bundle of 4 GPUs on 10.0.0.2" in text and "10.0.0.1: 8 GPUs, 8 free; another" in text
