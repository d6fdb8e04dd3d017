"""Calibrates a latency profile to a log: scales a base profile until its times match those in the log.

Inputs are the log's tables of responses and steps, and a base profile. Three numbers are fitted, by least squares of relative
errors: a factor for the time of an iteration without KV cache, one for reading the KV cache, and a one-time cost. That cost is
per step, or per response if single responses have times. The factor for the KV cache is within ``MAX_RATIO`` times the other;
where the log hardly distinguishes them, they are equal.

- **Responses with times** (``start_s, end_s``, and ``first_token_s`` if known): a response of L tokens decodes in L iterations.
  Each is charged for the batch and the KV tokens of its actor at that time, known from the other responses' times.
- **Steps with seconds of generation**: the longest response's iterations, with the load of all divided by the number of actors.
  This is exact for an actor that starts with all its responses; with more responses than slots, iterations with a full batch
  are counted.

One factor for the whole base profile replaces the three numbers if it predicts held-out times better. All errors are of
held-out times (``held_out_errors.py``), next to those of a constant. If the constant is closer than any fit, the log does not
show what its times depend on. Then the base profile keeps its shape and is scaled so that its median time is the constant.

The result is a new profile. ``rlhfless/analysis/calibration.py`` fits one factor only, for the simulated times of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.latency.fit import fit_table, residuals
from rlhfless.latency.held_out_errors import HeldOut, closest, held_out
from rlhfless.latency.profile import mixed_prefill, table_of
from rlhfless.latency.shipped import ProfileError
from solver.model.affine_fit import fit_nonnegative, triangle
from solver.model.iteration_table import IterationTable
from solver.model.latency import LatencyModel
from solver.model.ordered_sums import dot
from solver.model.plurals import counted
from solver.model.workload import FloatArray

FEWEST_STEPS = 8
FEWEST_RESPONSES = 50
MAX_RATIO = 5.0
RATIOS = np.geomspace(1 / MAX_RATIO, MAX_RATIO, 65)  # factor of the KV cache over that of the rest; 1 among them
AS_GOOD = 1.005  # times the least sum of squares
SPREAD = 0.6  # assumed standard deviation of lengths over their mean, where only means are logged


class Times(NamedTuple):
    """(N,) measured seconds, each with its step and the base profile's seconds, split into KV cache and all else."""

    what: str
    seconds: FloatArray
    decode_s: FloatArray
    kv_s: FloatArray
    step_of: np.ndarray


class CalibrationFactors(NamedTuple):
    """The fitted numbers: factors for the base profile, and the one-time cost per step or response."""

    decode: float
    kv: float
    once_s: float

    def predicted_s(self, times: Times) -> FloatArray:
        """Return (N,) predicted seconds of all times."""
        return self.decode * times.decode_s + self.kv * times.kv_s + self.once_s


Fit = Callable[[Times, np.ndarray], CalibrationFactors]
"""Numbers from the times and (N,) bool, which of them are used."""


class LogCalibration(NamedTuple):
    """Result of a calibration.

    Attributes:
        what: the times are of, ``responses`` or ``steps``. factors: the fitted numbers. checked: errors on held-out times.
        steps: number of steps with times. by_constant: the factors only give the log's median time.
    """

    what: str
    factors: CalibrationFactors
    checked: HeldOut
    steps: int
    by_constant: bool = False

    @property
    def what_was_fitted(self) -> str:
        """Return a sentence that describes the fit."""
        if self.by_constant:
            return "one factor that gives the log's median time"
        return "one factor" if self.factors.decode == self.factors.kv and not self.factors.once_s else "three numbers"


def times_of(rollouts: pd.DataFrame | None, scalars: pd.DataFrame, base: LatencyModel, actors: int, source: str) -> Times:
    """Return the measured times of a log: those of responses if there are any, else its steps' seconds of generation.

    Args:
        rollouts: with the trace's columns; None if only scalars were logged. scalars: of ``read_scalars`` or
            ``with_step_times``.
        actors: number of generating actors, for logs that do not name them. source: the log, for messages.

    Raises:
        ProfileError: no times, or too few; one sentence.
    """
    if rollouts is not None and {"start_s", "end_s"} <= set(rollouts.columns):
        timed = rollouts.dropna(subset=["start_s", "end_s"])
        if len(timed):
            return _of_responses(timed, base, actors, source)
    if "generate_s" in scalars.columns and scalars["generate_s"].notna().any():
        return _of_steps(rollouts, scalars.dropna(subset=["generate_s"]), base, actors, source)
    whole = " (it has seconds of whole steps, but those of generation alone are needed)" if "step_s" in scalars.columns else ""
    raise ProfileError(
        f"{source}: has no times to calibrate with{whole}; responses with start_s and end_s, or the seconds of "
        "generation of every step (logged by verl and OpenRLHF, or from recorded spans), are needed"
    )


def calibrate(times: Times) -> LogCalibration:
    """Fit the three numbers, or one factor for all if that predicts held-out times better; see above."""
    fit, checked = _best((_three, _one), times)
    constant = checked.constant_is_better
    if constant:
        fit, checked = _best((_to_constant,), times)
    factors = fit(times, np.ones(len(times.seconds), dtype=bool))
    return LogCalibration(times.what, factors, checked, len(np.unique(times.step_of)), constant)


def _best(fits: Sequence[Fit], times: Times) -> tuple[Fit, HeldOut]:
    """Return the fit that predicts held-out times best, with its held-out errors."""

    def predicting(fit: Fit) -> Callable[[np.ndarray], FloatArray]:
        return lambda used: fit(times, used).predicted_s(times)

    checked = [held_out(times.seconds, times.step_of, predicting(fit)) for fit in fits]
    at = closest(checked)
    return fits[at], checked[at]


def _three(times: Times, used: np.ndarray) -> CalibrationFactors:
    """Return the three numbers from the (N,) used times, which one triangle represents."""
    seconds = times.seconds[used]
    terms = np.stack([times.decode_s[used], times.kv_s[used], np.ones(len(seconds)), seconds], axis=1)
    decode_s, kv_s, once, took = triangle(terms / seconds[:, None]).T
    candidates = []
    for ratio in RATIOS:
        columns = np.stack([decode_s + ratio * kv_s, once], axis=1)
        (factor, once_s), errors = fit_nonnegative(columns, took, np.ones(len(took)))
        numbers = CalibrationFactors(float(factor), float(factor * ratio), float(once_s))
        candidates.append((float(dot(errors, errors)), abs(float(np.log(ratio))), numbers))
    smallest = min(squares for squares, _, _ in candidates)
    return min((f for f in candidates if f[0] <= AS_GOOD * smallest + 1e-15), key=lambda f: f[1])[2]


def _one(times: Times, used: np.ndarray) -> CalibrationFactors:
    """Return one factor for the whole base profile from the (N,) used times."""
    columns = (times.decode_s + times.kv_s)[used, None]
    factor = float(fit_nonnegative(columns, times.seconds[used])[0][0])
    return CalibrationFactors(factor, factor, 0.0)


def _to_constant(times: Times, used: np.ndarray) -> CalibrationFactors:
    """Return one factor by which the median time is that of the (N,) used times."""
    factor = float(np.median(times.seconds[used]) / np.median((times.decode_s + times.kv_s)[used]))
    return CalibrationFactors(factor, factor, 0.0)


def calibrated_profile(
    base: Mapping[str, Any], fitted: LogCalibration, *, name: str, origin: str, command: str, date: str
) -> dict[str, Any]:
    """Return the base profile (of ``read_profile``) with the fitted numbers, ready for ``save_profile``.

    Raises:
        ProfileError: no part of the measured time is decoding, so no iteration time can be derived.
    """
    factors = fitted.factors
    if factors.decode <= 0:
        raise ProfileError(f"{origin}: times do not grow with the decoded tokens; times of generation alone are needed")
    table = table_of(base)
    kv_s = base["fit"]["per_kv_token_s"] * table.batch[:, None] * table.context_tokens[None, :]
    kv_s = np.minimum(kv_s, 0.99 * table.iteration_s)  # what the fit says may be more than there is
    iteration_s = np.round(factors.decode * (table.iteration_s - kv_s) + factors.kv * kv_s, 9)
    scaled = IterationTable(table.batch, table.context_tokens, np.maximum(iteration_s, 1e-9))
    fit = fit_table(scaled, base["max_batch"], base["kv_capacity_tokens"])
    once = {"sync_s": factors.once_s} if fitted.what == "steps" else {}
    prefill = dict(base["prefill"])
    if fitted.what == "responses":
        prefill |= {"per_join_s": factors.once_s, "per_end_s": 0.0}
    budget = base["prefill"].get("mixed", {}).get("token_budget")
    prefill |= mixed_prefill(scaled, fit, base["max_batch"], budget, base["kv_capacity_tokens"])
    return {
        **base, "name": name, "origin": origin, "command": command, "date": date, **once, "prefill": prefill,
        "assumptions": {
            **base["assumptions"],
            "table": f"the shape of {base['name']}'s, times {factors.decode:.4g}, the part that grows with KV {factors.kv:.4g}",
            "prefill": f"{base['name']}'s, but for what a response takes once where that was fitted",
            "others": f"start-up, transfers, slots and memory are {base['name']}'s",
        },
        "fit": {**asdict(fit), "over": base["fit"]["over"]},
        "table": {**base["table"], "step_s": scaled.iteration_s.tolist()},
        "calibration": {
            "what": fitted.what, "steps": fitted.steps, "times": len(fitted.checked.errors), **factors._asdict(),
            "by_constant": fitted.by_constant, "errors_are_of": fitted.checked.how,
            **residuals(fitted.checked.errors), "constant": residuals(fitted.checked.constant_errors),
        },
    }  # fmt: skip


def _of_steps(rollouts: pd.DataFrame | None, scalars: pd.DataFrame, base: LatencyModel, actors: int, source: str) -> Times:
    by_step = {} if rollouts is None else dict(tuple(rollouts.groupby("step")))
    rows = []
    for row in scalars.to_dict("records"):
        lengths = by_step.get(row["step"])
        if lengths is not None:
            tokens = lengths["response_tokens"].to_numpy(dtype=float)
            prompt = lengths["prompt_tokens"].fillna(0).to_numpy(dtype=float)
            total, longest, squares = tokens.sum(), tokens.max(), (prompt * tokens + tokens**2 / 2).sum()
        elif all(np.isfinite(row.get(name, np.nan)) for name in ("responses", "response_tokens_mean", "response_tokens_max")):
            count, mean = row["responses"], row["response_tokens_mean"]
            prompt_mean = row.get("prompt_tokens_mean", 0.0)
            total, longest = count * mean, row["response_tokens_max"]
            squares = total * (0.0 if np.isnan(prompt_mean) else prompt_mean) + count * mean**2 * (1 + SPREAD**2) / 2
        else:
            continue
        iterations = max(longest, total / (actors * base.max_batch))
        decode_s = base.base_s * iterations + base.per_response_s * total / actors
        if base.mixes and lengths is not None:
            decode_s += base.prefill_per_token_s * prompt.sum() / actors
        rows.append((row["generate_s"], decode_s, base.per_kv_token_s * squares / actors, row["step"]))
    if len(rows) < FEWEST_STEPS:
        raise ProfileError(
            f"{source}: has seconds of generation and lengths of {counted(len(rows), 'step')}; at least {FEWEST_STEPS} are "
            "needed (lengths from responses, or their number, mean and maximum from scalars)"
        )
    seconds, decode, kv, steps = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    _check(seconds, source)
    return Times("steps", seconds, decode, kv, steps)


def _of_responses(timed: pd.DataFrame, base: LatencyModel, actors: int, source: str) -> Times:
    first = timed["first_token_s"] if "first_token_s" in timed.columns else pd.Series(np.nan, index=timed.index)
    has_first_token = first.notna().to_numpy()
    begin = np.where(has_first_token, first, timed["start_s"]).astype(float)
    end, tokens = timed["end_s"].to_numpy(dtype=float), timed["response_tokens"].to_numpy(dtype=float)
    iterations = tokens - has_first_token  # the first token was there when the interval began
    used = (iterations >= 1) & (end > begin)
    if int(used.sum()) < FEWEST_RESPONSES:
        raise ProfileError(
            f"{source}: has usable times of {counted(int(used.sum()), 'response')}; at least {FEWEST_RESPONSES} are needed"
        )
    prompt = timed["prompt_tokens"].fillna(0).to_numpy(dtype=float)
    named = "actor" in timed.columns and bool(timed["actor"].notna().all())
    owner = timed["actor"].astype(str).to_numpy() if named else np.full(len(timed), "")
    batch, kv = np.ones(len(timed)), prompt + tokens / 2
    for name in np.unique(owner[used]):
        at = np.flatnonzero(used & (owner == name))
        batch[at], kv[at] = (x / (1 if named else actors) for x in _means(begin[at], end[at], prompt[at], iterations[at]))
    n = iterations[used]
    decode_s = n * (base.base_s + base.per_response_s * np.maximum(batch[used], 1.0))
    if base.mixes:
        decode_s += base.prefill_per_token_s * _prompts_fed(begin, end, prompt, owner, 1 if named else actors)[used]
    _check((end - begin)[used], source)
    return Times("responses", (end - begin)[used], decode_s, n * base.per_kv_token_s * kv[used], timed["step"].to_numpy()[used])


def _prompts_fed(begin: FloatArray, end: FloatArray, prompt: FloatArray, owner: np.ndarray, actors: int) -> FloatArray:
    """Return (n,) tokens of prompts that its actor feeds while each response decodes, in the iterations that begin others."""
    fed = np.zeros(len(begin))
    for name in np.unique(owner):
        own = np.flatnonzero(owner == name)
        order = own[np.argsort(begin[own], kind="stable")]
        until = np.concatenate([[0.0], np.cumsum(prompt[order])])
        low, high = (begin[order].searchsorted(at, side="right") for at in (begin[own], end[own]))
        fed[own] = (until[high] - until[low]) / actors
    return fed


def _means(begin: FloatArray, end: FloatArray, prompt: FloatArray, iterations: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (n,) mean batch and KV tokens of an actor while each of its responses decodes, tokens coming at even pace."""
    at = np.concatenate([begin, end])
    order = np.argsort(at, kind="stable")
    rate = iterations / (end - begin)
    origin = at.min()
    jumps = np.stack([np.ones(len(begin)), prompt - rate * (begin - origin), rate], axis=1)
    held = np.cumsum(np.concatenate([jumps, -jumps])[order], axis=0)  # batch, KV tokens at the origin, KV tokens per second
    t = at[order] - origin
    width, squares = np.diff(t), np.diff(t**2) / 2
    parts = np.stack([held[:-1, 0] * width, held[:-1, 1] * width + held[:-1, 2] * squares], axis=1)
    sums = np.concatenate([np.zeros((1, 2)), np.cumsum(parts, axis=0)])
    spent = sums[t.searchsorted(end - origin)] - sums[t.searchsorted(begin - origin)]
    return spent[:, 0] / (end - begin), spent[:, 1] / (end - begin)


def _check(seconds: FloatArray, source: str) -> None:
    if not np.all(np.isfinite(seconds)) or seconds.min() <= 0:
        raise ProfileError(f"{source}: has a time of {seconds.min():g} s; times above 0 are needed")
