"""Simulates a logged run with other numbers, sizes and kinds of replicas, each with all its GPUs held until a step ends.

This is what frameworks do when their number of GPUs is configured. Generation is by the run's own dispatch. Preparation and
learning on the GPUs that generate are taken to need the same GPU-seconds on any number of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.analysis.framework_defaults import DISPATCHES, RunSetup
from rlhfless.analysis.gpu_seconds import PhaseSeconds
from rlhfless.analysis.savings import saved_range
from rlhfless.latency import PriceError, list_profiles, load_profile, profiles_of_the_same_model, scaled, usd_per_gpu_hour
from rlhfless.simulate import Comparison, LoggedStep, SimulationConfig, execute_steps
from rlhfless.trace.schema.prices import dollars
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.plurals import counted

KEY = ["gpu_kind", "gpus_per_actor", "actors"]
"""Kind, size and number of replicas: no two choices have the same."""
SAVED = tuple(f"{what}_saved_{name}" for what in ("time", "cost") for name in ("low", "mean", "high"))
COLUMNS = ("kind", "gpus_per_actor", "replicas", "gpus", "usd_per_gpu_hour", "time_low_s", "time_s", "time_high_s", "gpu_s",
           *SAVED)  # fmt: skip


def gpu_counts(
    logged: Sequence[LoggedStep],
    setting: SimulationConfig,
    setup: RunSetup,
    phases: PhaseSeconds,
    *,
    factor: float = 1.0,
    measured_s: Mapping[int, float] | None = None,
    stand_in: bool = False,
) -> Comparison:
    """Simulate the run with other numbers of replicas, and with other sizes and GPU kinds that have a profile; its own come
    first.

    Args:
        logged: the steps.
        setting: cluster and calibrated profile.
        factor: ratio of the run's times to its profile; other profiles are assumed to be off by the same factor.
        measured_s: seconds outside generation by step, where the run measured those of each step; of other steps, and where
            None, they are those of ``phases``.
        stand_in: nobody named the profile. Then only numbers of replicas are compared: a ratio of the stand-in's GPUs to
            others, or of its sizes, says nothing of the run's.

    Returns:
        Whole steps of one variant for each choice and each dispatch that the run may have used, the likeliest first. ``gpus``
        are all that are paid for, those of the learner included, and ``actors`` the replicas. Without bounds.

    Raises:
        PlanningError: the run's own replicas cannot hold the responses.
    """
    cluster, on = setting.cluster, setup.learns_on
    names = list(dict.fromkeys([setup.dispatch, *(name for name in setup.candidates if name in DISPATCHES)]))
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for latency, replicas in _choices(setting, factor, stand_in):
        size = latency.gpus_per_actor
        gpus = replicas * size if rows else cluster.gpus
        price = cluster.usd_per_gpu_hour if latency.kind == cluster.kind else _price(latency.kind, cluster)
        of_count = Cluster(replicas, size, size, latency.kind, price)
        choice = f"{replicas:,} of {counted(size, gpu_in_words(latency.kind))}"
        try:
            executed = execute_steps(logged, replace(setting, cluster=of_count, latency=latency, bound_work=0), names)
        except PlanningError as error:
            if not rows:
                raise
            left_out[choice] = str(error)
            continue
        longer = (on(cluster.gpus) / on(gpus) if setup.colocated else 1.0) if setup.synchronous else 0.0
        paid = gpus + setup.counted_learner_gpus
        for name in names:
            for record, step in executed[name]:
                outside_s = (measured_s or {}).get(step.step, phases.seconds) * longer
                time_s = record.end_s - record.start_s + outside_s
                rows.append({
                    "variant": f"{choice}, {name}", "policy": name, "time_weight": setting.objective.time_weight,
                    "gpu_kind": latency.kind, "gpus": paid, "gpus_per_actor": size, "step": step.step,
                    "has_history": step.has_history, "actors": replicas, "time_s": time_s, "gpu_seconds": paid * time_s,
                    "bound_method": "none for numbers of replicas",
                    "cost_usd": float(dollars(paid * time_s, price / 3600)),
                })  # fmt: skip
    unknown = ("idle_gpu_seconds", "slot_idle_gpu_seconds", "bound_gpu_seconds", "predicted_makespan_s", "planning_s",
               "planning_delay_s", "moves")  # fmt: skip
    return Comparison(pd.DataFrame(rows).assign(**dict.fromkeys(unknown, np.nan)), {}, tuple(logged), left_out=left_out)


def of_all_draws(first: Comparison, others: Sequence[Comparison]) -> Comparison:
    """Return the numbers of replicas that every draw of the lengths could run, with the rows of all draws.

    Policies of further draws end in their number, such as ``static, draw 2``.
    """
    tables = [first.table]
    for draw, other in enumerate(others, start=2):
        policy, variant = (other.table[name] + f", draw {draw}" for name in ("policy", "variant"))
        tables.append(other.table.assign(policy=policy, variant=variant))
    of_all = set.intersection(*(set(_keys(table)) for table in tables))
    table = pd.concat(tables, ignore_index=True)
    return replace(first, table=table[[key in of_all for key in _keys(table)]].reset_index(drop=True))


def counts_frame(found: Comparison, took: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a table with one row per number, size and kind of replicas; the run's own comes first.

    Args:
        found: result of ``gpu_counts`` or ``of_all_draws``.
        took: the run's own measured steps (``step_parts``), on GPUs of the first row's kind and price; None: savings are
            relative to the first row.

    Returns:
        ``kind, gpus_per_actor, replicas, gpus`` (all that are paid for), ``usd_per_gpu_hour`` (NaN where it is not known),
        ``time_s`` and ``gpu_s`` of all steps together, under the likeliest dispatch, ``time_low_s, time_high_s`` over every
        dispatch and draw, and the shares that each saves of the time and cost that the run took (``took``, or else the first
        row), ``time_saved_low`` to ``cost_saved_high``: ranges are over resampled steps and every dispatch and draw. The cost
        is in GPU-seconds for the same kind of GPU, in dollars for another, and NaN without prices and where a step was not
        measured.
    """
    if not len(found.table):
        return pd.DataFrame(columns=list(COLUMNS))
    choices = [_Choice(rows) for _, rows in found.table.groupby(KEY, sort=False)]
    base = choices[0] if took is None else choices[0].measured(took)
    return pd.DataFrame([one.row(base) for one in choices], columns=list(COLUMNS))


class _Choice:
    """The rows of one number, size and kind of replicas, by policy."""

    def __init__(self, rows: pd.DataFrame) -> None:
        first = rows.iloc[0]
        self.kind, self.size, self.replicas, self.gpus = (
            first[name] for name in ("gpu_kind", "gpus_per_actor", "actors", "gpus")
        )
        self.of_policy: Mapping[str, pd.DataFrame] = {str(name): of for name, of in rows.groupby("policy", sort=False)}
        gpu_s, usd = float(rows["gpu_seconds"].sum()), float(rows["cost_usd"].sum(skipna=False))
        self.usd_per_gpu_hour = 3600 * usd / gpu_s if gpu_s else np.nan

    def measured(self, took: pd.DataFrame) -> _Choice:
        """Return the same steps with the time and the cost that they were measured to take, at the price of this choice."""
        steps = took.set_index("step")
        rows = [
            rows.assign(
                time_s=steps["time_s"].reindex(rows["step"]).to_numpy(), gpu_seconds=gpu_s,
                cost_usd=gpu_s * self.usd_per_gpu_hour / 3600,
            )
            for rows in self.of_policy.values() for gpu_s in [steps["gpu_s"].reindex(rows["step"]).to_numpy()]
        ]  # fmt: skip
        return _Choice(pd.concat(rows))

    def row(self, own: _Choice) -> dict[str, Any]:
        """Return the row of ``counts_frame``."""
        sums = [of[["time_s", "gpu_seconds"]].sum() for of in self.of_policy.values()]
        times = [float(one["time_s"]) for one in sums]
        cost = "gpu_seconds" if self.kind == own.kind else "cost_usd"
        saved = [*self._saved(own, "time_s"), *self._saved(own, cost)]
        return {
            "kind": self.kind, "gpus_per_actor": self.size, "replicas": self.replicas, "gpus": self.gpus,
            "usd_per_gpu_hour": self.usd_per_gpu_hour, "time_low_s": min(times), "time_s": times[0],
            "time_high_s": max(times), "gpu_s": float(sums[0]["gpu_seconds"]), **dict(zip(SAVED, saved, strict=True)),
        }  # fmt: skip

    def _saved(self, own: _Choice, column: str) -> tuple[float, float, float]:
        """Return low, mean and high of the share of ``own`` that this saves; NaN where one is not known."""
        pairs = [
            (self.of_policy[name][column].to_numpy(dtype=float), of_own[column].to_numpy(dtype=float))
            for name, of_own in own.of_policy.items()
        ]
        if np.isnan(np.concatenate([np.concatenate(pair) for pair in pairs])).any():
            return np.nan, np.nan, np.nan
        ranges = [saved_range(ours, theirs) for ours, theirs in pairs]
        return min(one[0] for one in ranges), ranges[0][1], max(one[2] for one in ranges)


def gpu_in_words(kind: str) -> str:
    """Return what one GPU of a kind is called: ``L40S GPU``; on CPUs GPUs are emulated."""
    return "emulated GPU" if kind == "cpu" else f"{kind.upper()} GPU"


def _keys(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(table[KEY].itertuples(index=False, name=None))


def _choices(setting: SimulationConfig, factor: float, stand_in: bool) -> Iterator[tuple[LatencyModel, int]]:
    """Yield the run's own profile and replicas; other numbers of them, from 1 to twice as many; other sizes on as many GPUs.

    The last are other kinds of GPUs, as many as the run had.
    """
    cluster, own = setting.cluster, setting.latency
    most = cluster.max_actors
    yield own, most
    halves = {max(1, round(most * share)) for share in (0.125, 0.25, 0.375, 0.5, 0.75, 2.0)}
    for replicas in sorted(halves - {most}):
        yield own, replicas
    others = profiles_of_the_same_model(own.name) if own.name in list_profiles() and not stand_in else []
    models = [scaled(load_profile(name), factor) for name in others]
    for other in sorted(models, key=lambda model: (model.kind != cluster.kind, model.kind, model.gpus_per_actor)):
        if other.gpus_per_actor <= cluster.gpus_per_node:
            yield other, cluster.nodes * (cluster.gpus_per_node // other.gpus_per_actor)


def _price(kind: str, cluster: Cluster) -> float:
    """Return the list price of a kind, scaled by the ratio of the run's own price to its list price: spot buyers pay spot
    prices. 0 where one is unknown."""
    try:
        price = usd_per_gpu_hour(cluster.kind)
        return usd_per_gpu_hour(kind) * (cluster.usd_per_gpu_hour / price if price else 1.0)
    except PriceError:
        return 0.0
