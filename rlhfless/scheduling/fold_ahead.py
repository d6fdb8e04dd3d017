"""Estimates the times of a step that square-root folding serves, on every scenario of the lengths, without simulating moves.

The rule sees counts only and evens out loads. So all actors decode equally many responses, and their number follows the rule
(``DrainingFold``). An actor that is folded holds its GPUs until its responses have left over its link one after another. The
receivers stall where KV caches are recomputed, and a response that moves is late by its transfer. Moves that even out loads are
not counted. No schedule of ``solver.timing.batching`` is made: that has one actor from first to last iteration, and here
responses move, so cells of tokens are timed for all scenarios as one array.
"""

from __future__ import annotations

import numpy as np

from rlhfless.scheduling.rules import DrainingFold
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray
from solver.replanning.marginal_value import delay_s, stall_s

CELLS = 128  # of equally many tokens, in each of which the number of actors is constant


def folded_busy_s(rule: DrainingFold, actors: int, problem: PlanningProblem) -> FloatArray | None:
    """Return the (S, actors) seconds that actors are busy once they can decode, over the workload's scenarios.

    None where responses might wait for slots or KV memory, which this estimate does not know.
    """
    latency, workload = problem.one_kind[1].affine, problem.workload
    count, held = len(workload), float(workload.reserved_tokens.sum())
    if count > actors * latency.max_batch or held > actors * latency.kv_capacity_tokens:
        return None
    lengths = workload.response_tokens[None] if workload.scenarios is None else workload.scenarios
    lengths = lengths - workload.generated_tokens
    start, most = float(workload.context_tokens.mean()), float(lengths.max())
    edges = np.linspace(0.0, most, CELLS + 1)
    width, context = np.diff(edges), start + (edges[:-1] + edges[1:]) / 2
    ended = np.stack([np.searchsorted(np.sort(row), edges, side="right") for row in lengths])
    alive = count - (ended[:, :-1] + ended[:, 1:]) / 2
    share = latency.per_response_s + latency.per_kv_token_s * context
    wanted = np.ceil(np.sqrt(rule.best_squared(count - ended[:, :-1], share)) - 1e-9)
    open_actors = np.minimum.accumulate(np.clip(wanted, 1, actors), axis=1)
    longest = lengths.max(axis=1, keepdims=True)
    decoded = np.clip(longest - edges[:-1], 0.0, width)
    before = np.concatenate([np.full((len(lengths), 1), actors), open_actors[:, :-1]], axis=1)
    moving = 1 - open_actors / before  # share of the unfinished responses whose actors are folded
    moves_s = alive * moving / open_actors * stall_s(latency, context) + moving * delay_s(latency, context, latency.base_s)
    batch = alive / open_actors
    cell_s = latency.iteration_s(batch, context * batch) * decoded + np.where(decoded > 0, moves_s, 0.0)
    end_s = np.cumsum(cell_s, axis=1)
    total_s = end_s[:, -1:]
    busy = np.empty((len(lengths), actors))
    transfer_s = np.array([latency.transfer_s(float(tokens)) for tokens in context])
    for actor in range(actors):
        serves = open_actors > actor
        last = serves.sum(axis=1)[:, None]  # cells that it serves: the first ones
        until_s = np.take_along_axis(np.pad(end_s, ((0, 0), (1, 0))), last, axis=1)
        at = np.minimum(last, CELLS - 1)
        leaves_s = np.take_along_axis(alive, at, axis=1) / (actor + 1) * transfer_s[at]
        busy[:, actor : actor + 1] = np.minimum(until_s + np.where(last < CELLS, leaves_s, 0.0), total_s)
    prefill_s = latency.prefill_s(start * count / actors) if start > 0 else 0.0
    return np.asarray(busy + prefill_s + latency.join_s * count / actors)
