"""Plots: a trace or a table of results in, a plotly figure out. One plot per file; nothing is shown, read or written.

Every plot has an ``..._info`` function that takes the same inputs and returns the plot's data, which is what tests check.
``plane_info(results).to_frame()`` is the table that ``plot_plane(results)`` draws. ``paper_style`` makes a copy of a figure for
print; ``save`` and ``save_data`` write figures and tables.
"""

from __future__ import annotations

from rlhfless.plots.acceptance import AcceptanceInfo, acceptance_info, plot_acceptance
from rlhfless.plots.before_after import BeforeAfterInfo, before_after_info, plot_before_after
from rlhfless.plots.bound_curve import bound_of_sum
from rlhfless.plots.clock import clock_words
from rlhfless.plots.cost_over_time import CostOverTimeInfo, cost_over_time_info, plot_cost_over_time
from rlhfless.plots.cut_surface import CutSurfaceInfo, cut_surface_info, plot_cut_surface
from rlhfless.plots.export.files import save, save_data
from rlhfless.plots.export.notebook_page import write_notebook_page
from rlhfless.plots.export.print_style import paper_style
from rlhfless.plots.export.render import why_no_pictures
from rlhfless.plots.fusion_front import FusionFrontInfo, fusion_front_info, plot_fusion_front
from rlhfless.plots.gap_history import GapInfo, gap_info, plot_gap_history
from rlhfless.plots.gpu_kinds import KindsInfo, kinds_info, plot_kinds
from rlhfless.plots.grouped_bars import SideBySideInfo, plot_side_by_side, side_by_side_info
from rlhfless.plots.learning import LearningInfo, learning_info, plot_learning
from rlhfless.plots.lengths import LengthsInfo, lengths_info, plot_lengths
from rlhfless.plots.overview import OverviewInfo, overview_info, plot_overview
from rlhfless.plots.pareto_front import FrontInfo, front_info, plot_front
from rlhfless.plots.pipeline import PipelineInfo, pipeline_info, plot_pipeline
from rlhfless.plots.plan_bars import PlanBarsInfo, plan_bars_info, plot_plan_bars
from rlhfless.plots.planned_steps import PlannedStepsInfo, planned_steps_info, plot_planned_steps
from rlhfless.plots.prefill import PrefillInfo, plot_prefill, prefill_info
from rlhfless.plots.renderer import follow_theme as _follow_theme
from rlhfless.plots.renderer import running_shell as _running_shell
from rlhfless.plots.renderer import use_renderer
from rlhfless.plots.responses import ResponsesInfo, plot_responses, responses_info
from rlhfless.plots.spec_front import SpecFrontInfo, plot_spec_front, spec_front_info
from rlhfless.plots.speedup_map import SpeedupMapInfo, plot_speedup_map, speedup_map_info
from rlhfless.plots.split import SplitInfo, plot_split, split_info
from rlhfless.plots.step_bar import StepBarInfo, plot_step_bar, step_bar_info
from rlhfless.plots.step_comparison import StepComparisonInfo, plot_step_comparison, step_comparison_info
from rlhfless.plots.step_fusion import StepFusionInfo, plot_step_fusion, step_fusion_info
from rlhfless.plots.step_plan import plot_step_plan
from rlhfless.plots.step_plan_data import StepPlanInfo, step_plan_info
from rlhfless.plots.step_search import StepSearchInfo, plot_step_search, step_search_info
from rlhfless.plots.steps import StepsInfo, plot_steps, steps_info
from rlhfless.plots.style import clean, plain
from rlhfless.plots.time_cost import PlaneInfo, plane_info, plot_plane
from rlhfless.plots.time_weight import TimeWeightInfo, plot_time_weight, time_weight_info
from rlhfless.plots.timeline import plot_timeline
from rlhfless.plots.timeline_data import TimelineInfo, timeline_info
from rlhfless.plots.timeline_grid import TimelinesInfo, plot_timelines, timelines_info
from rlhfless.plots.training_curves import CurvesInfo, curves_info, plot_curves
from rlhfless.plots.two_step_gain import TwoStepGainInfo, plot_two_step_gain, two_step_gain_info
from rlhfless.plots.value_of_information import (
    ValueOfInformationInfo,
    plot_value_of_information,
    value_of_information_info,
)
from rlhfless.plots.variants import VariantsInfo, plot_variants, variants_info
from rlhfless.plots.waterfall import WaterfallInfo, plot_waterfall, waterfall_info
from rlhfless.plots.what_ifs import WhatIfsInfo, plot_what_ifs, what_ifs_info

__all__ = [
    "AcceptanceInfo",
    "BeforeAfterInfo",
    "CostOverTimeInfo",
    "CurvesInfo",
    "CutSurfaceInfo",
    "FrontInfo",
    "FusionFrontInfo",
    "GapInfo",
    "KindsInfo",
    "LearningInfo",
    "LengthsInfo",
    "OverviewInfo",
    "PipelineInfo",
    "PlanBarsInfo",
    "PlaneInfo",
    "PlannedStepsInfo",
    "PrefillInfo",
    "ResponsesInfo",
    "SideBySideInfo",
    "SpecFrontInfo",
    "SpeedupMapInfo",
    "SplitInfo",
    "StepBarInfo",
    "StepComparisonInfo",
    "StepFusionInfo",
    "StepPlanInfo",
    "StepSearchInfo",
    "StepsInfo",
    "TimeWeightInfo",
    "TimelineInfo",
    "TimelinesInfo",
    "TwoStepGainInfo",
    "ValueOfInformationInfo",
    "VariantsInfo",
    "WaterfallInfo",
    "WhatIfsInfo",
    "acceptance_info",
    "before_after_info",
    "bound_of_sum",
    "clean",
    "clock_words",
    "cost_over_time_info",
    "curves_info",
    "cut_surface_info",
    "front_info",
    "fusion_front_info",
    "gap_info",
    "kinds_info",
    "learning_info",
    "lengths_info",
    "overview_info",
    "paper_style",
    "pipeline_info",
    "plain",
    "plan_bars_info",
    "plane_info",
    "planned_steps_info",
    "plot_acceptance",
    "plot_before_after",
    "plot_cost_over_time",
    "plot_curves",
    "plot_cut_surface",
    "plot_front",
    "plot_fusion_front",
    "plot_gap_history",
    "plot_kinds",
    "plot_learning",
    "plot_lengths",
    "plot_overview",
    "plot_pipeline",
    "plot_plan_bars",
    "plot_plane",
    "plot_planned_steps",
    "plot_prefill",
    "plot_responses",
    "plot_side_by_side",
    "plot_spec_front",
    "plot_speedup_map",
    "plot_split",
    "plot_step_bar",
    "plot_step_comparison",
    "plot_step_fusion",
    "plot_step_plan",
    "plot_step_search",
    "plot_steps",
    "plot_time_weight",
    "plot_timeline",
    "plot_timelines",
    "plot_two_step_gain",
    "plot_value_of_information",
    "plot_variants",
    "plot_waterfall",
    "plot_what_ifs",
    "prefill_info",
    "responses_info",
    "save",
    "save_data",
    "side_by_side_info",
    "spec_front_info",
    "speedup_map_info",
    "split_info",
    "step_bar_info",
    "step_comparison_info",
    "step_fusion_info",
    "step_plan_info",
    "step_search_info",
    "steps_info",
    "time_weight_info",
    "timeline_info",
    "timelines_info",
    "two_step_gain_info",
    "use_renderer",
    "value_of_information_info",
    "variants_info",
    "waterfall_info",
    "what_ifs_info",
    "why_no_pictures",
    "write_notebook_page",
]

if _running_shell() is not None:
    _follow_theme()


def __dir__() -> list[str]:
    return sorted(__all__)
