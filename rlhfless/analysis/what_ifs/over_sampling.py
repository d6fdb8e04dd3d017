"""Over-sampling: a step starts more prompts than it learns from, and aborts the slowest once enough are complete.

The rest is dropped, as slime does with ``--over-sampling-batch-size`` above ``--rollout-batch-size``. Long responses are
dropped most often, so lengths of what is learned are biased (``DataChange.learned_length_ratio``). APRIL (arXiv:2509.18521; in
slime with ``--partial-rollout``) keeps the rest and continues it first in the next step, so nothing is dropped.

Prompts come from the log, in its order: a step takes those of later steps. After the log's end they come from its beginning
again, as in another epoch. So every step learns from as many prompts as in the run, and all responses are of the log. A prompt
counts as complete when all its responses are.
"""

from __future__ import annotations

import math

from rlhfless.analysis.what_ifs import swept
from rlhfless.analysis.what_ifs.collected_steps import Collected, Intake, collected, earlier_laps
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import checked
from rlhfless.diagnosis.knobs import ENOUGH, FACTORS, MOST_UNFINISHED, STARTED, smallest_enough
from rlhfless.errors import InputError
from solver.model.errors import as_given, check_flags, is_number

DROPS, KEEPS = "over-sampling", "over-sampling, rest kept"
MOST = 16.0  # times as many prompts
RULE = (
    f"This is the smallest factor that saves at least {ENOUGH:.0%} of what partial rollout up to {MOST_UNFINISHED:.0%} saves, "
    "or the best where none does."
)


def way(run: RunToChange, factor: float, keep: bool = False) -> WayOutcome:
    """Simulate the run's steps with over-sampling.

    Args:
        factor: prompts that are in flight when a step starts, for each that it learns from; 1 is the run's own way.
        keep: whether what is not complete is continued in the next step (APRIL); else it is dropped.

    Raises:
        InputError: an argument makes no sense, or the run cannot be changed (``whole_steps.checked``).
        PlanningError: ``keep`` is neither True nor False, or a response fits on no actor.
    """
    checked(run)
    check_flags(keep=keep)
    if not is_number(factor, 1) or factor > MOST:
        raise InputError(f"factor is {as_given(factor)}; 1 to {MOST:g} times as many prompts as a step learns from are needed")
    factor = float(factor)
    return _sampled(run, factor, keep).outcome(run, KEEPS if keep else DROPS, _change(factor, keep), {STARTED: factor})


def best(run: RunToChange, own_s: float, of: float | None, keep: bool = False) -> WayOutcome:
    """Simulate several factors, and return the one that ``RULE`` says, with all of them as ``swept``.

    Args:
        own_s: seconds of the run's own way. of: share of them that partial rollout saves; the best factor's when None.
        keep: as of ``way``.

    Raises:
        InputError, PlanningError: as of ``way``.
    """
    wanted = PromptPool.of(checked(run).logged).prompts_of_step.tolist()

    def setting(factor: float) -> swept.Setting:
        return swept.Setting(factor, tuple(_in_flight(factor, count) for count in wanted), lambda: _sampled(run, factor, keep))

    found = swept.simulated(setting(factor) for factor in FACTORS)
    factor = smallest_enough(swept.saved(found, own_s), of)
    name, change = KEEPS if keep else DROPS, f"{_change(factor, keep)} {RULE}"
    return swept.with_settings(run, found[factor].outcome(run, name, change, {STARTED: factor}), STARTED, found)


def _change(factor: float, keep: bool) -> str:
    rest = "continues the rest first in the next step" if keep else "drops the rest"
    return f"A step starts {factor:g} times the prompts that it learns from, and {rest}."


def _in_flight(factor: float, wanted: int) -> int:
    return math.ceil(factor * wanted - 1e-9)


def _sampled(run: RunToChange, factor: float, keep: bool) -> Collected:
    """Return steps that start so many times the prompts that they learn from."""
    wanted = PromptPool.of(run.logged).prompts_of_step.tolist()
    in_flight = [_in_flight(factor, count) for count in wanted]

    def intake(step: int, waiting: int) -> Intake:
        return Intake(max(0, in_flight[step] - waiting), wanted[step])

    pool = PromptPool.of(run.logged, sum(in_flight) * (earlier_laps(run, keep) + 1))
    return collected(run, pool, intake, keep=keep)
