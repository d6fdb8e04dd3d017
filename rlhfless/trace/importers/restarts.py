"""Finds steps that a log contains twice because the run was killed and restarted from an earlier step, and keeps the last
attempt.

It uses the order of the log's rows, and also numbers the samples of each prompt if the log does not.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlhfless.trace.importers.import_session import ImportSession
from solver.model.plurals import counted


def numbered(frame: pd.DataFrame, reading: ImportSession) -> pd.DataFrame:
    """Return the rows with ``sample``, numbered in log order if missing; of a step that was certainly repeated, the last
    attempt only.
    """
    if "sample" in frame.columns or not {"step", "prompt_id"} <= set(frame.columns):
        return frame
    frame = frame[_of_last_attempts(frame, reading)]
    reading.note("sample: responses to a prompt are numbered within their step in the order of the log")
    keys = [codes_of(frame[name]) for name in ("run", "step", "prompt_id") if name in frame.columns]
    return frame.assign(sample=frame.groupby(keys, sort=False).cumcount())


def _of_last_attempts(frame: pd.DataFrame, reading: ImportSession) -> np.ndarray:
    """Return (R,) whether a row without a sample is of the last attempt at its step; all rows if no restart is certain."""
    runs = codes_of(frame["run"]) if "run" in frame.columns else np.zeros(len(frame), dtype=np.int64)
    rows = pd.DataFrame({"run": runs, "step": _numbers(frame["step"]), "prompt": codes_of(frame["prompt_id"])})
    back = rows.groupby("run", sort=False)["step"].diff() < 0
    rows["ascent"] = back.groupby(rows["run"], sort=False).cumsum()
    keep = np.ones(len(rows), dtype=bool)
    for _, run_rows in rows[rows["run"].isin(rows.loc[back, "run"])].groupby("run", sort=False):
        if not run_rows.drop_duplicates(["step", "prompt", "ascent"]).duplicated(["step", "prompt"]).any():
            continue  # a log by prompts
        if _was_restarted(run_rows):
            keep[run_rows.index] = run_rows["ascent"] == run_rows.groupby("step")["ascent"].transform("max")
        else:
            reading.note(
                "restarts: step numbers go back, but without the column 'sample' a restart cannot be recognised, so all rows "
                "count; name that column with --map sample=COLUMN"
            )
    if not keep.all():
        _note(reading, len(rows.loc[~keep, ["run", "step"]].drop_duplicates()), keep)
    return keep


def _was_restarted(rows: pd.DataFrame) -> bool:
    """Return whether repeated ascents of the step number are attempts of a restarted run, not workers, samples or shuffled
    rows.

    They are attempts if the last ascent goes beyond all others, none starts as early as the first, and repeated steps are
    complete. A repeated step is complete if it has at least as many rows as steps that occur once. The log's last step may be
    truncated and is not considered.
    """
    spans = rows.groupby("ascent")["step"].agg(["min", "max"])
    if spans["max"].iloc[-1] <= spans["max"].iloc[:-1].max() or spans["min"].iloc[1:].min() <= spans["min"].iloc[0]:
        return False
    sizes = rows.groupby(["step", "ascent"]).size().rename("rows").reset_index()
    again = sizes["step"].duplicated(keep=False)
    once = sizes.loc[~again & (sizes["step"] != rows["step"].iloc[-1]), "rows"]
    last = sizes[again].drop_duplicates("step", keep="last")["rows"]
    return bool(len(once) and last.min() >= once.min())


def _numbers(values: pd.Series) -> np.ndarray:
    """NaN for what is no number or too large for one, which validate refuses."""
    try:
        return np.asarray(pd.to_numeric(values, errors="coerce"), dtype=float)
    except (OverflowError, TypeError):
        return np.full(len(values), np.nan)


def again_with_other_values(frame: pd.DataFrame, distinct: pd.Series) -> pd.Series:
    """Return (R,) whether a row is in a step that contains a response twice with different values.

    Args:
        distinct: (R,) rows without those that equal an earlier row in every column.
    """
    keys = [name for name in ("run", "step", "prompt_id", "sample") if name in frame.columns]
    if not {"step", "prompt_id", "sample"} <= set(keys):
        return pd.Series(False, index=frame.index)
    codes = pd.DataFrame({name: codes_of(frame[name]) for name in keys}, index=frame.index)
    step_keys = keys[: keys.index("prompt_id")]
    repeated = codes[step_keys][distinct & codes[distinct].duplicated(keys).reindex(codes.index, fill_value=False)]
    steps = pd.MultiIndex.from_frame(codes[step_keys])
    return pd.Series(steps.isin(pd.MultiIndex.from_frame(repeated)), index=frame.index)


def last_attempts(frame: pd.DataFrame, reading: ImportSession) -> pd.DataFrame:
    """Return the rows without earlier attempts at steps that appear again in a later block of rows, after a restart.

    A later block that is not a whole step replaces the responses that it contains, and no others.
    """
    keys = [name for name in ("run", "step", "prompt_id", "sample") if name in frame.columns]
    if not {"step", "prompt_id", "sample"} <= set(keys):
        return frame
    codes = pd.DataFrame({name: codes_of(frame[name]) for name in keys}, index=frame.index)
    if not codes.duplicated(keys).any():
        return frame
    step_keys = keys[: keys.index("prompt_id")]
    stretch = _stretches(codes, keys, step_keys)
    restarted, single, keep = 0, 0, np.ones(len(frame), dtype=bool)
    while (twice := codes[keep].duplicated(keys, keep=False).to_numpy()).any():
        at = codes[keep][twice].assign(stretch=stretch[keep][twice])
        spread = at.groupby(keys, sort=False)["stretch"].agg(["min", "max"])
        if (spread["min"] == spread["max"]).any():
            break  # twice in one stretch is no restart; validate says which row repeats which
        begin = at.groupby(step_keys, sort=False)["stretch"].max().rename("begin").reset_index()
        starts = codes[step_keys].merge(begin, on=step_keys, how="left")["begin"].to_numpy(dtype=float)
        whole = _come_whole(codes, step_keys, starts, stretch, keep)
        latest = codes[keys].merge(spread["max"].reset_index(), on=keys, how="left")["max"].to_numpy(dtype=float)
        replaced = keep & ~whole & (stretch < latest)
        single += int(replaced.sum())
        keep &= ~(whole & (stretch < starts)) & ~replaced
        restarted = max(restarted, len(codes.loc[whole, step_keys].drop_duplicates()))
    if restarted:
        _note(reading, restarted, keep, single)
    if single:
        reading.note(f"repeats: {counted(single, 'response')} logged again with other values; the later ones count")
    return frame[keep]


def _come_whole(
    codes: pd.DataFrame, step_keys: list[str], starts: np.ndarray, stretch: np.ndarray, keep: np.ndarray
) -> np.ndarray:
    """Return (R,) whether a row's step was repeated completely: with as many rows as before, or as steps that occur once.

    Args:
        starts: (R,) number of the block of rows with which the step begins again, NaN if it occurs once.
    """
    steps = codes[step_keys].assign(
        later=keep & (stretch >= starts), earlier=keep & (stretch < starts), once=keep & np.isnan(starts)
    )
    sizes = steps.groupby(step_keys, sort=False)[["later", "earlier", "once"]].transform("sum")
    once = sizes["once"].to_numpy()
    usual = float(np.median(once[once > 0])) if (once > 0).any() else np.inf
    later = sizes["later"].to_numpy()
    return np.asarray(~np.isnan(starts) & ((later >= sizes["earlier"].to_numpy()) | (later >= usual)))


def _note(reading: ImportSession, steps: int, keep: np.ndarray, single: int = 0) -> None:
    reading.note(
        f"restarts: {counted(steps, 'step')} logged twice; the later attempt counts, "
        f"{counted(int((~keep).sum()) - single, 'row')} left out"
    )


def _stretches(codes: pd.DataFrame, keys: list[str], step_keys: list[str]) -> np.ndarray:
    """Return (R,) the number of the block of consecutive rows of one step that a row is in.

    If a step was logged, lost and logged again, its rows are adjacent; they are split into two blocks where the rows repeat.
    They are not split if that would affect most steps: then the rows repeat because a column does not mean what it is mapped
    to.
    """
    stretch = (codes[step_keys] != codes[step_keys].shift()).any(axis=1).cumsum().to_numpy()
    time = codes.assign(stretch=stretch).groupby([*keys, "stretch"], sort=False).cumcount().to_numpy()
    again = len(codes.loc[time > 0, step_keys].drop_duplicates())
    back = (np.diff(time) < 0) & (np.diff(stretch) == 0)
    if back.any() or 2 * again > len(codes[step_keys].drop_duplicates()):
        return np.asarray(stretch)
    change = (np.diff(time, prepend=0) != 0) | (np.diff(stretch, prepend=stretch[0]) != 0)
    return np.asarray(np.cumsum(change))


def codes_of(values: pd.Series) -> np.ndarray:
    """Return (R,) an integer for each value; equal values have equal integers."""
    try:
        return np.asarray(pd.factorize(values)[0])
    except TypeError:  # lists and the like, which validate refuses
        return np.asarray(pd.factorize(values.astype(str))[0])
