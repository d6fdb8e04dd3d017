"""Converts one column of a frame to the type of the schema, or raises an error that names the first wrong row.

Text columns become Python strings and None, whole numbers int64 (Int64 with NA if nullable), floats float64 with NaN. Relations
between columns are checked in ``validation.py``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.schema.tables import Column
from solver.model.errors import as_given

FEW = 64  # texts, among which equal ones are not looked for
LARGEST_WHOLE_NUMBER = 2**53
BOOLEANS = (bool, np.bool_)  # which Python and numpy count as 0 and 1


def listed(names: Iterable[object]) -> str:
    """Return names as a list for an error message: each shortened to one line, and only the first ones if there are many."""
    shown = [" ".join(str(name).split())[:40] for name in names]
    return ", ".join(shown[:30]) + (f" and {len(shown) - 30:,} more" if len(shown) > 30 else "")


def shown(value: object, most: int = 200) -> str:
    """Return what a user gave, for an error message: on one line, and cut where it is long."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[:most]}..."


def clean(text: str) -> str:
    """Return the text with lone surrogates, which no file can store, replaced by question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def row_number(index: pd.Index, position: int) -> int:
    """Return the row number in the file, counted from 1 without the header; a filtered frame keeps its rows' numbers in its
    index.
    """
    label = index[position]
    return int(label) + 1 if isinstance(label, (int, np.integer)) else position + 1


def refuse(source: str, values: pd.Series, position: int, needed: str) -> NoReturn:
    """Raise a ``TraceError`` that names the cell, its value and what is needed."""
    value = values.iloc[position]
    value_text = "empty" if is_null(value) else as_given(value)
    row = row_number(values.index, position)
    raise TraceError(f"{source}: row {row}, column '{values.name}' is {value_text}; {needed} is needed")


def is_null(value: Any) -> bool:
    """Return whether a cell is unknown: None, NaN, NA, NaT or an empty text."""
    if isinstance(value, list | tuple | dict | np.ndarray):
        return False
    return value is None or value is pd.NA or value is pd.NaT or value == "" or (isinstance(value, float) and value != value)


def cast(column: Column, values: pd.Series, source: str) -> Any:
    """Return the column's values in the type of the schema.

    Args:
        column: the schema's column.
        values: (R,) cells as they were read.
        source: the file, for messages.

    Raises:
        TraceError: one sentence about the first cell of a wrong type or value.
    """
    if column.dtype not in ("int", "float"):
        return pd.Series(_cells(column, values, source), index=values.index, dtype=bool if column.dtype == "bool" else object)
    if column.default is not None and values.isna().any():
        values = values.astype(object).where(values.notna(), column.default)
    if pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype):
        numbers = values.to_numpy(dtype=float, na_value=np.nan)
    else:
        numbers = np.array([_float(value) for value in values.tolist()], dtype=float)
    with np.errstate(invalid="ignore"):  # of infinity
        wrong = _is_wrong(column, numbers)
    if wrong.any():
        refuse(source, values, int(np.argmax(wrong)), _wanted(column))
    return _typed(column, numbers, values.index)


def _cells(column: Column, values: pd.Series, source: str) -> np.ndarray:
    """Return (R,) cells as ``cast_cell`` converts them; equal texts are converted once, and are one object."""
    codes: np.ndarray = np.arange(len(values))
    distinct = values.tolist()
    if len(values) > FEW and pd.api.types.infer_dtype(values, skipna=True) == "string":
        codes, texts = pd.factorize(values)  # the code of a null is -1
        distinct = [*texts, None]
    cells = np.full(len(distinct), None, dtype=object)
    wrong = np.zeros(len(distinct), dtype=bool)
    for at, value in enumerate(distinct):
        try:
            cells[at] = cast_cell(column, value)
        except ValueError:
            wrong[at] = True
    if wrong[codes].any():
        refuse(source, values, int(np.argmax(wrong[codes])), _wanted(column))
    converted: np.ndarray = cells[codes]
    return converted


def _typed(column: Column, numbers: np.ndarray, index: pd.Index) -> pd.Series:
    """Return (R,) checked numbers, NaN where unknown, in the type of the schema."""
    if column.dtype == "float":
        return pd.Series(numbers, index=index)
    null = np.isnan(numbers)
    whole = np.where(null, 0, numbers).astype(np.int64)
    return pd.Series(pd.arrays.IntegerArray(whole, null) if column.nullable else whole, index=index)


def absent(column: Column, index: pd.Index, source: str) -> Any:
    """Return the values of a column that a table lacks: its default, or unknown; in the type of the schema.

    Raises:
        TraceError: the table has rows, and the column has neither a default nor unknown values.
    """
    if column.default is None and column.nullable and column.dtype not in ("int", "float"):
        return pd.Series(np.full(len(index), None), index=index, dtype=object)
    return cast(column, pd.Series(column.default, index=index, name=column.name, dtype=object), source)


def cast_cell(column: Column, value: Any) -> Any:
    """Return one value in the type of the schema, None if it is unknown.

    Raises:
        ValueError: the value does not fit the column; the message says what is needed.
    """
    if column.default is not None and value != "" and is_null(value):
        value = column.default
    cell: Any
    if column.dtype in ("int", "float"):
        number = _float(value)
        fits = not _is_wrong(column, number)
        cell = None if number != number else int(number) if column.dtype == "int" and fits else number
    elif is_null(value):
        cell, fits = None, column.nullable
    else:
        cell = {"str": _text, "json": _json, "ints": _ints, "bool": _bool}[column.dtype](value)
        fits = cell is not None and (not column.allowed or cell in column.allowed)
    if not fits:
        raise ValueError(_wanted(column))
    return cell


def _float(value: Any) -> float:
    """Return a cell as a number: NaN if it is unknown, and infinity, which no column holds, if it is no number."""
    if isinstance(value, BOOLEANS):
        return math.inf
    try:
        return math.nan if is_null(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.inf


def _is_wrong(column: Column, number: Any) -> Any:
    """Return whether the column cannot hold a number, or (R,) of (R,) numbers; NaN is unknown."""
    wrong = (abs(number) == math.inf) | ((number != number) & (not column.nullable))
    if column.minimum is not None:
        wrong = wrong | (number < column.minimum)
    if column.dtype == "int":
        wrong = wrong | (number % 1 > 0) | (abs(number) > LARGEST_WHOLE_NUMBER)
    return wrong


def _wanted(column: Column) -> str:
    if column.allowed:
        return "one of " + ", ".join(column.allowed)
    if column.dtype in ("int", "float"):
        kind = "a whole number" if column.dtype == "int" else "a finite number"
        return kind if column.minimum is None else f"{kind} of {column.minimum:g} or more"
    return {
        "str": "a text or a whole number",
        "json": "a JSON text",
        "ints": "a list of GPU ids, without repetitions and empty for a holder on a CPU,",
        "bool": "true or false",
    }[column.dtype]


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, (float, np.floating)):
        return str(int(value)) if float(value).is_integer() else None
    return str(int(value)) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _json(value: Any) -> str | None:
    if not isinstance(value, str):
        return json.dumps(jsonable(value), sort_keys=True)
    try:
        json.loads(value)
    except ValueError:
        return None
    return value


def _ints(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, (list, tuple, np.ndarray)):
        return None
    ids = [v for v in value if isinstance(v, (int, np.integer)) and not isinstance(v, bool) and v >= 0]
    return tuple(int(v) for v in ids) if len(ids) == len(set(ids)) == len(value) else None


def _bool(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False, "1": True, "0": False}.get(value.lower())
    return bool(value) if isinstance(value, (bool, np.bool_)) or value in (0, 1) else None


def jsonable(value: Any) -> Any:
    """Return ``value`` in plain JSON types: dataclasses become objects, arrays become lists, NaN and infinity become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
