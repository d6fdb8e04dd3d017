"""Plots: a trace or a table of results in, a plotly figure out. One plot per file; nothing is shown, read or written.

Every plot returns a ``DataFigure``, whose ``table`` has the numbers that it draws. ``paper_style`` makes a copy of a figure for
print; ``save`` and ``save_data`` write figures and their tables.
"""

from __future__ import annotations

from rlhfless.plots.acceptance import plot_acceptance
from rlhfless.plots.before_after import plot_before_after
from rlhfless.plots.bound_curve import bound_of_sum
from rlhfless.plots.clock import clock_words
from rlhfless.plots.cost_over_time import plot_cost_over_time
from rlhfless.plots.cut_surface import plot_cut_surface
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.export.files import save, save_data
from rlhfless.plots.export.notebook_page import write_notebook_page
from rlhfless.plots.export.print_style import paper_style
from rlhfless.plots.export.render import why_no_pictures
from rlhfless.plots.gap_history import plot_gap_history
from rlhfless.plots.gpu_kinds import plot_kinds
from rlhfless.plots.grouped_bars import plot_side_by_side
from rlhfless.plots.lengths import plot_lengths
from rlhfless.plots.overview import plot_overview
from rlhfless.plots.pareto_front import plot_front
from rlhfless.plots.pipeline import plot_pipeline
from rlhfless.plots.plan_bars import plot_plan_bars
from rlhfless.plots.prefill import plot_prefill
from rlhfless.plots.renderer import follow_theme as _follow_theme
from rlhfless.plots.renderer import running_shell as _running_shell
from rlhfless.plots.renderer import use_renderer
from rlhfless.plots.responses import plot_responses
from rlhfless.plots.speedup_map import plot_speedup_map
from rlhfless.plots.step_comparison import plot_step_comparison
from rlhfless.plots.step_fusion import plot_step_fusion
from rlhfless.plots.step_plan import plot_step_plan
from rlhfless.plots.step_search import plot_step_search
from rlhfless.plots.steps import plot_steps
from rlhfless.plots.style import clean, plain
from rlhfless.plots.time_cost import plot_plane
from rlhfless.plots.timeline import plot_timeline
from rlhfless.plots.timeline_grid import plot_timelines
from rlhfless.plots.training_curves import plot_curves
from rlhfless.plots.two_step_gain import plot_two_step_gain
from rlhfless.plots.value_of_information import plot_value_of_information
from rlhfless.plots.waterfall import plot_waterfall

__all__ = [
    "DataFigure",
    "bound_of_sum",
    "clean",
    "clock_words",
    "paper_style",
    "plain",
    "plot_acceptance",
    "plot_before_after",
    "plot_cost_over_time",
    "plot_curves",
    "plot_cut_surface",
    "plot_front",
    "plot_gap_history",
    "plot_kinds",
    "plot_lengths",
    "plot_overview",
    "plot_pipeline",
    "plot_plan_bars",
    "plot_plane",
    "plot_prefill",
    "plot_responses",
    "plot_side_by_side",
    "plot_speedup_map",
    "plot_step_comparison",
    "plot_step_fusion",
    "plot_step_plan",
    "plot_step_search",
    "plot_steps",
    "plot_timeline",
    "plot_timelines",
    "plot_two_step_gain",
    "plot_value_of_information",
    "plot_waterfall",
    "save",
    "save_data",
    "use_renderer",
    "why_no_pictures",
    "write_notebook_page",
]

if _running_shell() is not None:
    _follow_theme()


def __dir__() -> list[str]:
    return sorted(__all__)
