"""Square-root folding: start as the right-sized random split and consolidate nearly empty actors while the step runs.

With k actors and n unfinished responses an iteration takes ``a + b n / k`` and costs ``g (k a + b n)`` GPU-seconds. Where
``T^w C^(1-w)`` is minimised, a second of a step that takes T and costs C is worth ``w C / ((1 - w) T)`` GPU-seconds
(``Objective.cost_of_a_second``), that is ``nu`` times those of one actor of g GPUs. The k of least
``nu g (a + b n / k) + g (k a + b n)`` solves ``k^2 = nu b n / a``. T and C are those of the plan that is folded.
b is one response's whole share of an iteration, its KV tokens included. No prediction is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlhfless.scheduling.baselines import Random
from rlhfless.scheduling.policy import PlanningOptions, SchedulingPolicy
from rlhfless.scheduling.receivers import ReceiverRoom, hand_over
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import (
    ActorCounts,
    ActorView,
    Decision,
    RuntimeRule,
    StepState,
    Trigger,
    Triggers,
    trigger_of,
)  # fmt: skip


@dataclass(frozen=True)
class SquareRoot:
    """The best number of actors, ``sqrt(nu * b * n / a)`` for n unfinished responses, and when it falls by one."""

    nu: float
    latency: LatencyModel

    def share_s(self, state: StepState) -> float:
        """Return the seconds by which one more response lengthens an iteration, its mean KV tokens included."""
        count = state.unfinished_count
        context = state.context_tokens / count if count else 0.0
        return self.latency.per_response_s + self.latency.per_kv_token_s * context

    def squared(self, unfinished: Any, share_s: Any) -> Any:
        """Return the square of the best number of actors, for numbers or arrays."""
        return self.nu * share_s * unfinished / self.latency.base_s

    def completions_until_fewer(self, unfinished: int, actors: int, share_s: float) -> int:
        """Return the completions after which the best number is below ``actors``, if ``share_s`` stays constant."""
        if self.nu * share_s <= 0:
            return 1
        fewer = (actors - 1) ** 2 * self.latency.base_s / (self.nu * share_s)
        return max(1, math.ceil(unfinished - fewer))


@dataclass
class SquareRootFold:
    """Keep ``sqrt(nu * b * n / a)`` actors for n unfinished responses; fold the thinnest actors into the others."""

    nu: float
    latency: LatencyModel
    total: int
    actors: int
    name: str = "square-root fold"
    _root: SquareRoot = field(init=False, repr=False)
    _wait: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._root = SquareRoot(self.nu, self.latency)
        self._wait = self._root.completions_until_fewer(self.total, self.actors, self.latency.per_response_s)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``next_triggers``."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Trigger at each actor's share of the completions that the next fold needs."""
        if self.actors < 2:
            return Triggers()
        return Triggers(counts.completed + max(1, math.ceil(self._wait / self.actors)))

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Fold the actors with the fewest unfinished responses until the square-root number of actors is left."""
        counts, unfinished, share_s = state.counts, state.unfinished_count, self._root.share_s(state)
        wanted = max(1, math.ceil(math.sqrt(self._root.squared(unfinished, share_s)) - 1e-9))
        leaving, cuts = max(0, len(counts.actor) - wanted), []
        if leaving:
            order = np.lexsort((counts.actor, counts.unfinished + counts.arriving))
            thin, others = order[:leaving], order[leaving:]
            free_slots = int(np.maximum(counts.free_slots[others], 0).sum())
            thin = thin[(counts.arriving[thin] == 0) & (counts.unfinished[thin] <= free_slots)]  # for others there is no room
            if len(thin):
                receivers, room = [state.view_of(actor) for actor in counts.actor[others].tolist()], ReceiverRoom(state)
                views = map(state.view_of, counts.actor[thin].tolist())
                cuts = [cut for view in views if (cut := hand_over(view, receivers, room)) is not None]
        self.actors = len(counts.actor) - len(cuts)
        self._wait = self._root.completions_until_fewer(unfinished, self.actors, share_s)
        return list(cuts)


@dataclass(frozen=True)
class Fold:
    """Add square-root folding to another policy's plan (the right-sized random split by default) while the step runs.

    Args:
        rule: how actors are folded: cut in one go, or drained (``rlhfless.scheduling.fold_draining.DrainingFold``).
    """

    base: SchedulingPolicy = field(default_factory=Random)
    name: str = "fold"
    clairvoyant: bool = False
    rule: Callable[[float, LatencyModel, int, int], RuntimeRule] = SquareRootFold

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``. A deadline or budget folds as the weight 0.7 would. Where more actors cost nothing, none
        is folded."""
        split = self.base.plan(problem, options)
        objective, (cluster, latency) = problem.objective, problem.one_kind
        if objective.time_weight >= 1.0 or len(split.actors) < 2 or latency.base_s <= 0:
            return replace(split, policy=self.name)
        nu = objective.cost_of_a_second(split.makespan_s, split.gpu_seconds) / cluster.gpus_per_actor
        rule = self.rule(nu, latency.affine, len(problem.workload), len(split.actors))
        return replace(split, policy=self.name, rule=rule)
