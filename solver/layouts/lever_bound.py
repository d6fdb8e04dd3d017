"""Lower bound on the period of every step plan with given levers: any layouts, any parts, any order, any generation plan.

Let generation take at least ``least_s`` and ``least_gpu_s`` in its layout. Steps follow each other, and two things hold for
each pair of layouts of generation and of the training of its model.

**GPU-seconds.** Parts of a call take the GPU-seconds of the whole call. The period times the number of GPUs is at least the sum
over all calls. Calls other than these two count in the layout where they take the fewest.

**After the last response.** The last prompt that completes is judged and learned from after ``least_s``, and the optimizer
steps once after that. Only then does the next generation start. A call that may be divided takes at least the part of the
smallest prompt, on all servers that may share it, in the layout where that is the shortest. Any other call takes its seconds.

The least of the larger of both, over all pairs of layouts, is a bound. It is one for plans that leave levers unused, too.
"""

from __future__ import annotations

import math

import numpy as np

from solver.layouts.graph import GENERATE
from solver.layouts.lever_space import LeverSpace
from solver.layouts.options import FloatArray

ROUNDING = 1e-12  # relative, by which the bound is lowered because sums are rounded


def lever_bound_s(space: LeverSpace, divisible: tuple[int, ...]) -> float:
    """Return the bound for plans in which the calls ``divisible`` may be divided."""
    options, graph = space.options, space.options.graph
    calls = range(len(graph.calls))
    gpu_s, tail_s = [], []
    for call in calls:
        span = options.spans[call]
        if call in options.freed_early:
            gpu_s.append(options.freed_early[call].least_gpu_s)
            tail_s.append(options.freed_early[call].least_s)
            continue
        fits = options.memory[call][:, :2].sum(axis=1) <= space.memory_bytes
        whole_s = np.where(fits, options.seconds[call], math.inf)
        gpu_s.append(whole_s * (span[:, 1] - span[:, 0]))
        tail_s.append(np.minimum(whole_s, _smallest_part_s(space, call)) if call in divisible else whole_s)
    least_gpu_s = [float(of.min()) for of in gpu_s]
    bound_s = sum(least_gpu_s) / options.gpus
    for generate in calls:
        train = graph.trained_by[generate]
        if graph.calls[generate].kind != GENERATE or train is None:
            continue
        judged_s = _longest(space, generate, train, [float(of.min()) for of in tail_s])
        rest_gpu_s = sum(of for call, of in enumerate(least_gpu_s) if call not in (generate, train))
        area_s = (gpu_s[generate][:, None] + gpu_s[train] + rest_gpu_s) / options.gpus
        chain_s = tail_s[generate][:, None] + judged_s + tail_s[train]
        bound_s = max(bound_s, float(np.maximum(area_s, chain_s).min()))
    return bound_s * (1 - ROUNDING)


def _smallest_part_s(space: LeverSpace, call: int) -> FloatArray:
    """Return by option the seconds of the smallest prompt's part, and of one optimizer step."""
    parts = [space.parts(call, option) for option in range(len(space.options.layouts[call]))]
    return np.array([float(of.least_s.min()) + of.update_s for of in parts])


def _longest(space: LeverSpace, generate: int, train: int, seconds: list[float]) -> float:
    """Return the longest path from the end of generation to the start of the training of its model."""
    weights = [0.0 if call == train else of for call, of in enumerate(seconds)]
    return space.longest(generate, train, weights)
