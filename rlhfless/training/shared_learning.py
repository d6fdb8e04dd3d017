"""The work items of a step that several servers learn from: the trainer's learner, and replicas in other processes.

A prompt's responses are judged in the trainer, their gradient is computed by any server (``learner/replica.py``), and is added
in the trainer, which takes the optimizer's step. What the trainer does beside its learner holds no GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rlhfless.executor import WorkGpus, WorkItem, WorkServer
from rlhfless.training.learner.replica import piece_of_group
from rlhfless.training.step_learner import StepLearner

TRAINER = WorkGpus("trainer", (WorkServer("trainer", ()),), in_this_process=1)


class SharedFunctions(NamedTuple):
    """What runs in the trainer: functions of a group, or of a mini-batch, with completions and results.

    Attributes:
        judge: of a group; returns its ``Batch``. take: adds the ``Piece`` that it gets as a result.
        update: of a mini-batch, with all of its pieces added; returns ``StepWeights``.
    """

    judge: Callable[..., Any]
    take: Callable[..., Any]
    update: Callable[..., Any]


def shared_items(
    on: StepLearner,
    minibatches: Sequence[Sequence[int]],
    responses: Callable[[int], tuple[int, ...]],
    functions: SharedFunctions,
    *,
    stream: tuple[int, int],
    canonical: bool,
    details: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> list[WorkItem]:
    """Return three items per group (judge, learn, add), and one for each mini-batch's update.

    A group's gradient waits for the update of the mini-batch before, whose weights it gets. In the canonical order a piece is
    added after the one before; it may be computed earlier.

    Args:
        minibatches: groups of each. responses: of a group.
        stream: seed and step, which seed a group's random streams with its number. canonical: see ``stream_order``.
        details: of the learner's spans, and of that of the last update.
    """
    assert on.optimizer is not None
    items: list[WorkItem] = []
    every = tuple(index for groups in minibatches for group in groups for index in responses(group))
    updated: tuple[int, ...] = ()
    for minibatch, groups in enumerate(minibatches):
        added: list[int] = []
        for group in groups:
            of_group, first = responses(group), len(items)
            awaited = of_group if on.streams else every
            learn = partial(piece_of_group, (*stream, group + 1))
            before = tuple(added[-1:]) if canonical else ()
            items += [
                WorkItem("prepare", run=partial(functions.judge, group), gpus=TRAINER, responses=awaited),
                WorkItem("learn", run=learn, gpus=on.gpus, responses=of_group, items=(first, *updated), detail=details[0]),
                WorkItem("learn", run=functions.take, gpus=TRAINER, items=(first + 1, *before), priority=1.0, call="add"),
            ]
            added.append(first + 2)
        last = minibatch == len(minibatches) - 1
        update = partial(functions.update, minibatch)
        items.append(
            WorkItem("learn", run=update, gpus=on.optimizer, items=tuple(added), call="optimizer", detail=details[last])
        )
        updated = (len(items) - 1,)
    return items
