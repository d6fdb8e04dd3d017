"""A report as a notebook shows it: in a sandboxed frame, which may run its own scripts and cannot reach the notebook."""

from __future__ import annotations

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
