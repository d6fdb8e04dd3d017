"""Reproduces the figures of RLHFless (arXiv 2602.22718) with this project's simulator, and figures of other papers.

``runs`` computes a grid of runs once and keeps it. A figure is a table made from runs, a view of it (``facets``), a fixed
text and findings: paper, ours, bound, holds. ``catalogue`` lists all figures, ``write`` writes them. Values that a paper
shows only as bars are unknown and never guessed. Pipelines that RLHFuse (arXiv 2409.13221) published are scheduled beside
them, and the main figure of ReaL (arXiv 2406.14088) is made from whole-step plans.
"""

from rlhfless.paper.catalogue import FIGURES, OTHER_FIGURES, chosen
from rlhfless.paper.figure import Finding, Numbers, PaperFigure, Text
from rlhfless.paper.fused_pipelines import FusedInstance, rlhfuse_instances, schedule_instance, schedules_table
from rlhfless.paper.real_settings import RealSetting, real_settings
from rlhfless.paper.reproduction import Reproduction, reproduce
from rlhfless.paper.runs import Runs
from rlhfless.paper.workloads import Sources
from rlhfless.paper.write import findings, write_figures

__all__ = [
    "FIGURES", "OTHER_FIGURES", "Finding", "FusedInstance", "Numbers", "PaperFigure", "RealSetting", "Reproduction", "Runs",
    "Sources", "Text", "chosen", "findings", "real_settings", "reproduce", "rlhfuse_instances", "schedule_instance",
    "schedules_table", "write_figures",
]  # fmt: skip
