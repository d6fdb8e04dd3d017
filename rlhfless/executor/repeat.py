"""Runs the same plan several times with rests between, as long as learning would take: what life-cycles are compared by."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rlhfless.engine.protocol import Request
from rlhfless.errors import InputError
from rlhfless.executor.executor import Executor
from rlhfless.executor.step.record import StepRecord
from solver.model.plan import Plan


def repeat(executor: Executor, plan: Plan, requests: Sequence[Request], *, steps: int, rest_s: float = 0.0) -> list[StepRecord]:
    """Run the same step ``steps`` times and return the records. GPU time of actors that wait between runs is in the record
    before.

    Args:
        executor: an executor with an actor pool. plan, requests: as for ``Executor.run``. rest_s: seconds between two runs.

    Raises:
        InputError: the executor has no actor pool, so no actor can wait between runs.
    """
    if executor.actor_pool is None:
        raise InputError("the executor runs on the virtual clock, where nothing rests; give it an actor_pool")
    records: list[StepRecord] = []
    for _ in range(steps):
        if records:
            time.sleep(rest_s)
            executor.actor_pool.finalise_allocations(records[-1])
            executor.clock_s = records[-1].end_s
        records.append(executor.run(plan, requests))
    return records
