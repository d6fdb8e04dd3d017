"""The schedule to compare with: one chain after the other, each with one forward, one backward (1F1B)."""

from __future__ import annotations

from solver.model.errors import PlanningError
from solver.pipeline.evaluate import peaks
from solver.pipeline.listing import ListScheduler, Orders, Rule
from solver.pipeline.operations import Operations
from solver.pipeline.plan import PipelinePlan, SearchReport, judged
from solver.pipeline.problem import PipelineProblem


def serial(problem: PipelineProblem) -> PipelinePlan:
    """Return the schedule that runs one chain after the other with 1F1B, as trainers without fusion do.

    A stage runs a backward pass as soon as it can. Stage s of S has at most S - s micro-batches in flight, the least that keeps
    equal stages busy. A device begins the next chain as soon as it has finished the one before. Chains on other devices run at
    the same time.

    Raises:
        PlanningError: too little memory for this schedule.

    Example:
        >>> from solver.pipeline import Chain, PipelineProblem, serial
        >>> serial(PipelineProblem([Chain("actor", range(4), 8, forward=1, backward=2)])).latency
        33.0
    """
    ops = Operations.of(problem)
    orders: Orders = [[] for _ in ops.on_device]
    for chain in range(len(problem.chains)):
        for order, more in zip(orders, _one_chain(problem, chain), strict=True):
            order += more
    if ops.memory is not None:
        for d, (most, limit) in enumerate(zip(peaks(ops, orders), ops.memory, strict=True)):
            if most > limit * (1 + 1e-12):
                raise PlanningError(
                    f"1F1B holds {most:g} on device {d}, whose memory is {limit:g}; at least {most:g} is needed"
                )
    return judged(problem, orders, SearchReport())


def _one_chain(problem: PipelineProblem, chain: int) -> Orders:
    """Return the 1F1B orders of a chain as if it were alone, in types of the whole problem."""
    ops = Operations.of(problem)
    alone = Operations.of(
        PipelineProblem(
            [problem.chains[chain]], problem.devices, transfer=problem.transfer, split_backward=problem.split_backward,
            kept_for_weights=problem.kept_for_weights,
        )
    )  # fmt: skip
    stages = problem.chains[chain].stages
    rule = Rule([0] * len(alone), [-float(head) for head in alone.heads], [stages - op.stage for op in alone.types])
    scheduler = ListScheduler(alone)
    latency = scheduler.schedule(rule)
    assert latency is not None, "1F1B has no limit that blocks it: every stage may hold one micro-batch"
    number = {op: i for i, op in enumerate(ops.types)}
    return [[number[alone.types[i]._replace(chain=chain)] for i in order] for order in scheduler.orders()]
