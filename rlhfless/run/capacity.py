"""Capacity search: which GPU kind, how many GPUs, and how many per actor serve the lengths of a run best.

Every candidate runs the run's last steps under the policy ``solver`` on simulated engines, so each has a plan behind it.
Latency profiles of the same language model are the candidates. The run's own GPU kind has its price, the others list prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.analysis import ProfileScale
from rlhfless.errors import InputError
from rlhfless.latency import PriceError, load_profile, profiles_of_the_same_model
from rlhfless.run.hardware import NODE_GPUS, Hardware
from rlhfless.run.planned_step import PlannedStep, with_notes
from rlhfless.simulate import LoggedStep, SimulationConfig, simulate_steps
from rlhfless.simulate.results import usd_text
from solver.model.errors import PlanningError, as_given, is_number
from solver.model.html_tables import rows_table

SIZES = (8, 16, 32, 64)
POLICY = "solver"


@dataclass(frozen=True, eq=False, repr=False)
class CapacityResults:
    """Ranked candidates, the best one first.

    Attributes:
        table: one row per candidate: ``gpu_kind, gpus, gpus_per_actor, profile, actors`` (median), ``time_s, gpu_seconds,
            cost_usd`` (means over the steps), ``within_limit``, and ``missing``: why a candidate cannot run, or an empty text.
        plans: the last step as planned on the GPUs of each row; None where they cannot run it.
        scale: of every profile, to the times of the run. assumed: what nobody stated and is assumed, one sentence each.
    """

    table: pd.DataFrame
    plans: tuple[PlannedStep | None, ...]
    scale: ProfileScale
    assumed: tuple[str, ...] = ()

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (f"{row.gpus} x {row.gpu_kind.upper()}", str(row.gpus_per_actor), row.missing or f"{row.actors:.3g}",
             f"{row.time_s:.4g}", usd_text(row.cost_usd), "yes" if row.within_limit else "no")
            for row in self.table.itertuples()
        ]  # fmt: skip

    def __repr__(self) -> str:
        lines = (f"  {gpus}, {size} per actor: {actors} actors, {time} s, cost in USD: {usd}, within the limit: {within}"
                 for gpus, size, actors, time, usd, within in self._rows())  # fmt: skip
        return "\n".join([self._title, *lines, *self._assumed])

    def _repr_html_(self) -> str:
        head = ("GPUs", "GPUs per actor", "actors", "time (s)", "cost (USD)", "within the limit")
        return with_notes(rows_table(self._title, head, self._rows()), self._assumed)

    @property
    def _assumed(self) -> list[str]:
        return [f"Assumed: {sentence}." for sentence in self.assumed]

    @property
    def _title(self) -> str:
        others = "; other profiles alike" if self.scale.factor != 1 else ""
        return f"Capacity search: means per step, the best first; times of {self.scale.words()}{others}"


@dataclass(frozen=True)
class CapacityLimits:
    """What a step may take at most.

    Attributes:
        deadline_s: seconds of generation; candidates that keep it are ranked by cost.
        budget_usd: cost of generation; candidates that keep it are ranked by time. Without limits the objective's weight ranks.

    Raises:
        InputError: both are given, or one is no number above 0.
    """

    deadline_s: float | None = None
    budget_usd: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise InputError("deadline_s and budget_usd are given together; choose one of them")
        for name, value in given.items():
            if not (is_number(value, 0) and value > 0):
                raise InputError(f"{name} is {as_given(value)}; a finite number above 0 is needed")


def search_capacity(
    logged: Sequence[LoggedStep],
    setting: SimulationConfig,
    profile: str,
    scale: ProfileScale,
    *,
    gpu_kinds: Sequence[str] | None = None,
    gpus: Sequence[int] = SIZES,
    gpus_per_actor: Sequence[int] | None = None,
    limits: CapacityLimits | None = None,
) -> CapacityResults:
    """Return every GPU kind, number and actor size that has a latency profile of the model, ranked.

    Args:
        logged: the steps to run. setting: of the run, with its scaled profile. profile: of the run; names the language model.
        scale: of every profile.
        gpu_kinds, gpus_per_actor: only these; all that have a profile when None. gpus: numbers of GPUs.

    Raises:
        InputError: no profile has such a kind and size; the message names those that exist.
    """
    limits = limits or CapacityLimits()
    names = [profile, *profiles_of_the_same_model(profile)]
    models = {name: load_profile(name) for name in names}
    chosen = [
        name for name, model in models.items()
        if (gpu_kinds is None or model.kind in gpu_kinds) and (gpus_per_actor is None or model.gpus_per_actor in gpus_per_actor)
    ]  # fmt: skip
    if not chosen:
        known = ", ".join(f"{model.kind} with {model.gpus_per_actor}" for model in models.values())
        raise InputError(
            f"no latency profile of this model has gpu_kinds {as_given(gpu_kinds)} and gpus_per_actor "
            f"{as_given(gpus_per_actor)}; there are profiles for {known} GPUs per actor"
        )
    found: list[tuple[dict[str, Any], PlannedStep | None]] = []
    for name in chosen:
        for count in gpus:
            found.append(_candidate(logged, setting, name, scale, count, limits))
    table = pd.DataFrame([row for row, _ in found])
    ranked = table.assign(**_rank(table, setting.objective.time_weight, limits))
    order = ranked.sort_values(["out", "value"], kind="stable").index
    return CapacityResults(table.loc[order].reset_index(drop=True), tuple(found[i][1] for i in order), scale)


def _candidate(
    logged: Sequence[LoggedStep],
    setting: SimulationConfig,
    profile: str,
    scale: ProfileScale,
    gpus: int,
    limits: CapacityLimits,
) -> tuple[dict[str, Any], PlannedStep | None]:
    row: dict[str, Any] = {"gpu_kind": "", "gpus": gpus, "gpus_per_actor": 0, "profile": profile, "actors": np.nan}
    row |= {"time_s": np.nan, "gpu_seconds": np.nan, "cost_usd": np.nan, "within_limit": False, "missing": ""}
    latency = load_profile(profile)
    row |= {"gpu_kind": latency.kind, "gpus_per_actor": latency.gpus_per_actor}
    try:
        per_node = min(NODE_GPUS, setting.cluster.gpus_per_node, gpus)
        own = latency.kind == setting.cluster.kind  # then the price is the run's
        price = setting.cluster.usd_per_gpu_hour if own else None
        cluster, latency = Hardware(gpus, gpus_per_node=per_node, profile=profile, usd_per_gpu_hour=price).cluster()
        if latency.name == setting.latency.name and gpus == setting.cluster.gpus:
            cluster = setting.cluster  # the run's own nodes
        sized = replace(setting, cluster=cluster, latency=scale.of(latency), bound_work=0)
        simulated = simulate_steps(logged, sized, [POLICY])
    except (InputError, PlanningError, PriceError) as error:
        return {**row, "missing": str(error)}, None
    means = simulated.steps[["time_s", "gpu_seconds", "cost_usd"]].mean(skipna=False)
    row |= {"actors": float(simulated.steps["actors"].median()), **means.to_dict()}
    late = limits.deadline_s is not None and row["time_s"] > limits.deadline_s
    dear = limits.budget_usd is not None and not row["cost_usd"] <= limits.budget_usd  # a cost that is unknown is not within
    return {**row, "within_limit": not (late or dear)}, PlannedStep(logged[-1], sized, POLICY)


def _rank(table: pd.DataFrame, time_weight: float, limits: CapacityLimits) -> dict[str, pd.Series]:
    """Return what to sort by: those beyond the limit, or which cannot run, last; then the value."""
    cost = table["cost_usd"].fillna(table["gpu_seconds"])  # emulated GPUs have no price
    if limits.deadline_s is not None:
        value = cost
    elif limits.budget_usd is not None:
        value = table["time_s"]
    else:
        value = time_weight * np.log(table["time_s"]) + (1 - time_weight) * np.log(cost)
    return {"out": ~table["within_limit"], "value": value}
