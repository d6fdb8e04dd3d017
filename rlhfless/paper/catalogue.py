"""All reproduced figures, by the papers' names, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence

from rlhfless.errors import InputError
from rlhfless.paper import figure_10_all, figures_02_to_09, figures_10_to_13, figures_14_to_16, real_main, rlhfuse
from rlhfless.paper.figure import PaperFigure
from solver.model.plurals import counted

FIGURES: dict[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        figures_02_to_09.FIGURE_2B, figures_02_to_09.FIGURE_3C, figures_02_to_09.FIGURE_4A, figures_02_to_09.FIGURE_4B,
        figures_02_to_09.FIGURE_7B, figures_02_to_09.FIGURE_9, figures_10_to_13.FIGURE_10, figures_10_to_13.FIGURE_11,
        figures_10_to_13.FIGURE_12, figures_10_to_13.FIGURE_13, figures_14_to_16.FIGURE_14, figures_14_to_16.FIGURE_15,
        figures_14_to_16.FIGURE_16, figures_02_to_09.FIGURE_17,
    )
}  # fmt: skip
OTHER_FIGURES: dict[str, PaperFigure] = {
    figure.name: figure for figure in (figure_10_all.FIGURE, real_main.FIGURE, rlhfuse.CUT, rlhfuse.SCHEDULES)
}
"""Figures of other papers, and the 12 settings with all optimisations: made when they are named."""

CPU_S = {
    "2b": (1.1, 0.8), "3c": (5.8, 2.1), "4a": (0.2, 0.2), "4b": (0.1, 0.1), "7b": (2.2, 1.8), "9": (0.2, 0.2),
    "10": (43.7, 5.8), "11": (9.6, 2.0), "12": (4.4, 2.1), "13": (10.1, 3.3), "14": (4.4, 1.3), "15": (28.0, 7.3),
    "16": (121.3, 5.4), "17": (0.1, 0.1),
}  # fmt: skip
"""Seconds of CPU for the numbers of each figure of RLHFless as it is printed, and with ``fast``, made in this order: figures
share runs, so one that is made alone takes some seconds more. Measured once, on a busy machine, with public logs at hand."""


def how_long(figures: Sequence[PaperFigure], fast: bool) -> str:
    """Return how many figures are made, and about how long one core needs for them."""
    number = counted(len(figures), "figure")
    if any(figure.name not in CPU_S for figure in figures):
        return f"{number}, of which {', '.join(f.name for f in figures if f.name not in CPU_S)} may take minutes"
    seconds = [CPU_S[figure.name] for figure in figures]
    smaller = _about(sum(fast_s for _, fast_s in seconds))
    if fast:
        return f"{number} in smaller settings, about {smaller} of one core"
    return f"{number}, about {_about(sum(printed_s for printed_s, _ in seconds))} of one core; with --fast about {smaller}"


def _about(seconds: float) -> str:
    """Return a time in whole minutes, or in seconds to the next ten below a minute and a half."""
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{max(1, round(seconds / 10)) * 10} s"


def chosen(names: Sequence[str] = ()) -> list[PaperFigure]:
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
