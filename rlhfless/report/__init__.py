"""The report of a trace or log: its computed findings, its sections, the HTML page, the notebook and the frame of a page.

Importing this package loads nothing heavy; its parts are loaded with the first name that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhfless.lazy_names import lazy_names

if TYPE_CHECKING:
    from rlhfless.analysis.assumptions import Assumptions
    from rlhfless.report.schedules import SHOWN
    from rlhfless.report.study import Findings
    from rlhfless.report.write import write_report

__all__ = ["SHOWN", "Assumptions", "Findings", "write_report"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Assumptions": "analysis.assumptions",
        "Findings": "report.study",
        "SHOWN": "report.schedules",
        "write_report": "report.write",
    },
)
