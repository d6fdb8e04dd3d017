"""Steps that stop to generate once enough prompts are complete; the rest is dropped, or continued in the next step.

A step starts with the prompts that were carried over, and takes new ones from the pool after them. It learns from the prompts
that were complete first. Learning follows generation, on all GPUs, as in the run itself.

Where prompts are carried over, the steps are simulated before as well, and only their last time counts. So as much waits before
the steps as after them, as in a long run: else the work of what waits at the end would be left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlhfless.analysis.what_ifs.generation import generate
from rlhfless.analysis.what_ifs.ledger import TokenLedger
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import gpus_of, learning_s
from solver.model.workload import FloatArray, IntArray

EARLIER_STEPS = 4  # that are simulated before those that count, at least


class Intake(NamedTuple):
    """New prompts that a step starts, and prompts that are to be complete before it stops."""

    start: int
    complete: int


class Collected(NamedTuple):
    """Simulated steps: what was generated and learned, and the (K,) seconds of each step that counts."""

    ledger: TokenLedger
    seconds: list[float]

    def outcome(self, run: RunToChange, name: str, change: str, parameters: dict[str, float]) -> WayOutcome:
        """Return the outcome of these steps."""
        time_s = sum(self.seconds)
        return WayOutcome(
            name,
            change,
            len(self.seconds),
            time_s,
            gpus_of(run) * time_s,
            self.ledger.least_time_s(run, self.seconds),
            self.ledger.change(),
            parameters,
        )


def earlier_laps(run: RunToChange, carries: bool) -> int:
    """Return how often the steps of a run are simulated before the time that counts: never where nothing is carried over."""
    return math.ceil(EARLIER_STEPS / len(run.logged)) if carries else 0


def collected(run: RunToChange, pool: PromptPool, intake: Callable[[int, int], Intake], *, keep: bool) -> Collected:
    """Simulate the steps of a run that learn from the prompts that are complete first.

    Args:
        intake: of a step, from the number of prompts that the run's own step learned from and of those carried over.
        keep: whether what is left is continued in the next step; else it is dropped.

    Raises:
        PlanningError: a response fits on no actor.
    """
    ledger, learn_s, taken = TokenLedger(pool), learning_s(run), 0
    carried: IntArray = np.zeros(0, dtype=np.int64)
    seconds: list[float] = []
    earlier = earlier_laps(run, keep) * len(run.logged)
    for update, wanted in enumerate(np.tile(pool.prompts_of_step, earlier_laps(run, keep) + 1).tolist()):
        if update == earlier:
            ledger.count_from(update)
        start, complete = intake(wanted, len(carried))
        prompts = np.concatenate([carried, np.arange(taken, taken + start)])
        ledger.start(prompts[len(carried) :])
        taken += start
        generated_s, complete_s = _generate(run, ledger, update, prompts, complete)
        first = np.sort(np.argsort(complete_s, kind="stable")[:complete])
        left = np.ones(len(prompts), dtype=bool)
        left[first] = False
        seconds.append(generated_s + learn_s(ledger.learn(update, prompts[first])) + run.phases.sync_s)
        carried = prompts[left] if keep else carried
        if not keep:
            ledger.drop(prompts[left])
    return Collected(ledger, seconds[earlier:])


def _generate(run: RunToChange, ledger: TokenLedger, update: int, prompts: IntArray, complete: int) -> tuple[float, FloatArray]:
    """Generate until so many prompts are complete; return the seconds, and the (n,) times of completion without a stop."""
    responses = ledger.unfinished(prompts)
    complete_s = np.zeros(len(prompts))
    if not len(responses):
        return 0.0, complete_s
    place = np.searchsorted(np.sort(prompts), ledger.pool.prompts_of(responses))
    place = np.argsort(prompts, kind="stable")[place]

    def stop(completion_s: FloatArray) -> float:
        np.maximum.at(complete_s, place, completion_s)
        return float(np.sort(complete_s)[complete - 1])

    generated = generate(run.setting, run.setup.dispatch, ledger.workload(responses), stop)
    done = generated.completion_s <= generated.seconds
    ledger.generated(update, responses, generated.tokens, done)
    return generated.seconds, complete_s
