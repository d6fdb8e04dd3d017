"""Dashboards for notebooks: controls in, figures out. Functions without widgets compute everything that they show.

``live``, ``compare``, ``zoom`` and the sliders of ``run.explore()`` need the extra ``notebook`` and are imported on first use.
Their contents come from ``WhatIf`` and ``response_details``, ``LiveRun``, ``compared`` and ``rlhfless.plots``, which need no
widget.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlhfless.widgets.live_run import LiveRun
from rlhfless.widgets.live_steps import steps_of
from rlhfless.widgets.live_text import print_phases
from rlhfless.widgets.response_reason import ResponseDetails, response_details
from rlhfless.widgets.run_table import Compared, compared
from rlhfless.widgets.settings import Settings
from rlhfless.widgets.what_if import WhatIf, WhatIfPlan

if TYPE_CHECKING:
    from rlhfless.widgets.comparison import compare
    from rlhfless.widgets.live_view import live
    from rlhfless.widgets.zooming import zoom

DASHBOARDS = {"compare": "comparison", "live": "live_view", "zoom": "zooming"}


def __getattr__(name: str) -> Any:
    if name in DASHBOARDS:
        return getattr(importlib.import_module(f"rlhfless.widgets.{DASHBOARDS[name]}"), name)
    raise AttributeError(f"module 'rlhfless.widgets' has no attribute {name!r}")


__all__ = [
    "Compared",
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


def __dir__() -> list[str]:
    return sorted(__all__)
