"""Whole steps of policies, beside ways to generate and to learn: rows of one comparison."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.analysis.framework_defaults import DISPATCHES
from rlhfless.analysis.what_ifs.compare import data_columns
from rlhfless.analysis.what_ifs.outcome import DataChange, RunToChange
from rlhfless.analysis.what_ifs.whole_steps import learner_gpus_of, learning_s, least_work_s, step_tokens
from rlhfless.simulate import Comparison, SimulationConfig
from rlhfless.trace.schema.prices import dollars

HELD = "A framework's own dispatch: all GPUs are held throughout."


def whole_steps_of(found: Comparison, run: RunToChange, settings: Mapping[str, SimulationConfig]) -> Comparison:
    """Return a comparison of generation as one of whole steps, with the run's preparation, learning and sending of weights.

    On GPUs that generate as well, they take the same GPU-seconds on any number of them. A learner's own GPUs are paid for
    during the whole step. Every response is learned from right after its step.

    Beside ways of a log, a dispatch of ``DISPATCHES`` stands for a framework that holds all GPUs throughout, as the way "as
    logged" does. All other policies, and all of an executed run, pay for GPUs until these are released.

    Args:
        found: of the steps of ``run``, generation alone. settings: of each variant.
    """
    table, after_s = found.table, learning_s(run)
    learn_s = table["step"].map({one.step: after_s(step_tokens(one).sum()) for one in run.logged})
    own_price = run.setting.cluster.usd_per_gpu_hour
    price = table["variant"].map({name: setting.cluster.usd_per_gpu_hour / 3600 for name, setting in settings.items()})
    sync_s = pd.Series(run.phases.sync_s, index=table.index)
    if run.setup.colocated:
        slower = learner_gpus_of(run) / table["gpus"].map(run.setup.learns_on)
        gpu_s = learner_gpus_of(run) * (learn_s + sync_s)
        learn_s, sync_s, idle_gpu_s = slower * learn_s, slower * sync_s, 0.0 * learn_s
        usd, held_gpus = dollars(gpu_s, price), table["gpus"] - table["gpus"].map(run.setup.learns_on)
    else:
        gpu_s = run.setup.learner_gpus * (table["time_s"] + learn_s + sync_s)
        idle_gpu_s = run.setup.learner_gpus * table["time_s"]
        usd, held_gpus = dollars(gpu_s, pd.Series(own_price / 3600, index=table.index)), table["gpus"]
    held = table["policy"].isin(DISPATCHES) & (not run.executed)
    held_gpu_s = table["gpus"] * table["time_s"] - table["gpu_seconds"] + held_gpus * (learn_s + sync_s)
    held_gpu_s = held_gpu_s.where(held, 0.0)
    added = {
        "time_s": learn_s + sync_s, "gpu_seconds": gpu_s + held_gpu_s, "idle_gpu_seconds": idle_gpu_s + held_gpu_s,
        "bound_gpu_seconds": gpu_s, "cost_usd": usd + dollars(held_gpu_s, price),
    }  # fmt: skip
    whole = table.assign(**{name: table[name] + more for name, more in added.items()})
    least_s = [
        _least_s(run, settings[row["variant"]], row, of_row, sent_s)
        for row, of_row, sent_s in zip(whole.to_dict("records"), learn_s, sync_s, strict=True)
    ]
    lengths = np.concatenate([step.truth.response_tokens for step in run.logged])
    learned = DataChange(len(lengths), int(lengths.sum()))
    per_token = whole.groupby("variant")["time_s"].transform("sum") / (learned.learned_tokens or math.nan)
    of_ways = {
        "way": "",
        "change": np.where(held, HELD, ""),
        "least_time_s": least_s,
        "fill_s": 0.0,
        "seconds_per_token": per_token,
    }
    return replace(found, table=whole.assign(**of_ways, **data_columns(learned)), bounds=(), row_bounds={})


def _least_s(run: RunToChange, setting: SimulationConfig, row: Mapping[Hashable, Any], learn_s: float, sync_s: float) -> float:
    """Return a lower bound on the time of a whole step on the GPUs of a variant; NaN where it drafts or mixes sizes.

    Args:
        row: of whole steps. learn_s, sync_s: of the step, on these GPUs.
    """
    if setting.drafts is not None or setting.sizes:
        return math.nan
    (truth,) = (one.truth for one in run.logged if one.step == row["step"])
    return least_work_s(replace(run, setting=setting), truth, learn_s, row["time_s"] - sync_s) + sync_s


def in_order(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the rows by the order of their variants."""
    rows = dict(iter(table.groupby("variant", sort=False)))
    return pd.concat([rows[name] for name in names if name in rows], ignore_index=True)
