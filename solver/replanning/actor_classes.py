"""Groups the actors of a running step into classes with the same latency model and price, so that re-planning can compare them.

Input: a plan with the latency models of its actors, or one latency model for all actors. Responses play no part here. One
re-planning round can weigh actors of several kinds, sizes and prices against each other through these classes.
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
    """M classes of actors; actors of one class have the same speed and the same price.

    Attributes:
        models: (M,) affine latency model of each class. rates: (M,) cost of one actor for one second.
        class_of: class of every actor by its index in the plan; empty when all are of the only class.
    """

    models: tuple[LatencyModel, ...]
    rates: tuple[float, ...] = (1.0,)
    class_of: tuple[int, ...] = ()

    @classmethod
    def of(cls, latency: LatencyModel | ActorClasses) -> ActorClasses:
        """Return ``latency`` itself if it is an ``ActorClasses``; for a single latency model, one class whose cost is in
        actor-seconds.

        Raises:
            PlanningError: several models are given without saying which actor has which.
        """
        if isinstance(latency, ActorClasses):
            return latency
        if isinstance(latency, Mapping):
            raise PlanningError(
                "re-planning got several latency models; assign them to actors with ActorClasses.of_plan(plan, latencies)"
            )
        return cls((latency.affine,))

    @classmethod
    def of_plan(cls, plan: Plan, latency: Latencies, cost: str = "gpu_s") -> ActorClasses:
        """Return the classes of a plan's actors.

        Cost is in GPU-seconds or dollars (``cost``); the price of a second of makespan is then in the same unit.

        Raises:
            PlanningError: an actor's kind and size have no latency model, ``cost`` is unknown, or dollars are counted and an
                actor has no price.
        """
        if cost not in COSTS:
            raise PlanningError(f"cost {cost!r} is unknown; choose one of {', '.join(COSTS)}")
        class_by_key: dict[tuple[str, int, float], int] = {}
        classes = []
        for actor in plan.actors:
            gpus = len(actor.gpu_ids)
            rate = gpus * (1.0 if cost == "gpu_s" else actor.usd_per_gpu_s)
            if rate <= 0:
                raise PlanningError(f"an actor of {gpus} x {actor.kind} has no price; give usd_per_gpu_s or count GPU-seconds")
            classes.append(class_by_key.setdefault((actor.kind, gpus, rate), len(class_by_key)))
        models = tuple(latency_of(latency, kind, gpus).affine for kind, gpus, _ in class_by_key)
        return cls(models, tuple(rate for *_, rate in class_by_key), tuple(classes))

    def __len__(self) -> int:
        """Number of classes M."""
        return len(self.models)

    @property
    def base_s(self) -> float:
        """Return the shortest base time of an iteration, in seconds, over all classes."""
        return min(model.base_s for model in self.models)

    def classes(self, actors: Sequence[int]) -> IntArray:
        """Return the (K,) class of each of these actors.

        Raises:
            PlanningError: an actor is not in the plan that the classes were made from.
        """
        if len(self.models) == 1:
            return np.zeros(len(actors), np.int64)
        if max(actors, default=0) >= len(self.class_of):
            raise PlanningError(
                f"actor {max(actors)} is unknown; the re-planned plan has {len(self.class_of)}, numbered from 0"
            )
        return np.array([self.class_of[actor] for actor in actors], dtype=np.int64)

    def column(self, name: str) -> FloatArray:
        """Return the (M,) values of one numeric field of the classes' latency models."""
        return np.array([getattr(model, name) for model in self.models], dtype=float)

    def moves_s(self, kv_tokens: FloatArray, owner: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return two (n, M) arrays of seconds, for each response and each receiving class. They are how long the response takes
        to move and join, and for how much of that the receiver's batch stands still.

        Both are 0 for a response without KV cache. Between actors of different kind or size the cache cannot be used and is
        recomputed. Otherwise it is sent or recomputed, whichever is cheaper.

        Args:
            kv_tokens: (n,) tokens of each response's KV cache. owner: (n,) class of the actor that has the cache.
        """
        delay, stall = np.zeros((2, len(kv_tokens), len(self.models)))
        sizes = [(model.kind, model.gpus_per_actor) for model in self.models]
        for m, model in enumerate(self.models):
            alike = np.array([size == sizes[m] for size in sizes])[owner]
            delay[:, m], stall[:, m] = delay_s(model, kv_tokens, 0.0, alike), stall_s(model, kv_tokens, alike)
        return delay, stall
