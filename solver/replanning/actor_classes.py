"""The actors of a running step by what they are: which has which latency model, and what a second of each costs.

Knows plans and latency models; nothing of responses. Re-planning looks actors up here, so that one look can weigh actors of
several kinds, sizes and prices against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.objective import COSTS
from solver.model.offers import Latencies, latency_of
from solver.model.plan import Plan
from solver.model.workload import FloatArray, IntArray
from solver.replanning.marginal_value import delay_s, stall_s


@dataclass(frozen=True, eq=False)
class ActorClasses:
    """M classes of actors: what can be told apart by speed or price.

    Attributes:
        models: (M,) affine latency model of each class. rates: (M,) cost of one actor for one second.
        class_of: class of every actor by its index in the plan; empty when all are of the only class.
    """

    models: tuple[LatencyModel, ...]
    rates: tuple[float, ...] = (1.0,)
    class_of: tuple[int, ...] = ()

    @classmethod
    def of(cls, latency: LatencyModel | ActorClasses) -> ActorClasses:
        """A fleet as it is; actors that are all alike for a latency model, their cost counted in actor-seconds.

        Raises:
            PlanningError: several models are given without saying which actor has which.
        """
        if isinstance(latency, ActorClasses):
            return latency
        if isinstance(latency, Mapping):
            raise PlanningError(
                "re-planning is given several latency models; "
                "say which actor has which with ActorClasses.of_plan(plan, latencies)"
            )
        return cls((latency.affine,))

    @classmethod
    def of_plan(cls, plan: Plan, latency: Latencies, cost: str = "gpu_s") -> ActorClasses:
        """The actors of a plan. Cost is counted in GPU-seconds or dollars, and so is then the price of a second of makespan.

        Raises:
            PlanningError: an actor's kind and size have no latency model, ``cost`` is unknown, or dollars are counted and an
                actor has no price.
        """
        if cost not in COSTS:
            raise PlanningError(f"cost {cost!r} is unknown; choose one of {', '.join(COSTS)}")
        known: dict[tuple[str, int, float], int] = {}
        classes = []
        for actor in plan.actors:
            gpus = len(actor.gpu_ids)
            rate = gpus * (1.0 if cost == "gpu_s" else actor.usd_per_gpu_s)
            if rate <= 0:
                raise PlanningError(f"an actor of {gpus} x {actor.kind} has no price; give usd_per_gpu_s or count GPU-seconds")
            classes.append(known.setdefault((actor.kind, gpus, rate), len(known)))
        models = tuple(latency_of(latency, kind, gpus).affine for kind, gpus, _ in known)
        return cls(models, tuple(rate for *_, rate in known), tuple(classes))

    def __len__(self) -> int:
        """Number of classes M."""
        return len(self.models)

    @property
    def base_s(self) -> float:
        """The shortest iteration of any actor."""
        return min(model.base_s for model in self.models)

    def classes(self, actors: Sequence[int]) -> IntArray:
        """(K,) class of each of these actors.

        Raises:
            PlanningError: an actor is not in the plan that the fleet was made of.
        """
        if len(self.models) == 1:
            return np.zeros(len(actors), np.int64)
        if max(actors, default=0) >= len(self.class_of):
            raise PlanningError(f"actor {max(actors)} is not among the {len(self.class_of)} of the plan that is re-planned")
        return np.array([self.class_of[actor] for actor in actors], dtype=np.int64)

    def column(self, name: str) -> FloatArray:
        """(M,) a number of each class's latency model."""
        return np.array([getattr(model, name) for model in self.models], dtype=float)

    def moves_s(self, kv_tokens: FloatArray, owner: IntArray) -> tuple[FloatArray, FloatArray]:
        """(n, M) seconds that each response takes to move to an actor of each class and join there, and those of them for which
        the receiver's batch stands still. What has no KV cache yet takes none. Between kinds or sizes a cache is of no use: it
        is recomputed; else it is sent or recomputed, whichever is cheaper.

        Args:
            kv_tokens, owner: (n,) tokens of the KV cache, and the class of the actor that holds it.
        """
        delay, stall = np.zeros((2, len(kv_tokens), len(self.models)))
        sizes = [(model.kind, model.gpus_per_actor) for model in self.models]
        for m, model in enumerate(self.models):
            alike = np.array([size == sizes[m] for size in sizes])[owner]
            delay[:, m], stall[:, m] = delay_s(model, kv_tokens, 0.0, alike), stall_s(model, kv_tokens, alike)
        return delay, stall
