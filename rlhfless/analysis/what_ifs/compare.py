"""All ways on the same steps of a run, beside the run as logged: one table of time, dollars and what they do to the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pandas as pd

from rlhfless.analysis.draft_savings import DraftSavings, already_drafts, assumed_savings
from rlhfless.analysis.phase_savings import phase_savings
from rlhfless.analysis.what_ifs import (
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
from rlhfless.analysis.what_ifs.words import data_in_words
from rlhfless.diagnosis.knobs import MOST_UNFINISHED
from rlhfless.errors import InputError
from rlhfless.simulate import SimulationConfig, execute_steps
from rlhfless.simulate.drafts import WEAK
from rlhfless.simulate.traces import rollout_rows
from solver.model.errors import PlanningError

NO_WAITS = "they would simulate responses that wait for no tool; leave out the column tool_wait_s to compare them"

MOST_RESPONSES = 2_000
"""Responses of the last steps that ways are compared on, about; at least one step."""


@dataclass(frozen=True, eq=False, repr=False)
class WaysCompared:
    """Ways to generate and to learn on the same steps of a run. Those with a knob are swept, and have a row of one setting
    (``knobs`` has the others).

    Attributes:
        base: the run as logged. ways: the others, from the cheapest to the dearest.
        setting: cluster and profile. left_out: why a way could not be simulated, by its name.
        assumed: what is assumed about the run, one sentence each.
        all_steps: of the whole run, for which shares saved are; None: the simulated ones.
    """

    base: WayOutcome
    ways: tuple[WayOutcome, ...]
    setting: SimulationConfig
    left_out: Mapping[str, str] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    all_steps: int | None = None

    def __repr__(self) -> str:
        return str(self)

    @property
    def has_price(self) -> bool:
        """Whether a GPU-second has a price."""
        return self.setting.cluster.usd_per_gpu_hour > 0

    def __str__(self) -> str:
        unit = "usd" if self.has_price else "gpu_hours"
        table = self.to_frame().assign(gpu_hours=lambda of: of["gpu_s"] / 3600)
        shown = table[["way", "time_s", unit, "time_saved", "cost_saved", "least_time_s", "data"]]
        percent = dict.fromkeys(("time_saved", "cost_saved"), "{:+.1%}".format)
        text = shown.to_string(index=False, float_format="{:,.4g}".format, formatters=percent)
        left_out = (f"{name} is left out: {why}" for name, why in self.left_out.items())
        return "\n".join([text, *left_out, *self.paid_once()])

    def paid_once(self) -> Iterator[str]:
        """Return a sentence for every way whose pipeline fills and drains once: shares saved are of the whole run."""
        for way in self.ways:
            if way.fill_s > 0 and self._steps != way.steps:
                yield (
                    f"The time of {way.name} includes {way.fill_s:.3g} s in which its pipeline fills and drains. A run pays "
                    f"them once, so its shares saved are of all {self._steps:,} steps."
                )

    @property
    def _steps(self) -> int:
        return self.base.steps if self.all_steps is None else self.all_steps

    def to_frame(self) -> pd.DataFrame:
        """Return one row per way, the run as logged first.

        Returns:
            Rows ``way, change, time_s, fill_s, gpu_s, usd`` (of the simulated steps), ``time_saved, cost_saved`` (shares of the
            whole run as logged), ``least_time_s``, ``seconds_per_token`` (of those learned from), ``on_policy, stale_tokens,
            most_stale_steps, learned_responses, dropped_responses, waiting_responses`` and ``data``, the same in words.
        """
        return pd.DataFrame([self._row(way) for way in (self.base, *self.ways)])

    def saved(self, way: WayOutcome) -> tuple[float, float]:
        """Return the shares of the whole run's time and cost that a way saves; 0 where the run takes no time."""
        pairs = zip(way.over(self._steps), self.base.over(self._steps), strict=True)
        time, cost = (1 - value / own if own else 0.0 for value, own in pairs)
        return time, cost

    def knobs(self) -> pd.DataFrame:
        """Return the swept ways at every setting of their knobs.

        Returns:
            Rows ``way, knob, value, time_s, gpu_s, time_saved, cost_saved`` (shares of the run as logged), ``shown`` (whether
            it is the setting of the way's own row), ``stale_tokens, most_stale_steps, learned_responses, dropped_responses,
            waiting_responses, learned_length_ratio`` and ``data``, the same in words. Knobs are those of a diagnosis
            (``diagnosis.knobs``).
        """
        rows = [
            {
                "way": way.name, "knob": way.knob, "value": one.value, "time_s": one.time_s, "gpu_s": one.gpu_s,
                **dict(zip(("time_saved", "cost_saved"), self._saved(one.time_s, one.gpu_s), strict=True)),
                "shown": one.value == way.parameters[way.knob],
                "stale_tokens": one.data.stale_tokens, "most_stale_steps": one.data.most_stale_steps,
                "learned_responses": one.data.learned_responses, "dropped_responses": one.data.dropped_responses,
                "waiting_responses": one.data.waiting_responses, "learned_length_ratio": one.data.learned_length_ratio,
                "data": data_in_words(one.data),
            }
            for way in self.ways for one in way.swept
        ]  # fmt: skip
        columns = ["way", "knob", "value", "time_s", "gpu_s", "time_saved", "cost_saved", "shown", "stale_tokens",
                   "most_stale_steps", "learned_responses", "dropped_responses", "waiting_responses", "learned_length_ratio",
                   "data"]  # fmt: skip
        return pd.DataFrame(rows, columns=columns)

    def saved_at(self, name: str, knob: str, value: float) -> tuple[float, float] | None:
        """Return the shares of time and cost that a way saves at a setting of its knob; None where that was not simulated.

        Args:
            name: of the way. knob, value: as of ``diagnosis.Lever``.
        """
        for way in self.ways:
            if way.name == name and way.knob == knob:
                return next((self._saved(one.time_s, one.gpu_s) for one in way.swept if one.value == value), None)
        return None

    def _saved(self, time_s: float, gpu_s: float) -> tuple[float, float]:
        base = self.base
        return 1 - time_s / base.time_s if base.time_s else 0.0, 1 - gpu_s / base.gpu_s if base.gpu_s else 0.0

    def _row(self, way: WayOutcome) -> dict[str, object]:
        data, (time_saved, cost_saved) = way.data, self.saved(way)
        return {
            "way": way.name, "change": way.change, "time_s": way.time_s, "fill_s": way.fill_s, "gpu_s": way.gpu_s,
            "usd": way.usd(self.setting), "time_saved": time_saved, "cost_saved": cost_saved,
            "least_time_s": way.least_time_s, "seconds_per_token": way.seconds_per_token,
            "on_policy": data.on_policy, "stale_tokens": data.stale_tokens,
            "most_stale_steps": data.most_stale_steps, "learned_responses": data.learned_responses,
            "dropped_responses": data.dropped_responses, "waiting_responses": data.waiting_responses,
            "data": data_in_words(data),
        }  # fmt: skip


def compare_ways(run: RunToChange, measured: Sequence[DraftSavings] = ()) -> WaysCompared:
    """Simulate every way on the run's steps; those with waits for tools where the log has turns.

    Args:
        measured: vLLM's speculative methods on the texts of the log, the best first (``analysis.draft_savings``); without them
            drafts are accepted as ``simulate.drafts.WEAK`` says.

    Raises:
        InputError: the run cannot be changed (``whole_steps.checked``).
        PlanningError: a response fits on no actor.
    """
    if multi_turn.has_turns(run):
        return _with_waits(run)
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

    add(partial_rollout.NAME, partial(partial_rollout.best, run, base.time_s))
    of = max((_tenth_saves(base, way) for way in found), default=None)
    add(over_sampling.DROPS, partial(over_sampling.best, run, base.time_s, of))
    add(over_sampling.KEEPS, partial(over_sampling.best, run, base.time_s, of, keep=True))
    add("asynchronous", partial(asynchronous.way, run))
    add("deferred dispatch", partial(deferred_dispatch.way, run))
    add("token-aware routing", partial(token_aware.way, run))
    add("dynamic sampling", partial(dynamic_sampling.with_range, run))
    add("dynamic sampling, at once", partial(dynamic_sampling.with_range, run, at_once=True))
    for policy, name in released.NAMES.items():
        add(name, partial(released.way, run, policy))
    add(tail_release.NAME, partial(tail_release.best, run, base.gpu_s))
    found += _of_own_schedule(run, base, measured)
    ranked = sorted(found, key=lambda way: way.over(run.all_steps or way.steps)[::-1])
    return WaysCompared(base, tuple(ranked), run.setting, left_out, run.setup.assumed, run.all_steps)


def _tenth_saves(base: WayOutcome, way: WayOutcome) -> float:
    """Return the share of the run's own time that a partial rollout of up to a tenth of the responses saves."""
    times_s = [one.time_s for one in way.swept if one.value <= MOST_UNFINISHED]
    return 1 - min(times_s) / base.time_s if base.time_s else 0.0


def _with_waits(run: RunToChange) -> WaysCompared:
    """Return the ways that have waits for tools: those of a run that keeps its KV caches are compared with its own."""
    base = multi_turn.way(run)
    return WaysCompared(
        base, (multi_turn.way(run, keeps_kv=False),), run.setting, {"ways without waits": NO_WAITS}, run.setup.assumed,
        run.all_steps,
    )  # fmt: skip


def _of_own_schedule(run: RunToChange, base: WayOutcome, measured: Sequence[DraftSavings]) -> list[WayOutcome]:
    """Return the ways that leave every response on the actor that it had: overlaps and drafts."""
    assigned, steps_s = own_schedule(run)
    ways = [overlaps.way(base, saved) for saved in phase_savings([assigned], run.setup, run.phases, run.setting)]
    if measured:
        ways.append(drafts.way(run, steps_s, measured[0].mean, measured[0].draft_tokens, measured=True))
    elif not already_drafts(assigned):
        assumed = assumed_savings(WEAK, run.logged, assigned, run.setting)
        ways.append(drafts.way(run, steps_s, assumed.mean, assumed.draft_tokens, measured=False))
    return ways


def own_schedule(run: RunToChange) -> tuple[pd.DataFrame, list[float]]:
    """Return the rollouts of the run's steps under its own dispatch, and the seconds of generation of each step."""
    (executed,) = execute_steps(run.logged, run.setting, [run.setup.dispatch]).values()
    assigned = pd.concat([rollout_rows(record, step) for record, step in executed], ignore_index=True)
    return assigned, [record.end_s - record.start_s for record, _ in executed]
