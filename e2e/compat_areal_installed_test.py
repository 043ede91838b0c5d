"""Where AReaL is installed: its own base class, errors, tensors, seeds and names are used.

AReaL itself is not among what the tests install; a stand-in with its module
names shows which parts are asked for what.
"""

from __future__ import annotations

import os
from pathlib import Path

from running import output_of, run_script

STAND_IN = Path(__file__).parent / "areal_stand_in"

SCRIPT = """
import asyncio
from types import SimpleNamespace as Part
import areal.api, areal.api.cli_args as cli, areal.infra.scheduler.exceptions as errors
from areal.infra.platforms import current_platform
from muster.compat import areal as compat

def refused(kind, work):
    try:
        work()
    except kind as error:
        return error
    raise AssertionError("nothing was raised")

if __name__ == "__main__":
    root = sys.argv[1]
    assert issubclass(compat.MusterScheduler, areal.api.Scheduler)
    assert compat.Job is areal.api.Job and compat.EngineCallError is errors.EngineCallError
    resolve = Part(type="nfs", nfs_record_root=root, etcd3_addr="x:1")
    config = Part(experiment_name="e", trial_name="t", seed=5, enable_offload=True,
                  cluster=Part(fileroot=root, name_resolve=resolve, n_gpus_per_node=8))
    s = compat.MusterScheduler(exp_config=config)
    spec = cli.SchedulingSpec(cpu=3, env_vars={"AREAL_MINE": "own"})
    s.create_workers(areal.api.Job("actor", 2, [spec]))
    workers = s.get_workers("actor")
    assert type(workers[0]) is areal.api.Worker
    w = workers[1]
    told = open(os.path.join(root, "e/t/actor/1")).read()
    assert told == f"{w.ip}:{w.worker_ports[0]}", told

    def engine(path, name):
        asyncio.run(s.create_engine("actor/1", "stand_in_engines." + path, name))

    engine("Inference", "i")
    names = ("AREAL_BASE", "AREAL_MINE", "AREAL_TMS", "AREAL_SEEDED", "MKL_NUM_THREADS")
    assert s.call_engine("actor/1", "env", "i", *names) == ["1", "own", "1", "5/actor1", "3"]
    assert s.call_engine("actor/1", "where", "i") == ["where", told], "tensors are AReaL's"
    s.call_engine("actor/1", "wait_for", "i")
    spans = s.call_engine("actor/1", "spans", "i")
    assert spans[1:3] == [
        ["rpc.where", "misc", {"method": "where", "engine": "i"}],
        ["rpc.wait_for", "scheduler", {"method": "wait_for", "engine": "i"}],
    ], spans
    error = refused(errors.EngineCreationError, lambda: engine("Neither", "n"))
    assert "subclass of TrainEngine or InferenceEngine" in error.reason
    refused(errors.EngineImportError, lambda: engine("Absent", "n"))

    engine("Trainer", "t")
    asyncio.run(s.set_worker_env("actor/1", {"AREAL_LATE": "late"}))
    assert s.call_engine("actor/1", "device", "t") == "late", "found after the environment was set"
    assert s.call_engine("actor/1", "echo", "t", 1) == [[1], {}]
    s.call_engine("actor/1", "initialize", "t")
    sent = s.call_engine("actor/1", "echo", "t", 1, key=2)
    assert sent == [["[1] on late from 4 in mp"], {"key": 2}], sent
    kept = s.call_engine("actor/1", "echo", "t", 1, rpc_meta={"broadcast": False})
    assert kept == [[1], {}], kept
    wrong = refused(errors.EngineCallError,
                    lambda: s.call_engine("actor/1", "echo", "t", rpc_meta={"broadcast": 1}))
    assert "True or False" in wrong.reason and wrong.attempt == 1
    s.delete_workers()
    print("all of it")
"""


def test_with_areal_installed(tmp_path: Path) -> None:
    path = os.pathsep.join([str(STAND_IN), os.environ.get("PYTHONPATH", "")])
    finished = run_script(tmp_path, SCRIPT, str(tmp_path), PYTHONPATH=path)
    assert output_of(finished).splitlines()[-1] == "all of it"
