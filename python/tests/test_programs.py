"""Workers that are programs: how worker_cls names one, and a cluster of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import muster
from muster._config import command_of

ROOT = Path(__file__).resolve().parents[2]


def test_a_program_is_named_by_its_path_and_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "a verifier"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert command_of("exec:'./a verifier' --strict 'x y'") == [str(program), "--strict", "x y"]
    assert command_of("exec:'a verifier'") == [str(program)]
    assert command_of("pkg.module.Class") == []
    assert command_of(dict) == []


@pytest.mark.parametrize(
    ("worker_cls", "error", "text"),
    [
        ("exec:", ValueError, "names no program"),
        ("exec:'open", ValueError, "cannot be split"),
        ("exec:./no-such-program", ImportError, "no-such-program' is not a program"),
        ("exec:no-such-program", ImportError, "on PATH"),
    ],
)
def test_a_program_that_cannot_be_run(worker_cls: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        command_of(worker_cls)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example's verifiers, built from this tree."""
    if shutil.which("go") is None:
        pytest.skip("needs go: the worker of this test is built by it")
    if not (ROOT / "build" / "muster").exists():
        pytest.skip("needs binary: make build")
    path = tmp_path_factory.mktemp("programs") / "verifiers"
    subprocess.run(
        ["go", "build", "-o", str(path), "./examples/go-verifiers"], cwd=ROOT, check=True
    )
    return str(path)


@pytest.mark.timeout(120)
def test_a_cluster_of_go_workers(verifier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_BINARY", str(ROOT / "build" / "muster"))
    muster.init(virtual="1x1")
    try:
        config = muster.WorkerConfig(world_size=4)
        with muster.Cluster("verify", f"exec:{verifier}", worker_config=config) as cluster:
            assert cluster.verify(["6*7", "1+1"], ["42", "3"]) == [1.0, 0.1]
            assert cluster.verify(questions=["2"], answers=["2"]) == [1.0]
            titles = [
                Path(f"/proc/{worker['pid']}/cmdline").read_bytes().replace(b"\0", b" ")
                for worker in cluster._describe()["workers"]
            ]
            assert titles[3] == b"muster worker verify-3 "
            with pytest.raises(TypeError, match=r"verify\(questions, answers\)"):
                cluster.verify(["1"])
            with pytest.raises(AttributeError, match="did you mean 'verify'"):
                cluster.verfy(["1"], ["1"])
            with pytest.raises(muster.MusterError, match="is no arithmetic") as caught:
                cluster.verify(["a lot"], ["1"])
            assert caught.value.worker == "verify-0"
        with pytest.raises(muster.MusterError, match="ended before it had become a worker"):
            muster.Cluster("verify", "exec:true", worker_config=config)
    finally:
        muster.shutdown()
