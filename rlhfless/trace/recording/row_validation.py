"""Validates one row at a time while a loop runs, in microseconds, with the rules that ``validate`` applies to a frame.

Relations between rows, such as repeated responses, are handled in ``journal.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhfless.trace.errors import TraceError
from rlhfless.trace.schema.casts import cast_cell, clean, jsonable
from rlhfless.trace.schema.tables import TABLES
from rlhfless.trace.schema.validation import DRAFT_COLUMNS, refused_draft_counts
from solver.model.errors import as_given

_COLUMNS = {table: {column.name: column for column in columns} for table, columns in TABLES.items()}
_ORDERED = (("start_s", "first_token_s"), ("first_token_s", "end_s"), ("start_s", "end_s"))


def checked_row(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row in plain JSON types; a frame of such rows passes all checks of single rows.

    Columns of ``rollouts`` that the schema does not know are kept. In text that is not valid Unicode, the wrong parts become
    question marks.

    Raises:
        TraceError: one sentence: column, value, and what would be right.
    """
    columns = _COLUMNS[table]
    row: dict[str, Any] = {}
    for name, column in columns.items():
        if name in values:
            try:
                cell = cast_cell(column, values[name])
            except ValueError as error:
                raise TraceError(f"{table}: column '{name}' is {as_given(values[name])}; {error} is needed") from None
            row[name] = clean(cell) if isinstance(cell, str) else cell
        elif column.required:
            raise TraceError(
                f"{table}: column '{name}' ({column.doc}) is missing, the row has {', '.join(values) or 'no columns'}"
            )
    for name in values.keys() - columns.keys():
        if table != "rollouts":
            raise TraceError(f"{table}: '{name}' is not one of its columns; put it into the column 'detail'")
        cell = jsonable(values[name])
        row[clean(name)] = clean(cell) if isinstance(cell, str) else cell
    _refuse_contradictions(table, row)
    return row


def _refuse_contradictions(table: str, row: Mapping[str, Any]) -> None:
    for first, second in _ORDERED:
        start, end = row.get(first), row.get(second)
        if start is not None and end is not None and end < start:
            raise TraceError(
                f"{table}: column '{second}' is {end:g}, before '{first}', which is {start:g}; a later time is needed"
            )
    counts = [row[name] for name in (*DRAFT_COLUMNS, "response_tokens") if row.get(name) is not None]
    if len(counts) == 4 and (reason := refused_draft_counts(*counts)) is not None:
        raise TraceError(f"{table}: {reason}")
    batch, slots = row.get("batch_mean"), row.get("slots")
    if batch is not None and slots is not None and batch > slots * (1 + 1e-9):
        raise TraceError(
            f"{table}: column 'batch_mean' is {batch:g}, above 'slots', which is {slots}; a batch of at most 'slots' is needed"
        )
