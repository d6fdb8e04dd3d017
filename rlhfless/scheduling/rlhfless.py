"""RLHFless (arXiv 2602.22718): equal-count groups of sorted predictions, min-max scaled actor count, local cut at tau.

Section "cost-aware actor scaling": over N in [N_min, N_max], T~ and C~ are min-max normalised time and cost, and
N' = argmin lambda * T~(N) + (1 - lambda) * C~(N), lambda = 0.7. The paper notes that this scaling distorts the balance; it
is kept here as published. Prompts are sorted by predicted length and cut into N groups of equal count. While the step runs
an actor is cut when tau of its assigned responses are complete, if other running actors have enough free slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from rlhfless.scheduling.baselines import Random
from rlhfless.scheduling.policy import PlanningOptions, SchedulingPolicy, check_inputs
from rlhfless.scheduling.receivers import ReceiverRoom, hand_over
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, Decision, StepState, Trigger
from solver.planning.prompt_dealing import candidate_counts
from solver.planning.random_split import assign_prompts
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing


@dataclass
class LocalCut:
    """Cut an actor when ``tau`` of its assigned responses are complete and others have room for the rest; else it waits."""

    tau: float
    name: str = "local cut"
    _assigned: dict[int, int] = field(default_factory=dict, repr=False)
    # completions of the step before which no actor that waits can be cut
    _retry_at_completions: int | None = field(default=None, repr=False)

    def _due(self, view: ActorView) -> int:
        """Completions at which this actor is cut: a share of the responses that the plan assigned to it."""
        first = self._assigned.setdefault(view.actor, view.assigned)
        return max(1, math.ceil(self.tau * first))

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """Trigger at tau of the actor's own responses; while actors wait, when step completions may have made room."""
        due = self._due(view)
        return Trigger(due if due > view.completed else None, step_completions=self._retry_at_completions)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Cut every actor that is due, the one with the fewest unfinished responses first."""
        due = [a for a in state.actors if a.completed < a.assigned and a.completed >= self._due(a)]
        left = {a.actor: a.unfinished_count for a in state.actors}
        room, remaining = ReceiverRoom(state), {a.actor: a for a in state.actors}
        cuts: list[Decision] = []
        missing: list[int] = []
        for leaving in sorted(due, key=lambda a: (left[a.actor], a.actor)):
            # an actor that receives goes on, and one that is due itself only receives if it is not cut
            missing_completions = left[leaving.actor] - sum(max(0, room.slots[a]) for a in remaining if a != leaving.actor)
            awaits, cut = left[leaving.actor] < leaving.assigned - leaving.completed, None
            if missing_completions <= 0 and not awaits and leaving.actor not in room.received:
                others = [a for a in remaining.values() if a is not leaving and (left[a.actor] or a.arriving_count)]
                cut = hand_over(leaving, others, room)
                if cut is None:
                    missing_completions = room.completions_short(leaving, remaining.keys() - {leaving.actor})
            if cut is not None:
                cuts.append(cut)
                del remaining[leaving.actor]
            else:
                missing.append(max(1, missing_completions))
        # a completion anywhere brings an actor that waits one response nearer to being cut, never more
        complete = len(state.complete) - state.unfinished_count
        self._retry_at_completions = complete + min(missing) if missing else None
        return cuts


@dataclass(frozen=True)
class WithLocalCut:
    """Add the local cut to another policy's plan (the right-sized random split by default): isolates what the cut contributes.

    Args:
        tau: share of an actor's responses after which it is cut; 1 switches the cut off.
    """

    tau: float = 0.7
    base: SchedulingPolicy = field(default_factory=Random)
    name: str = "random+tau"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        return replace(self.base.plan(problem, options), policy=self.name, rule=LocalCut(self.tau) if self.tau < 1 else None)


@dataclass(frozen=True)
class RLHFless:
    """RLHFless as published: its planner with its local cut.

    Args:
        tau: share of an actor's responses after which it is cut (0.7 in the paper; 1 switches the cut off).
        scale_weight: lambda of the actor scaling.
        min_actors: N_min.
    """

    tau: float = 0.7
    scale_weight: float = 0.7
    min_actors: int = 1
    name: str = "rlhfless"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        workload, (cluster, latency) = problem.workload, problem.one_kind
        used = np.unique(workload.prompt_of)
        total = np.bincount(workload.prompt_of, weights=workload.response_tokens)
        count = np.bincount(workload.prompt_of)
        mean = total[used] / count[used]
        order = used[np.lexsort((used, -mean))]  # longest first, so that the longest group is actor 0
        most = min(cluster.max_actors, len(used))
        counts = [n for n in candidate_counts(most) if n >= min(self.min_actors, most)]
        groups = [assign_prompts(workload, order, n) for n in counts]
        admission = admission_of(latency, None, problem.admission)
        times = GroupTimes.of(workload, latency, admission, np.concatenate(groups[0]))  # one order, cut n times
        alone = replace(problem, objective=Objective(), phases=NonGenerationPhases())  # generation alone, in GPU-seconds
        pricing = Pricing.of(alone)
        taken = [pricing.step_of(times.busy_s(np.cumsum([0, *map(len, split)]))) for split in groups]
        time, cost = (_min_max([float(values.mean()) for values in column]) for column in zip(*taken, strict=True))
        best = min(range(len(counts)), key=lambda i: self.scale_weight * time[i] + (1 - self.scale_weight) * cost[i])
        plan = assemble(self.name, groups[best], problem)
        return replace(plan, rule=LocalCut(self.tau) if self.tau < 1 else None)


def _min_max(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(v - low) / (high - low) if high > low else 0.0 for v in values]
