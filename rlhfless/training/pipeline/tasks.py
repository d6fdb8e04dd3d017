"""The operations of a schedule one by one, and the messages between devices that they need; pure, without torch.

All devices know all orders. So each knows which messages a peer sends it, and in which order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from solver.pipeline import PipelinePlan

FORWARD, BACKWARD, INPUTS, WEIGHTS = "F", "B", "I", "W"


class PipelineTask(NamedTuple):
    """One operation on one micro-batch; kinds as in ``PipelinePlan.table``. ``chain`` is the position of its chain."""

    chain: int
    kind: str
    stage: int
    micro_batch: int


def tasks_of(plan: PipelinePlan) -> list[list[PipelineTask]]:
    """Return each device's tasks in the plan's order."""
    found = []
    for order in plan.orders:
        done: dict[tuple[int, str, int], int] = defaultdict(int)
        row = []
        for op in order:
            key = (op.chain, op.kind, op.stage)
            row.append(PipelineTask(*key, done[key]))
            done[key] += 1
        found.append(row)
    return found


def forward_tasks(
    routes: Mapping[int, Sequence[int]], micro_batches: Mapping[int, int], devices: int
) -> list[list[PipelineTask]]:
    """Return each device's tasks of forward passes alone: micro-batches follow each other through the stages.

    Args:
        routes: by chain, the device of each stage. micro_batches: number of each chain.
    """
    every = [
        PipelineTask(chain, FORWARD, stage, k)
        for chain, route in routes.items()
        for stage in range(len(route))
        for k in range(micro_batches[chain])
    ]
    every.sort(key=lambda task: (task.stage + task.micro_batch, task.stage))  # a task comes after all that it waits for
    return [[task for task in every if routes[task.chain][task.stage] == device] for device in range(devices)]


def following(task: PipelineTask, stages: int) -> PipelineTask | None:
    """Return the task of another stage that waits for what this one computes; None if there is none."""
    if task.kind == FORWARD:
        return task._replace(stage=task.stage + 1) if task.stage + 1 < stages else None
    return task._replace(stage=task.stage - 1) if task.kind != WEIGHTS and task.stage > 0 else None


def messages(
    orders: Sequence[Sequence[PipelineTask]], routes: Mapping[int, Sequence[int]]
) -> dict[tuple[int, int], list[PipelineTask]]:
    """Return, by sending and receiving device, the tasks that wait for a message, in the order of sending."""
    found: dict[tuple[int, int], list[PipelineTask]] = defaultdict(list)
    for device, order in enumerate(orders):
        for task in order:
            then = following(task, len(routes[task.chain]))
            if then is not None and (target := routes[then.chain][then.stage]) != device:
                found[device, target].append(then)
    return dict(found)
