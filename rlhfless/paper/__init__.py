"""Reproduces the figures of RLHFless (arXiv 2602.22718) with this project's simulator.

Each figure is one small file: the paper's setting as a dataclass, a function for the numbers, one for the plot, and a caption
that says what is measured here, what is modelled, what the paper prints, and where and why they differ. Values that the paper
shows only as bars are unknown and never guessed.
"""

from rlhfless.paper.catalogue import FIGURES, chosen
from rlhfless.paper.claims import claims
from rlhfless.paper.findings import findings
from rlhfless.paper.paper_figure import Caption, Numbers, PaperFigure
from rlhfless.paper.workloads import Sources
from rlhfless.paper.write import described, write_figures

__all__ = [
    "FIGURES", "Caption", "Numbers", "PaperFigure", "Sources", "chosen", "claims", "described", "findings", "write_figures",
]  # fmt: skip
