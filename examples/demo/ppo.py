"""The five roles of the demo: PPO on a task small enough for a table.

A prompt is a pair of digits, the answer is their sum modulo 10, the policy is a
table of logits. Everything is real but the size: who gets which rows, what the
futures overlap, how weights go from the trainer to the engines.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster import Dispatch, Worker, register

Table = NDArray[np.float64]
#: prompt, answer, and the log probability it was drawn with
Sample = tuple[int, int, float]

PROMPTS, ANSWERS = 100, 10
CLIP = 0.2


def log_softmax(logits: Table) -> Table:
    """Row by row."""
    shifted: Table = logits - logits.max(axis=-1, keepdims=True)
    result: Table = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


class ActorTrain(Worker):
    """Learns: each dp rank makes the gradient of its rows."""

    @register(Dispatch.ONE_TO_ALL)
    def initialize(self) -> None:
        self.logits: Table = np.zeros((PROMPTS, ANSWERS))

    @register(Dispatch.DP_MP_COMPUTE)
    def gradients(self, rows: list[tuple[int, int, float, float]]) -> list[Table]:
        """PPO's clipped objective; one table a dp rank, chained into a list."""
        total = np.zeros_like(self.logits)
        logp = log_softmax(self.logits)
        for prompt, answer, drawn_at, advantage in rows:
            ratio = float(np.exp(logp[prompt, answer] - drawn_at))
            clipped = ratio > 1 + CLIP if advantage > 0 else ratio < 1 - CLIP
            if clipped:
                continue
            step = -np.exp(logp[prompt])
            step[answer] += 1.0
            total[prompt] += advantage * ratio * step
        return [total]

    @register(Dispatch.ONE_TO_ALL)
    def apply(self, gradient: Table, rate: float) -> None:
        self.logits += rate * gradient

    def weights(self) -> Table:
        return self.logits


class ActorInfer(Worker):
    """Samples; shares its GPUs with ActorTrain."""

    @register(Dispatch.ONE_TO_ALL)
    def update_weights(self, logits: Table) -> None:
        self.logp = log_softmax(logits)
        self.random = np.random.default_rng((self.rank, int(abs(logits).sum() * 1e6)))

    @register(Dispatch.DP_MP_COMPUTE)
    def generate(self, prompts: list[int]) -> list[Sample]:
        noise = self.random.gumbel(size=(len(prompts), ANSWERS))
        answers = (self.logp[prompts] + noise).argmax(axis=1) if prompts else []
        return [(p, int(a), float(self.logp[p, a])) for p, a in zip(prompts, answers, strict=True)]

    def eat_all_memory(self) -> None:
        """Ends as the kernel ends what takes too much."""
        print("loading checkpoint shard 2 of 4")
        print("kv cache: asked for 96.0 GiB, 61.3 GiB free")
        os.kill(os.getpid(), signal.SIGKILL)


class Reference(Worker):
    """The policy as it was, to keep the new one near."""

    @register(Dispatch.ONE_TO_ALL)
    def initialize(self) -> None:
        self.logp = log_softmax(np.zeros((PROMPTS, ANSWERS)))

    @register(Dispatch.DP_MP_COMPUTE)
    def logprobs(self, samples: list[Sample]) -> list[float]:
        return [float(self.logp[prompt, answer]) for prompt, answer, _ in samples]


class Critic(Worker):
    """Says what a prompt is worth, so that only surprises teach."""

    @register(Dispatch.ONE_TO_ALL)
    def initialize(self) -> None:
        self.value = np.full(PROMPTS, 1 / ANSWERS)

    @register(Dispatch.DP_MP_COMPUTE)
    def values(self, samples: list[Sample]) -> list[float]:
        return [float(self.value[prompt]) for prompt, _, _ in samples]

    @register(Dispatch.ONE_TO_ALL)
    def fit(self, prompts: list[int], rewards: list[float], rate: float) -> None:
        for prompt, reward in zip(prompts, rewards, strict=True):
            self.value[prompt] += rate * (reward - self.value[prompt])

    @register(Dispatch.ONE_TO_ALL, collective=True)
    def save(self) -> str:
        """One rank does not come back."""
        if self.rank == 3:
            self._wait_for_a_disk_that_does_not_answer()
        return "saved"

    def _wait_for_a_disk_that_does_not_answer(self) -> None:
        threading.Event().wait()


class RewardMath(Worker):
    """Checks sums; needs no GPU."""

    @register(Dispatch.DP_MP_COMPUTE)
    def score(self, samples: list[Any]) -> list[float]:
        return [float(self._solve(*divmod(prompt, 10)) == answer) for prompt, answer, _ in samples]

    def _solve(self, a: int, b: int) -> int:
        return (a + b) % ANSWERS
