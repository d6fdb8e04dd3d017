"""Measures a latency profile from the lines that an engine prints: running requests, and tokens per second since the last line.

A line whose engine runs B requests and generates g tokens/s took ``B / g`` seconds per token of a request. Over lines that is
``base + slope * B``, and where prompts were fed at p tokens/s, ``prefill * p * B / g`` more; the three are fitted by least
squares of relative errors.

A line is an average over an interval, and B is of one moment. So the first line of a rollout, which also covers the time before
it, is left out, and so is the line at which nothing runs any more. For the others B is either that of the moment or the mean of
the moment and the line before. Both are fitted, with and without prompts, and the fit that predicts held-out lines best is
taken (``held_out_errors.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.latency.fit import residuals
from rlhfless.latency.held_out_errors import HeldOut, closest, held_out
from rlhfless.latency.profile import SCHEMA, SCHEMA_VERSION
from rlhfless.latency.shipped import ProfileError
from solver.model.affine_fit import fit_nonnegative
from solver.model.ordered_sums import dot
from solver.model.plurals import counted
from solver.model.workload import FloatArray

DAY_S = 86_400.0
PAUSE_S, PAUSE_LINES = 15.0, 2.5  # a gap above both, the second in usual intervals, ends a rollout
FEWEST_LINES = 5
LEAST_SPREAD = 2.0  # largest batch over smallest, below which a base and a slope cannot be distinguished
FEWEST_PROMPT_LINES = 3
LONGEST_CONTEXT = 1 << 20
UNLIMITED_KV_TOKENS = 1 << 40
MOMENT, BETWEEN = "the requests at each line", "the mean of the requests at each line and the line before"


def intervals(lines: pd.DataFrame) -> pd.DataFrame:
    """Return one row per line of statistics that stands for an interval of a rollout, in the order of each engine.

    Lines of an idle engine are left out. A rollout begins after an idle line, or after a pause without lines.

    Args:
        lines: ``engine, time_s, running, generated_tokens_per_s``, and further columns of an engine's lines, which are kept.

    Returns:
        The lines with ``rollout``, a number; ``seconds`` and ``most_seconds`` of the interval, which are NaN where they are
        unknown, and differ only for a line after a pause (an engine that prints only while it works averages over the pause);
        ``before``, the requests at the line before, NaN for the first line of a rollout.
    """
    known = lines.dropna(subset=["running", "generated_tokens_per_s"])
    parts, rollouts = [], 0
    for _, of_engine in known.groupby("engine", sort=False):
        part = of_engine.assign(rollout=0, seconds=np.nan, most_seconds=np.nan, before=np.nan)
        since = part["time_s"].diff().to_numpy(dtype=float)
        since = np.where(since < -DAY_S / 2, since + DAY_S, since)
        positive = since[since > 0]
        usual = float(np.median(positive)) if len(positive) else np.nan
        pause = since > max(PAUSE_S, PAUSE_LINES * usual)
        running = part["running"].to_numpy(dtype=float)
        idle = (running == 0) & (part["generated_tokens_per_s"].to_numpy(dtype=float) == 0)
        ended = np.concatenate([[True], running[:-1] == 0])
        first = ended | pause
        part["rollout"] = rollouts + np.cumsum(first)
        part["seconds"] = np.where(np.isnan(since) | pause | (since < 0), usual, since)
        part["most_seconds"] = np.where(pause, since, part["seconds"])
        part["before"] = np.where(first, np.nan, np.concatenate([[np.nan], running[:-1]]))
        rollouts = int(part["rollout"].max())
        parts.append(part[~idle])
    kept = pd.concat(parts) if parts else known.assign(rollout=0, seconds=np.nan, most_seconds=np.nan, before=np.nan)
    return kept.reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class EngineFit:
    """Seconds per token of a request against the requests that run on one engine, fitted to its lines.

    Attributes:
        base_s, per_running_s: the fit. prefill_per_token_s: seconds that each prompt token adds; None where it is unknown.
        batch: (N,) requests of the lines that were used. token_s: (N,) seconds per token of a request, as measured.
        errors: (N,) relative errors of the fit at them. checked: predictions of lines that were held out.
        read_as: what the requests of a line are, in words.
        most_prompt_tokens_per_s: most of one engine, of lines that were left out, too; None where none has any.
        drafted: the engine decoded with drafts, so that a token took less than an iteration.
    """

    base_s: float
    per_running_s: float
    prefill_per_token_s: float | None
    batch: FloatArray
    token_s: FloatArray
    errors: FloatArray
    checked: HeldOut
    read_as: str
    most_prompt_tokens_per_s: float | None = None
    drafted: bool = False

    @property
    def held_out(self) -> str:
        """What was held out, in words."""
        return self.checked.how.replace("times of one step", "lines of one rollout").replace("steps", "rollouts")

    def token_seconds(self, running: float) -> float:
        """Return the seconds per token of a request while so many run and no prompt is fed."""
        return self.base_s + self.per_running_s * running


def fit_engine(lines: pd.DataFrame, source: str) -> EngineFit:
    """Fit the seconds per token of an engine to its lines; see above. Replicas are taken to be alike.

    Args:
        lines: columns of ``intervals``; further ``prompt_tokens_per_s`` and ``engines`` (engines that a line adds up).
        source: the log, for messages.

    Raises:
        ProfileError: too few lines, or batches too alike to tell a base from a slope; one sentence.
    """
    used = intervals(lines)
    drafted = "tokens_per_pass" in lines and bool(lines["tokens_per_pass"].gt(1).any())
    fed = used["prompt_tokens_per_s"] / used["engines"]
    most = float(fed.max()) if fed.gt(0).any() else None
    used = used[used["before"].notna() & (used["running"] > 0) & (used["generated_tokens_per_s"] > 0)]
    if len(used) < FEWEST_LINES:
        raise ProfileError(
            f"{source}: has {counted(len(used), 'line')} of an engine that can be used (the first and the last of each rollout "
            f"mix); at least {FEWEST_LINES} are needed, of one rollout from its beginning to its end"
        )
    moment, engines = used["running"].to_numpy(dtype=float), used["engines"].to_numpy(dtype=float)
    if moment.max() < LEAST_SPREAD * moment.min():
        raise ProfileError(
            f"{source}: its engine ran {moment.min():,.0f} to {moment.max():,.0f} requests at all {len(used)} lines, so time "
            "per token cannot be separated from time per request; a rollout until its last responses is needed"
        )
    rate, prompts = (used[name].fillna(0).to_numpy(dtype=float) for name in ("generated_tokens_per_s", "prompt_tokens_per_s"))
    prompts = prompts / engines
    between = (moment + used["before"].to_numpy(dtype=float)) / 2
    models = (False, True) if np.count_nonzero(prompts > 0) >= FEWEST_PROMPT_LINES else (False,)
    readings = [
        _Reading(read_as, running / engines, running / rate, prompts if with_prompts else None)
        for with_prompts, (read_as, running) in product(models, ((MOMENT, moment), (BETWEEN, between)))
    ]
    checked = [held_out(one.token_s, used["rollout"], one.predicted) for one in readings]
    best = closest(checked)
    reading = readings[best]
    (base, slope, *prefill), errors = fit_nonnegative(reading.columns, reading.token_s)
    prefill_token = float(prefill[0]) if prefill and prefill[0] > 0 else None
    return EngineFit(
        float(base), float(slope), prefill_token, reading.batch, reading.token_s, errors, checked[best], reading.read_as, most,
        drafted,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Reading:
    """One way to read the lines: what the requests of a line are, and whether prompts count.

    Attributes:
        read_as: what the requests are, in words. batch: (N,) of them. token_s: (N,) seconds per token of one of them.
        prompts: (N,) prompt tokens per second of an engine; None where they do not count.
    """

    read_as: str
    batch: FloatArray
    token_s: FloatArray
    prompts: FloatArray | None

    @property
    def columns(self) -> FloatArray:
        """Return (N, 2 or 3) what the seconds per token are made of: a base, the batch, and prompts."""
        columns = [np.ones(len(self.batch)), self.batch]
        return np.stack(columns if self.prompts is None else [*columns, self.prompts * self.token_s], axis=1)

    def predicted(self, used: np.ndarray) -> FloatArray:
        """Return (N,) seconds per token by the fit to the (N,) used lines."""
        return dot(self.columns, fit_nonnegative(self.columns[used], self.token_s[used])[0])


def profile_of_engine(
    fit: EngineFit,
    base: Mapping[str, Any] | None,
    kv_cache_tokens: float | None,
    *,
    name: str,
    origin: str,
    command: str,
    date: str,
) -> dict[str, Any]:
    """Return a latency profile measured from an engine's lines, ready for ``save_profile``.

    Lines do not tell what reading the KV cache takes from what a request takes, so the time grows with requests alone. What
    they do not tell at all is the base profile's. Without one the actor is one GPU of an unknown kind; its start, weight sync
    and transfers are unknown and charged with 0; its memory is the engine's own number, or unlimited. ``assumptions`` says so.

    Args:
        base: of ``read_profile``, or None. kv_cache_tokens: that fit into the engine's memory, where it states them.
    """
    slots = int(np.ceil(fit.batch.max()))
    batch = np.unique(np.concatenate([[1.0], np.ceil(fit.batch)]))
    seconds = np.maximum(np.round(fit.base_s + fit.per_running_s * batch, 9), 1e-9)
    prefill_s, prefill = _prefill(fit)
    assumptions = {
        "table": f"time per token of a request, fitted to {counted(len(fit.batch), 'line')} of the engine with {fit.read_as}; "
        "what contexts take is part of what requests take, as long as theirs are",
        "prefill": prefill,
        "max_batch": "the most requests that were seen to run; the engine's own limit may be higher",
    }
    if fit.drafted:
        assumptions["drafts"] = "the engine decoded with drafts, so times are those of tokens with such drafts at such batches"
    rest, assumed = unstated(base)
    assumptions |= assumed
    if kv_cache_tokens is not None:
        rest["kv_capacity_tokens"] = int(kv_cache_tokens)
        assumptions["kv_capacity_tokens"] = f"{kv_cache_tokens:,.0f}, as the engine states it in the log"
    errors = residuals(fit.errors)
    return {
        **rest, "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "name": name, "origin": origin, "command": command,
        "date": date, "assumptions": assumptions,
        "fit": {
            "base_s": fit.base_s, "per_response_s": fit.per_running_s, "per_kv_token_s": 0.0, **errors,
            "points": len(fit.batch), "over": "the engine's lines",
        },
        "prefill": {"base_s": 0.0, "per_token_s": prefill_s, "per_join_s": 0.0, "per_end_s": 0.0},
        "max_batch": slots,
        "table": {
            "batch": [int(value) for value in batch], "context_tokens": [1, LONGEST_CONTEXT],
            "step_s": np.repeat(seconds[:, None], 2, axis=1).tolist(),
        },
        "engine_lines": {
            "lines": len(fit.batch), "errors_are_of": fit.held_out, **residuals(fit.checked.errors),
            "constant": residuals(fit.checked.constant_errors), "read_as": fit.read_as,
        },
    }  # fmt: skip


def unstated(base: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what an engine does not tell of its profile, and where it is from: the base profile, or it is unknown.

    Args:
        base: of ``read_profile``, or None.
    """
    if base is None:
        unknown = {
            "model": "unknown", "kind": "unknown", "gpus_per_actor": 1, "precision": "unknown", "licence": "the log's",
            "start_s": 0.0, "sync_s": 0.0, "transfer_base_s": 0.0, "transfer_per_kv_token_s": 0.0,
            "link": {"what": "unknown", "kv_bytes_per_token": 0.0}, "kv_capacity_tokens": UNLIMITED_KV_TOKENS,
        }  # fmt: skip
        return unknown, {
            "others": "unknown: kind of GPU (one per actor); start-up, weight sync and transfers, charged with 0",
            "kv_capacity_tokens": "unknown, so it is not limited",
        }
    known = {key: value for key, value in base.items() if key not in ("calibration", "kv_capacity")}
    return known, {
        "others": f"{base['name']}'s: model, GPUs, start-up, weight sync, transfers",
        "kv_capacity_tokens": f"{base['name']}'s",
    }


def _prefill(fit: EngineFit) -> tuple[float, str]:
    """Return the seconds of a prompt token that are charged, and where they come from."""
    if fit.prefill_per_token_s is not None:
        return fit.prefill_per_token_s, "fitted to the prompt tokens per second of the engine's lines"
    if fit.most_prompt_tokens_per_s is not None:
        return 1 / fit.most_prompt_tokens_per_s, (
            "unknown: the lines do not tell it apart; taken is an upper bound, as a line has "
            f"{fit.most_prompt_tokens_per_s:,.0f} prompt tokens per second beside what it decodes"
        )
    return fit.per_running_s, "unknown: no line has prompt tokens per second; taken is what a request adds to an iteration"
