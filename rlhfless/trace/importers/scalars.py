"""The table of a run's scalars per step: seconds of its phases and statistics of its lengths, stored as ``scalars.parquet``.

The table is in the trace folder, but it is none of the trace's four tables. A trace records single responses; the scalars are
what the framework itself measured, for calibration and cross-checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from rlhfless.trace import storage
from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.record import Record, finite, is_number
from rlhfless.trace.limits import Guard, Limits
from rlhfless.trace.schema.casts import clean, listed, shown

FILE = "scalars.parquet"

STANDARD = {
    "step_s": "seconds of the whole step",
    "generate_s": "seconds of generation",
    "wait_s": "seconds that learning waits for generation, where both work at the same time",
    "prepare_s": "seconds of rewards, log probabilities, values and advantages",
    "learn_s": "seconds of learning, of actor and critic",
    "sync_s": "seconds of sending weights to the engines",
    "request_s_mean": "mean seconds of a response's generation, its tools and waiting included",
    "request_s_max": "seconds of the slowest response's generation",
    "responses": "responses of the step",
    "response_tokens_mean": "mean length of a response, in tokens",
    "response_tokens_min": "shortest response, in tokens",
    "response_tokens_max": "longest response, in tokens",
    "prompt_tokens_mean": "mean length of a prompt, in tokens",
    "tokens_total": "tokens of all prompts and responses of the step",
    "sequence_tokens_mean": "mean length of a prompt with its response, in tokens",
    "tokens_per_s": "tokens of the step per second, as the framework states it",
    "tokens_per_gpu_s": "response tokens per second and GPU that generates, as the framework states it",
    "truncation_rate": "share of responses that ended at the limit",
    "no_signal_rate": "share of prompts whose responses have equal rewards, so that GRPO learns nothing from them",
    "generators_idle_rate": "share of the time in which the GPUs that generate are paused, as the framework states it",
    "off_policy_steps": "most versions of the weights between a response and its learning",
    "gpus": "GPUs of the whole run",
    "gpus_generate": "GPUs that generate",
    "gpus_train": "GPUs that learn",
    "reward_mean": "mean reward",
    "run_s": "seconds of the whole run, in a table with one row per run",
    "steps_done": "steps that the run took, in a table with one row per run",
    "items": "samples or other things that the run processed, in a table with one row per run",
    "items_per_s": "samples or other things that the run processes per second, in a table with one row per run",
    "batch": "responses that are decoded at the same time, in a table with one row per run",
    "gpu_hours": "GPU-hours of the whole run, in a table with one row per run",
    "usd_per_gpu_hour": "price of one of the run's GPUs, in a table with one row per run",
    "tokens_per_pass": "tokens of a verification of drafts, the engine's own one included, in a table with one row per run",
}
"""Columns with one meaning for every framework; a log's own names stand behind them as they were logged."""

RUN = "run"
"""Column of texts: name of the run, in a log of several runs."""


def numbers(record: Record, known: Iterable[str]) -> dict[str, float]:
    """Return the fields that are finite numbers. Texts, lists and NaN are skipped in fields that are not known.

    Args:
        known: names of which it is known what they mean, see ``names.py``.

    Raises:
        TraceError: a field with a known name is neither a number nor null.
    """
    for name in known:
        record.number(name)
    return {
        clean(str(name)): number
        for name, value in record.values.items()
        if is_number(value) and (number := finite(value)) is not None
    }


def scalars_frame(rows: Iterable[Mapping[str, Any]]) -> tuple[pd.DataFrame, int]:
    """Return the table of all steps, one row each, sorted by step, and how many steps were logged again (the last one counts).

    The steps of a run stand together where the rows name runs, which are in the order of the log.

    Args:
        rows: ``step`` and numbers, in the order of the log, and ``run`` where there are several.
    """
    steps: dict[tuple[str, int], dict[str, Any]] = {}
    again = set()
    for row in rows:
        key = (str(row.get(RUN, "")), row["step"])
        if key in steps:
            again.add(key)
        steps[key] = dict(row)
    place = {name: at for at, name in enumerate(dict.fromkeys(run for run, _ in steps))}
    ordered = [steps[key] for key in sorted(steps, key=lambda key: (place[key[0]], key[1]))]
    frame = pd.DataFrame(ordered, columns=None if steps else ["step"]).astype({"step": np.int64})
    further = sorted(set(frame.columns) - set(STANDARD) - {"step", RUN})
    named = [RUN] if RUN in frame.columns else []
    if named:
        frame[RUN] = frame[RUN].fillna("").astype(str).astype(object)
    return frame[[*named, "step", *(name for name in STANDARD if name in frame.columns), *further]], len(again)


def runs_of(frame: pd.DataFrame) -> list[str]:
    """Return the names of the runs, in the table's order; empty if it names none."""
    return [] if RUN not in frame.columns else [str(name) for name in frame[RUN].unique()]


def rows_of_run(frame: pd.DataFrame, run: str, source: object) -> pd.DataFrame:
    """Return the rows of one run, without the names of runs and without columns that the run does not have.

    Args:
        source: the log, for messages.

    Raises:
        TraceError: the table names no such run.
    """
    names = runs_of(frame)
    if run not in names:
        known = f"one of {listed(names)} is needed" if names else "it does not name its runs, so leave --run out"
        raise TraceError(f"{source}: has no run {shown(run)}; {known}")
    return frame[frame[RUN] == run].drop(columns=RUN).dropna(axis="columns", how="all").reset_index(drop=True)


def joined(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Return the scalars of two logs of the same runs; where both have a value, the later log's counts.

    Args:
        before, after: one row per ``step`` each, or per ``run`` and ``step``.

    Raises:
        TraceError: one of them names its runs and the other does not.
    """
    if (RUN in before.columns) != (RUN in after.columns):
        raise TraceError("of two tables of scalars, one names its runs and the other does not; put them into two folders")
    key = [RUN, "step"] if RUN in after.columns else ["step"]
    both = after.set_index(key).combine_first(before.set_index(key)).reset_index()
    return scalars_frame(both.to_dict("records"))[0]


def write_scalars(folder: Path, frame: pd.DataFrame) -> Path:
    """Write the table into a folder, atomically.

    Raises:
        TraceError: the folder cannot be written.
    """
    types = {"step": pa.int64(), RUN: pa.string()}
    fields = [pa.field(name, types.get(name, pa.float64()), metadata=_doc(name)) for name in frame.columns]
    path = folder / FILE
    storage.write_parquet(path, pa.Table.from_pandas(frame, schema=pa.schema(fields), preserve_index=False))
    return path


def read_scalars(folder: str | Path, limits: Limits | None = None) -> pd.DataFrame:
    """Return the averages per step that an import wrote into a folder; no rows if the log had none.

    Raises:
        TraceError: the file is damaged, or larger than the limits.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return pd.DataFrame({"step": np.zeros(0, dtype=np.int64)})
    return storage.read_frame(path, guard=Guard(limits))


def _doc(name: str) -> dict[str, str] | None:
    return {"doc": STANDARD[name]} if name in STANDARD else None
