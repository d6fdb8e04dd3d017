"""Numbers of learning per step, from the details of a trace's spans and events: mismatch, and held-out evaluations."""

from __future__ import annotations

import json

import pandas as pd

from rlhfless.trace.clock import clock_of
from rlhfless.trace.io import Trace
from rlhfless.trace.metrics.step_metrics import step_metrics

COLUMNS = ("learn_mismatch_mean", "eval_reward_mean", "eval_accuracy")


def learning_numbers(trace: Trace) -> pd.DataFrame:
    """Return one row per step of a run of ``rlhfless train``: ``step`` and ``COLUMNS``, NaN where a step has none.

    ``learn_mismatch_mean`` is the mean absolute difference of the log-probabilities of engine and learner under the same
    weights. Evaluations are those after a step's learning; that before the first step, if there is one, is in a row of step -1.

    Example:
        >>> from rlhfless.trace import read_trace
        >>> learning_numbers(read_trace("data/traces/arithmetic-grpo"))["step"].is_unique
        True
    """
    rows: dict[int, dict[str, float]] = {int(step): {} for step in trace.steps}
    spans, events = trace.spans, trace.events
    if len(spans):
        of_learning = spans[(spans["phase"] == "learn") & spans["detail"].notna()]
        for step, detail in zip(of_learning["step"], of_learning["detail"], strict=True):
            learned = json.loads(detail).get("learning")
            if isinstance(learned, dict) and "mismatch_mean" in learned:
                rows.setdefault(int(step), {})["learn_mismatch_mean"] = float(learned["mismatch_mean"])
    if len(events):
        for step, detail in events.loc[events["name"] == "evaluation", ["step", "detail"]].itertuples(index=False):
            numbers = json.loads(detail)
            if (after_steps := numbers.get("after_steps")) in (int(step), int(step) + 1):
                known = {f"eval_{name}": value for name, value in numbers.items() if f"eval_{name}" in COLUMNS}
                rows.setdefault(after_steps - 1, {}).update(known)
    table = [{"step": step, **numbers} for step, numbers in sorted(rows.items())]
    return pd.DataFrame(table, columns=["step", *COLUMNS]).astype(dict.fromkeys(COLUMNS, float))


def step_table(trace: Trace) -> pd.DataFrame:
    """Return one row per step of a run with all that curves show: ``step_metrics`` and ``learning_numbers``.

    An evaluation before the first step has a row of step -1. Columns that the file ``metrics.jsonl`` of a training run also has
    have the same names there. ``attrs["clock"]`` is the clock of its times.

    Raises:
        TraceError: the trace holds several runs.
    """
    _ = trace.run  # refuses several
    table = step_metrics(trace).merge(learning_numbers(trace), on="step", how="outer")
    table.attrs["clock"] = clock_of(trace.meta)
    return table
