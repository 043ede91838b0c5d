"""Ray carries batches: arrays as actor arguments, and at its best, references to what was put."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import ray

import batches
import loads
from batches import RAGGED_ROWS, WORKERS, Way


class Looker:
    """The actor of both groups; it keeps the rows that it gives, and marks them anew."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._made: Any = None
        self._ragged: Any = None

    def pid(self) -> int:
        return os.getpid()

    def look(self, share: loads.Matrix) -> loads.Seen:
        return loads.look(share)

    def look_at_own(self, whole: loads.Matrix) -> loads.Seen:
        return loads.look(loads.shares(whole, WORKERS)[self._rank])

    def make(self, rows: int, step: int) -> loads.Matrix:
        if self._made is None or len(self._made) != rows:
            self._made = np.ones((rows, loads.WIDTH), np.float32)
        loads.mark(self._made, step, self._rank)
        made: loads.Matrix = self._made
        return made

    def look_ragged(self, tokens: list[Any], prompts: list[str]) -> loads.SeenRagged:
        return loads.look_ragged(tokens, prompts)

    def look_pair(self, pair: tuple[list[Any], list[str]]) -> loads.SeenRagged:
        return loads.look_ragged(*pair)

    def make_ragged(self, rows: int, step: int) -> tuple[list[Any], list[str]]:
        if self._ragged is None:
            self._ragged = loads.ragged(rows, batches.seed_of(self._rank))
        loads.mark_ragged(self._ragged[0], step, self._rank)
        tokens, prompts = self._ragged
        return tokens, prompts


class Ray:
    """A local Ray whose object store has room for all, so that it never spills."""

    def up(self, mib: int) -> None:
        ray.init(
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=max(1 << 30, 4 * (mib << 20)),
            _temp_dir=os.environ["BENCH_TMP"],
        )
        actor = ray.remote(num_cpus=0)(Looker)
        self._makers, self._takers = (
            [actor.remote(rank) for rank in range(WORKERS)] for _ in range(2)
        )

    def pids(self) -> list[int]:
        found: list[int] = ray.get([a.pid.remote() for a in self._makers + self._takers])
        return found

    # --- first hop ------------------------------------------------------------------

    def first(self, whole: loads.Matrix) -> list[Way]:
        prepare = batches.marking(whole)
        return [Way("arrays", prepare, self._send), Way("put", prepare, self._put)]

    def _send(self, whole: loads.Matrix) -> Any:
        shares = loads.shares(whole, WORKERS)
        return ray.get(
            [a.look.remote(share) for a, share in zip(self._makers, shares, strict=True)]
        )

    def _put(self, whole: loads.Matrix) -> Any:
        ref = ray.put(whole)
        return ray.get([a.look_at_own.remote(ref) for a in self._makers])

    # --- second hop -----------------------------------------------------------------

    def _make(self, rows: int, step: int) -> list[Any]:
        refs = [a.make.remote(rows, step) for a in self._makers]
        ray.wait(refs, num_returns=len(refs))
        return refs

    def second(self, rows: int) -> list[Way]:
        def make(step: int) -> list[Any]:
            return self._make(rows, step)

        def whole(step: int) -> loads.Matrix:
            return np.concatenate(ray.get(self._make(rows, step)))

        return [
            Way("put", lambda step: ray.put(whole(step)), self._pass_put),
            Way("putting", whole, lambda matrix: self._pass_put(ray.put(matrix))),
            Way("gathered", make, self._gather_and_send),
            Way("resent", make, self._resend),
            Way("refs", make, self._pass_on),
        ]

    def _resend(self, refs: list[Any]) -> Any:
        shares = ray.get(refs)
        return ray.get(
            [a.look.remote(share) for a, share in zip(self._takers, shares, strict=True)]
        )

    def _gather_and_send(self, refs: list[Any]) -> Any:
        shares = loads.shares(np.concatenate(ray.get(refs)), WORKERS)
        return ray.get(
            [a.look.remote(share) for a, share in zip(self._takers, shares, strict=True)]
        )

    def _pass_on(self, refs: list[Any]) -> Any:
        return ray.get([a.look.remote(ref) for a, ref in zip(self._takers, refs, strict=True)])

    def _pass_put(self, ref: Any) -> Any:
        return ray.get([a.look_at_own.remote(ref) for a in self._takers])

    def gather(self, rows: int) -> list[Way]:
        def make(step: int) -> list[Any]:
            return self._make(rows, step)

        return [Way("get", make, lambda refs: np.concatenate(ray.get(refs)))]

    # --- ragged ---------------------------------------------------------------------

    def ragged_first(self, tokens: list[Any], prompts: list[str]) -> list[Way]:
        each = RAGGED_ROWS // WORKERS

        def send(given: list[Any]) -> Any:
            return ray.get(
                [
                    a.look_ragged.remote(given[i : i + each], prompts[i : i + each])
                    for a, i in zip(self._makers, range(0, RAGGED_ROWS, each), strict=True)
                ]
            )

        return [Way("lists", batches.marking_ragged(tokens), send)]

    def ragged_second(self) -> list[Way]:
        def make(step: int) -> list[Any]:
            refs = [a.make_ragged.remote(RAGGED_ROWS // WORKERS, step) for a in self._makers]
            ray.wait(refs, num_returns=len(refs))
            return refs

        def resend(refs: list[Any]) -> Any:
            pairs = ray.get(refs)
            return ray.get(
                [a.look_pair.remote(pair) for a, pair in zip(self._takers, pairs, strict=True)]
            )

        def pass_on(refs: list[Any]) -> Any:
            return ray.get(
                [a.look_pair.remote(ref) for a, ref in zip(self._takers, refs, strict=True)]
            )

        return [Way("resent", make, resend), Way("refs", make, pass_on)]

    def down(self) -> None:
        ray.shutdown()


if __name__ == "__main__":
    batches.main(Ray())
