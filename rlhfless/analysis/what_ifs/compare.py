"""All ways on the same steps of a run, beside the run as logged: one table of time, dollars and what they do to the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from rlhfless.analysis.draft_savings import DraftSavings, already_drafts, assumed_savings
from rlhfless.analysis.phase_savings import phase_savings
from rlhfless.analysis.what_ifs import (
    as_logged,
    deferred_dispatch,
    drafts,
    dynamic_sampling,
    multi_turn,
    overlaps,
    released,
    token_aware,
)
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.errors import InputError
from rlhfless.simulate import SimulationConfig, execute_steps
from rlhfless.simulate.drafts import WEAK
from rlhfless.simulate.traces import rollout_rows
from solver.model.errors import PlanningError

MOST_RESPONSES = 4_000
"""Responses of the last steps that ways are compared on, about; at least one step."""


@dataclass(frozen=True, eq=False)
class WaysCompared:
    """Ways to generate and to learn on the same steps of a run.

    Attributes:
        base: the run as logged. ways: the others, from the cheapest to the dearest.
        setting: cluster and profile. left_out: why a way could not be simulated, by its name.
    """

    base: WayOutcome
    ways: tuple[WayOutcome, ...]
    setting: SimulationConfig
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_price(self) -> bool:
        """Whether a GPU-second has a price."""
        return self.setting.cluster.usd_per_gpu_hour > 0

    def to_frame(self) -> pd.DataFrame:
        """Return one row per way, the run as logged first.

        Returns:
            Rows ``way, change, time_s, gpu_s, usd, time_saved, gpu_s_saved`` (shares of the run as logged), ``least_time_s``,
            ``on_policy, stale_tokens, most_stale_steps, dropped_responses, learned_responses, waiting_responses``.
        """
        return pd.DataFrame([self._row(way) for way in (self.base, *self.ways)])

    def _row(self, way: WayOutcome) -> dict[str, object]:
        data = way.data
        return {
            "way": way.name, "change": way.change, "time_s": way.time_s, "gpu_s": way.gpu_s, "usd": way.usd(self.setting),
            "time_saved": 1 - way.time_s / self.base.time_s, "gpu_s_saved": 1 - way.gpu_s / self.base.gpu_s,
            "least_time_s": way.least_time_s, "on_policy": data.on_policy, "stale_tokens": data.stale_tokens,
            "most_stale_steps": data.most_stale_steps, "dropped_responses": data.dropped_responses,
            "learned_responses": data.learned_responses, "waiting_responses": data.waiting_responses,
        }  # fmt: skip


def compare_ways(run: RunToChange, measured: Sequence[DraftSavings] = ()) -> WaysCompared:
    """Simulate every way on the run's steps.

    Args:
        measured: vLLM's speculative methods on the texts of the log, the best first (``analysis.draft_savings``); without them
            drafts are accepted as ``simulate.drafts.WEAK`` says.

    Raises:
        InputError: the run cannot be changed (``whole_steps.checked``).
        PlanningError: a response fits on no actor.
    """
    base = as_logged.way(run)
    found: list[WayOutcome] = []
    left_out: dict[str, str] = {}

    def add(name: str, way: Callable[[], WayOutcome]) -> None:
        try:
            outcome = way()
        except (InputError, PlanningError) as error:
            left_out[name] = str(error)
            return
        if math.isnan(outcome.time_s):
            left_out[outcome.name] = outcome.unknown
        else:
            found.append(outcome)

    add("deferred dispatch", lambda: deferred_dispatch.way(run))
    add("token-aware routing", lambda: token_aware.way(run))
    add("dynamic sampling", lambda: dynamic_sampling.way(run))
    add("dynamic sampling, at once", lambda: dynamic_sampling.way(run, at_once=True))
    for policy, name in released.NAMES.items():
        add(name, lambda policy=policy: released.way(run, policy))
    if multi_turn.has_turns(run):
        for keeps_kv, (name, _) in ((True, multi_turn.KEPT), (False, multi_turn.DROPPED)):
            add(name, lambda keeps_kv=keeps_kv: multi_turn.way(run, keeps_kv))
    for outcome in _of_own_schedule(run, base, measured):
        add(outcome.name, lambda outcome=outcome: outcome)
    ranked = sorted(found, key=lambda way: (way.gpu_s, way.time_s))
    return WaysCompared(base, tuple(ranked), run.setting, left_out)


def _of_own_schedule(run: RunToChange, base: WayOutcome, measured: Sequence[DraftSavings]) -> list[WayOutcome]:
    """Return the ways that leave every response on the actor that it had: overlaps and drafts."""
    (executed,) = execute_steps(run.logged, run.setting, [run.setup.dispatch]).values()
    assigned = pd.concat([rollout_rows(record, step) for record, step in executed], ignore_index=True)
    ways = [overlaps.way(base, saved) for saved in phase_savings([assigned], run.setup, run.phases, run.setting)]
    steps_s = [record.end_s - record.start_s for record, _ in executed]
    if measured:
        ways.append(drafts.way(run, steps_s, measured[0].mean, measured[0].draft_tokens, measured=True))
    elif not already_drafts(assigned):
        assumed = assumed_savings(WEAK, run.logged, assigned, run.setting)
        ways.append(drafts.way(run, steps_s, assumed.mean, assumed.draft_tokens, measured=False))
    return ways
