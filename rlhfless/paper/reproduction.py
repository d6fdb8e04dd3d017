"""The paper's figures with their numbers, computed once and shown one by one: what the notebook shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhfless.paper.catalogue import FIGURES
from rlhfless.paper.figure import Numbers
from rlhfless.paper.runs import Runs
from rlhfless.paper.workloads import Sources
from rlhfless.paper.write import findings

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

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
        """One row per number that the paper prints, and per order or trend that it states: the paper's, ours, the bound."""
        return findings(self.numbers).style.hide(axis="index").set_table_styles(LEFT)

    def plot(self, name: str) -> Any:
        """Return a figure, drawn from its numbers; of one with two parts the first."""
        return FIGURES[name].plot(self.numbers[name])

    def drawings(self, name: str) -> list[Any]:
        """Return all drawings of a figure."""
        return list(FIGURES[name].drawings(self.numbers[name]).values())

    def text(self, name: str) -> str:
        """Return the text of a figure as Markdown: what is drawn, what is a model, and where and why we differ."""
        return "\n\n".join(f"**{heading}:** {text}" for heading, text in FIGURES[name].text.lines())


def reproduce(
    *, fast: bool = False, logs: str | Path | None = None, on_figure: Callable[[str], object] | None = None
) -> Reproduction:
    """Compute the numbers of every figure; runs that several figures need are computed once.

    Args:
        fast: smaller settings. logs: folder of public logs; beside the checkout, or else stated models, when None.
        on_figure: called with the name of a figure before it is computed.
    """
    sources, numbers = Sources.of(logs), {}
    runs = Runs(sources)
    for name, figure in FIGURES.items():
        if on_figure is not None:
            on_figure(name)
        numbers[name] = figure.compute(runs, fast)
    return Reproduction(fast, sources, numbers)
