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

**For every policy** (``whole_step_bound``). The policy is free in the number of actors, in their responses and in when they are
released. It may fold, cut and migrate. It may draft where the bound on generation knows what drafts accept. A response alone in
its batch decodes fastest. Let a + b B + c K be a minorant of an iteration (``solver.bounds.schedules``), and r the seconds
until an actor can decode. Then the response completes at c_r = r + a L + b L + c (sum of its KV tokens) or later. The bound
above rises with completions and with the times at which servers are free. So it holds with these least completions and with
actors free from the start. Let C(T) be the bound on the GPU-seconds of generation within T, which never rises with T; K the
actors that fit, of g GPUs each; w(S) how many times as long an item of learning takes on a learner of S servers, and e(S) the
end of learning there, in which each of the S servers takes part (``Charges``).

**A learner of any size, start and growth**, on GPUs of the cluster.

1. Where charges do not rise with S, w and e are the least of all possible sizes from S on. The step takes at least
   ``phase_bound_s`` with the least completions, K servers for preparation, S servers for learning at w(S), and e(S).
2. The response that completes last is then prepared and learned from, and learning ends. With d(S) the least
   ``prepare_s + w(S) learn_s`` of a response, generation ends at T - e(S) - d(S) or earlier. It takes at least
   C(T - e(S) - d(S)).
3. Preparation and learning take at least g times their seconds, w(S) times for learning. Each of the S servers takes part in
   the end of learning, and was loaded before in ``load_s``. A learner that is held from the start of the step is not charged
   for loading. It waits for the first completion instead, so the smaller of both counts. Where nothing takes any time, no
   server is held, and loading is not charged.

       G(T) = C(T - e(S) - d(S)) + g (sum prepare_s + w(S) sum learn_s + S (e(S) + load_s))

4. The cluster has g K GPUs, so no step within T takes more than g K T.

The bound at T is the least G(T) over all S for which 1 and 4 allow T. G(T) rises with S, as w, e and d do. So it is that of the
least S that 1 allows, and infinite if 4 forbids that one. A learner may leave some of its S servers unused. It is at least as
slow, and pays at least as much, as w and e of the servers that it uses say. So it is not below the bound either.

**A given learner**, whose S own servers are in addition to the cluster and are held from its start. With w and e the least of
all numbers of servers that it may have, the step takes at least ``phase_bound_s``. The GPUs of N actors offer g N T
GPU-seconds, and those of the learner g S (T - start). With W the seconds of work on GPUs that actors may release,

    C(T) + g W <= g N T + g S (T - start) ,    and the least T that satisfies this is a lower bound.

A step within T takes at least C(T), g times the work on other servers than the learner's, and g times the larger of the
learner's work and the seconds for which it is held until the least time of the step. Where a policy chooses when the own
servers are allocated, they may be held for no longer than they work, so only the learner's work is charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from solver.bounds.bound import Bound
from solver.bounds.schedules import ScheduleBound
from solver.model.errors import PlanningError, as_given, check_flags, check_real
from solver.model.workload import FloatArray
from solver.step.charges import Charges
from solver.step.follow import Servers, checked_times
from solver.step.work import Learner, StepWork, check_fits

WHOLE_STEP = "whole step"  # method of the bound
ROUNDING = 1e-12  # relative, by which bounds are lowered because sums are rounded


class LearnerBound(NamedTuple):
    """The bound on a step with a learner of so many servers.

    Attributes:
        servers: of the learner. least_s: least time of the step. after_s: how long before its end generation ends at least.
        gpu_seconds: least GPU-seconds beside generation.
    """

    servers: int
    least_s: float
    after_s: float
    gpu_seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class WholeStepBound(Bound):
    """Lower bound on the GPU-seconds of a whole step with one size of actors and one layout; see the file's docstring.

    Attributes:
        generation: the bound on generation. sized: returns the bound with a learner of 1 to ``servers`` servers.
        gpus: that the step may have at a time; infinite where ``sized`` accounts for them.
    """

    generation: ScheduleBound
    sized: Callable[[int], LearnerBound]
    servers: int
    gpus: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", self.generation.length)
        object.__setattr__(self, "ready_s", self.generation.ready_s)

    def gpu_seconds(self, time_s: float) -> float:
        """Return a lower bound on the GPU-seconds of any step of at most ``time_s``; infinite if none is that short.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        return self.with_servers(time_s)[0]

    def method(self, time_s: float) -> str:
        """Return ``whole step``."""
        return WHOLE_STEP

    def with_servers(self, time_s: float) -> tuple[float, int]:
        """Return ``gpu_seconds`` and the servers of the learner at which it is least; 0 servers where no step is that short.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        check_real("time_s", time_s)
        learner = next((one for one in map(self.sized, range(1, self.servers + 1)) if one.least_s <= time_s), None)
        if learner is None:
            return math.inf, 0
        total = self.generation.gpu_seconds(time_s - learner.after_s) + learner.gpu_seconds
        return (total, learner.servers) if total <= self.gpus * time_s * (1 + 1e-9) else (math.inf, 0)


def phase_bound_s(completion_s: ArrayLike, free_s: ArrayLike, work: StepWork, learner: Learner) -> float:
    """Return a lower bound on the step's end for any order of its preparation and learning; arguments are those of ``follow``.

    Raises:
        PlanningError: see ``follow``.

    Example:
        >>> from solver.step.bound import phase_bound_s
        >>> from solver.step.follow import follow
        >>> from solver.step.work import Learner, StepWork
        >>> work = StepWork([1, 1, 1], [2, 2, 2], group=[0, 0, 1])
        >>> learner = Learner(own=1, grows=False, streams=True, overlaps=True, place="released")
        >>> phase_bound_s([2, 3, 9], [3, 9], work, learner), follow([2, 3, 9], [3, 9], work, learner).step_s
        (12.0, 12.0)
    """
    completion, free = checked_times(completion_s, free_s, work, learner)
    return _least_end_s(completion, free, work, learner, Servers.of(free, work, learner))


def whole_step_bound(
    generation: ScheduleBound, work: StepWork, learner: Learner | None = None, *, any_start: bool = False
) -> WholeStepBound:
    """Return the bound on a whole step for every policy.

    Args:
        generation: the bound on generation, with drafts or without.
        work: of the step, with what a learner pays.
        learner: that every policy has; None: a policy chooses it, on GPUs of the cluster.
        any_start: a policy chooses when the learner's own servers are allocated, and ``from_s`` does not count. A learner that
            starts when it is needed (``latest_start``) has another start in every step, and is held for less than the step.

    Raises:
        PlanningError: an argument is of the wrong type, the work is of another number of responses or GPUs per actor, or its
            charges allow no such learner.

    Example:
        >>> import solver
        >>> from solver.step.bound import whole_step_bound
        >>> from solver.step.work import BESIDE_DECODING, StepWork
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-3, max_batch=64)
        >>> problem = solver.PlanningProblem(solver.Workload([10], [0, 0], [100, 300]), solver.Cluster(1, 2, 1), latency)
        >>> work, generation = StepWork([1.0, 1.0], [2.0, 2.0], group=[0, 0]), solver.bound(problem)
        >>> bound = whole_step_bound(generation, work)
        >>> round(bound.shortest_s(), 3), round(bound.gpu_seconds(10.0), 3)
        (4.8, 7.9)
        >>> round(whole_step_bound(generation, work, BESIDE_DECODING).shortest_s(), 3)
        4.8
    """
    if not isinstance(generation, ScheduleBound):
        raise PlanningError(f"generation is {as_given(generation)}; a bound is needed, such as solver.bound returns")
    if not isinstance(work, StepWork):
        raise PlanningError(f"work is {as_given(work)}; a StepWork is needed")
    if not isinstance(learner, Learner | None):
        raise PlanningError(f"learner is {as_given(learner)}; a Learner or None is needed")
    check_flags(any_start=any_start)
    check_fits(work, len(generation.length), generation.gpus)
    return _of_any_learner(generation, work) if learner is None else _of_learner(generation, work, learner, any_start)


def phase_server_s(work: StepWork, learner: Learner, slower: float, held_s: float) -> float:
    """Return the least seconds of servers that preparation and learning take.

    Args:
        slower: how many times as long learning takes as at full speed.
        held_s: for which the learner's own servers are held at least.
    """
    prepare_s, learn_s = float(work.prepare_s.sum()), float(work.learn_s.sum()) * slower
    if not learner.own:
        return prepare_s + learn_s
    on_learner = learn_s + (prepare_s if learner.one_pool else 0.0)
    return prepare_s + learn_s - on_learner + max(on_learner, learner.own * held_s)


def _least_end_s(completion: FloatArray, free: FloatArray, work: StepWork, learner: Learner, servers: Servers) -> float:
    """Return the bound on the end of a step with these servers."""
    generated_s = max(float(completion.max(initial=0.0)), float(free.max()))
    if not len(work):
        return generated_s
    at_s = [servers.free_s[servers.pool == pool] for pool in (servers.prepare, servers.learn)]
    ready = np.maximum(learner.prepares_from_s(completion), at_s[0].min())
    unlocked = np.maximum(work.unlocked_s(ready + work.prepare_s, learner.streams), at_s[1].min())
    latest_s = float((unlocked + servers.learn_s).max())
    if servers.prepare == servers.learn:
        every = np.concatenate([ready, unlocked]), np.concatenate([work.prepare_s, servers.learn_s])
        learned_s = max(latest_s, _pool_bound_s(*every, at_s[0]))
    else:
        prepared_s = _pool_bound_s(ready, work.prepare_s, at_s[0])
        learned_s = max(latest_s, prepared_s, _pool_bound_s(unlocked, servers.learn_s, at_s[1]))
    return max(generated_s, learned_s + servers.finish_s)


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


def _least_completion_s(generation: ScheduleBound) -> FloatArray:
    """Return (R,) the least times at which responses are complete, each as if it were alone on an actor."""
    return np.asarray(np.where(generation.length > 0, generation.ready_s + generation.alone_s, 0.0) * (1 - ROUNDING))


def _charged(charges: Charges, sizes: Sequence[int]) -> list[tuple[float, float, float]]:
    """Return w, e and loading seconds of learners of these sizes: the least of all possible ones from each on."""
    charged = np.full((len(sizes), 3), math.inf)
    for row, servers in enumerate(sizes):
        if charges.fits(servers):
            charged[row] = charges.of_size(servers)
    if not np.isfinite(charged).any():
        raise PlanningError(
            f"no learner of {sizes[0]} to {sizes[-1]} servers is possible by these charges; give those of this cluster"
        )
    return [(w, e, load_s) for w, e, load_s in np.minimum.accumulate(charged[::-1])[::-1].tolist()]


def _of_any_learner(generation: ScheduleBound, work: StepWork) -> WholeStepBound:
    """Return the bound where a policy chooses its learner."""
    completion_s = _least_completion_s(generation)
    charged = _charged(work.charges, range(1, generation.max_actors + 1))
    most = sum(math.isfinite(slower) for slower, _, _ in charged)  # the largest possible size

    @cache
    def sized(servers: int) -> LearnerBound:
        return _sized(servers, work, charged[servers - 1], completion_s, generation.max_actors)

    return WholeStepBound(generation, sized, most, generation.gpus * generation.max_actors)


def _sized(
    servers: int, work: StepWork, charged: tuple[float, float, float], completion_s: FloatArray, actors: int
) -> LearnerBound:
    """Return the bound with a learner of so many servers, which pays at least ``charged``."""
    slower, finish_s, load_s = charged
    learner, free = Learner(servers, grows=False, streams=True, overlaps=True, place="beside"), np.zeros(actors)
    least_s = _least_end_s(completion_s, free, work, learner, Servers.of(free, work, learner, (slower, finish_s, 0.0)))
    if not len(work):
        return LearnerBound(servers, least_s, 0.0, 0.0)
    prepare_s, learn_s = float(work.prepare_s.sum()), slower * float(work.learn_s.sum())
    works = prepare_s + learn_s + finish_s > 0
    loaded_s = min(load_s, float(completion_s.min())) if works else 0.0
    seconds = prepare_s + learn_s + servers * (finish_s + loaded_s)
    last_s = float((work.prepare_s + slower * work.learn_s).min())
    return LearnerBound(servers, least_s, (finish_s + last_s) * (1 - ROUNDING), work.gpus_per_actor * seconds * (1 - ROUNDING))


def _of_learner(generation: ScheduleBound, work: StepWork, learner: Learner, any_start: bool) -> WholeStepBound:
    """Return the bound with a given learner, whose own servers are in addition to the actors'."""
    learner = replace(learner, from_s=0.0) if any_start else learner
    fewest = 0 if learner.own else 1
    actors = range(fewest, generation.max_actors + 1) if learner.grows or not learner.own else range(1)
    charged = _charged(work.charges, [learner.own + count for count in actors])[0]
    free = np.zeros(generation.max_actors)
    servers = Servers.of(free, work, learner, charged)
    prepare_s = float(work.prepare_s.sum()) if learner.prepares_on_released else 0.0
    released_s = prepare_s + (float(servers.learn_s.sum()) if learner.learns_on_released else 0.0)

    def fits(time_s: float) -> bool:
        if not (learner.prepares_on_released or learner.learns_on_released):
            return True
        grown_s = learner.own * max(0.0, time_s - learner.from_s) if learner.learns_on_released else 0.0
        offered = generation.gpus * (generation.max_actors * time_s + grown_s)
        return generation.gpu_seconds(time_s) + generation.gpus * released_s <= offered * (1 + 1e-9)

    least_s = _least_end_s(_least_completion_s(generation), free, work, learner, servers)
    low = high = max(least_s, generation.shortest_s() * (1 - 1e-9))
    if math.isfinite(high) and not fits(high):
        while not fits(high):
            low, high = high, 2 * high + work.total_s
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
    held_s = 0.0 if any_start else max(0.0, low - learner.from_s)
    beside = LearnerBound(learner.own, low, 0.0, generation.gpus * phase_server_s(work, learner, charged[0], held_s))
    return WholeStepBound(generation, lambda _: beside, 1, math.inf)
