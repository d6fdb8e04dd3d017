"""Compares what a log measured per step with what is counted or simulated for the same steps, and flags contradictions.

Lengths and counts come from the same responses, so they must agree in every step. Simulated times are compared by their mean
over the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

LowerBound = Literal["", "ours", "logged"]
COUNTED = "counted from the responses"
"""Where what ``counted_steps`` finds comes from, in words."""


@dataclass(frozen=True)
class Quantity:
    """A quantity of a step that a log may measure, with its tolerance.

    Attributes:
        name: in words. unit: ``s``, ``tokens``, ``share`` or the empty text.
        relative, absolute: our value may differ by ``relative`` times the logged value plus ``absolute`` units.
    """

    name: str
    unit: str
    relative: float = 0.0
    absolute: float = 0.0

    def allowed(self, logged: float) -> float:
        """Return the allowed difference from the logged value, in units."""
        return self.relative * abs(logged) + self.absolute

    @property
    def tolerance(self) -> str:
        """Return the allowed difference in words."""
        parts = [f"{self.relative:.0%}"] if self.relative else []
        if self.absolute or not parts:
            unit = self.unit.removesuffix("s") if self.absolute == 1 else self.unit
            parts.append(f"{100 * self.absolute:g} points" if unit == "share" else f"{self.absolute:g} {unit}".strip())
        return " + ".join(parts)


QUANTITIES = {
    "generate_s": Quantity("generation of a step", "s", 0.1),
    "step_s": Quantity("a whole step", "s", 0.1),
    "prepare_s": Quantity("preparation of a step", "s", 0.1),
    "learn_s": Quantity("learning of a step", "s", 0.1),
    "sync_s": Quantity("sending weights in a step", "s", 0.1),
    "responses": Quantity("responses of a step", ""),
    "response_tokens_mean": Quantity("mean response length", "tokens", 0.0, 1.0),
    "response_tokens_min": Quantity("shortest response of a step", "tokens", 0.0, 1.0),
    "response_tokens_max": Quantity("longest response of a step", "tokens", 0.0, 1.0),
    "prompt_tokens_mean": Quantity("mean prompt length", "tokens", 0.1, 1.0),
    "truncation_rate": Quantity("responses cut off by the limit", "share", 0.0, 0.005),
    "reward_mean": Quantity("mean reward", "", 0.01, 0.01),
}
"""By the standard column of the scalars (``importers/scalars.py``)."""


@dataclass(frozen=True)
class CrossCheck:
    """Comparison of one quantity: as the log measured it, and as we computed it.

    Attributes:
        column: of the scalars. how: source of our value: ``counted``, ``simulated by profile ...``, ``stated``.
        steps: number of steps with both values. logged, ours: means over these steps, in the quantity's unit.
        worst_step: step with the largest difference; worst_logged, worst_ours: its values.
        contradicts: they differ by more than the quantity's tolerance.
        lower_bound: ``ours`` or ``logged``, where that value is a lower bound, so that a larger other one is no contradiction;
            else the empty text.
    """

    column: str
    how: str
    steps: int
    logged: float
    ours: float
    worst_step: int
    worst_logged: float
    worst_ours: float
    contradicts: bool
    lower_bound: LowerBound = ""

    @property
    def allowed(self) -> str:
        """Return the tolerance in words."""
        beyond = {"ours": "more", "logged": "less"}.get(self.lower_bound)
        return f"at most {self.quantity.tolerance} {beyond}" if beyond else self.quantity.tolerance

    @property
    def quantity(self) -> Quantity:
        """The compared quantity."""
        return QUANTITIES[self.column]

    @property
    def relative(self) -> float:
        """Our mean over the logged mean, minus 1; NaN if the log has 0."""
        return self.ours / self.logged - 1.0 if self.logged else float("nan")

    def value(self, value: float) -> str:
        """Return a value of this quantity with its unit."""
        if self.quantity.unit == "share":
            return f"{value:.1%}"
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f"{text} {self.quantity.unit}".strip()

    def logged_value(self, value: float) -> str:
        """Return a value of the log with its unit, and whether it is a lower bound."""
        return f"at least {self.value(value)}" if self.lower_bound == "logged" else self.value(value)

    def ours_value(self, value: float) -> str:
        """Return a value of ours with its unit, and whether it is a lower bound."""
        return f"at least {self.value(value)}" if self.lower_bound == "ours" else self.value(value)

    @property
    def verdict(self) -> str:
        """Return ``contradiction`` or ``agrees``."""
        return "contradiction" if self.contradicts else "agrees"

    @property
    def difference(self) -> str:
        """Our mean minus the logged mean: relative to the logged one, or in percentage points for shares."""
        if self.quantity.unit == "share":
            return f"{100 * (self.ours - self.logged):+.1f} points"
        return f"{self.relative:+.1%}" if np.isfinite(self.relative) else "unknown"

    def __str__(self) -> str:
        text = f"{self.quantity.name}: {self.logged_value(self.logged)} in the log, {self.ours_value(self.ours)} {self.how}"
        text += f" ({self.difference}"
        if self.steps > 1:
            text += f"; step {self.worst_step}: {self.logged_value(self.worst_logged)} and {self.ours_value(self.worst_ours)}"
        return f"{text})"


def counted_steps(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Count every step's responses and lengths under the standard columns; NaN if some of the step's responses lack the value.

    Args:
        rollouts: of one run.
    """
    steps = rollouts.groupby("step", sort=True)
    tokens = steps["response_tokens"]
    columns = {
        "responses": steps.size(), "response_tokens_mean": tokens.mean(), "response_tokens_min": tokens.min(),
        "response_tokens_max": tokens.max(),
    }  # fmt: skip
    values = {"truncation_rate": (rollouts["finish_reason"] == "length").where(rollouts["finish_reason"].notna())}
    values |= {"prompt_tokens_mean": rollouts["prompt_tokens"], "reward_mean": rollouts["reward"]}
    for name, column in values.items():
        column = column.astype(float)
        columns[name] = column.groupby(rollouts["step"]).mean().where(column.notna().groupby(rollouts["step"]).all())
    return pd.DataFrame(columns).astype(float)


def cross_check(
    logged: pd.DataFrame, ours: pd.DataFrame, how: str, *, every_step: bool = False, lower_bound: LowerBound = ""
) -> Iterator[CrossCheck]:
    """Compare every quantity that both tables have.

    Args:
        logged: one row per ``step``, under the standard columns. ours: the same columns, indexed by step.
        how: source of our values, in words.
        every_step: one differing step is a contradiction; by default only differing means over the steps are.
        lower_bound: see ``CrossCheck``.
    """
    one_sided = {"ours": 1.0, "logged": -1.0}.get(lower_bound)
    measured = logged.drop_duplicates("step", keep="last").set_index("step")
    for column, quantity in QUANTITIES.items():
        if column not in measured.columns or column not in ours.columns:
            continue
        both = pd.DataFrame({"logged": measured[column], "ours": ours[column]}).astype(float)
        both = both[np.isfinite(both).all(axis=1)]
        if both.empty:
            continue
        apart = both["ours"] - both["logged"]
        beyond = (one_sided * apart if one_sided else apart.abs()) - both["logged"].map(quantity.allowed)
        worst = beyond.idxmax()
        mean = both.mean()
        gap = mean["ours"] - mean["logged"]
        off = (one_sided * gap if one_sided else abs(gap)) - quantity.allowed(mean["logged"])
        yield CrossCheck(
            column, how, len(both), float(mean["logged"]), float(mean["ours"]), int(worst), float(both.loc[worst, "logged"]),
            float(both.loc[worst, "ours"]), bool((beyond.max() if every_step else off) > 1e-6), lower_bound,
        )  # fmt: skip


def checks_frame(checks: Sequence[CrossCheck]) -> pd.DataFrame:
    """Return one row per comparison: ``quantity, unit, how, steps, logged, ours, relative, worst_step, worst_logged,
    worst_ours, lower_bound, tolerance, contradicts``."""
    rows: list[dict[str, Any]] = [
        {
            "quantity": c.quantity.name, "unit": c.quantity.unit, "how": c.how, "steps": c.steps, "logged": c.logged,
            "ours": c.ours, "relative": c.relative, "worst_step": c.worst_step, "worst_logged": c.worst_logged,
            "worst_ours": c.worst_ours, "lower_bound": c.lower_bound, "tolerance": c.allowed, "contradicts": c.contradicts,
        }
        for c in checks
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["quantity"])
