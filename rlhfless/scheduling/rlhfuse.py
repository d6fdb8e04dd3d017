"""RLHFuse (arXiv 2409.13221), inter-stage fusion: static groups, one global cut.

When unfinished responses fall under R_t, the m actors with the most remaining work go on and the rest hand over to them.
m is the smallest number whose slots hold all unfinished responses. About 20 % of the batch is reported as the best R_t.
Remaining work is not known; the number of unfinished responses stands for it. GPUs of actors that are cut are released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from rlhfless.scheduling.fixed import Static
from rlhfless.scheduling.handover import hand_over
from rlhfless.scheduling.policy import PlanningInput
from solver.plan import Plan
from solver.rules import ActorView, Cut, Decision, StepState, Trigger


@dataclass
class GlobalCut:
    """Cut all but m actors once fewer than ``threshold`` responses are unfinished.

    Args:
        total: responses of the step; actors: that go on, at its start.
    """

    threshold: int
    total: int
    actors: int = 1
    name: str = "global cut"
    _done: bool = field(default=False, repr=False)
    _unfinished: int | None = field(default=None, repr=False)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """Asked again when this actor alone could have brought the count to the threshold, or its share of it."""
        if self._done:
            return None
        missing = (self.total if self._unfinished is None else self._unfinished) - self.threshold + 1
        return Trigger(completions=view.completed + max(1, math.ceil(missing / max(1, self.actors))))

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """See the module docstring."""
        self._unfinished, self.actors = state.unfinished_count, len(state.actors)
        if self._done or self._unfinished >= self.threshold:
            return []
        self._done = True
        ranked = sorted(state.actors, key=lambda a: (-len(a.unfinished), a.actor))
        for keep in range(1, len(ranked)):
            cuts: list[Decision] = []
            taken: dict[int, int] = {}
            for leaving in ranked[keep:]:
                cut: Cut | None = hand_over(leaving, ranked[:keep], taken)
                if cut is None:
                    break
                cuts.append(cut)
            else:
                return cuts
        return []


@dataclass(frozen=True)
class RLHFuse:
    """Static groups with the global cut at ``threshold_share`` of the batch."""

    threshold_share: float = 0.2
    actors: int | None = None
    name: str = "rlhfuse"
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        plan = Static(self.actors, hold="done", name=self.name).plan(given)
        total = len(given.workload)
        return replace(plan, rule=GlobalCut(max(1, round(self.threshold_share * total)), total, len(plan.actors)))
