"""Combines batches of logged responses, from any framework, into the validated rollouts of a run.

It removes repeated rows, identifies prompts, derives finish reasons, and shifts times to the start of the run. Restarted steps
are handled in ``restarts.py``. Batches have the columns of ``rollouts``, of which ``sample`` and others may be missing, and may
have two more:

- ``prompt_text_id``: identifies the prompt's text, for logs whose ``prompt_id`` is drawn anew for every visit;
- ``response_id``: a unique identifier of the response.

Tables may have one row per turn of a response (``turns.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.record import finite
from rlhfless.trace.importers.restarts import again_with_other_values, codes_of, last_attempts, numbered
from rlhfless.trace.importers.turns import one_row_per_response
from rlhfless.trace.schema.casts import row_number
from rlhfless.trace.schema.validation import validate

NAMES = ("run", "prompt_id", "prompt_text_id", "finish_reason", "actor")
TIMES = ("start_s", "first_token_s", "end_s")
LONGEST_RUN_S = 1e8  # three years; a table whose first time is later has the time of day
LARGEST_TOKENS = 2**31  # of one response; more is no length


def assemble(reading: ImportSession, batches: Iterable[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the validated rollouts; None if the log has no response.

    Args:
        reading: the import session; decisions are added to its notes.
        batches: (r,) rows each, in the order of the log.

    Raises:
        TraceError: one sentence: file, row, column, value, and what would be right.
    """
    pool: dict[str, str] = {}
    frames = []
    for batch in batches:
        reading.guard.add_rows(reading.path, len(batch))
        if len(batch):
            frames.append(_light(batch, pool))
    if not frames:
        return None
    frame = frames[0] if len(frames) == 1 else pd.concat(frames)
    del frames
    if frame.index.has_duplicates:  # of several files; a single file's rows keep their numbers for messages
        frame = frame.reset_index(drop=True)
    frame = _without_repeats(one_row_per_response(frame, reading), reading)
    frame = _with_lasting_prompts(frame, reading)
    frame = last_attempts(numbered(frame, reading), reading)
    frame = _without_repeats(frame, reading, in_all_steps=True) if "sample" in frame.columns else frame
    file_rows = frame.index
    if "epoch" not in frame.columns:
        reading.note("epoch: derived as the number of earlier steps of the run with the same prompt")
    rollouts = validate("rollouts", _from_the_run_start(frame, reading), reading.path)
    _refuse_absurd_lengths(rollouts, file_rows, reading)
    return _ended(rollouts, file_rows, reading)


def _light(batch: pd.DataFrame, pool: dict[str, str]) -> pd.DataFrame:
    """Return the batch with one object for equal names of prompts, runs and reasons."""
    light = {}
    for name in batch.columns.intersection(NAMES):
        if pd.api.types.infer_dtype(batch[name], skipna=True) == "string":
            codes, distinct = pd.factorize(batch[name])  # a null's code is -1
            texts = [pool.setdefault(text, text) for text in distinct]
            light[name] = pd.Series(np.array([*texts, None], dtype=object)[codes], index=batch.index)
    return batch.assign(**light)


def _without_repeats(frame: pd.DataFrame, reading: ImportSession, in_all_steps: bool = False) -> pd.DataFrame:
    """Drop responses with a repeated identifier, or if there are no identifiers, rows that are equal in every column.

    Args:
        in_all_steps: also in steps that contain a response again with other values; by default these stay whole, so that
            rows which were logged together can be recognised.
    """
    if "response_id" in frame.columns:
        repeated = frame["response_id"].notna() & frame.duplicated(["step", "response_id"], keep="last")
        frame = frame.drop(columns="response_id")
    elif "sample" in frame.columns:
        codes = {name: codes_of(frame[name]) for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name].dtype)}
        repeated = pd.util.hash_pandas_object(frame.assign(**codes), index=False).duplicated()
        if repeated.any() and not in_all_steps:
            repeated &= ~again_with_other_values(frame, ~repeated)
    else:
        return frame
    reading.duplicates += int(repeated.sum())
    return frame[~repeated]


def _with_lasting_prompts(frame: pd.DataFrame, reading: ImportSession) -> pd.DataFrame:
    """Identify prompts by their text if the log gives most texts new ids at every visit; else the text's id stays a column.

    Two ids of one text may also be two rows of a data set: then both appear again at every visit.
    """
    if "prompt_text_id" not in frame.columns:
        return frame
    again = _in_several_steps(frame, ["prompt_text_id"])["prompt_text_id"]
    lasting = _in_several_steps(frame, ["prompt_text_id", "prompt_id"])["prompt_text_id"]
    if 2 * (~again.isin(lasting)).sum() > len(again):
        reading.note("prompt_id: hash of the text, because the log gives the same prompt another name in every step")
        frame = frame.assign(prompt_id=frame["prompt_text_id"])
        frame = frame.drop(columns="sample", errors="ignore")
    if frame["prompt_text_id"].equals(frame["prompt_id"]):
        return frame.drop(columns="prompt_text_id")
    return frame


def _in_several_steps(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return the distinct values of the columns that occur in more than one step."""
    values = frame[[*names, "step"]].drop_duplicates()[names]
    return values[values.duplicated()].drop_duplicates()


def _seconds(values: pd.Series) -> pd.Series:
    """Return the numbers, NaN for other values; invalid times are reported when the column is validated."""
    try:
        return pd.to_numeric(values, errors="coerce")
    except OverflowError:  # a whole number beyond all floats
        fits = values.map(lambda value: not isinstance(value, int) or finite(value) is not None)
        return pd.to_numeric(values.where(fits), errors="coerce")


def _from_the_run_start(frame: pd.DataFrame, reading: ImportSession) -> pd.DataFrame:
    """Shift times to start at the first of them, if they are on a machine's clock."""
    times = [name for name in TIMES if name in frame.columns]
    times_s = [_seconds(frame[name]) for name in times]
    first = min((float(values.min()) for values in times_s if values.notna().any()), default=0.0)
    if not reading.machine_clock and first < LONGEST_RUN_S:
        return frame
    if times:
        reading.note("times: counted from the first time in the log")
    moved = {name: (values - first).where(values.notna(), frame[name]) for name, values in zip(times, times_s, strict=True)}
    return frame.assign(**moved)


def _refuse_absurd_lengths(rollouts: pd.DataFrame, file_rows: pd.Index, reading: ImportSession) -> None:
    for name in ("response_tokens", "prompt_tokens"):
        tokens = rollouts[name].to_numpy(dtype=float, na_value=0.0)
        if tokens.max() > LARGEST_TOKENS:
            at = int(np.argmax(tokens))
            raise TraceError(
                f"{reading.path}: row {row_number(file_rows, at)}, column '{name}' is {tokens[at]:.0f}; "
                f"a length of at most {LARGEST_TOKENS} tokens is needed"
            )


def _ended(rollouts: pd.DataFrame, file_rows: pd.Index, reading: ImportSession) -> pd.DataFrame:
    """Fill in the finish reasons that follow from the response limit."""
    limit, tokens = reading.options.max_response_tokens, rollouts["response_tokens"].to_numpy()
    if limit is None:
        if reading.from_text and not reading.ended:
            reading.note(
                "response_tokens: without the end token; name the run's limit with --max-response-tokens to have it counted"
            )
        return rollouts
    if reading.from_text and not reading.ended:
        return _ended_by_text(rollouts, tokens, limit, reading)
    if tokens.max() > limit:
        at = int(np.argmax(tokens > limit))
        raise TraceError(
            f"{reading.path}: row {row_number(file_rows, at)}, column 'response_tokens' is {tokens[at]}, above "
            f"max_response_tokens={limit}; a limit of at least {tokens.max()} is needed"
        )
    if reading.ended:
        return rollouts
    reading.note(f"finish_reason: where the log lacks it, 'length' at {limit} tokens and 'stop' below")
    reasons = rollouts["finish_reason"]
    return rollouts.assign(finish_reason=reasons.where(reasons.notna(), _reasons(tokens >= limit, rollouts)))


def _ended_by_text(rollouts: pd.DataFrame, tokens: np.ndarray, limit: int, reading: ImportSession) -> pd.DataFrame:
    """Set finish reasons from text lengths: below the limit a text ended by the end token, which is now counted; else by the
    limit.
    """
    truncated = tokens >= limit
    reading.note(
        f"response_tokens: a response of fewer than {limit} text tokens stopped, and its end token is counted; others were cut"
    )
    if (above := int((tokens > limit).sum())) > 0:
        reading.note(f"response_tokens: {above:,} texts have more tokens than the limit when tokenised again; the limit counts")
    lengths = np.where(truncated, limit, tokens + 1)
    return rollouts.assign(response_tokens=lengths, finish_reason=_reasons(truncated, rollouts))


def _reasons(truncated: np.ndarray, rollouts: pd.DataFrame) -> Any:
    return pd.Series(np.where(truncated, "length", "stop"), index=rollouts.index, dtype=object)
