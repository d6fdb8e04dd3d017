"""RLHFuse (arXiv 2409.13221), inter-stage fusion: static groups, one global cut.

When the number of unfinished responses falls under R_t, the m actors with the most remaining work continue. The others hand
their responses over to them. Unless it is given, m is the smallest number whose slots and memory hold all unfinished responses.
The paper reports about 20 % of the batch as the best R_t. Remaining work is that expected by a forecast, or without one the
number of unfinished responses. GPUs of actors that are cut are released; work items of the step may run there
(``rlhfless.executor.Gpus``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlhfless.scheduling.assignments import Static
from rlhfless.scheduling.policy import PlanningOptions, PolicyError
from rlhfless.scheduling.rules import ReceiverRoom, hand_over
from solver.lengths.remaining import RemainingLengths
from solver.lengths.survival import from_scenarios
from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorCounts, ActorView, Cut, Decision, StepState, Trigger, Triggers, trigger_of
from solver.step.cut import choose_cut


@dataclass
class GlobalCut:
    """Cut all but m actors once fewer than ``threshold`` responses are unfinished.

    Args:
        total: responses of the step.
        keep: m; more actors continue if the slots and memory of m do not hold all unfinished responses. None: the fewest that
            do.
        remaining: forecast by which actors are ranked; None ranks by their numbers of unfinished responses.

    Raises:
        PlanningError: ``keep`` is no whole number of 1 or more.
    """

    threshold: int
    total: int
    name: str = "global cut"
    keep: int | None = None
    remaining: RemainingLengths | None = field(default=None, repr=False)
    _done: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.keep is not None and not is_whole(self.keep, 1):
            raise PlanningError(f"keep is {as_given(self.keep)}; a whole number of actors of 1 or more, or None, is needed")

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``next_triggers``."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Trigger at the completion that leaves fewer unfinished responses than the threshold."""
        return Triggers() if self._done else Triggers(step_completions=max(1, self.total - self.threshold + 1))

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Keep m actors, or the fewest above that have room for all unfinished responses; see the module docstring."""
        if self._done or state.unfinished_count >= self.threshold:
            return []
        self._done = True
        work = self._remaining_work(state)
        ranked = sorted(state.actors, key=lambda a: (-work[a.actor], a.actor))
        lacking = _lacks_room(ranked, ReceiverRoom(state))
        for keep in range(self.keep or 1, len(ranked)):
            if lacking[keep]:
                continue
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

    def _remaining_work(self, state: StepState) -> dict[int, float]:
        """Return the work that remains on each actor: expected tokens, or without a forecast unfinished responses."""
        if self.remaining is None:
            return {a.actor: a.unfinished_count for a in state.actors}
        forecast = self.remaining.observe(state.generated_tokens, state.complete)
        running = np.flatnonzero(~state.complete)
        tokens = np.zeros(len(state.generated_tokens))
        tokens[running] = forecast.expected_tokens(running, state.generated_tokens[running])
        return {a.actor: float(tokens[list(a.unfinished)].sum()) for a in state.actors}


def _lacks_room(ranked: Sequence[ActorView], room: ReceiverRoom) -> NDArray[np.bool_]:
    """Return (N,) whether the first 0, 1, ... actors have fewer free slots or less memory than the others' responses need.

    Where that is so, handing over fails, and need not be tried. With thousands of actors most numbers are such.
    """
    free = np.array([(max(0, room.slots[one.actor]), max(0.0, room.kv_tokens(one.actor))) for one in ranked])
    needed = np.array([(one.unfinished_count, sum(room.needs(one.unfinished))) for one in ranked], dtype=float)
    before = np.concatenate([np.zeros((1, 2)), np.cumsum(free[:-1], axis=0)])  # no difference of sums: free may be infinite
    after = np.cumsum(needed[::-1], axis=0)[::-1]
    return np.asarray((after > before).any(axis=1))


@dataclass(frozen=True)
class RLHFuse:
    """RLHFuse: static groups with the global cut.

    Where the options say what preparation and learning take, share and number of actors are chosen for the whole step
    (``choose_cut``), and no cut if none is better. Actors are then ranked by the forecast.

    Args:
        threshold_share: R_t as a share of the batch, used where nothing is chosen; 0 never cuts.
        actors: as many as fit when None.
        keep: m, used where nothing is chosen; None: the fewest actors with room for what is left.
        fuse: what runs while others decode: ``prepare``, or ``learn`` as well.

    Raises:
        PolicyError: the share lies outside 0 to 1, or ``fuse`` is unknown.
    """

    threshold_share: float = 0.2
    actors: int | None = None
    name: str = "rlhfuse"
    clairvoyant: bool = False
    keep: int | None = None
    fuse: str = "prepare"

    def __post_init__(self) -> None:
        if not is_number(self.threshold_share, 0) or self.threshold_share > 1:
            raise PolicyError(
                f"threshold_share is {as_given(self.threshold_share)}; a share of the batch from 0 to 1 is needed"
            )
        if self.fuse not in ("prepare", "learn"):
            raise PolicyError(f"fuse {as_given(self.fuse)} is unknown; choose prepare or learn")

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``.

        Raises:
            PlanningError: ``keep`` is above the number of actors.
        """
        plan = Static(self.actors, hold="done", name=self.name).plan(problem, options)
        total, remaining = len(problem.workload), None
        if self.keep is not None and self.keep > len(plan.actors):
            raise PlanningError(f"keep is {self.keep}, but the plan has {len(plan.actors)} actors; give at most as many")
        threshold, keep = round(self.threshold_share * total), self.keep
        if not self.threshold_share:
            return plan
        if options.work is not None:
            learner = replace(options.learner, overlaps=True, streams=self.fuse == "learn")
            cut = choose_cut(plan, problem, options.work, learner)
            if not cut.share:
                return plan
            threshold, keep = cut.threshold, cut.keep
            forecast = None if options.forecast is None else options.forecast.remaining
            remaining = from_scenarios(problem.workload) if forecast is None else forecast
        return replace(plan, rule=GlobalCut(max(1, threshold), total, keep=keep, remaining=remaining))
