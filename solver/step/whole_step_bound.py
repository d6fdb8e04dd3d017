"""Lower bound on the time and GPU-seconds of a step in which every lever may be used, as a curve over time.

The policy is free in the number of actors, in their responses and in when they are released. It may fold, cut and migrate. It
may draft where the bound on generation knows what drafts accept. It prepares and learns where and when it likes, also while
others decode, with a learner of any size, start and growth. It must charge its learner as ``LearnerCharges``
or ``SizedCharges`` says.

**For a learner of S servers.** Let w(S) be how many times as long an item of learning takes there. Let e(S) be the seconds of
the reduction of gradients at the end of the step, in which each of the S servers takes part. Where charges do not rise with S,
both are the least of all possible sizes from S on. Let K be the actors that fit.

1. Response r completes at c_r or later, c_r the seconds that it takes alone (``least_completion_s``). So the step takes at
   least ``phase_bound_s`` with these completions, K servers for preparation, S servers for learning at w(S), and e(S).
2. The response that completes last is then prepared and learned from, and gradients are reduced. With d(S) the least
   ``prepare_s + w(S) learn_s`` of a response, generation ends at T - e(S) - d(S) or earlier. It takes at least the GPU-seconds
   C(T - e(S) - d(S)) of the bound on generation.
3. Preparation and learning take at least g times their seconds, w(S) times for learning, on g GPUs a server. Each of the S
   servers takes part in the reduction, and was loaded before in ``load_s``. A learner that is held from the start of the step
   is not charged for loading. It waits for the first completion instead, so the smaller of both counts. Where nothing takes
   any time, no server is held, and loading is not charged.

       G(T) = C(T - e(S) - d(S)) + g (sum prepare_s + w(S) sum learn_s + S (e(S) + load_s))

4. The cluster has g K GPUs, so no step within T takes more than g K T.

The bound at T is the least G(T) over all S for which 1 and 4 allow T. G(T) rises with S, as w, e and d do. So it is that of the
least S that 1 allows, and infinite if 4 forbids that one. A learner may leave some of its S servers unused. It is at least as
slow, and pays at least as much, as w and e of the servers that it uses say. So it is not below the bound either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np

from solver.bounds.bound_over_time import BoundOverTime
from solver.bounds.clairvoyant import ClairvoyantBound
from solver.bounds.clairvoyant_drafted import DraftedClairvoyantBound
from solver.model.errors import PlanningError, as_given, check_real
from solver.model.workload import FloatArray
from solver.step.bound import ROUNDING, least_completion_s, phase_bound_s
from solver.step.learner_charges import LearnerCharges
from solver.step.sized_charges import SizedCharges
from solver.step.work import PhaseWork


class SizedLearner(NamedTuple):
    """A learner of so many servers: the least time of the step, and the seconds and GPU-seconds beside generation.

    ``after_s`` is how long before the step generation ends at least.
    """

    servers: int
    least_s: float
    after_s: float
    gpu_seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class WholeStepBound(BoundOverTime):
    """Lower bound on the GPU-seconds of a whole step as a function of its time; see the file's docstring.

    Attributes:
        generation: the bound on generation. sized: returns the learner of so many servers. servers: of the largest one
        that is possible. gpus: of the cluster. length: (R,) tokens.
    """

    cost_name: ClassVar[str] = "gpu_seconds"
    generation: ClairvoyantBound | DraftedClairvoyantBound
    sized: Callable[[int], SizedLearner]
    servers: int
    gpus: int
    length: FloatArray
    ready_s: float
    unit: str = "gpu_s"

    def gpu_seconds(self, time_s: float) -> float:
        """Return a lower bound on the GPU-seconds of any step of at most ``time_s``; infinite if none is that short.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        return self.with_servers(time_s)[0]

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

    def cost(self, time_s: float) -> float:
        """Return ``gpu_seconds``."""
        return self.gpu_seconds(time_s)


def whole_step_bound(
    generation: ClairvoyantBound | DraftedClairvoyantBound, work: PhaseWork, charges: LearnerCharges | SizedCharges
) -> WholeStepBound:
    """Return the bound on a whole step with all levers.

    Args:
        generation: the bound on generation, with drafts or without.
        work: seconds of preparation and learning of every response on one server at full speed, groups, and what unlocks
            learning. Where it says that work runs does not count.
        charges: what a learner pays.

    Raises:
        PlanningError: an argument is of the wrong type, or the work is of another number of responses or GPUs per actor.

    Example:
        >>> import solver
        >>> from solver.step.learner_charges import LearnerCharges
        >>> from solver.step.whole_step_bound import whole_step_bound
        >>> from solver.step.work import PhaseWork
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-3, max_batch=64)
        >>> problem = solver.PlanningProblem(solver.Workload([10], [0, 0], [100, 300]), solver.Cluster(1, 2, 1), latency)
        >>> work = PhaseWork([1.0, 1.0], [2.0, 2.0], group=[0, 0], unlock="group")
        >>> generation = solver.clairvoyant_bound(problem)
        >>> bound = whole_step_bound(generation, work, LearnerCharges(loss_per_doubling=0.0))
        >>> round(bound.shortest_s(), 3), round(bound.gpu_seconds(10.0), 3)
        (4.8, 7.9)
    """
    if not isinstance(generation, ClairvoyantBound | DraftedClairvoyantBound):
        raise PlanningError(f"generation is {as_given(generation)}; a bound is needed, such as clairvoyant_bound returns")
    if not isinstance(work, PhaseWork):
        raise PlanningError(f"work is {as_given(work)}; a PhaseWork is needed")
    if not isinstance(charges, LearnerCharges | SizedCharges):
        raise PlanningError(f"charges is {as_given(charges)}; LearnerCharges are needed")
    without = generation.without_drafts if isinstance(generation, DraftedClairvoyantBound) else generation
    if len(work) != len(without.length) or work.gpus_per_actor != without.gpus:
        raise PlanningError(
            f"the work has {len(work)} responses on {work.gpus_per_actor} GPUs a server, but generation has "
            f"{len(without.length)} on {without.gpus}; give the work of this step"
        )
    completion_s = least_completion_s(generation)
    most = max((servers for servers in range(1, without.max_actors + 1) if charges.fits(servers)), default=0)
    if not most:
        raise PlanningError(
            f"no learner of 1 to {without.max_actors} servers is possible by these charges; give those of this cluster"
        )
    charged = _least(most, charges)

    @cache
    def sized(servers: int) -> SizedLearner:
        return _sized(servers, work, charged[servers - 1], completion_s, without)

    return WholeStepBound(generation, sized, most, without.gpus * without.max_actors, without.length, without.ready_s)


def _least(most: int, charges: LearnerCharges | SizedCharges) -> list[tuple[float, float, float]]:
    """Return w, e and loading seconds of learners of 1 to ``most`` servers: the least of all possible ones from each on."""
    charged = np.full((most, 3), math.inf)
    for servers in filter(charges.fits, range(1, most + 1)):
        charged[servers - 1] = charges.slower(servers), charges.finish_s(servers), charges.loading_s(servers)
    return [(w, e, load_s) for w, e, load_s in np.minimum.accumulate(charged[::-1])[::-1].tolist()]


def _sized(
    servers: int, work: PhaseWork, charged: tuple[float, float, float], completion_s: FloatArray, generation: ClairvoyantBound
) -> SizedLearner:
    """Return the terms of the bound for a learner of so many servers, which pays at least ``charged``."""
    slower, finish_s, load_s = charged
    size = work.gpus_per_actor
    sized = replace(
        work, learn_s=work.learn_s * slower, learner_gpus=servers * size, learner_from_s=None, learner_grows=False,
        place="beside", load_s=0.0, finish_s=finish_s,
    )  # fmt: skip
    least_s = phase_bound_s(completion_s, np.zeros(generation.max_actors), sized)
    if not len(work):
        return SizedLearner(servers, least_s, 0.0, 0.0)
    works = float(work.prepare_s.sum()) + float(work.learn_s.sum()) + finish_s > 0
    loaded_s = min(load_s, float(completion_s.min())) if works else 0.0
    seconds = float(work.prepare_s.sum()) + slower * float(work.learn_s.sum()) + servers * (finish_s + loaded_s)
    last_s = float((work.prepare_s + slower * work.learn_s).min())
    return SizedLearner(servers, least_s, (finish_s + last_s) * (1 - ROUNDING), size * seconds * (1 - ROUNDING))
