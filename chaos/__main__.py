"""Rounds, one after the other, until the time is over or a rule is broken.

``python -m chaos --seed 7 --seconds 600``. The seeds of the rounds count up from
the first one, so each of them can be played again alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from chaos.watch import ROOT, run_round


def main() -> int:
    """Run rounds; the exit code is 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first round; by default a fresh one")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which none is begun")
    parser.add_argument("--rounds", type=int, help="at most so many")
    parser.add_argument("--keep-going", action="store_true", help="also after a broken rule")
    asked = parser.parse_args()
    first = random.SystemRandom().randrange(1, 10**6) if asked.seed is None else asked.seed
    deadline = time.monotonic() + asked.seconds
    print(f"chaos: seeds from {first} on, for {asked.seconds:g} s", flush=True)
    seed, failed = first, []
    while seed == first or (
        time.monotonic() < deadline and (asked.rounds is None or seed < first + asked.rounds)
    ):
        outcome = run_round(seed, ROOT / "build" / "chaos" / str(seed))
        print(outcome.report() if outcome.broken else outcome, flush=True)
        if outcome.broken:
            failed.append(seed)
            if not asked.keep_going:
                break
        seed += 1
    done = f"{seed - first + bool(failed and not asked.keep_going)} rounds"
    print(
        f"chaos: {done}" + (f", broken rules with seeds {failed}" if failed else ", no rule broken")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
