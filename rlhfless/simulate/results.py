"""Results of simulated policies on a log, with the lower bound: one table per step, sums over steps, and ratios of sums.

Input are the policies' traces with their measured steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.simulate.steps import LoggedStep
from rlhfless.trace import Trace
from solver.bounds.clairvoyant import ClairvoyantBound
from solver.model.html_tables import rows_table
from solver.model.plan import Plan


@dataclass(frozen=True, eq=False)
class Simulation:
    """Results of several policies on one log.

    Attributes:
        steps: one row per policy and step: ``policy, drafts`` (the draft length, only where drafts are simulated), ``step,
            has_history, actors, time_s`` (the whole step, with the phases outside generation), ``gpu_seconds, idle_gpu_seconds,
            slot_idle_gpu_seconds, bound_gpu_seconds, bound_method, predicted_makespan_s, planning_s, planning_delay_s, moves``,
            and ``cost_usd``, NaN without a price. The method is ``configuration LP`` or ``closed form``; ``with drafts`` where
            the policy drafts: a bound on all policies with these drafts. Planning takes ``planning_s`` on this machine; of
            that, ``planning_delay_s`` delay generation (not part of ``time_s``), as planning overlaps the step before's
            learning.
        traces: the trace of every policy, made when it is first read.
        logged: the steps as planning saw them; bounds: the clairvoyant bound of each, on generation alone.
        plans: of every policy, one per step.
    """

    steps: pd.DataFrame
    traces: Mapping[str, Trace]
    logged: tuple[LoggedStep, ...] = ()
    bounds: tuple[ClairvoyantBound, ...] = ()
    plans: Mapping[str, tuple[Plan, ...]] = field(default_factory=dict)

    def summary(self, has_history: bool = True) -> pd.DataFrame:
        """Return one row per policy over the steps with (or without) history: sums, and ratios of sums against ``static``.

        Its last columns are the seconds of planning, and those by which planning delayed generation (not part of ``time_s``).
        """
        chosen = self.steps[self.steps["has_history"] == has_history]
        rows = []
        for policy in self.traces:
            policy_steps = chosen[chosen["policy"] == policy]
            sums = {name: float(policy_steps[name].sum()) for name in ("time_s", "gpu_seconds", "idle_gpu_seconds")}
            rows.append(
                {
                    "policy": policy,
                    **({"drafts": policy_steps["drafts"].iloc[0]} if "drafts" in policy_steps and len(policy_steps) else {}),
                    "steps": len(policy_steps),
                    **sums,
                    "cost_usd": float(policy_steps["cost_usd"].sum(skipna=False)),
                    "bound_cost_at_time": float(policy_steps["bound_gpu_seconds"].sum()),
                    "bound_method": _methods(policy_steps),
                    **{name: float(policy_steps[name].sum()) for name in ("planning_s", "planning_delay_s")},
                }
            )
        table = pd.DataFrame(rows)
        static = table[table["policy"] == "static"]
        time_s, gpu_s = (float(static[name].iloc[0]) if len(static) else np.nan for name in ("time_s", "gpu_seconds"))
        with np.errstate(invalid="ignore", divide="ignore"):
            after = table.columns.get_loc("cost_usd") + 1
            table.insert(after, "speedup_vs_static", time_s / table["time_s"])
            table.insert(after + 1, "cost_reduction_vs_static", 1 - table["gpu_seconds"] / gpu_s)
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"policies": [...], "without_history": [...]}``: ``summary`` of the steps with history, and without.

        Unknown values are None.
        """

        def plain(table: pd.DataFrame) -> list[dict[str, Any]]:
            rows = table[table["steps"] > 0].to_dict("records")
            return [
                {str(k): None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()} for row in rows
            ]

        return {"policies": plain(self.summary()), "without_history": plain(self.summary(False))}

    def _rows(self) -> list[tuple[str, ...]]:
        """Policy, time, cost and the least cost at that time, one row of texts per policy; sums over all steps."""
        names = ["time_s", "gpu_seconds", "bound_gpu_seconds"]
        rows = []
        for policy, steps in self.steps.groupby("policy", sort=False):
            sums = (f"{value:.4g}" for value in steps[names].sum())
            rows.append((str(policy), *sums, usd_text(steps["cost_usd"].sum(skipna=False)), _methods(steps)))
        return rows

    def __repr__(self) -> str:
        lines = (
            f"  {name}: {time} s, {gpu} GPU-seconds (lower bound in {time} s: {bound}, by {method}), cost in USD: {usd}"
            for name, time, gpu, bound, usd, method in self._rows()
        )
        return "\n".join([f"Simulation of {self._which()}", *lines])

    def _which(self) -> str:
        """The steps in words: the number of a single one."""
        steps = self.steps["step"].unique()
        return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps):,} steps, sums over them"

    def _repr_html_(self) -> str:
        head = ("policy", "time (s)", "GPU-seconds", "lower bound at that time", "cost (USD)", "bound by")
        return rows_table(f"Simulation of {self._which()}", head, self._rows())


def _methods(steps: pd.DataFrame) -> str:
    """Return which bounds the steps' lower bounds are, in words."""
    return " and ".join(sorted(set(steps["bound_method"])))


def usd_text(usd: float) -> str:
    """Return dollars as a number; ``unknown`` for NaN."""
    return "unknown" if math.isnan(usd) else f"{usd:.4g}"
