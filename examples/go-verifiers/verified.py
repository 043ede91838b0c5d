"""Eight reward verifiers in Go beside Python actors, in one pipeline, driven from Python.

go build -o build/verifiers ./examples/go-verifiers
MUSTER_VIRTUAL=1x4 python examples/go-verifiers/verified.py build/verifiers
"""

from __future__ import annotations

import sys

from actors import Actor

from muster import Cluster, ResourceManager, WorkerConfig

PROMPTS = 64
STEPS = 4


def main(program: str) -> None:
    pool = ResourceManager(num_gpus_per_node=4, num_nodes=1)
    actor = Cluster("actor", Actor, pool, WorkerConfig(device_mapping="0-3"))
    verify = Cluster("verify", f"exec:{program}", pool, WorkerConfig(world_size=8))
    print(f"{actor.world_size} Python actors, {verify.world_size} Go verifiers")

    questions = [f"{i + 3}*{i + 7} + {i}" for i in range(PROMPTS)]
    for step in range(STEPS):
        # The answers go from the actors to the verifiers; the head waits for
        # them, this script does not.
        answers = actor.generate(questions, blocking=False)
        rewards = verify.verify(questions, answers)
        actor.update(rewards)
        print(f"step {step}: mean reward {sum(rewards) / len(rewards):.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "build/verifiers")
