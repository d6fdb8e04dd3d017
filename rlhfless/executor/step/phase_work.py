"""Makes work items of what a step's preparation and learning take, on the GPUs of its learner.

``phase_items`` makes them of two numbers of seconds after generation, ``phase_work_items`` of every response's. On the virtual
clock a step with these items ends when ``follow`` says, given its completions and releases.
"""

from __future__ import annotations

import numpy as np

from rlhfless.executor.step.work_items import Gpus, WorkItem
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.objective import NonGenerationPhases
from solver.step.work import Learner, StepWork


def phase_items(phases: NonGenerationPhases, cluster: Cluster | MixedCluster, generated_s: float = 0.0) -> list[WorkItem]:
    """Return the phases outside generation as items: the learner prepares, then learns, when generation is over.

    Args:
        generated_s: when that is, in seconds from the start of the step.
    """
    if not phases.learner_gpus and not phases.seconds:
        return []
    ids = tuple(range(cluster.gpus, cluster.gpus + phases.learner_gpus))
    beside = sum(pool.nodes for pool in cluster.pools) if ids else None  # phases without GPUs of their own are in no table
    learner = Gpus("learner", ids, held_all_step=True, node=beside, usd_per_gpu_hour=phases.usd_per_gpu_hour)
    return [
        WorkItem("prepare", phases.prepare_s, gpus=learner, after_s=generated_s, role="learner"),
        WorkItem("learn", phases.learn_s, gpus=learner, after_s=generated_s, items=(0,)),
    ]


def phase_work_items(work: StepWork, learner: Learner, cluster: Cluster, actors: int) -> list[WorkItem]:
    """Return the work items of preparation and learning: R preparations, R learning items, then the end of each server's
    learning.

    Args:
        work, learner: what the items take, and where and when they run.
        cluster: cluster of the actors. GPU ids of the learner follow its own, then those of ``beside``.
        actors: number of actors of the plan; with ``place`` ``beside``, preparation has as many servers.

    Raises:
        PlanningError: a server has another number of GPUs than an actor.

    Example:
        >>> import solver
        >>> from solver.step.work import BESIDE_DECODING, StepWork
        >>> from rlhfless.executor import phase_work_items
        >>> work = StepWork([1.0, 1.0], [2.0, 2.0], group=[0, 0])
        >>> items = phase_work_items(work, BESIDE_DECODING, solver.Cluster(1, 2, 1), actors=2)
        >>> [(item.kind, item.items) for item in items]
        [('prepare', ()), ('prepare', ()), ('learn', (0, 1)), ('learn', (0, 1))]
    """
    if work.gpus_per_actor != cluster.gpus_per_actor:
        raise PlanningError(
            f"gpus_per_actor of the work is {work.gpus_per_actor}, but an actor of the cluster has "
            f"{cluster.gpus_per_actor} GPUs; give {cluster.gpus_per_actor}"
        )
    slower, finish_s, startup_s = work.charges.of_size(learner.servers(actors))
    prepare, learn = _gpus(learner, startup_s, cluster, actors)
    responses = range(len(work))
    every = tuple(responses)
    prepared = [
        WorkItem("prepare", seconds, gpus=prepare, responses=(r,) if learner.overlaps else every)
        for r, seconds in enumerate(work.prepare_s.tolist())
    ]
    learned = [
        WorkItem("learn", seconds, gpus=learn, responses=(r,), items=waits_for, priority=1.0)
        for r, seconds, waits_for in zip(responses, (work.learn_s * slower).tolist(), _unlocking(work, learner), strict=True)
    ]
    if not finish_s or not len(work):
        return [*prepared, *learned]
    all_learned = tuple(range(len(work), 2 * len(work)))
    end = WorkItem("learn", finish_s, gpus=learn, items=all_learned, priority=2.0, call="reduce gradients")
    return [*prepared, *learned, *[end] * learner.servers(actors)]


def _unlocking(work: StepWork, learner: Learner) -> list[tuple[int, ...]]:
    """Return the preparations that learning from each response waits for; equal ones are the same tuple."""
    sets = work.unlocked_by(learner.streams)
    order, ends = np.argsort(sets, kind="stable"), np.cumsum(np.bincount(sets))
    members = [tuple(of_set.tolist()) for of_set in np.split(order, ends[:-1])]
    return [members[of] for of in sets.tolist()]


def _gpus(learner: Learner, startup_s: float, cluster: Cluster, actors: int) -> tuple[Gpus, Gpus]:
    """Return the GPUs of preparation and of learning."""
    size = cluster.gpus_per_actor
    if learner.prepares_on == "released":
        prepare = Gpus(released=True, startup_s=startup_s)
    else:
        prepare = Gpus.beside(cluster, "prepare", size, servers=max(1, actors), first=learner.own * size)
    if not learner.own:
        return prepare, prepare
    learn = Gpus.beside(
        cluster, "learner", size, servers=learner.own, released=learner.grows, from_s=learner.from_s, startup_s=startup_s,
        held_all_step=True,
    )  # fmt: skip
    return (learn if learner.one_pool else prepare), learn
