"""Reproduces the figures of RLHFless (arXiv 2602.22718) with this project's simulator.

Each figure is one small file. It has the paper's setting as a dataclass, a function for the numbers, one for the plot, and a
caption. Its rows of the table "paper says / we find" and its claims follow. A caption says what is drawn, what is measured,
what is modelled, what the paper prints, and where and why we differ. Values that the paper shows only as bars are unknown and
never guessed. Pipelines that RLHFuse (arXiv 2409.13221) published are scheduled
beside them, and the main figure of ReaL (arXiv 2406.14088) is made from whole-step plans.
"""

from rlhfless.paper.catalogue import FIGURES, OTHER_FIGURES, chosen
from rlhfless.paper.fused_pipelines import FusedInstance, rlhfuse_instances, schedule_instance, schedules_table
from rlhfless.paper.index import claims, findings
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure, Row
from rlhfless.paper.real_settings import RealSetting, real_settings
from rlhfless.paper.reproduction import Reproduction, reproduce
from rlhfless.paper.workloads import Sources
from rlhfless.paper.write import described, write_figures

__all__ = [
    "FIGURES", "OTHER_FIGURES", "Caption", "Claim", "FusedInstance", "Numbers", "PaperFigure", "RealSetting", "Reproduction",
    "Row", "Sources", "chosen", "claims", "described", "findings", "real_settings", "reproduce", "rlhfuse_instances",
    "schedule_instance", "schedules_table", "write_figures",
]  # fmt: skip
