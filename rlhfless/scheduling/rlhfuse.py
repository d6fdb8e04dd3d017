"""RLHFuse (arXiv 2409.13221), inter-stage fusion: static groups, one global cut.

When the number of unfinished responses falls under R_t, the m actors with the most remaining work continue. The others hand
their responses over to them. The number m is the smallest whose slots and memory hold all unfinished responses. The paper
reports about 20 % of the batch as the best R_t. Remaining work is unknown, so the number of unfinished responses is used
instead. GPUs of actors that are cut are released.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlhfless.scheduling.baselines import Static
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.receivers import ReceiverRoom, hand_over
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorCounts, ActorView, Cut, Decision, StepState, Trigger, Triggers, trigger_of


@dataclass
class GlobalCut:
    """Cut all but m actors once fewer than ``threshold`` responses are unfinished.

    Args:
        total: responses of the step.
    """

    threshold: int
    total: int
    name: str = "global cut"
    _done: bool = field(default=False, repr=False)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``next_triggers``."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Trigger at the completion that leaves fewer unfinished responses than the threshold."""
        return Triggers() if self._done else Triggers(step_completions=max(1, self.total - self.threshold + 1))

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Keep the fewest actors that have room for all unfinished responses and cut the others; see the module docstring."""
        if self._done or state.unfinished_count >= self.threshold:
            return []
        self._done = True
        ranked = sorted(state.actors, key=lambda a: (-a.unfinished_count, a.actor))
        for keep in range(1, len(ranked)):
            cuts: list[Decision] = []
            room = ReceiverRoom(state)
            for leaving in ranked[keep:]:
                cut: Cut | None = hand_over(leaving, ranked[:keep], room)
                if cut is None:
                    break
                cuts.append(cut)
            else:
                return cuts
        return []


@dataclass(frozen=True)
class RLHFuse:
    """RLHFuse: static groups with the global cut at ``threshold_share`` of the batch."""

    threshold_share: float = 0.2
    actors: int | None = None
    name: str = "rlhfuse"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        plan = Static(self.actors, hold="done", name=self.name).plan(problem, options)
        total = len(problem.workload)
        return replace(plan, rule=GlobalCut(max(1, round(self.threshold_share * total)), total))
