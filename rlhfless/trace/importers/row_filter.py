"""``--where``: keep only the rows of a table for which a condition on its columns holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pandas as pd

from rlhfless.errors import reason
from rlhfless.trace.errors import TraceError
from rlhfless.trace.schema.casts import listed, shown
from solver.model.errors import as_given

QUOTED = re.compile(r"`[^`]*`")
EXAMPLE = "\"split == 'train' and reward > 0\" is an example"
ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.Compare, ast.cmpop, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.Name, ast.Load,
    ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip
"""Comparisons, ``and``, ``or``, ``not``, ``in`` and arithmetic; no calls and no attributes, so that no code can
run, and no powers or shifts, which can take forever."""


class RowFilter:
    """A condition on columns, in the syntax of ``pandas.DataFrame.query``, as ``split == 'train'``.

    Args:
        condition: names of columns that are no Python names stand in backticks.

    Attributes:
        columns: the names in it. shown: the condition in messages. read, kept: rows so far.

    Raises:
        TraceError: it is no comparison of columns with values.
    """

    def __init__(self, condition: str) -> None:
        if not isinstance(condition, str):
            raise TraceError(f"where is {as_given(condition)}; {EXAMPLE}")
        self.condition, self.shown, self.read, self.kept = condition, shown(condition), 0, 0
        quoted = [name[1:-1] for name in QUOTED.findall(condition)]
        try:
            tree = ast.parse(QUOTED.sub("quoted_column", condition).strip(), mode="eval")
        except (SyntaxError, ValueError) as error:
            why = error.msg if isinstance(error, SyntaxError) else reason(error)
            raise TraceError(f"--where {self.shown}: is not a condition ({why}); {EXAMPLE}") from error
        wrong = next((node for node in ast.walk(tree) if not isinstance(node, ALLOWED)), None)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"quoted_column"}
        if wrong is not None or not (names or quoted):
            what = "names no column" if wrong is None else f"contains {shown(ast.unparse(wrong))}"
            raise TraceError(f"--where {self.shown}: {what}; comparisons of columns with values are needed, {EXAMPLE}")
        self.columns = {*names, *quoted}

    def rows(self, frame: pd.DataFrame, path: Path) -> pd.DataFrame:
        """Return the rows for which the condition holds, with their index.

        Raises:
            TraceError: a column is not in the frame, or its values cannot be compared.
        """
        absent = sorted(self.columns.difference(frame.columns))
        if absent:
            raise TraceError(
                f"{path}: --where {self.shown} needs column '{shown(absent[0])}', the table has {listed(frame.columns)}; "
                "one of them is needed"
            )
        try:
            holds = frame.eval(self.condition, engine="python", local_dict={}, global_dict={})
        except Exception as error:  # pandas raises whatever its parts raise
            raise TraceError(
                f"{path}: --where {self.shown} cannot be applied to these columns ({shown(reason(error))}); {EXAMPLE}"
            ) from error
        if not isinstance(holds, pd.Series) or not pd.api.types.is_bool_dtype(holds.dtype):
            raise TraceError(f"{path}: --where {self.shown} is neither true nor false in a row; {EXAMPLE}")
        kept = frame[holds.fillna(False)]
        self.read, self.kept = self.read + len(frame), self.kept + len(kept)
        return kept

    def note(self) -> str:
        """Return what an import's summary says of it."""
        return f"rows: {self.kept:,} of {self.read:,} are read, those with {self.shown}"
