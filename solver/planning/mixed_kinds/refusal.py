"""What a refusal says only where there are several offers: prompts that are too long, and pools that are too small."""

from __future__ import annotations

import numpy as np

from solver.model.plurals import counted
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.search_options import SearchOptions
from solver.timing.step_cost import StepObjective


def too_long_together(options: SearchOptions, work: MixedWork, goal: StepObjective) -> str:
    """Return the text that names a prompt that misses the deadline even on an actor of its own, as its responses stay together.
    It is empty if there is none."""
    if goal.objective.deadline_s is None:
        return ""
    alone_s = work.alone_s.min(axis=0)
    i = int(np.argmax(alone_s))
    least_s, count = goal.phases.step_time_s(float(alone_s[i])), int(work.edge[i + 1] - work.edge[i])
    if count == 1 or least_s <= goal.objective.deadline_s:
        return ""
    prompt = int(work.prompt[work.edge[i]])
    number = prompt if options.prompt_numbers is None else int(options.prompt_numbers[prompt])
    return f" (the {count} responses of prompt {number} are kept together and take {least_s:.6g} s on one actor)"


def no_room(work: MixedWork, least: int, most: int) -> str:
    """Return the error message if not even the random split fits."""
    room = sum(pool.gpus for pool in work.pools)
    return (
        f"no plan of {least} to {counted(most, 'actor')} was found: the pools have {counted(room, 'GPU')}, and the "
        f"smallest actor takes {int(work.gpus.min())}; lower min_actors or add GPUs"
    )
