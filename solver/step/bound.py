"""Lower bounds on the time and GPU-seconds of a step: generation, preparation and learning, for any order of the work.

**Given completions** (``phase_bound_s``). Let response r complete at c_r. Its preparation starts no earlier than r_r = c_r, or
when the first server of its pool is free. Its learning starts no earlier than u_r, the latest r_q + prepare_q over the
responses q that it waits for. So the step ends no earlier than every ``u_r + learn_r``. Next, take any time t. All items of a
pool that start no earlier than t together take W(t) seconds. They run within [t, T], and server s offers at most T - max(t,
f_s) seconds there, where f_s is when it is free. So the positive parts of T - max(t, f_s) add up to at least W(t). A sum of
positive parts is the largest sum over any of its terms. Let A_k be the sum of the k least max(t, f_s). Then k T - A_k >= W(t)
for some k, and so

    T >= min over k of (W(t) + A_k) / k      for every t; only the t at which items may start matter.

With K servers that are free from the start this is ``t + W(t) / K``. It holds for items that may be split or interrupted, too.
Where learning ends with ``finish_s`` on every server, all this ends that much before the step.

**For every policy** (``step_bound``). A response alone in its batch decodes fastest. Let a + b B + c K be a minorant of an
iteration (``solver.bounds.clairvoyant``), and r the seconds until an actor can decode. Then the response completes at
r + a L + b L + c (sum of its KV tokens) or later. The bound above rises with completions and with the times at which servers
are free. So it holds with these least completions and with actors free from the start.

Besides, the GPUs of N actors of g GPUs offer g N T GPU-seconds, and those of K learner servers g K (T - their start).
Generation within T takes at least the clairvoyant bound C(T) of them, which never rises with T. With W the seconds of work on
these GPUs,

    C(T) + g W <= g N T + g K (T - start) ,    and the least T that satisfies this is a lower bound.

**GPU-seconds** within T: C(T), and g times the work on servers other than a held learner's, and the learner's from its start to
the least step time. Where learner and released GPUs are one pool, they take at least the larger of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solver.bounds.clairvoyant import ClairvoyantBound, clairvoyant_bound
from solver.bounds.clairvoyant_drafted import DraftedClairvoyantBound
from solver.bounds.exact_clairvoyant import DEFAULT_WORK
from solver.model.errors import PlanningError, check_real
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray
from solver.step.follow import checked_times
from solver.step.work import PhaseWork, servers_of

ROUNDING = 1e-12  # relative, by which bounds are lowered because sums are rounded


def phase_bound_s(completion_s: ArrayLike, free_s: ArrayLike, work: PhaseWork) -> float:
    """Return a lower bound on the step's end for any order of its preparation and learning; arguments are those of ``follow``.

    Raises:
        PlanningError: see ``follow``.

    Example:
        >>> from solver.step.bound import phase_bound_s
        >>> from solver.step.follow import follow
        >>> from solver.step.work import PhaseWork
        >>> work = PhaseWork([1, 1, 1], [2, 2, 2], group=[0, 0, 1], unlock="group", learner_gpus=1)
        >>> phase_bound_s([2, 3, 9], [3, 9], work), follow([2, 3, 9], [3, 9], work).step_s
        (12.0, 12.0)
    """
    completion, free = checked_times(completion_s, free_s, work)
    servers = servers_of(work, free)
    generated_s = max(float(completion.max(initial=0.0)), float(free.max()))
    if not len(work):
        return generated_s
    at_s = [servers.free_s[servers.pool == pool] for pool in (servers.prepare, servers.learn)]
    ready = np.maximum(completion, at_s[0].min())
    unlocked = np.maximum(work.unlocked_s(ready + work.prepare_s), at_s[1].min())
    latest_s = float((unlocked + work.learn_s).max())
    if servers.prepare == servers.learn:
        every = np.concatenate([ready, unlocked]), np.concatenate([work.prepare_s, work.learn_s])
        learned_s = max(latest_s, _pool_bound_s(*every, at_s[0]))
    else:
        prepared_s = _pool_bound_s(ready, work.prepare_s, at_s[0])
        learned_s = max(latest_s, prepared_s, _pool_bound_s(unlocked, work.learn_s, at_s[1]))
    return max(generated_s, learned_s + work.finish_s)


def _pool_bound_s(ready_s: FloatArray, seconds: FloatArray, free_s: FloatArray) -> float:
    """Return the least end of items of a pool: the bound of the module docstring over all times t."""
    order = np.argsort(ready_s, kind="stable")
    start = ready_s[order]
    after_s = np.cumsum(seconds[order][::-1])[::-1] * (1 - ROUNDING)
    if free_s.max() <= start[0]:  # every server is free by then, and all of them share the work
        return float((start + after_s / len(free_s)).max() * (1 - ROUNDING))
    times, first = np.unique(start, return_index=True)
    offered = np.cumsum(np.sort(np.maximum(times[:, None], free_s[None, :]), axis=1), axis=1)
    least = (after_s[first, None] + offered) / np.arange(1, len(free_s) + 1)
    return float(least.min(axis=1).max() * (1 - ROUNDING))


@dataclass(frozen=True, eq=False)
class StepBound:
    """Lower bounds on time and GPU-seconds of a step, for every policy on at most the cluster's actors.

    Attributes:
        time_s: least time of the step. generation: the bound on generation alone. work: preparation and learning.
    """

    time_s: float
    generation: ClairvoyantBound
    work: PhaseWork

    def gpu_seconds(self, time_s: float) -> float:
        """Return a lower bound on the GPU-seconds of a step of at most ``time_s``; infinite if no step is that short.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        check_real("time_s", time_s)
        if time_s < self.time_s:
            return math.inf
        work, gpus = self.work, self.generation.gpus
        held_s = work.learner_servers * max(0.0, self.time_s - (work.learner_from_s or 0.0))
        prepare_s, learn_s = float(work.prepare_s.sum()), float(work.learn_s.sum())
        on_learner = (prepare_s if _prepares_with_learner(work) else 0.0) + (learn_s if work.learner_gpus else 0.0)
        phases_s = prepare_s + learn_s - on_learner + max(on_learner, held_s)
        return self.generation.gpu_seconds(time_s) + gpus * phases_s


def step_bound(problem: PlanningProblem, work: PhaseWork, *, bound_work: int = DEFAULT_WORK) -> StepBound:
    """Return lower bounds on a step of this workload with its true lengths, and with this preparation and learning.

    Args:
        problem: only workload, cluster (of one GPU kind), latency and admission rule count.
        bound_work: counted work granted to the bound on generation, ``work`` of ``clairvoyant_bound``.

    Raises:
        PlanningError: ``work`` has another number of responses or GPUs per actor, or see ``clairvoyant_bound``.

    Example:
        >>> import solver
        >>> from solver.step.bound import step_bound
        >>> from solver.step.work import PhaseWork
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-3, max_batch=64)
        >>> problem = solver.PlanningProblem(solver.Workload([10], [0, 0], [100, 300]), solver.Cluster(1, 2, 1), latency)
        >>> bound = step_bound(problem, PhaseWork([1.0, 1.0], [2.0, 2.0], group=[0, 0], unlock="group"))
        >>> round(bound.time_s, 3)
        4.8
    """
    generation = clairvoyant_bound(problem, work=bound_work)
    check_fits(problem, work)
    latest_s = phase_bound_s(least_completion_s(generation), np.zeros(generation.max_actors), work)
    low = high = max(latest_s, generation.shortest_s() * (1 - 1e-9))
    if math.isinf(high) or _fits(generation, work, high):
        return StepBound(high, generation, work)
    while not _fits(generation, work, high):
        low, high = high, 2 * high + work.total_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(generation, work, middle) else (middle, high)
    return StepBound(low, generation, work)


def least_completion_s(generation: ClairvoyantBound | DraftedClairvoyantBound) -> FloatArray:
    """Return (R,) the least times at which responses are complete, each as if it were alone on an actor."""
    without = generation.without_drafts if isinstance(generation, DraftedClairvoyantBound) else generation
    alone_s = np.max([terms.base_s * without.length + terms.load for terms in without.minorants], axis=0)
    if isinstance(generation, DraftedClairvoyantBound):
        alone_s = np.minimum(alone_s, generation.alone_s)
    return np.asarray(np.where(without.length > 0, without.ready_s + alone_s, 0.0) * (1 - ROUNDING))


def check_fits(problem: PlanningProblem, work: PhaseWork) -> None:
    """Refuse work for another number of responses or of GPUs per actor (a PlanningError)."""
    if len(work) != len(problem.workload):
        raise PlanningError(
            f"the work has {len(work)} responses, but the workload has {len(problem.workload)}; one entry for each is needed"
        )
    gpus = problem.one_kind[0].gpus_per_actor
    if work.gpus_per_actor != gpus:
        raise PlanningError(f"gpus_per_actor of the work is {work.gpus_per_actor}, but an actor has {gpus} GPUs; give {gpus}")


def _prepares_with_learner(work: PhaseWork) -> bool:
    """Return whether preparation runs in the learner's pool."""
    return work.place == "learner" or (work.place == "freed" and work.learner_grows)


def _fits(generation: ClairvoyantBound, work: PhaseWork, time_s: float) -> bool:
    """Return whether generation and the work on the actors' GPUs may fit within ``time_s``, by their GPU-seconds."""
    prepares = work.place == "freed" or _prepares_with_learner(work)
    learns = work.learner_grows or (not work.learner_gpus and work.place == "freed")
    if not learns and work.place == "learner":
        return True
    work_s = (float(work.prepare_s.sum()) if prepares else 0.0) + (float(work.learn_s.sum()) if learns else 0.0)
    learner_s = work.learner_servers * max(0.0, time_s - (work.learner_from_s or 0.0)) if work.learner_grows else 0.0
    offered = generation.gpus * (generation.max_actors * time_s + learner_s)
    return generation.gpu_seconds(time_s) + generation.gpus * work_s <= offered * (1 + 1e-9)
