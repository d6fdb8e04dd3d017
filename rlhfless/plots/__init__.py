"""Plots: a trace or a table of results in, a plotly figure out. One plot per file; nothing is shown, read or written.

Every plot has an ``..._info`` function with what it shows, which is what tests check.
"""

from __future__ import annotations

try:
    import plotly  # noqa: F401
except ImportError as error:
    from rlhfless.errors import MissingExtra

    raise MissingExtra("plots need plotly, which is not installed: pip install 'rlhfless[notebook]'") from error

from rlhfless.plots.bound_curve import bound_of_sum
from rlhfless.plots.lengths import LengthsInfo, lengths_info, plot_lengths
from rlhfless.plots.plane import PlaneInfo, plane_info, plot_plane
from rlhfless.plots.slider import TimeWeightInfo, plot_time_weight, time_weight_info
from rlhfless.plots.steps import StepsInfo, plot_steps, steps_info
from rlhfless.plots.timeline import plot_timeline
from rlhfless.plots.timeline_rows import TimelineInfo, timeline_info
from rlhfless.plots.waterfall import WaterfallInfo, plot_waterfall, waterfall_info

__all__ = [
    "LengthsInfo",
    "PlaneInfo",
    "StepsInfo",
    "TimeWeightInfo",
    "TimelineInfo",
    "WaterfallInfo",
    "bound_of_sum",
    "lengths_info",
    "plane_info",
    "plot_lengths",
    "plot_plane",
    "plot_steps",
    "plot_time_weight",
    "plot_timeline",
    "plot_waterfall",
    "steps_info",
    "time_weight_info",
    "timeline_info",
    "waterfall_info",
]
