"""Dashboards for notebooks: controls in, figures out. Functions without widgets compute everything that they show.

``live``, ``compare``, ``zoom`` and the sliders of ``run.explore()`` need the extra ``notebook`` and are imported on first use.
Their contents come from ``WhatIf`` and ``response_details``, ``LiveRun``, ``compared`` and ``rlhfless.plots``, which need no
widget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhfless.lazy_names import lazy_names

if TYPE_CHECKING:
    from rlhfless.widgets.comparison import compare
    from rlhfless.widgets.explorer import Explorer
    from rlhfless.widgets.live_run import LiveRun
    from rlhfless.widgets.live_steps import steps_of
    from rlhfless.widgets.live_text import print_phases
    from rlhfless.widgets.live_view import live
    from rlhfless.widgets.response_reason import ResponseDetails, response_details
    from rlhfless.widgets.run_table import Compared, compared
    from rlhfless.widgets.settings import Settings
    from rlhfless.widgets.what_if import WhatIf, WhatIfPlan
    from rlhfless.widgets.zooming import zoom

__all__ = [
    "Compared",
    "Explorer",
    "LiveRun",
    "ResponseDetails",
    "Settings",
    "WhatIf",
    "WhatIfPlan",
    "compare",
    "compared",
    "live",
    "print_phases",
    "response_details",
    "steps_of",
    "zoom",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Compared": "widgets.run_table",
        "Explorer": "widgets.explorer",
        "LiveRun": "widgets.live_run",
        "ResponseDetails": "widgets.response_reason",
        "Settings": "widgets.settings",
        "WhatIf": "widgets.what_if",
        "WhatIfPlan": "widgets.what_if",
        "compare": "widgets.comparison",
        "compared": "widgets.run_table",
        "live": "widgets.live_view",
        "print_phases": "widgets.live_text",
        "response_details": "widgets.response_reason",
        "steps_of": "widgets.live_steps",
        "zoom": "widgets.zooming",
    },
)
