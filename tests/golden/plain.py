"""Turns results into plain data: dicts, lists, texts, booleans, whole numbers and floats, under the names of the record.

Knows dataclasses, named tuples, numpy and pandas; nothing of the project. A field that was renamed keeps its recorded name by
one entry of a table, so that a rename changes no recorded file.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import pandas as pd

JSON_TEXTS = ("detail",)
"""Columns whose texts are JSON: their numbers are compared as numbers."""


@dataclasses.dataclass(frozen=True)
class Names:
    """What fields are called in the record.

    Attributes:
        recorded_as: today's name of a field, column or key to its name in the record, where the two differ.
        left_out: today's names of what is not recorded.
        only_whether: today's names of texts of which only whether they are empty is recorded.
    """

    recorded_as: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left_out: Set[str] = frozenset()
    only_whether: Set[str] = frozenset()


def plain(value: Any, names: Names) -> Any:
    """Return ``value`` as JSON-ready data; of floats that are not finite, their names.

    Frames become ``{column: [values]}``, dataclasses and named tuples ``{field: value}``.

    Raises:
        TypeError: The value is of a type that has no plain form.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is pd.NA:
        return None
    if isinstance(value, pd.DataFrame):
        return _fields({name: _cells(column) for name, column in value.items()}, names)
    if isinstance(value, pd.Series | np.ndarray):
        return plain(value.tolist(), names)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, names)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _fields(value._asdict(), names)
    if isinstance(value, Mapping):
        return _fields(value, names)
    if isinstance(value, list | tuple):
        return [plain(one, names) for one in value]
    raise TypeError(f"a {type(value).__name__} has no plain form; record its numbers instead")


def _fields(given: Mapping[Any, Any], names: Names) -> dict[str, Any]:
    found = {}
    for key, value in given.items():
        name = " / ".join(map(str, key)) if isinstance(key, tuple) else str(key)
        if name in names.left_out:
            continue
        if name in names.only_whether:
            value = [bool(one) for one in value] if isinstance(value, list) else bool(value)
        elif name in JSON_TEXTS:
            value = [_read(one) for one in value] if isinstance(value, list) else _read(value)
        found[names.recorded_as.get(name, name)] = plain(value, names)
    return found


def _cells(column: pd.Series) -> list[Any]:
    """Values of a column; unknown ones are None but in a column of floats."""
    if pd.api.types.is_float_dtype(column.dtype):
        return column.tolist()
    return [None if isinstance(one, float) and math.isnan(one) else one for one in column.tolist()]


def _read(text: Any) -> Any:
    return json.loads(text) if isinstance(text, str) else text
