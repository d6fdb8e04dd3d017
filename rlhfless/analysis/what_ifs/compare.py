"""Ways to generate and to learn on the same steps of a run, as a comparison of whole steps: time, dollars and the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from rlhfless.analysis.draft_savings import DraftSavings
from rlhfless.analysis.what_ifs import multi_turn
from rlhfless.analysis.what_ifs.named import SIMULATED, NamedWays
from rlhfless.analysis.what_ifs.outcome import DataChange, RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.words import data_in_words
from rlhfless.errors import InputError
from rlhfless.simulate import Comparison
from rlhfless.trace.schema.prices import dollars
from solver.model.errors import PlanningError, as_given

Way = str | Callable[[RunToChange], WayOutcome]

NO_WAITS = "they would simulate responses that wait for no tool; leave out the column tool_wait_s to compare them"

MOST_RESPONSES = 2_000
"""Responses of the last steps that ways are compared on, about; at least one step."""

OF_PLANS = ("actors", "idle_gpu_seconds", "slot_idle_gpu_seconds", "bound_gpu_seconds", "predicted_makespan_s", "planning_s",
            "planning_delay_s", "moves")  # fmt: skip
"""Columns of a comparison that are of a policy's plans alone."""


def compare_ways(run: RunToChange, measured: Sequence[DraftSavings] = ()) -> Comparison:
    """Simulate every way on the run's steps; those with waits for tools where the log has turns.

    Args:
        measured: as of ``NamedWays``.

    Returns:
        The run as logged or as executed, then the others, from the cheapest to the dearest, with the shares of time and cost
        that each saves, and with the settings of the swept ones as ``knobs``.

    Raises:
        InputError: the run cannot be changed (``whole_steps.checked``), or what it took is not compared.
        PlanningError: a response fits on no actor.
    """
    ways = NamedWays(run, measured)
    base = ways.base
    if multi_turn.has_turns(run):
        others, left_out = [ways.way(multi_turn.DROPPED[0])], {"ways without waits": NO_WAITS}
    else:
        known, left_out = simulated_ways(ways, {name: name for name in SIMULATED})
        steps = run.all_steps or base.steps
        others = sorted([*known.values(), *ways.of_own_schedule.values()], key=lambda way: way.over(steps)[::-1])
    found = {way.name: way for way in (base, *others)}
    table = rows_of_ways(run, found)
    own = table.iloc[0]
    saved = {
        name: 1 - table[of] / own[of] if own[of] else 0.0
        for name, of in (("time_saved", "time_s"), ("cost_saved", "gpu_seconds"))
    }
    return Comparison(
        table.assign(**saved), {}, tuple(run.logged), left_out=left_out, times=words_of_steps(run, found.values()),
        assumed=run.setup.assumed_of_one, knobs=knobs_of(found, ways), parameters=parameters_of(found),
    )  # fmt: skip


def simulated_ways(ways: NamedWays, chosen: Mapping[str, Way]) -> tuple[dict[str, WayOutcome], dict[str, str]]:
    """Return what each way takes, and why the others could not be simulated, both by the name of the variant.

    Args:
        ways: of the run. chosen: by the name of the variant, the name of a way or a function of the run.

    Raises:
        InputError: a function returns no ``WayOutcome``.
    """
    found: dict[str, WayOutcome] = {}
    left_out: dict[str, str] = {}
    for name, way in chosen.items():
        try:
            outcome = ways.way(way) if isinstance(way, str) else way(ways.run)
        except (InputError, PlanningError) as error:
            left_out[name] = str(error)
            continue
        if not isinstance(outcome, WayOutcome):
            raise InputError(f"the way of the variant {name!r} returned {as_given(outcome)}; a WayOutcome is needed")
        if math.isnan(outcome.time_s):
            left_out[name] = outcome.unknown
        else:
            found[name] = outcome
    return found, left_out


def rows_of_ways(run: RunToChange, found: Mapping[str, WayOutcome], policies: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the table of a comparison with ways, with the columns that ``Comparison`` describes.

    Args:
        run: that the ways change. found: by the name of the variant. policies: rows of others, of whole steps as well.

    Returns:
        The rows of the policies and, for each way, one per step, with the mean over the steps of the whole run: ways move
        responses between steps.
    """
    rows = pd.DataFrame([row for name, outcome in found.items() for row in _rows(run, name, outcome)])
    tables = [table for table in (policies, rows) if table is not None and len(table)]
    table = pd.concat(tables, ignore_index=True)
    return table.assign(**{name: math.nan for name in OF_PLANS if name not in table})


def _rows(run: RunToChange, name: str, outcome: WayOutcome) -> Iterator[dict[str, Any]]:
    steps = run.all_steps or outcome.steps
    time_s, gpu_s = (value / steps for value in outcome.over(steps))
    cluster = run.setting.cluster
    for step in run.logged:
        yield {
            "variant": name, "policy": outcome.name, "time_weight": run.setting.objective.time_weight,
            "gpu_kind": cluster.kind, "gpus": cluster.gpus, "gpus_per_actor": cluster.gpus_per_actor, "step": step.step,
            "has_history": step.has_history, "bound_method": "none for ways", "time_s": time_s, "gpu_seconds": gpu_s,
            "cost_usd": float(dollars(gpu_s, cluster.usd_per_gpu_hour / 3600)), "way": outcome.name, "change": outcome.change,
            "least_time_s": outcome.least_time_s / outcome.steps, "fill_s": outcome.fill_s,
            "seconds_per_token": outcome.seconds_per_token, **data_columns(outcome.data),
        }  # fmt: skip


def data_columns(data: DataChange) -> dict[str, Any]:
    """Return what a way does to the data that is learned from, as columns of a comparison."""
    return {
        "on_policy": data.on_policy, "stale_tokens": data.stale_tokens, "most_stale_steps": data.most_stale_steps,
        "learned_responses": data.learned_responses, "dropped_responses": data.dropped_responses,
        "waiting_responses": data.waiting_responses, "data": data_in_words(data),
    }  # fmt: skip


def knobs_of(found: Mapping[str, WayOutcome], ways: NamedWays) -> pd.DataFrame:
    """Return the swept ways at every setting of their knobs, as ``Comparison.knobs`` describes them.

    Args:
        found: by the name of the variant. ways: of the run, which shares saved are of.
    """

    def saved(value: float, own: float) -> float:
        return 1 - value / own if own else 0.0

    rows = [
        {
            "variant": name, "knob": way.knob, "value": one.value, "time_s": one.time_s / way.steps,
            "gpu_seconds": one.gpu_s / way.steps, "time_saved": saved(one.time_s, ways.base.time_s),
            "cost_saved": saved(one.gpu_s, ways.base.gpu_s), "shown": one.value == way.parameters[way.knob],
            **data_columns(one.data), "learned_length_ratio": one.data.learned_length_ratio,
        }
        for name, way in found.items() for one in way.swept
    ]  # fmt: skip
    columns = ["variant", "knob", "value", "time_s", "gpu_seconds", "time_saved", "cost_saved", "shown",
               *data_columns(DataChange(0, 0)), "learned_length_ratio"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def parameters_of(found: Mapping[str, WayOutcome]) -> dict[str, dict[str, float]]:
    """Return the parameters of the ways that have some, by the name of the variant."""
    return {name: way.parameters for name, way in found.items() if way.parameters}


def words_of_steps(run: RunToChange, ways: Iterable[WayOutcome] = ()) -> str:
    """Return which seconds outside generation whole steps have, and which steps those of ways are a mean over."""
    words = "steps are generation alone, because no seconds outside it are known"
    if run.phases.seconds:
        words = f"steps are whole, with {run.phases.seconds:.4g} s outside generation on the run's own GPUs"
    fills = [f"{way.name} in {way.fill_s:.3g} s" for way in ways if way.fill_s > 0]
    if not fills:
        return words
    steps = "the simulated steps" if run.all_steps is None else f"all {run.all_steps:,} steps of the run"
    alone = ", ".join(fills)
    return f"{words}; means over {steps}, with the time in which steps do not overlap yet or any more ({alone}) once"
