"""Validates one row at a time while a loop runs, in microseconds, with the rules that ``validate`` applies to a frame.

Relations between rows, such as repeated responses, are handled in ``journal.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlhfless.trace.errors import TraceError
from rlhfless.trace.schema.casts import cast_cell, clean, jsonable
from rlhfless.trace.schema.tables import TABLES
from rlhfless.trace.schema.validation import RELATED, contradictions
from solver.model.errors import as_given

_COLUMNS = {table: {column.name: column for column in columns} for table, columns in TABLES.items()}


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
    numbers = {name: math.nan if row[name] is None else row[name] for name in RELATED if name in row and name in columns}
    for wrong, described in contradictions(numbers):
        if wrong:
            raise TraceError(f"{table}: {described(numbers)}")
    return row
