"""Makes the work items of a ``PhaseWork``: preparation and learning of every response, on its GPUs.

On the virtual clock a step with these items ends when ``follow`` says, given its completions and releases.
"""

from __future__ import annotations

import numpy as np

from rlhfless.executor.step.work_items import WorkGpus, WorkItem
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError
from solver.step.work import PhaseWork


def phase_work_items(work: PhaseWork, cluster: Cluster, actors: int, *, overlaps: bool = True) -> list[WorkItem]:
    """Return the work items of preparation and learning: R preparations, R learning items, then the end of each server's
    learning.

    Args:
        cluster: cluster of the actors. GPU ids of the learner follow its own, then those of ``beside``.
        actors: number of actors of the plan; with ``place`` ``beside``, preparation has as many servers.
        overlaps: preparation overlaps with generation; False: it waits until all responses are complete, as without stage
            fusion.

    Raises:
        PlanningError: a server has another number of GPUs than an actor.

    Example:
        >>> import solver
        >>> from solver.step.work import PhaseWork
        >>> from rlhfless.executor import phase_work_items
        >>> work = PhaseWork([1.0, 1.0], [2.0, 2.0], group=[0, 0], unlock="group")
        >>> [(item.kind, item.items) for item in phase_work_items(work, solver.Cluster(1, 2, 1), actors=2)]
        [('prepare', ()), ('prepare', ()), ('learn', (0, 1)), ('learn', (0, 1))]
    """
    if work.gpus_per_actor != cluster.gpus_per_actor:
        raise PlanningError(
            f"gpus_per_actor of the work is {work.gpus_per_actor}, but an actor of the cluster has "
            f"{cluster.gpus_per_actor} GPUs; give {cluster.gpus_per_actor}"
        )
    prepare, learn = _gpus(work, cluster, actors)
    responses = range(len(work))
    every = tuple(responses)
    prepared = [
        WorkItem("prepare", seconds, gpus=prepare, responses=(r,) if overlaps else every)
        for r, seconds in enumerate(work.prepare_s.tolist())
    ]
    learned = [
        WorkItem("learn", seconds, gpus=learn, responses=(r,), items=waits_for, priority=1.0)
        for r, seconds, waits_for in zip(responses, work.learn_s.tolist(), _unlocking(work), strict=True)
    ]
    if not work.finish_s or not len(work):
        return [*prepared, *learned]
    servers = len(learn.servers or ()) + (actors if learn.uses_released or learn.servers is None else 0)
    all_learned = tuple(range(len(work), 2 * len(work)))
    end = WorkItem("learn", work.finish_s, gpus=learn, items=all_learned, priority=2.0, call="reduce gradients")
    return [*prepared, *learned, *[end] * servers]


def _unlocking(work: PhaseWork) -> list[tuple[int, ...]]:
    """Return the preparations that learning from each response waits for; equal ones are the same tuple."""
    if work.unlock == "response":
        return [(r,) for r in range(len(work))]
    if work.unlock == "batch":
        return [tuple(range(len(work)))] * len(work)
    members = {int(group): tuple(np.flatnonzero(work.group == group).tolist()) for group in np.unique(work.group)}
    return [members[int(group)] for group in work.group]


def _gpus(work: PhaseWork, cluster: Cluster, actors: int) -> tuple[WorkGpus, WorkGpus]:
    """Return the GPUs of preparation and of learning."""
    size, freed = cluster.gpus_per_actor, WorkGpus("freed", load_s=work.load_s)
    beside = WorkGpus.beside(cluster, "prepare", size, servers=max(1, actors), first=work.learner_gpus)
    if not work.learner_gpus:
        both = freed if work.place == "freed" else beside
        return both, both
    learner = WorkGpus.beside(
        cluster, "learner", size, servers=work.learner_servers, hold="step", uses_released=work.learner_grows,
        from_s=work.learner_from_s or 0.0, load_s=work.load_s,
    )  # fmt: skip
    if work.place == "learner" or (work.place == "freed" and work.learner_grows):
        return learner, learner
    return (freed if work.place == "freed" else beside), learner
