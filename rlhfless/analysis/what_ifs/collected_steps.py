"""Steps that stop to generate once enough is complete; the rest is dropped, or continued in the next step.

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
from rlhfless.analysis.what_ifs.ledger import BoolArray, TokenLedger
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import gpus_of, learning_s
from solver.model.workload import FloatArray, IntArray

EARLIER_STEPS = 4  # that are simulated before those that count, at least
REPEATED = " One step alone is simulated, several times in a row; the last time counts."


class Intake(NamedTuple):
    """What a step starts, and when it stops.

    Attributes:
        start: new prompts. complete: prompts that are to be complete before it stops, of which it learns.
        unfinished: instead, it stops once no more responses than this are unfinished and a prompt is complete; it learns from
            all complete prompts.
    """

    start: int
    complete: int = 0
    unfinished: int | None = None

    def stop_s(self, completion_s: FloatArray, complete_s: FloatArray) -> float:
        """Return when a step stops, by the times at which its responses and its prompts would be complete."""
        if self.unfinished is None:
            return float(np.sort(complete_s)[self.complete - 1])
        before = len(completion_s) - self.unfinished
        few_left_s = float(np.sort(completion_s)[before - 1]) if before > 0 else 0.0
        return max(few_left_s, float(complete_s.min()))

    def learned(self, complete_s: FloatArray, stopped_s: float) -> BoolArray:
        """Return (n,) the prompts that are learned from, by the times at which they would be complete."""
        if self.unfinished is not None:
            return complete_s <= stopped_s
        learned = np.zeros(len(complete_s), dtype=bool)
        learned[np.argsort(complete_s, kind="stable")[: self.complete]] = True
        return learned


class Collected(NamedTuple):
    """Simulated steps: what was generated and learned, the (K,) seconds of each step that counts, and whether it is one step,
    which was simulated several times.
    """

    ledger: TokenLedger
    seconds: list[float]
    repeated: bool = False

    @property
    def time_s(self) -> float:
        """Seconds of the steps that count."""
        return sum(self.seconds)

    def outcome(self, run: RunToChange, name: str, change: str, parameters: dict[str, float]) -> WayOutcome:
        """Return the outcome of these steps."""
        return WayOutcome(
            name,
            f"{change}{REPEATED}" if self.repeated else change,
            len(self.seconds),
            self.time_s,
            gpus_of(run) * self.time_s,
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
        intake: of a step, from its index in the run and the number of prompts that were carried over.
        keep: whether what is left is continued in the next step; else it is dropped.

    Raises:
        PlanningError: a response fits on no actor.
    """
    ledger, learn_s, taken = TokenLedger(pool), learning_s(run), 0
    carried: IntArray = np.zeros(0, dtype=np.int64)
    seconds: list[float] = []
    earlier = earlier_laps(run, keep) * len(run.logged)
    for update in range(earlier + len(run.logged)):
        if update == earlier:
            ledger.count_from(update)
        of_step = intake(update % len(run.logged), len(carried))
        prompts = np.concatenate([carried, np.arange(taken, taken + of_step.start)])
        ledger.start(prompts[len(carried) :])
        taken += of_step.start
        generated_s, complete_s = _generate(run, ledger, update, prompts, of_step)
        learned = of_step.learned(complete_s, generated_s)
        seconds.append(generated_s + learn_s(ledger.learn(update, prompts[learned])) + run.phases.sync_s)
        carried = prompts[~learned] if keep else carried
        if not keep:
            ledger.drop(prompts[~learned])
    return Collected(ledger, seconds[earlier:], repeated=keep and len(run.logged) == 1)


def _generate(
    run: RunToChange, ledger: TokenLedger, update: int, prompts: IntArray, of_step: Intake
) -> tuple[float, FloatArray]:
    """Generate until the step stops; return the seconds, and the (n,) times at which prompts would be complete without that."""
    responses = ledger.unfinished(prompts)
    complete_s = np.zeros(len(prompts))
    if not len(responses):
        return 0.0, complete_s
    place = np.searchsorted(np.sort(prompts), ledger.pool.prompts_of(responses))
    place = np.argsort(prompts, kind="stable")[place]

    def stop(completion_s: FloatArray) -> float:
        np.maximum.at(complete_s, place, completion_s)
        return of_step.stop_s(completion_s, complete_s)

    generated = generate(run.setting, run.setup.dispatch, ledger.workload(responses), stop)
    done = generated.completion_s <= generated.seconds
    ledger.generated(update, responses, generated.tokens, done)
    return generated.seconds, complete_s
