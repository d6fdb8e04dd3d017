"""Joins the turns of responses, where a table has one row per turn with columns ``turn`` and ``tool_wait_s``.

A response waits ``tool_wait_s`` seconds after a turn, for a tool whose answer its next turn continues. After its last turn it
waits for nothing. The joined row has the tokens of all turns, and the turns as a JSON text. A response that was logged twice,
after a restart, stays two rows.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.restarts import codes_of
from rlhfless.trace.schema.casts import cast
from rlhfless.trace.schema.tables import ROLLOUTS, Column
from solver.model.plurals import counted

TURN = (
    Column("turn", "int", "number of the turn within its response", minimum=0),
    Column("tool_wait_s", "float", "wait for a tool after the turn", unit="s", default=0.0, minimum=0),
)
"""Columns of a table with one row per turn."""

TOKENS = next(column for column in ROLLOUTS if column.name == "response_tokens")
OF_THE_LAST_TURN = ("finish_reason", "reward", "end_s", "actor")


def one_row_per_response(frame: pd.DataFrame, reading: ImportSession) -> pd.DataFrame:
    """Return the frame with the turns of every response joined; the frame itself where it has no such columns.

    Raises:
        TraceError: the table does not number the samples of a prompt, or a cell is wrong.
    """
    if not {column.name for column in TURN} <= set(frame.columns):
        return frame
    missing = [name for name in ("step", "prompt_id", "sample", "response_tokens") if name not in frame.columns]
    if missing:
        raise TraceError(
            f"{reading.path}: has one row per turn and no column '{missing[0]}'; it is needed to know which turns belong to "
            "one response"
        )
    source = str(reading.path)
    turn, wait_s, tokens = (cast(column, frame[column.name], source).to_numpy() for column in (*TURN, TOKENS))
    keys = [codes_of(frame[name]) for name in ("run", "step", "prompt_id", "sample") if name in frame.columns]
    response = pd.DataFrame(dict(enumerate(keys)), index=range(len(frame)))
    response["attempt"] = response.assign(turn=turn).groupby([*response.columns, "turn"], sort=False).cumcount()
    group = response.groupby(list(response.columns), sort=False).ngroup().to_numpy()
    order = np.lexsort((turn, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    first, last = order[starts], order[ends - 1]
    texts = [
        json.dumps([[int(tokens[at]), float(wait_s[at])] for at in order[start:end]]) if end - start > 1 else None
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    joined = frame.iloc[first].drop(columns=[column.name for column in TURN])
    for name in set(OF_THE_LAST_TURN).intersection(frame.columns):
        joined[name] = frame[name].iloc[last].to_numpy()
    joined["response_tokens"] = np.add.reduceat(tokens[order], starts) if len(starts) else tokens
    joined["turns"] = texts
    reading.note(f"turns: {counted(len(frame), 'row')} joined to {counted(len(joined), 'response')}")
    return joined.sort_index(kind="stable")
