"""Registry of all reproduced figures, by the paper's names, and of figures of other papers.

A file is named after its figure; two hold two: ``figure_04.py`` 4a and 4b, ``figure_17.py`` 2b (the naive system alone) and 17.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhfless.errors import InputError
from rlhfless.paper import (
    figure_03c,
    figure_04,
    figure_07b,
    figure_09,
    figure_10,
    figure_10_all,
    figure_11,
    figure_12,
    figure_13,
    figure_14,
    figure_15,
    figure_16,
    figure_17,
    real_main,
    rlhfuse_cut,
    rlhfuse_schedules,
)
from rlhfless.paper.paper_figure import PaperFigure

FIGURES: dict[str, PaperFigure[Any]] = {
    figure.name: figure
    for figure in (
        figure_17.FIGURE_2B, figure_03c.FIGURE, figure_04.FIGURE_4A, figure_04.FIGURE_4B, figure_07b.FIGURE, figure_09.FIGURE,
        figure_10.FIGURE, figure_11.FIGURE, figure_12.FIGURE, figure_13.FIGURE, figure_14.FIGURE, figure_15.FIGURE,
        figure_16.FIGURE, figure_17.FIGURE,
    )
}  # fmt: skip
OTHER_FIGURES: dict[str, PaperFigure[Any]] = {
    figure.name: figure for figure in (figure_10_all.FIGURE, real_main.FIGURE, rlhfuse_cut.FIGURE, rlhfuse_schedules.FIGURE)
}
"""Figures of other papers, and the 12 settings with all levers: made when they are named."""


def chosen(names: Sequence[str] = ()) -> list[PaperFigure[Any]]:
    """Return the figures of these names, each once and in the paper's order; without names, all figures of RLHFless.

    The name of a figure's file is one, too (``figure_02b``).

    Raises:
        InputError: a name is unknown.
    """
    every = {**FIGURES, **OTHER_FIGURES}
    by_file = {figure.file_name: name for name, figure in every.items()}
    names = [by_file.get(name, name) for name in names]
    unknown = [name for name in names if name not in every]
    if unknown:
        raise InputError(f"there is no figure {unknown[0]!r}; choose from {', '.join(every)}")
    return [figure for name, figure in (every if names else FIGURES).items() if not names or name in names]
