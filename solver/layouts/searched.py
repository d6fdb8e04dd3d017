"""Searches the plans of given options to a gap, and returns the best as a ``StepPlan``."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from solver.layouts.assemble import step_plan
from solver.layouts.graph import Call
from solver.layouts.layout import Layout, Mesh, strategies
from solver.layouts.options import CallOptions
from solver.layouts.plan import StepPlan
from solver.layouts.search import Search
from solver.model.errors import PlanningError
from solver.model.plurals import counted

FIRST_GAP = 0.2  # that is proven before plans are improved
GAPS = (0.1, 0.05, 0.02)  # that are proven before the one that is asked for
FINER = 0.1  # share of the proven gap that is then searched for
MORE, MORE_BOUNDED = 0.5, 200_000  # with at most this share of the work again, or so many bounds
BOUNDED_PER_EVALUATED = 100  # a plan's times take as long as so many bounds
EQUAL = 1e-12  # share by which a bound may be off by rounding
MOST_GPUS = 256  # layouts and their pairs grow with the square of the GPUs: 600, 2,400 and 9,700 per call on 64, 128 and 256
WORK = 20_000_000  # bounds; PPO on 128 A100 takes 18 million (3 CPU s) to prove 1 %, and up to 64 GPUs 0.03 to 1.3 million


class Asked(NamedTuple):
    """What a search is asked for: bytes of a GPU, the gap at which it ends, its counted work, and a seed."""

    memory_bytes: float
    gap: float
    work: int
    seed: int


def searched(options: CallOptions, asked: Asked) -> StepPlan:
    """Return the best plan of these options.

    Raises:
        PlanningError: no plan fits into memory, or none was found within the work.
    """
    search = Search(options, asked.memory_bytes, asked.seed)
    most = asked.work // BOUNDED_PER_EVALUATED
    search.start(most)
    ended = search.prove(max(FIRST_GAP, asked.gap), asked.work)  # finds a first plan, if descents did not
    search.improve(most)
    ended = ended and all(search.prove(gap, asked.work) for gap in (*(g for g in GAPS if g > asked.gap), asked.gap))
    found = search.found
    if ended:
        search.prove(asked.gap * FINER, min(asked.work, found.bounded + max(MORE_BOUNDED, int(MORE * found.bounded))))
    if found.plan is None:
        raise PlanningError(_nothing_fits(options, asked.memory_bytes, ended))
    least_s = found.bound_s / (1 - asked.gap) * (1 + EQUAL)  # of a period whose gap is proven
    if found.period_s > least_s:
        # the search leaves out what is slower on the same GPUs; in the list schedule's order it may fit in better
        search.descend(found.plan, found.evaluated + most)
    if found.period_s > least_s:
        other = Search(options, asked.memory_bytes, asked.seed, "fifo")
        other.descend(found.plan, most)
        if other.found.plan is not None:
            found.take(other.found.plan[None], np.array([other.found.period_s]), other.order)
    status = "optimal" if found.period_s <= least_s else "gap" if ended else "stopped"
    return step_plan(
        options, found.plan, status=status, order=found.order, lower_bound_s=found.bound_s, history=tuple(found.history)
    )


def _nothing_fits(options: CallOptions, memory_bytes: float, ended: bool) -> str:
    """Return the sentence for a search without a plan: the call that needs most bytes at least, and GPUs on which it fits."""
    where = f"{_shown_bytes(memory_bytes)} per GPU on {counted(options.gpus, 'GPU')}"
    if not ended:
        return f"no plan that fits into {where} was found within the work; allow more work"
    frozen = [options.graph.trained_by[call] is None for call in range(len(options.memory))]  # they hold a copy of their own
    needed = [
        table.sum(axis=1) if alone else table[:, :2].sum(axis=1) for table, alone in zip(options.memory, frozen, strict=True)
    ]
    least = [float(of_call.min()) for of_call in needed]
    most = int(np.argmax(least))
    call = options.graph.calls[most]
    if least[most] <= memory_bytes:
        return f"no plan fits into {where}, although every call alone does; give more memory or GPUs"
    enough = _gpus_that_fit(options, call, memory_bytes, frozen[most])
    fits = f"fits on {enough:,} GPUs" if enough else f"does not fit on {MOST_GPUS:,} either"
    return (
        f"no plan fits into {where}; call {call.name!r} alone needs {_shown_bytes(least[most])} at least, and {fits}; "
        "give more memory or GPUs"
    )


def _gpus_that_fit(options: CallOptions, call: Call, memory_bytes: float, frozen: bool) -> int:
    """Return a number of GPUs on which the call alone needs at most so many bytes; 0 where there is none."""
    node, gpus = options.gpus_per_node, options.gpus
    while (gpus := 2 * gpus) <= MOST_GPUS:
        cuts = [cut for cut in strategies(gpus, max(1, gpus // node)) if cut.tp <= node]
        for layout in (Layout(Mesh(0, gpus), cut) for cut in cuts):
            if options.costs.seconds(call, layout) < math.inf:
                memory = options.costs.memory(call, layout)
                if memory.kept + memory.working + (memory.copy if frozen else 0.0) <= memory_bytes:
                    return gpus
    return 0


def _shown_bytes(number: float) -> str:
    return f"{number / 1e9:,.4g} GB" if number >= 1e8 else f"{number:.4g} bytes"
