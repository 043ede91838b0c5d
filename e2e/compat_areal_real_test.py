"""AReaL's own TrainController and RolloutController on `MusterScheduler`, where AReaL is installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from running import HERE, output_of, run_script

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("areal") is None, reason="needs areal: it is not installed"),
]

START = """
import torch
from areal.api import FinetuneSpec
from areal.api.cli_args import InferenceEngineConfig, SchedulingSpec, TrainEngineConfig
from areal.infra.controller.rollout_controller import RolloutController
from areal.infra.controller.train_controller import TrainController
from areal.infra.rpc.rtensor import RTensor
from areal.infra.scheduler.exceptions import EngineCallError
from areal_real_engines import Inference, Train
from muster.compat.areal import MusterScheduler
from muster.compat.areal._tensors import is_ours
from running import below

root = sys.argv[1]
spec = SchedulingSpec(cpu=1, gpu=1, cmd="python -m areal.infra.rpc.rpc_server")
names = dict(experiment_name="e", trial_name="t")

def made():
    return MusterScheduler(log_dir=root, fileroot=root, nfs_record_root=root + "/names", **names)

def processes(s):
    hosts = [info.pid for infos in s._workers.values() for info in infos]
    return hosts + [pid for host in hosts for pid in below(host)]

def left(pids):
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
"""

TRAIN = """
def rows(values):
    return [{"input_ids": v, "attention_mask": torch.ones(1, 4)} for v in values]

if __name__ == "__main__":
    s = made()
    config = TrainEngineConfig(path="", backend="fsdp:d2t2", scheduling_spec=(spec,), **names)
    c = TrainController(Train, config, s)
    c.create_process_group()
    c.initialize("actor", ft_spec=FinetuneSpec(1, 8, 4))
    assert c.workers_is_dp_head == [True, False, True, False]
    given = [torch.arange(n, n + 4).reshape(1, 4) for n in range(6)]
    once = c._custom_function_call("double", rows(given))
    assert all(isinstance(row["input_ids"], RTensor) for row in once)
    assert all(is_ours(row["input_ids"].shard.shard_id) for row in once), "by Muster"
    twice = c._custom_function_call("double", rows([row["input_ids"] for row in once]))
    for before, after in zip(given, RTensor.localize(twice), strict=True):
        assert torch.equal(after["input_ids"], before * 4)
    c.set_version(7)
    assert c.get_version() == 7
    try:
        c._custom_function_call("fail")
    except EngineCallError as error:
        assert "out of memory, say" in error.reason and error.attempt == 1
    else:
        raise AssertionError("nothing was raised")
    assert s.fork_workers("ref", "actor") == [f"ref/{n}" for n in range(4)]
    s.get_workers("ref")
    pids = processes(s)
    assert len(left(pids)) >= 8
    c.destroy()
    assert not s._workers and not left(pids), "forks too"
    print(open(root + "/actor.log").read().count("destroyed"))
"""

ROLLOUT = """
if __name__ == "__main__":
    s = made()
    config = InferenceEngineConfig(backend="sglang:d2", scheduling_spec=(spec,), **names,
                                   consumer_batch_size=4, max_concurrent_rollouts=8,
                                   max_head_offpolicyness=100)
    c = RolloutController(Inference, config, s)
    c.initialize("rollout", server_args={})
    assert [info.process for info in c.server_infos] == [None, None]
    out = c.rollout_batch([{"n": n} for n in range(8)], workflow="areal_real_engines.Inference",
                          workflow_kwargs={})
    found = sorted(int(row["input_ids"][0, 0]) for row in RTensor.localize(out))
    assert found == list(range(8)), found
    pids = processes(s)
    assert len(left(pids)) >= 4, "two workers, each with its server"
    c.destroy()
    assert not s._workers and not left(pids)
    print(open(root + "/rollout.log").read().count("server ended"))
"""


@pytest.mark.parametrize(
    ("source", "ended"), [(TRAIN, "4"), (ROLLOUT, "2")], ids=["train", "rollout"]
)
def test_controllers(tmp_path: Path, source: str, ended: str) -> None:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    finished = run_script(tmp_path, START + source, str(tmp_path), PYTHONPATH=path, timeout=300)
    assert output_of(finished).splitlines()[-1] == ended
