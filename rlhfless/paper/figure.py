"""What every reproduced figure is made of: a table, a drawing of it, a fixed text, and findings.

A finding is one row of the table "paper | ours | bound | holds": a number that the paper prints, or an order or trend that it
states. Verdicts are computed from the table, so that of the fast setting may differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhfless.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from rlhfless.paper.runs import Runs

NAIVE_LEARNER = "a learner of the naive system's size"
STATED = "stated"
NO_BOUND = "no bound is known"


class Text(NamedTuple):
    """The fixed text under a figure: what is drawn, what is a model, and where and why we differ from the paper."""

    drawn: str
    modelled: str
    differs: str

    def lines(self) -> list[tuple[str, str]]:
        """Return heading and text of each part."""
        return list(zip(("Drawn", "Modelled", "Where and why we differ"), self, strict=True))


class Numbers(NamedTuple):
    """The data of a figure.

    Attributes:
        table: tidy rows; the same for the same setting, on every machine.
        measured: rows with seconds that a machine took, which differ from run to run; None where there are none.
        drawn: the trace or the results that a plot of ``rlhfless.plots`` draws; None where the table is drawn.
    """

    table: pd.DataFrame
    measured: pd.DataFrame | None = None
    drawn: Any = None


class Finding(NamedTuple):
    """One row of the table of findings, all text.

    Attributes:
        what: the quantity, or the statement. paper: the number as printed, or ``stated``. ours: what we find. bound: the most
            that the bounds allow in the same setting. holds: ``yes``, ``in part`` or ``no``: whether ours confirms the paper.
    """

    what: str
    paper: str
    ours: str
    bound: str
    holds: str


def verdict(cases: Iterable[bool]) -> str:
    """Return ``yes`` where all cases hold, ``no`` where none does, else ``in part``."""
    held = list(cases)
    assert held, "a finding needs a case"
    return "yes" if all(held) else "in part" if any(held) else "no"


def named(plotted: go.Figure, name: str) -> go.Figure:
    """Return a plot of the library whose title begins with the name of the paper's figure."""
    return plotted.update_layout(title_text=plotted.layout.title.text.replace("<b>", f"<b>{name}: ", 1))


def spread(values: pd.Series, form: str) -> str:
    """Return ``0.93 to 0.98``, or the one value where all are the same after rounding."""
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class PaperFigure:
    """One figure of a paper.

    Attributes:
        name: as in the paper (``2b``). title: of the plot. text: under it.
        numbers: runs in, numbers out; its further arguments are the setting, and their defaults that of the paper, as far as it
            is printed. fast: arguments of a smaller setting of the same kind, for a quick preview.
        plot, findings, printed: numbers in; ``printed`` are lines for the terminal.
        below: a second drawing, under the first, where the paper's figure has two parts.
        paper: in which the figure is.
    """

    name: str
    title: str
    text: Text
    numbers: Callable[..., Numbers]
    plot: Callable[[Numbers], go.Figure]
    findings: Callable[[Numbers], list[Finding]] = lambda numbers: []
    fast: Mapping[str, Any] = field(default_factory=dict)
    paper: str = "arXiv:2602.22718"
    printed: Callable[[Numbers], list[str]] = lambda numbers: []
    below: Callable[[Numbers], go.Figure] | None = None

    def compute(self, runs: Runs, fast: bool = False, seeds: int | None = None) -> Numbers:
        """Return the numbers of the paper's setting or of the fast one, with ``seeds`` in place of its number of seeds."""
        given = {} if seeds is None else {"seeds": self.with_seeds(seeds)}
        return self.numbers(runs, **{**(self.fast if fast else {}), **given})

    def drawings(self, numbers: Numbers) -> dict[str, go.Figure]:
        """Return the drawings by the names of their files: that of the figure, and with ``_b`` behind for a second one."""
        below = {} if self.below is None else {f"{self.file_name}_b": self.below(numbers)}
        return {self.file_name: self.plot(numbers), **below}

    def with_seeds(self, seeds: int) -> int:
        """Return a number of seeds that the figure accepts.

        Raises:
            InputError: the number is below 1, or the figure has no seeds.
        """
        if "seeds" not in inspect.signature(self.numbers).parameters:
            raise InputError(f"figure {self.name!r} has no seeds; leave the number of seeds out")
        if seeds < 1:
            raise InputError(f"seeds is {seeds}; a whole number of 1 or more is needed")
        return seeds

    @property
    def file_name(self) -> str:
        """Return ``figure_02b``: files of all figures sort in the paper's order; ``figure_real_main`` without a number."""
        digits = "".join(c for c in self.name if c.isdigit())
        return f"figure_{int(digits):02d}{self.name[len(digits) :]}" if digits else f"figure_{self.name}"
