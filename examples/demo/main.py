"""make demo: PPO over 4 x 8 virtual GPUs, with five roles, and three failures.

Starts 48 worker processes on 4 virtual nodes of this machine, trains a table
to add digits, then breaks three things on purpose to show how that is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import census
import muster
from drawing import Screen
from muster import Cluster, ResourceManager, WorkerConfig
from ppo import ActorInfer, ActorTrain, Critic, Reference, RewardMath

STEPS, SHOWN_EVERY, SAMPLES = 30, 3, 640
RATE, KL_WEIGHT = 0.2, 0.01

# numpy is imported once per node, before its workers are forked.
COMMON: dict[str, Any] = {"preload": ["numpy"]}
# Trainer and engines share the first 16 GPUs; that is colocation, and normal.
ROLES = {
    "actor_train": (ActorTrain, WorkerConfig(**COMMON, device_mapping="0-15", tp=2)),
    "actor_infer": (
        ActorInfer,
        WorkerConfig(**COMMON, device_mapping="0-15", num_gpus_per_worker=2),
    ),
    "reference": (Reference, WorkerConfig(**COMMON, device_mapping="16-23", tp=2)),
    "critic": (Critic, WorkerConfig(**COMMON, device_mapping="24-31", tp=2, pp=2)),
    "reward-math": (RewardMath, WorkerConfig(**COMMON, world_size=8)),
}


class Meter:
    """Times what is asked of each role, and counts it."""

    def __init__(self) -> None:
        self.calls = self.legs = 0
        self.step: dict[str, float] = {}

    def __call__(self, cluster: Cluster, method: str, *args: Any) -> Any:
        began = time.perf_counter()
        result = getattr(cluster, method)(*args)
        self.count(cluster, time.perf_counter() - began)
        return result

    def count(self, cluster: Cluster, seconds: float) -> None:
        self.calls += 1
        self.legs += cluster.world_size
        self.step[cluster.name] = self.step.get(cluster.name, 0.0) + seconds


def start(screen: Screen, rm: ResourceManager) -> dict[str, Cluster]:
    screen.title("who sits where")
    screen.say(str(rm.plan({name: config for name, (_, config) in ROLES.items()})).rstrip())
    screen.title("starting")
    began = time.perf_counter()
    clusters = {
        name: Cluster(name=name, worker_cls=cls, resource_manager=rm, worker_config=config)
        for name, (cls, config) in ROLES.items()
    }
    workers = sum(c.world_size for c in clusters.values())
    for name, c in clusters.items():
        sizes = f"dp {c.dp_size}  tp {c.tp_size}  pp {c.pp_size}"
        screen.say(f"  {name:<12} {c.world_size:>3} workers   {sizes}")
    screen.say(f"  {workers} processes ready in {time.perf_counter() - began:.2f} s")
    for name in ("actor_train", "reference", "critic"):
        clusters[name].initialize()
    clusters["actor_infer"].update_weights(
        clusters["actor_train"].execute_rank_zero_sync("weights")
    )
    return clusters


def one_step(c: dict[str, Cluster], meter: Meter, prompts: list[int]) -> tuple[float, float]:
    """Generate, judge three ways at once, learn, hand the weights on."""
    samples = meter(c["actor_infer"], "generate", prompts)

    # Three roles judge the same samples at the same time.
    began = time.perf_counter()
    pending = {
        c["reward-math"].score(samples, blocking=False): "reward-math",
        c["reference"].logprobs(samples, blocking=False): "reference",
        c["critic"].values(samples, blocking=False): "critic",
    }
    judged: dict[str, list[float]] = {}
    for ref in muster.as_completed(list(pending)):
        judged[pending[ref]] = muster.get(ref)
        meter.count(c[pending[ref]], time.perf_counter() - began)

    rewards = judged["reward-math"]
    kl = [new - old for (_, _, new), old in zip(samples, judged["reference"], strict=True)]
    rows = [
        (prompt, answer, logp, reward - KL_WEIGHT * far - value)
        for (prompt, answer, logp), reward, far, value in zip(
            samples, rewards, kl, judged["critic"], strict=True
        )
    ]
    for _ in range(2):
        gradient = np.sum(meter(c["actor_train"], "gradients", rows), axis=0)
        meter(c["actor_train"], "apply", gradient, RATE)
    meter(c["critic"], "fit", [p for p, _, _ in samples], rewards, 0.2)
    weights = c["actor_train"].execute_rank_zero_sync("weights")
    meter(c["actor_infer"], "update_weights", weights)
    return sum(rewards) / len(rewards), sum(kl) / len(kl)


def train(screen: Screen, c: dict[str, Cluster]) -> None:
    screen.title("PPO: one digit plus one digit")
    head = " ".join(f"{name:>11}" for name in ROLES)
    screen.say(f"  step  {'reward':<26}  {'KL':>5}  {head}   ms per role")
    meter, rewards = Meter(), []
    random = np.random.default_rng(0)
    began = time.perf_counter()
    for step in range(1, STEPS + 1):
        meter.step = {}
        reward, kl = one_step(c, meter, random.integers(0, 100, SAMPLES).tolist())
        rewards.append(reward)
        if step % SHOWN_EVERY == 0 or step == 1:
            spent = " ".join(f"{meter.step[name] * 1e3:>11.1f}" for name in ROLES)
            screen.say(f"  {step:>4}  {screen.bar(reward)} {reward:>4.0%}  {kl:>5.2f}  {spent}")
    seconds = time.perf_counter() - began
    screen.say(f"  reward {screen.sparkline(rewards, 1.0)}  {rewards[0]:.0%} to {rewards[-1]:.0%}")
    screen.say(
        f"  {STEPS} steps in {seconds:.2f} s: {meter.calls / seconds:,.0f} cluster calls a second, "
        f"{meter.legs / seconds:,.0f} legs a second"
    )


def show(screen: Screen, what: str, kind: type[Exception], doing: Callable[[], object]) -> None:
    screen.title(what)
    try:
        doing()
    except kind as error:
        assert isinstance(error, muster.MusterError)
        screen.say(f"  caught by `except {kind.__name__}`, and by `except MusterError`:")
        screen.panel(str(error))
    else:
        raise SystemExit(f"{what}: this was to fail, and did not")


def break_things(screen: Screen, c: dict[str, Cluster]) -> None:
    show(
        screen,
        "a bug in one rank: its own exception, and where",
        TypeError,
        lambda: c["reward-math"].score([(11, 2, 0.0)] * 7 + [("eleven", 2, 0.0)]),
    )
    show(
        screen,
        "one rank never comes back: which one, and where it is stuck",
        TimeoutError,
        lambda: c["critic"].save(timeout=1.5),
    )
    show(
        screen,
        "a process is killed: more than 'worker died'",
        muster.WorkerDiedError,
        lambda: c["actor_infer"].workers[2].call("eat_all_memory"),
    )


def main() -> None:
    screen = Screen()
    muster.init(virtual="4x8")
    rm = ResourceManager(num_gpus_per_node=8, num_nodes=4)
    clusters = start(screen, rm)
    train(screen, clusters)
    break_things(screen, clusters)
    screen.title("the end")
    processes = census.below()
    screen.say(f"  running: {census.told(processes)}")
    began = time.perf_counter()
    muster.shutdown()
    seconds = time.perf_counter() - began
    if left := census.still_there(processes):
        raise SystemExit(f"still running after the end: {', '.join(left)}")
    screen.say(
        f"  stopped in {seconds:.2f} s, and none of these {len(processes)} processes is left"
    )


if __name__ == "__main__":
    main()
