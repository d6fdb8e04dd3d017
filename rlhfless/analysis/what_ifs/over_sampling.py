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

from rlhfless.analysis.what_ifs.collected_steps import Intake, collected, earlier_laps
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import checked
from rlhfless.errors import InputError
from solver.model.errors import as_given, check_flags, is_number

DROPS, KEEPS = "over-sampling", "over-sampling, rest kept"
MOST = 16.0  # times as many prompts


def way(run: RunToChange, factor: float = 1.25, keep: bool = False) -> WayOutcome:
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

    def in_flight(wanted: int) -> int:
        return math.ceil(factor * wanted - 1e-9)

    def intake(wanted: int, waiting: int) -> Intake:
        return Intake(max(0, in_flight(wanted) - waiting), wanted)

    own = PromptPool.of(run.logged)
    most = sum(in_flight(wanted) for wanted in own.prompts_of_step.tolist()) * (earlier_laps(run, keep) + 1)
    pool = PromptPool.of(run.logged, most)
    steps = collected(run, pool, intake, keep=keep)
    rest = "continues the rest first in the next step" if keep else "drops the rest"
    change = f"A step starts {factor:g} times the prompts that it learns from, and {rest}."
    return steps.outcome(run, KEEPS if keep else DROPS, change, {"over_sampling": float(factor)})
