"""Makes schedules of a simulated actor: computed from scratch, or as the rest of the previous schedule.

A schedule that begins with a queue is computed by ``solver.timing.batching``. All responses may be in the batch, with enough
memory. Then the schedule after an arrival or a departure is the rest of the previous one, with their part added or taken away.
"""

from __future__ import annotations

import numpy as np

from rlhfless.engine.simulated.iteration_times import NONE, Iterations
from rlhfless.engine.simulated.requests import Members, cached_tokens
from rlhfless.engine.simulated.running_batch import RunningBatch
from rlhfless.engine.simulated.schedule import SimulatedSchedule
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.workload import IntArray
from solver.timing.batching import timeline


def scheduled(
    members: Members,
    running: int,
    base_s: float,
    latency: LatencyModel,
    admission: Admission,
    cached_prompts: set[int],
) -> SimulatedSchedule:
    """Return a schedule in which responses may wait in a queue, or be evicted.

    Args:
        cached_prompts: prompts whose KV cache is in the actor.
    """
    context = members["prompt_tokens"] + members["generated_tokens"]
    remaining = np.maximum(members["target_tokens"] - members["generated_tokens"], 0)
    max_kv_tokens = members["prompt_tokens"] + members["max_tokens"]
    cached = cached_tokens(members, remaining, cached_prompts)
    run = timeline(remaining, context, max_kv_tokens, cached, latency, admission, running)
    residency = run.residency
    if len(residency.response) == len(members) and (residency.response[1:] < residency.response[:-1]).any():
        order = residency.response.argsort()
        residency = residency.ordered(order)
    return SimulatedSchedule(members, running, base_s, residency, Iterations.of(run, latency, base_s))


def followed(
    previous: SimulatedSchedule | RunningBatch,
    at: int,
    members: Members,
    running: int,
    base_s: float,
    latency: LatencyModel,
    admission: Admission,
    gone: IntArray = NONE,
) -> RunningBatch | None:
    """Return the batch that follows a schedule from its boundary ``at`` on, if all responses are in it then.

    None where a response has to wait or is evicted, or where an admitted response's prefill depends on others or takes several
    iterations.

    Args:
        members: their state then: first the remaining responses, as ``remaining`` returns them, then the admitted ones.
        running: how many of the members remain. gone: rows of that schedule that are taken away.
        base_s: the boundary's time; an idle actor may have waited.
    """
    new, count = members[running:], len(members)
    if not previous.no_evictions or count > admission.max_batch or len(previous.half_computed(at)):
        return None
    context, left = (
        members["prompt_tokens"] + members["generated_tokens"],
        members["target_tokens"] - members["generated_tokens"],
    )
    horizon, before = int(left[:running].max(initial=0)), previous.iterations
    if running and left[:running].min() <= 0:
        return None
    batch, kv_tokens = _part_from(before.batch, at, horizon), _part_from(before.kv_tokens, at, horizon)
    for row in gone.tolist():
        lasts, held = previous.left_of(row, at)
        batch[:lasts] -= 1
        kv_tokens[:lasts] -= np.arange(held, held + lasts)[:horizon]
    after = RunningBatch(members[:running], Iterations(latency, base_s, batch, kv_tokens), latency, admission)
    if len(new):
        if not after.join(0, new.tolist()):
            return None
        after.enter()
    return after


def _part_from(per_iteration: IntArray, at: int, horizon: int) -> IntArray:
    """Return a copy of it from ``at`` on, of length ``horizon``: 0 beyond its end."""
    part = per_iteration[at : at + horizon]
    return part.copy() if len(part) == horizon else np.concatenate([part, np.zeros(horizon - len(part), np.int64)])
