"""Defines ``MixedProblem``: the input of planning on several offers, with workload, offers, objective and options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from solver.model.cluster import Cluster, MixedCluster
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import Latencies, Offer
from solver.model.workload import IntArray, Workload
from solver.planning.deadline import stop_after


@dataclass(frozen=True, eq=False)
class MixedProblem:
    """A planning problem on several offers.

    Attributes:
        workload: predicted lengths, or scenarios of them.
        offers: as ``offers_of`` gives them for ``cluster``; objective: what is best, cost in GPU-seconds or dollars.
        phases: the phases outside generation, which time, cost, deadline and budget include.
        admission: ``reserve`` or ``preempt``. seed: of the random split and the local search.
        min_actors, max_actors: limits on the number of actors, the first as far as there is something to generate.
        release: when actors release their GPUs (``done``, ``generation`` or ``step``).
        keep_together: all responses of a prompt on one actor.
        share_prefill: an actor computes a prompt once for all its responses there.
        deterministic: no search stops by the clock, so that the plan depends on the problem and the time limit alone.
        prompt_numbers: (P,) of the prompts as they were asked for, which sentences name; None when they are as in ``workload``.
    """

    workload: Workload
    offers: Sequence[Offer]
    cluster: Cluster | MixedCluster
    objective: Objective = field(default_factory=Objective)
    phases: NonGenerationPhases = field(default_factory=NonGenerationPhases)
    admission: str = "reserve"
    seed: int = 0
    min_actors: int = 1
    max_actors: int | None = None
    release: str = "done"
    keep_together: bool = False
    share_prefill: bool = False
    deterministic: bool = False
    prompt_numbers: IntArray | None = None

    def stop_after(self, began: float, seconds: float) -> float:
        """Return when the clock (``perf_counter``) ends a search for this problem (see ``solver.planning.deadline``)."""
        return stop_after(began, seconds, self.deterministic)

    @property
    def points(self) -> Workload:
        """Return the predicted lengths, for which plans are searched and bounded."""
        return self.workload.points

    @property
    def needed_actors(self) -> int:
        """Return ``min_actors``, or the number of responses (or prompts that stay together) to generate if that is
        smaller."""
        working = self.points.prompt_of[self.points.remaining_tokens > 0]
        return max(1, min(self.min_actors, len(np.unique(working)) if self.keep_together else len(working)))

    @property
    def latencies(self) -> Latencies:
        """Return the planning model of every offer, by kind and GPUs of an actor."""
        return {(offer.kind, offer.gpus): offer.latency.affine for offer in self.offers}

    def learner_rate(self, cost: str) -> float:
        """Return the ``cost`` (``gpu_s`` or ``usd``) of the learner's GPUs per second of the step; they are of the
        first pool."""
        return self.phases.learner_rate(cost, self.cluster.pools[0].usd_per_gpu_s)

    @property
    def deadline_s(self) -> float:
        """Return the seconds that the deadline leaves for generation, infinite without a deadline."""
        return math.inf if self.objective.deadline_s is None else self.objective.generation_within_s(self.phases)
