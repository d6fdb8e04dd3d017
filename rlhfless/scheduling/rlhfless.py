"""RLHFless (arXiv 2602.22718): equal-count groups of sorted predictions, min-max scaled actor count, local cut at tau.

Section "cost-aware actor scaling": over N in [N_min, N_max], T~ and C~ are min-max normalised time and cost, and
N' = argmin lambda * T~(N) + (1 - lambda) * C~(N), lambda = 0.7. The paper notes that this scaling distorts the balance; it
is kept here as published. Prompts are sorted by predicted length and cut into N groups of equal count. While the step runs
an actor is cut when tau of its assigned responses are complete, if other running actors have enough free slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rlhfless.scheduling.baselines import Random
from rlhfless.scheduling.policy import PlanningOptions, SchedulingPolicy, check_inputs
from rlhfless.scheduling.receivers import ReceiverRoom, hand_over
from solver.generation.prompt_dealing import candidate_counts
from solver.generation.random_split import assign_prompts
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorCounts, ActorView, Decision, StepState, Trigger, Triggers, trigger_of
from solver.model.workload import IntArray
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing


@dataclass
class LocalCut:
    """Cut an actor when ``tau`` of its assigned responses are complete and others have room for the rest; else it waits."""

    tau: float
    name: str = "local cut"
    _due: IntArray = field(
        default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False
    )  # by actor; 0: not seen yet
    # completions of the step before which no actor that waits can be cut
    _retry_at_completions: int | None = field(default=None, repr=False)

    def _due_at(self, counts: ActorCounts) -> IntArray:
        """Return (K,) completions at which each actor is cut: a share of the responses that the plan assigned to it."""
        if (missing := int(counts.actor.max(initial=-1)) + 1 - len(self._due)) > 0:
            self._due = np.append(self._due, np.zeros(missing, np.int64))
        due = self._due[counts.actor]
        if not due.all():
            first = np.maximum(1, np.ceil(self.tau * counts.assigned)).astype(np.int64)
            self._due[counts.actor] = due = np.where(due > 0, due, first)
        return due

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``next_triggers``."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Trigger at tau of each actor's own responses; while actors wait, when step completions may have made room."""
        due = self._due_at(counts)
        return Triggers(np.where(due > counts.completed, due, 0), step_completions=self._retry_at_completions)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Cut every actor that is due, the one with the fewest unfinished responses first."""
        counts, left = state.counts, state.counts.unfinished
        due = np.flatnonzero((counts.completed < counts.assigned) & (counts.completed >= self._due_at(counts)))
        cuts: list[Decision] = []
        if not len(due):
            self._retry_at_completions = None
            return cuts
        # an actor that receives goes on, and one that is due itself only receives if it is not cut
        slots = np.maximum(counts.free_slots, 0)
        missing = int((left[due] + slots[due]).min()) - int(slots.sum())
        if missing <= 0:
            cuts, missing = self._cuts(state, due[np.lexsort((counts.actor[due], left[due]))].tolist())
        # a completion anywhere brings an actor that waits one response nearer to being cut, never more
        complete = len(state.complete) - state.unfinished_count
        self._retry_at_completions = complete + max(1, missing) if len(cuts) < len(due) else None
        return cuts

    def _cuts(self, state: StepState, due: list[int]) -> tuple[list[Decision], int]:
        """Return the cuts of those of the ``due`` actors for which others have room, and the completions that the first of the
        others misses; 0 where all are cut.
        """
        counts, room, cuts, missing = state.counts, ReceiverRoom(state), list[Decision](), list[int]()
        ids, left, arriving = counts.actor.tolist(), counts.unfinished.tolist(), counts.arriving.tolist()
        awaits = (counts.unfinished < counts.assigned - counts.completed).tolist()
        remaining, free_slots = dict.fromkeys(range(len(ids))), room.free_slots()
        for k in due:
            missing_completions = left[k] - free_slots + max(0, room.slots[ids[k]])
            cut = None
            if missing_completions <= 0 and not awaits[k] and ids[k] not in room.received:
                leaving = state.view_of(ids[k])
                others = [state.view_of(ids[j]) for j in remaining if j != k and (left[j] or arriving[j])]
                cut = hand_over(leaving, others, room)
                if cut is None:
                    missing_completions = room.completions_short(leaving, [ids[j] for j in remaining if j != k])
            if cut is not None:
                cuts.append(cut)
                del remaining[k], room.slots[ids[k]]
                free_slots = room.free_slots()
            else:
                missing.append(max(1, missing_completions))
        return cuts, min(missing, default=0)


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
