"""Writes which holder had which GPUs for how long, once a step is over: the actors' allocations, and those of work beside them.

Inputs: the record, the plan, its cluster, the finished actors and the executed work items. Output: rows in the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.phase_work import phase_items
from rlhfless.executor.step.record import StepRecord, holder_of
from rlhfless.executor.step.work_items import ItemRun
from rlhfless.executor.step.work_rows import Hold, place_work, write_work
from solver.model.cluster import Cluster, MixedCluster
from solver.model.objective import NonGenerationPhases
from solver.model.plan import Plan


def bill(
    record: StepRecord,
    plan: Plan,
    held: Sequence[Allocation],
    cluster: Cluster | MixedCluster,
    phases: NonGenerationPhases,
    work: Sequence[ItemRun] = (),
    work_holds: Sequence[Hold] = (),
) -> None:
    """Write the work beside decoding, the phases after generation and the allocations, and close the record.

    Actors have their GPUs until they are done, or for as long as the plan says, at the price in the plan. GPUs that an actor
    would have held for longer, but that work items took over, are from then on the holder's of these items.

    Args:
        work, work_holds: items that have run, and the GPUs that were held for them.
    """
    generated_s = record.start_s + record.makespan_s
    learned, learner = place_work(phase_items(phases, cluster, record.makespan_s), record)
    runs, holds = (*work, *learned), (*work_holds, *learner)
    end_s = max([generated_s, *(run.end_s for run in runs)])
    until = {"generation": generated_s, "step": end_s}
    until_s = {a.number: max(until.get(a.plan.release, a.done_s), a.done_s) for a in held}
    for number, role, actor, start_s, done_s in sorted(held, key=lambda allocation: allocation.number):
        taken_s = min((hold.start_s for hold in holds if hold.shares(actor.gpu_ids)), default=math.inf)
        record.allocate(holder_of(number), role, actor, start_s, max(done_s, min(until_s[number], taken_s)))
    if phases.learner_gpus and plan.prefill is not None and plan.prefill_actor is None:
        computed_s = record.start_s + plan.prefill.done_s
        record.span("learner", "prefill", record.start_s, computed_s, tokens=plan.prefill.computed_tokens)
    write_work(record, runs, [_for_actors(hold, holds, held, until_s) for hold in holds], cluster, end_s)
    record.work = [run for run in work if not run.lost]
    record.close(max([end_s, *(row["end_s"] for row in record.allocations)]))


def _for_actors(hold: Hold, holds: Sequence[Hold], held: Sequence[Allocation], until_s: dict[int, float]) -> Hold:
    """Return the hold, longer where an actor would have held the GPUs for longer and no other hold follows."""
    actors_s = max((until_s[a.number] for a in held if hold.shares(a.plan.gpu_ids)), default=-math.inf)
    next_s = min((h.start_s for h in holds if h.start_s > hold.start_s and h.shares(hold.server.gpu_ids)), default=math.inf)
    return hold._replace(end_s=max(hold.end_s, min(actors_s, next_s)))
