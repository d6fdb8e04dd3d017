"""Sums up the rows of whole steps: against the naive system with intervals, against elastic plain, bounds, levers, and aims."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.paper.figure import Finding, verdict
from rlhfless.paper.whole_step_rows import BOUND, BOUND_SIZED, FAIR, FAIR_SIZED, TOGETHER, TOGETHER_SIZED, WITHOUT

CELL = ["algorithm", "model", "data_set"]
STUDENT_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5 % quantiles by degrees of freedom (from 10 on: 2.0)."""
DRAFTS = (WITHOUT, "weak", "strong")
NOT_EXECUTED = "not executed"


class Fair(NamedTuple):
    """Everything together against elastic plain with prefix caching, at the same time and at the same cost, when executed.

    Attributes:
        cheaper: share of the cost that is saved at equal time. faster: times at equal cost. Both may alternate two plans.
        time, saved: of the one plan that was made for the same time: its time as a share, and the share of the cost that it
            saves. possible: the share that any policy saves at most in the time of that plan; NaN where no bound is known.
    """

    cheaper: float
    faster: float
    time: float
    saved: float
    possible: float


def half_width(values: pd.Series) -> float:
    """Return half of the 95 % interval of a mean over seeds; NaN for one seed."""
    count = len(values)
    if count < 2:
        return float("nan")
    return STUDENT_T.get(count - 1, 2.0) * float(values.std(ddof=1)) / float(np.sqrt(count))


def against_naive(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting, system, drafts and objective, with means over the seeds.

    Returns:
        ``CELL, basis, system, drafts, objective, seeds, speedup, speedup_ci, cost_saved, cost_saved_ci, bound_saved`` (the
        share that the bound allows in the plan's own time; NaN where it was not computed), ``time_s, gpu_s``.
    """
    steps = table[table["part"] == "system"].fillna({"objective": ""})
    naive = steps[steps["system"] == "naive"].set_index([*CELL, "seed"])[["time_s", "gpu_s"]]
    steps = steps.join(naive.add_suffix("_naive"), on=[*CELL, "seed"])
    steps = steps.assign(
        speedup=steps["time_s_naive"] / steps["time_s"], cost_saved=1 - steps["gpu_s"] / steps["gpu_s_naive"],
        bound_saved=1 - steps["bound_gpu_s"] / steps["gpu_s_naive"],
    )  # fmt: skip
    rows, names = [], [*CELL, "basis", "system", "drafts", "objective"]
    for key, of in steps.groupby(names, sort=False):
        means = {name: float(of[name].mean()) for name in ("speedup", "cost_saved", "bound_saved", "time_s", "gpu_s")}
        widths = {f"{name}_ci": half_width(of[name]) for name in ("speedup", "cost_saved")}
        rows.append({**dict(zip(names, key, strict=True)), "seeds": len(of), **means, **widths})
    return pd.DataFrame(rows)


def bounds(table: pd.DataFrame, part: str = BOUND) -> pd.DataFrame:
    """Return one row per setting and drafts: what the bound allows against the naive system, means over the seeds.

    Args:
        part: ``BOUND``, of policies with the setting's size of actors, or ``BOUND_SIZED``, of policies with any size.

    Returns:
        ``CELL, drafts, saved at 1.35x, saved at 2x, most_speedup``; negative infinity where no policy is that fast.
    """
    steps = table[(table["part"] == "system") & (table["system"] == "naive")].set_index([*CELL, "seed"])[["time_s", "gpu_s"]]
    rows = table[table["part"] == part].join(steps.add_suffix("_naive"), on=[*CELL, "seed"])
    found = []
    for key, of in rows.groupby([*CELL, "drafts"], sort=False):
        saved = {f"saved at {name}": float((1 - part["gpu_s"] / part["gpu_s_naive"]).mean())
                 for name, part in of.groupby("objective") if name != "least time"}  # fmt: skip
        least = of[of["objective"] == "least time"]
        speed = float((least["time_s_naive"] / least["time_s"]).mean())
        found.append({**dict(zip([*CELL, "drafts"], key, strict=True)), **saved, "most_speedup": speed})
    return pd.DataFrame(found)


def fair(table: pd.DataFrame, any_size: bool = False) -> dict[tuple[tuple[str, ...], str], Fair]:
    """Return (setting, drafts) to everything together against elastic plain with prefix caching.

    Args:
        any_size: both may choose the size of actors.

    Between executed plans (means over the seeds) the lower convex hull counts: steps alternate between two plans. With drafts,
    plans without them count, too. Seeds that were not executed with drafts are left out there.
    """
    steps, found = table[table["part"] == "system"], {}
    for cell, of in steps.groupby(CELL, sort=False):
        together = of[of["system"] == (TOGETHER_SIZED if any_size else TOGETHER)]
        for drafts in together["drafts"].unique():
            seeds = together[together["drafts"] == drafts]["seed"]
            own = together[together["drafts"].isin([drafts, WITHOUT]) & together["seed"].isin(seeds)]
            means = own.groupby(["drafts", "objective"])[["time_s", "gpu_s"]].mean()
            plain = of[(of["system"] == (FAIR_SIZED if any_size else FAIR)) & of["seed"].isin(seeds)]
            points = np.column_stack([means[name] / plain[name].mean() for name in ("time_s", "gpu_s")])
            one = together[(together["drafts"] == drafts) & (together["objective"] == "equal time")]
            one = one.set_index("seed").sort_index()
            base = plain.set_index("seed").sort_index()
            ratios = one[["time_s", "gpu_s", "bound_gpu_s"]] / base[["time_s", "gpu_s", "gpu_s"]].to_numpy()
            time, cost, least = ratios.mean()
            found[tuple(map(str, cell)), str(drafts)] = Fair(
                1 - at_most(points, 1.0), 1 / at_most(points[:, ::-1], 1.0), float(time), float(1 - cost), float(1 - least)
            )
    return found


def at_most(points: np.ndarray, limit: float) -> float:
    """Return the least second coordinate on the lower convex hull of (N, 2) points whose first is at most ``limit``.

    NaN where every point is above the limit.

    Example:
        >>> import numpy as np
        >>> at_most(np.array([[0.5, 1.0], [1.5, 0.5]]), 1.0)
        0.75
    """
    inside, outside = points[points[:, 0] <= limit], points[points[:, 0] > limit]
    if not len(inside):
        return float("nan")
    mixed = [
        left[1] + (right[1] - left[1]) * (limit - left[0]) / (right[0] - left[0])
        for left in inside for right in outside
    ]  # fmt: skip
    return float(min([*inside[:, 1], *mixed]))


def levers(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``lever, expected, saved, used`` without drafts: means over settings and seeds, and the share that use it."""
    rows = table[table["part"] == "lever"].assign(used=lambda of: of["expected"] != 0)
    return rows.groupby("lever", sort=False)[["expected", "saved", "used"]].mean().reset_index()


def stages(table: pd.DataFrame) -> pd.Series:
    """Return stage to the geometric mean of T^w C^(1-w) relative to the naive system, over settings and seeds."""
    rows = table[table["part"] == "stage"]
    logs = np.log(rows["value"]).groupby(rows["stage"], sort=False).mean()
    return pd.Series(np.exp(logs), index=logs.index)


def counted(
    steps: pd.DataFrame, objective: str, speed: float, saved: float, drafts: str, model: str = "", system: str = TOGETHER
) -> tuple[int, int]:
    """Return in how many of how many settings the plan for an objective is at least so fast, and saves at least so much."""
    own = steps[(steps["system"] == system) & (steps["drafts"] == drafts) & (steps["objective"] == objective)]
    own = own[own["model"].str.endswith(model)]
    return int(((own["speedup"] >= speed) & (own["cost_saved"] >= saved)).sum()), len(own)


AIMS = (
    ("1.35x", 1.35, 0.37, "", {WITHOUT: 12 / 12}),
    ("1.35x", 1.35, 0.448, "", {WITHOUT: 6 / 12, "weak": None, "strong": 8 / 12}),
    ("2x", 2.0, 0.6, "7B", dict.fromkeys(DRAFTS, 5 / 6)),
)  # fmt: skip
"""Objective of the plan, speed and saving at once, models, and drafts to the share of the settings that is aimed at."""
FAIR_AIMS: dict[str, float | None] = {WITHOUT: 0.10, "weak": None, "strong": 0.15}
"""Drafts to the mean saving against elastic plain with prefix caching at equal time that is aimed at."""


def aims(table: pd.DataFrame) -> list[Finding]:
    """Return the aims of whole steps: what is aimed at, in place of what the paper says; what came out; the bound."""
    steps, rows = against_naive(table), []
    for system, part in ((TOGETHER, BOUND), (TOGETHER_SIZED, BOUND_SIZED)):
        limits, any_size = bounds(table, part), system == TOGETHER_SIZED
        for objective, speed, saved, model, wanted in AIMS:
            for drafts, share in wanted.items():
                if any_size and drafts != WITHOUT:
                    continue
                reached, total = counted(steps, objective, speed, saved, drafts, model, system)
                own = limits[(limits["drafts"] == drafts) & limits["model"].str.endswith(model)]
                possible = int((own[f"saved at {objective}"] >= saved).sum()) if len(own) else 0
                allowed = f"the bound allows {possible} of {len(own)}" if len(own) else ""
                text = f"{model}{': ' * bool(model)}{objective} and {saved * 100:g} % at once, {_named(drafts, any_size)}"
                ours = f"{reached} of {total}" if total else NOT_EXECUTED
                rows.append(Finding(text, _aim(share, len(own)), ours, allowed, _held(reached, share, total)))
        against = fair(table, any_size)
        means: dict[str, float | None] = {WITHOUT: None} if any_size else FAIR_AIMS
        for drafts, mean in means.items():
            own_fair = [one for (_, name), one in against.items() if name == drafts]
            cheaper, faster = np.array([one.cheaper for one in own_fair]), np.array([one.faster for one in own_fair])
            holds = "" if mean is None or not len(cheaper) else verdict([bool(np.nanmean(cheaper) >= mean)])
            than = f"than elastic plain with prefix caching at equal {{}}, {_named(drafts, any_size)}"
            rows.append(Finding(f"cheaper {than.format('time')}", "" if mean is None else f"aim: {mean:.0%} in the mean",
                                _mean_of(cheaper, ".1%"), "", holds))  # fmt: skip
            rows.append(Finding(f"faster {than.format('cost')}", "", _mean_of(faster, ".2f", "x"), "", ""))
    return rows


def _named(drafts: str, any_size: bool) -> str:
    return ("without drafts" if drafts == WITHOUT else f"{drafts} drafts") + ", any size of actors" * any_size


def _aim(share: float | None, settings: int) -> str:
    return "" if share is None or not settings else f"aim: {math.ceil(share * settings - 1e-9)} of {settings}"


def _held(reached: int, share: float | None, total: int) -> str:
    """Return whether so many settings reach the aim, in part where some do; nothing without an aim."""
    if share is None or not total:
        return ""
    return "yes" if reached >= share * total - 1e-9 else "in part" if reached else "no"


def _mean_of(values: np.ndarray, form: str, unit: str = "") -> str:
    """Return mean, least and most of the known values."""
    known = values[~np.isnan(values)]
    if not len(known):
        return NOT_EXECUTED
    return f"{known.mean():{form}}{unit} ({known.min():{form}} to {known.max():{form}})"
