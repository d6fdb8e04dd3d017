"""The rows of every timeline: what a holder of GPUs did on its track, from when to when.

Input is a trace. Plots of steps draw these rows as bars, and the export for Perfetto writes them as slices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from rlhfless.trace.io import Trace
from rlhfless.trace.moves import ResponseMove, moves
from rlhfless.trace.schema.casts import is_null

LOOP, STEPS, REQUESTS = "loop", "steps", "requests"
NO_PANEL = "holders without allocations"
NAMES = {"sync": "rl.sync", "prepare": "rl.reward", "learn": "rl.train"}
TABLES = ("allocations", "spans", "events", "steps", "rollouts")
TEXTS = ("table", "run", "panel", "track", "name", "category")
COLUMNS = [
    "table", "label", "run", "step", "panel", "track", "start_s", "end_s", "name", "category", "background", "part", "parts",
]  # fmt: skip


def tracks(trace: Trace, run: str | None = None, step: int | None = None, tables: Collection[str] = TABLES) -> pd.DataFrame:
    """Return one row per bar of a timeline, table by table, each in the order of the trace.

    Names are those of OpenTelemetry for reinforcement learning where it has one.

    Args:
        trace: any trace.
        run, step: only rows of this run, of this step; all when None.
        tables: what is shown; a row of ``steps`` is a step from its first time in the trace to its last one.

    Returns:
        ``table`` and ``label``: a table of the trace, and the label of the row there (of ``steps``, the number of the step).
        ``run, step, panel, track``: a panel is a role on a node, and its tracks are the holders; the panel ``loop`` has the
        steps and the events. ``start_s, end_s``: seconds since the start of the run. ``name, category``: ``held`` and the role
        of an allocation; name and phase of a span; name of an event. ``background``: whether a span runs behind others.
        ``part, parts``: of ``rollouts``, which have a row per response with known times on each actor that generated a part
        of it; 1 elsewhere. Their tracks are the actors, the empty text where it is unknown.
        Texts are categories, as few of them stand in up to a million rows.
    """
    held, spans = (of_step(table, run, step) for table in (trace.allocations, trace.spans))
    parts = []
    if "allocations" in tables:
        parts.append(_rows("allocations", held, _panels(held), held["holder"], ["held"], held["role"]))
    if "spans" in tables:
        phase = pd.Categorical(spans["phase"])
        name = phase.rename_categories(lambda phase: NAMES.get(phase, phase))
        holder = pd.Categorical(spans["holder"])
        panel = _panels_of_spans(spans, held, holder, one_step=run is not None and step is not None)
        parts.append(_rows("spans", spans, panel, holder, name, phase))
    if "events" in tables:
        events = of_step(trace.events, run, step).rename(columns={"time_s": "start_s"})
        events = events.assign(end_s=events["start_s"])
        parts.append(_rows("events", events, [LOOP], ["events"], events["name"], ["event"]))
    if "steps" in tables:
        steps = _steps([held, spans, of_step(trace.rollouts, run, step)])
        parts.append(_rows("steps", steps, [LOOP], [STEPS], ["rl.loop"], ["step"]))
    if "rollouts" in tables:
        pieces = _pieces(of_step(trace.rollouts, run, step), spans)
        panel = [panel_of_requests(actor) for actor in pieces["actor"]]
        parts.append(_rows("rollouts", pieces, pd.Categorical(panel), pieces["actor"], ["request"], ["request"]))
    texts = {name: union_categoricals([part[name] for part in parts]) for name in TEXTS}
    others = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS if name not in TEXTS}
    return pd.DataFrame({**texts, **others})[COLUMNS]


class PlannedActor(NamedTuple):
    """What a plan says of one actor: its holder, its start and end in seconds of the step, and its number of responses."""

    holder: str
    start_s: float
    end_s: float
    responses: int


def planned_actors(plan: Mapping[str, Any]) -> tuple[PlannedActor, ...]:
    """Return the actors of a plan of ``Trace.plans`` whose end it predicts; actor i runs as the holder ``actor-i``."""
    actors = plan.get("actors")
    return tuple(
        PlannedActor(
            f"actor-{i}", float(actor.get("start_s") or 0.0), float(actor["predicted_s"]), len(actor.get("responses") or ())
        )
        for i, actor in enumerate(actors if isinstance(actors, list | tuple) else ())
        if isinstance(actor, Mapping) and actor.get("predicted_s") is not None
    )  # fmt: skip


def of_step(table: pd.DataFrame, run: str | None, step: int | None) -> pd.DataFrame:
    """Return the rows of a run and of a step; of all runs and steps where these are None."""
    rows = np.ones(len(table), dtype=bool)
    if step is not None:
        rows &= table["step"].to_numpy() == step
    if run is not None:
        rows &= table["run"].to_numpy() == run
    return table if rows.all() else table[rows]


def _rows(
    table: str,
    of: pd.DataFrame,
    panel: Sequence[str] | pd.Categorical,
    track: Sequence[str] | pd.Series | pd.Categorical,
    name: Sequence[str] | pd.Series | pd.Categorical,
    category: Sequence[str] | pd.Series | pd.Categorical,
) -> dict[str, Any]:
    """Return the columns of the rows of a table; a text of one element is the same in every row."""
    texts = {"table": [table], "run": of["run"], "panel": panel, "track": track, "name": name, "category": category}
    return {
        **{column: _categories(values, len(of)) for column, values in texts.items()},
        **{column: of[column].to_numpy() for column in ("step", "start_s", "end_s")},
        "label": of.index.to_numpy(),
        "background": of["background"].to_numpy(dtype=bool) if "background" in of else np.zeros(len(of), dtype=bool),
        **{name: of[name].to_numpy() if name in of else np.ones(len(of), dtype=np.int64) for name in ("part", "parts")},
    }


def _categories(values: Sequence[str] | pd.Series | pd.Categorical, rows: int) -> pd.Categorical:
    if isinstance(values, list):
        return pd.Categorical.from_codes(np.zeros(rows, dtype=np.int8), pd.Index(values, dtype=object))
    found = values if isinstance(values, pd.Categorical) else pd.Categorical(values)
    return found.set_categories(found.categories.astype(object))


def _panels(held: pd.DataFrame) -> pd.Categorical:
    roles = zip(held["role"], held["node"], strict=True)
    return pd.Categorical([role if is_null(node) else f"{role}, node {node}" for role, node in roles])


def _panels_of_spans(spans: pd.DataFrame, held: pd.DataFrame, holder: pd.Categorical, one_step: bool) -> pd.Categorical:
    """Return the panel of the allocation of each span's holder in its step.

    Args:
        holder: of each span. one_step: all rows are of one step of one run, so holders alone tell spans apart.
    """
    keys = ["run", "step", "holder"]
    panels = dict(zip(held[keys[-1:] if one_step else keys].itertuples(index=False, name=None), _panels(held), strict=True))
    if one_step:
        found, group = [(name,) for name in holder.categories], holder.codes
    else:
        found = list(spans[keys].drop_duplicates().itertuples(index=False, name=None))
        group = spans.groupby(keys, sort=False).ngroup().to_numpy()
    codes, names = pd.factorize(np.array([panels.get(key, NO_PANEL) for key in found], dtype=object))
    return pd.Categorical.from_codes(codes[group], names)


def _steps(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    keys, times = ["run", "step"], ["start_s", "end_s"]
    timed = [table[keys + times] for table in tables if len(table) and set(times) <= set(table.columns)]
    if not timed:
        return pd.DataFrame(columns=keys + times)
    steps = pd.concat(timed).dropna().groupby(keys).agg({"start_s": "min", "end_s": "max"}).reset_index()
    return steps.set_index("step", drop=False)


def timed(rollouts: pd.DataFrame) -> pd.Series:
    """Return for each (r,) response whether its times are known: it has a start and an end."""
    if not {"start_s", "end_s"} <= set(rollouts.columns):
        return pd.Series(False, index=rollouts.index)
    return rollouts["start_s"].notna() & rollouts["end_s"].notna()


def panel_of_requests(actor: str) -> str:
    """Return the panel of an actor's requests, or that of requests whose actor is unknown."""
    return f"{REQUESTS}, {actor}" if actor else REQUESTS


def _pieces(rollouts: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Return ``run, step, actor, start_s, end_s, part, parts`` of responses with times; of one that moved, a row per actor.

    A response is cut at its moves if these lead to its last actor one after the other within its time.
    """
    rows = rollouts[timed(rollouts)]
    if rows.empty:
        return pd.DataFrame(columns=["run", "step", "actor", "start_s", "end_s"])
    rows = rows.assign(actor=rows["actor"].fillna("") if "actor" in rows else "", part=1, parts=1)
    rows = rows[["run", "step", "actor", "start_s", "end_s", "part", "parts"]]
    cut, found = [], []
    for label, hops in _hops(rollouts, spans).items():
        if label not in rows.index:
            continue
        row = rows.loc[label]
        senders, receivers = [hop.sender for hop in hops], [hop.receiver for hop in hops]
        times = [row["start_s"], *(at_s for hop in hops for at_s in (hop.leave_s, hop.arrive_s)), row["end_s"]]
        if receivers == [*senders[1:], row["actor"]] and times == sorted(times):
            cut.append(label)
            for part, actor in enumerate([*senders, row["actor"]]):
                start_s, end_s = times[2 * part : 2 * part + 2]
                found.append((label, row["run"], row["step"], actor, start_s, end_s, part + 1, len(hops) + 1))
    moved = pd.DataFrame(found, columns=["label", *rows.columns]).set_index("label")
    return pd.concat([rows.drop(cut), moved]) if found else rows


def _hops(rollouts: pd.DataFrame, spans: pd.DataFrame) -> dict[Any, list[ResponseMove]]:
    """Return the moves of each response by its label; the number of a response is its place among those of the step."""
    hops: dict[Any, list[ResponseMove]] = defaultdict(list)
    own = [move for move in moves(spans) if not move.copied_first]
    labels = {key: of_step.index for key, of_step in rollouts.groupby(["run", "step"], sort=False)} if own else {}
    for move in own:
        of_step = labels.get((move.run, move.step), ())
        if 0 <= move.response < len(of_step):
            hops[of_step[move.response]].append(move)
    return hops
