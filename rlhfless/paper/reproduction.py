"""The paper's figures with their numbers, computed once and shown one by one: what the notebook shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.paper.catalogue import FIGURES
from rlhfless.paper.index import claims, findings
from rlhfless.paper.paper_figure import Numbers
from rlhfless.paper.workloads import Sources
from rlhfless.paper.write import described

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

NAMES = {"paper": "paper says", "we_find": "we find", "possible": "what is possible", "plain": "in plain words"}
LEFT = [{"selector": "td, th", "props": "text-align: left; vertical-align: top; white-space: normal; min-width: 5em"}]


@dataclass(frozen=True, eq=False)
class Reproduction:
    """All figures of the paper; ``reproduce`` makes it.

    Attributes:
        fast: with smaller settings. sources: of the lengths. numbers: by the figure's name.
    """

    fast: bool
    sources: Sources
    numbers: Mapping[str, Numbers]

    @property
    def findings(self) -> Styler:
        """One row per number that the paper prints: what it says, what we find, what is possible."""
        return _wrapped(findings(self.numbers))

    @property
    def claims(self) -> Styler:
        """The orders and trends that the paper states, and whether they hold here."""
        return _wrapped(claims(self.numbers))

    def plot(self, name: str) -> Any:
        """Return a figure, drawn from its numbers."""
        return FIGURES[name].plot(FIGURES[name].of(self.fast), self.numbers[name])

    def caption(self, name: str) -> str:
        """Return the caption of a figure as Markdown: what is drawn, what is a log, what is a model, and why we differ."""
        lines = described(FIGURES[name], FIGURES[name].of(self.fast), self.numbers[name])
        return "\n\n".join(f"**{heading}:** {text}" for heading, text in lines)


def reproduce(
    *, fast: bool = False, logs: str | Path | None = None, on_figure: Callable[[str], object] | None = None
) -> Reproduction:
    """Compute the numbers of every figure.

    Args:
        fast: smaller settings. logs: folder of public logs; beside the checkout, or else stated models, when None.
        on_figure: called with the name of a figure before it is computed.
    """
    sources, numbers = Sources.of(logs), {}
    for name, figure in FIGURES.items():
        if on_figure is not None:
            on_figure(name)
        numbers[name] = figure.numbers(figure.of(fast), sources)
    return Reproduction(fast, sources, numbers)


def _wrapped(rows: pd.DataFrame) -> Styler:
    """Return a table of text whose cells wrap."""
    return rows.rename(columns=NAMES).style.hide(axis="index").set_table_styles(LEFT)
