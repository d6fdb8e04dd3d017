"""Makes schedules of a simulated actor: computed from scratch, or as the rest of the previous schedule.

A schedule that begins with a queue is computed by ``solver.timing.batching``. All responses may be in the batch, with enough
memory. Then the schedule after an arrival or a departure is the rest of the previous one, with their part added or taken away.
"""

from __future__ import annotations

import numpy as np

from rlhfless.engine.simulated.iteration_times import Iterations
from rlhfless.engine.simulated.requests import Members, cached_tokens
from rlhfless.engine.simulated.running_batch import RunningBatch
from rlhfless.engine.simulated.schedule import SimulatedSchedule
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.timing.batch import Batch
from solver.timing.timeline import timeline

Schedule = SimulatedSchedule | RunningBatch


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
    run = timeline(Batch(remaining, context, context - cached, max_kv_tokens, admission, running), latency)
    residency = run.residency
    if len(residency.response) == len(members) and (residency.response[1:] < residency.response[:-1]).any():
        order = residency.response.argsort()
        residency = residency.ordered(order)
    return SimulatedSchedule(members, running, base_s, residency, Iterations.of(run, latency, base_s))


def followed(
    previous: Schedule,
    at: int,
    members: Members,
    running: int,
    base_s: float,
    latency: LatencyModel,
    admission: Admission,
) -> RunningBatch | None:
    """Return the batch that follows a schedule from its boundary ``at`` on, if all responses are in it then.

    None where a response has to wait or is evicted, or where an admitted response's prefill depends on others or takes several
    iterations.

    Args:
        members: their state then: first the remaining responses, as ``remaining`` returns them, then the admitted ones.
        running: how many of the members remain.
        base_s: the boundary's time; an idle actor may have waited.
    """
    remain, admitted = members[:running], members[running:]
    left = remain["target_tokens"] - remain["generated_tokens"]
    if not previous.no_evictions or len(previous.half_computed(at)) or (running and left.min() <= 0):
        return None
    after = RunningBatch(remain, base_s, latency, admission)
    if len(admitted):
        if not after.join(0, admitted.tolist()):
            return None
        after.enter()
    return after
