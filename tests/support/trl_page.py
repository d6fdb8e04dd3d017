"""Reads the tables of docs/from_trl_and_verl.md: which option of TRL and verl is which of ours."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "from_trl_and_verl.md"
SPAN = re.compile(r"`([^`]+)`")


class PageRow(NamedTuple):
    """A row of a table. section: its heading. cells: by the heading of their column."""

    section: str
    cells: dict[str, str]

    def names(self, column: str) -> list[str]:
        """What stands between backticks in a column."""
        return SPAN.findall(self.cells[column])

    @property
    def missing(self) -> bool:
        """Whether it cannot be done here."""
        return self.cells["here"] == "*missing*"

    @property
    def ours(self) -> dict[str, Any]:
        """Our options of a row with values, by their plain names."""
        typed = (name.partition("=")[::2] for name in self.names("here"))
        return {key.rpartition(".")[2]: yaml.safe_load(value) for key, value in typed}

    @property
    def theirs(self) -> dict[str, Any]:
        """TRL's options of a row with values."""
        call = ast.parse(f"dict({self.names('TRL')[0]})", mode="eval").body
        assert isinstance(call, ast.Call)
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


def page_rows(column: str) -> list[PageRow]:
    """Return the rows of all tables that have a column of that heading."""
    rows, section, heads = [], "", list[str]()
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("#"):
            section, heads = line.lstrip("# "), []
        elif not line.startswith("|"):
            heads = []
        else:
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if not heads:
                heads = cells
            elif column in heads and not line.startswith("|---"):
                assert len(cells) == len(heads), line
                rows.append(PageRow(section, dict(zip(heads, cells, strict=True))))
    return rows
