"""Ways to generate and to learn by their names, each simulated with the knobs that pay on the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import pandas as pd

from rlhfless.analysis.draft_savings import DraftSavings, already_drafts, assumed_savings
from rlhfless.analysis.phase_savings import phase_savings
from rlhfless.analysis.what_ifs import (
    as_executed,
    as_logged,
    asynchronous,
    deferred_dispatch,
    drafts,
    dynamic_sampling,
    multi_turn,
    over_sampling,
    overlaps,
    partial_rollout,
    released,
    tail_release,
    token_aware,
)
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.diagnosis.knobs import MOST_UNFINISHED
from rlhfless.errors import InputError
from rlhfless.simulate import execute_steps
from rlhfless.simulate.drafts import WEAK
from rlhfless.simulate.traces import rollout_rows
from solver.model.errors import PlanningError, as_given


class NamedWays:
    """The ways of one run. What several need is simulated once.

    Args:
        run: its steps and setting. measured: vLLM's speculative methods on the texts of the log, the best first
            (``analysis.draft_savings``); without them drafts are accepted as ``simulate.drafts.WEAK`` says.
    """

    def __init__(self, run: RunToChange, measured: Sequence[DraftSavings] = ()) -> None:
        self.run, self.measured = run, measured

    def way(self, name: str) -> WayOutcome:
        """Return a way.

        Args:
            name: one of ``NAMES``.

        Raises:
            InputError: there is no such way, the run cannot be changed in this way, or only one of log and way has turns.
            PlanningError: a response fits on no actor.
        """
        checked_name(name)
        turns = multi_turn.has_turns(self.run)
        if turns and name not in (as_logged.NAME, as_executed.NAME, *_OF_TURNS):
            raise InputError(f"the way {name!r} has no waits for tools; leave out the column tool_wait_s to simulate it")
        if not turns and name in _OF_TURNS:
            raise InputError(f"the way {name!r} needs a log of turns, with the columns turn and tool_wait_s")
        return {**_WAYS, **_OF_TURNS}[name](self)

    @cached_property
    def base(self) -> WayOutcome:
        """The run itself, which others are compared with: as executed, or as logged.

        Raises:
            InputError: what an executed run took is not compared (``RunToChange.not_compared``).
        """
        return as_executed.way(self.run) if self.run.executed else self.of_dispatch

    @cached_property
    def of_dispatch(self) -> WayOutcome:
        """The run under its own dispatch, with the waits for tools where the log has turns."""
        return multi_turn.way(self.run) if multi_turn.has_turns(self.run) else as_logged.way(self.run)

    def as_logged(self) -> WayOutcome:
        """Return the run as logged.

        Raises:
            InputError: the run was executed.
        """
        if self.run.executed:
            raise InputError(
                f"the way {as_logged.NAME!r} is only for logged runs, and this run was executed; use way={as_executed.NAME!r}"
            )
        return self.of_dispatch

    @cached_property
    def of_own_schedule(self) -> dict[str, WayOutcome]:
        """The ways that leave every response on the actor that it had, overlaps and drafts, as far as the run can have them."""
        run, measured = self.run, self.measured
        assigned, steps_s = own_schedule(run)
        ways = [
            overlaps.way(self.of_dispatch, saved) for saved in phase_savings([assigned], run.setup, run.phases, run.setting)
        ]
        if measured:
            ways.append(drafts.way(run, steps_s, measured[0].mean, measured[0].draft_tokens, measured=True))
        elif not already_drafts(assigned):
            assumed = assumed_savings(WEAK, run.logged, assigned, run.setting)
            ways.append(drafts.way(run, steps_s, assumed.mean, assumed.draft_tokens, measured=False))
        return {way.name: way for way in ways}

    @cached_property
    def partial_rollout(self) -> WayOutcome:
        """Partial rollout, which over-sampling is compared with."""
        return partial_rollout.best(self.run, self.base.time_s)

    def over_sampling(self, *, keep: bool) -> WayOutcome:
        """Return over-sampling at the factor that saves about as much as a partial rollout of up to a tenth."""
        return over_sampling.best(self.run, self.base.time_s, self._tenth_saves, keep=keep)

    def asynchronous(self) -> WayOutcome:
        """Return asynchronous generation.

        Raises:
            InputError: the run has one step, which nothing overlaps.
        """
        if (self.run.all_steps or len(self.run.logged)) < 2:
            raise InputError(
                f"the way {asynchronous.NAME!r} needs 2 steps, and the log has 1: nothing is generated while it is learned"
            )
        return asynchronous.way(self.run)

    def of_own(self, name: str, needed: str) -> WayOutcome:
        """Return one of ``of_own_schedule``.

        Raises:
            InputError: the run cannot have it, as ``needed`` says.
        """
        if name not in self.of_own_schedule:
            raise InputError(f"the way {name!r} needs {needed}")
        return self.of_own_schedule[name]

    @property
    def _tenth_saves(self) -> float | None:
        """The share of the run's own time that a partial rollout of up to a tenth of the responses saves; None without one."""
        try:
            swept = self.partial_rollout.swept
        except (InputError, PlanningError):
            return None
        times_s = [one.time_s for one in swept if one.value <= MOST_UNFINISHED]
        return 1 - min(times_s) / self.base.time_s if self.base.time_s else 0.0


def checked_name(name: str) -> str:
    """Return the name of a way.

    Raises:
        InputError: there is no such way.
    """
    if name not in NAMES:
        raise InputError(f"way {as_given(name)} is unknown; the known ones are {', '.join(NAMES)}")
    return name


def own_schedule(run: RunToChange) -> tuple[pd.DataFrame, list[float]]:
    """Return the rollouts of the run's steps under its own dispatch, and the seconds of generation of each step."""
    (executed,) = execute_steps(run.logged, run.setting, [run.setup.dispatch]).values()
    assigned = pd.concat([rollout_rows(record, step) for record, step in executed], ignore_index=True)
    return assigned, [record.end_s - record.start_s for record, _ in executed]


Way = Callable[[NamedWays], WayOutcome]

SIMULATED: Mapping[str, Way] = {
    partial_rollout.NAME: lambda of: of.partial_rollout,
    over_sampling.DROPS: lambda of: of.over_sampling(keep=False),
    over_sampling.KEEPS: lambda of: of.over_sampling(keep=True),
    asynchronous.NAME: lambda of: of.asynchronous(),
    "deferred dispatch": lambda of: deferred_dispatch.way(of.run),
    "token-aware routing": lambda of: token_aware.way(of.run),
    "dynamic sampling": lambda of: dynamic_sampling.with_range(of.run),
    "dynamic sampling, at once": lambda of: dynamic_sampling.with_range(of.run, at_once=True),
    released.NAMES["random"]: lambda of: released.way(of.run, "random"),
    released.NAMES["fold"]: lambda of: released.way(of.run, "fold"),
    tail_release.NAME: lambda of: tail_release.best(of.run, of.base.gpu_s),
}
"""Ways that assign responses anew."""

_WAYS: Mapping[str, Way] = {
    as_logged.NAME: lambda of: of.as_logged(),
    as_executed.NAME: lambda of: as_executed.way(of.run),
    **SIMULATED,
    overlaps.NAMES[False]: lambda of: of.of_own(
        overlaps.NAMES[False], "known seconds of preparation, and a run that does not learn while it generates"
    ),
    overlaps.NAMES[True]: lambda of: of.of_own(
        overlaps.NAMES[True], "known seconds of learning, and a run that does not learn while it generates"
    ),
    "drafts": lambda of: of.of_own("drafts", "a run that was decoded without drafts"),
}
_OF_TURNS: Mapping[str, Way] = {
    multi_turn.KEPT[0]: lambda of: multi_turn.way(of.run),
    multi_turn.DROPPED[0]: lambda of: multi_turn.way(of.run, keeps_kv=False),
}
NAMES = (*_WAYS, *_OF_TURNS)
"""All ways."""
