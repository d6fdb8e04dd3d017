"""The IPython magic: ``%load_ext rlhfless``, then ``%rlhfless PATH`` shows the report of a trace or a log in the notebook.

The page is shown in a sandboxed frame: it may run its own scripts and cannot reach the notebook.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError
from rlhfless.system.templates import render

HEIGHT_PX = 820


class ReportFrame:
    """A page in a frame.

    Attributes:
        page: the page's HTML; the writer of the page has escaped its texts.
    """

    def __init__(self, page: str, name: str) -> None:
        self.page, self._name = page, name

    def _repr_html_(self) -> str:
        return render("report/frame.html.j2", name=self._name, height_px=HEIGHT_PX, page=self.page)

    def __repr__(self) -> str:
        return f"{self._name} ({len(self.page):,} characters of HTML; show it in a notebook, or use `rlhfless report`)"


def report_of(line: str) -> ReportFrame:
    """Return the report of the path in a line of magic.

    Raises:
        InputError: the line is not one path.
        TraceError: there is no trace or log at the path.
    """
    from rlhfless.report.write import report_html

    try:
        words = shlex.split(line)
    except ValueError:
        raise InputError(f'%rlhfless {line}: a quote is not closed; write a path with quotes in it as "it\'s.csv"') from None
    if len(words) != 1:
        raise InputError(f"%rlhfless takes one path of a trace or a log, not {len(words)}: %rlhfless out/run")
    path = Path(words[0]).expanduser()
    return ReportFrame(report_html(path), f"Report of {words[0]}")


def register(ipython: Any) -> None:
    """Register the magic ``%rlhfless`` with an IPython shell."""
    ipython.register_magic_function(report_of, magic_kind="line", magic_name="rlhfless")
