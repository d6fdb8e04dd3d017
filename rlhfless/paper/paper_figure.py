"""The parts of every reproduced figure: setting, numbers, plot, caption, table rows and claims.

A figure's file ends with ``FIGURE``, made of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from rlhfless.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from rlhfless.paper.parts import FigurePart
    from rlhfless.paper.workloads import Sources

S = TypeVar("S")


class Caption(NamedTuple):
    """What is drawn, what was measured, what is a model, what the paper prints, and where and why they differ."""

    drawn: str
    measured: str
    modelled: str
    paper: str
    differs: str

    def lines(self) -> list[tuple[str, str]]:
        """Return heading and text of each part."""
        return [
            ("Drawn", self.drawn),
            ("Measured", self.measured),
            ("Modelled", self.modelled),
            ("The paper prints", self.paper),
            ("Where and why we differ", self.differs),
        ]


class Numbers(NamedTuple):
    """The data of a figure.

    Attributes:
        table: tidy rows; the same for the same setting, on every machine.
        measured: rows with seconds that this machine took, which differ from run to run; None where there are none.
    """

    table: pd.DataFrame
    measured: pd.DataFrame | None = None


class Row(NamedTuple):
    """One number that the paper prints: a row of the table "paper says / we find", all text.

    Attributes:
        what: the measured quantity. paper: as printed. we_find: ours. possible: the most that the bounds allow in the same
            setting. plain: the conclusion, in plain words.
    """

    what: str
    paper: str
    we_find: str
    possible: str
    plain: str


class Claim(NamedTuple):
    """One order or trend that the paper states.

    Attributes:
        paper: the statement. holds: ``yes``, ``in part`` or ``no``, decided by our numbers. we_find: the facts behind it.
    """

    paper: str
    holds: str
    we_find: str

    @classmethod
    def of(cls, paper: str, cases: Iterable[bool], we_find: str) -> Claim:
        """Return the claim with ``yes`` where all cases hold, ``no`` where none does, else ``in part``."""
        held = list(cases)
        assert held, "a claim needs a case"
        return cls(paper, "yes" if all(held) else "in part" if any(held) else "no", we_find)


@dataclass(frozen=True)
class PaperFigure(Generic[S]):
    """One figure of the paper.

    Attributes:
        name: as in the paper (``2b``). title: of the plot.
        setting: the paper's setting, as far as it is printed. fast: a smaller one of the same kind, for a quick preview.
        numbers: setting and sources of workloads in, numbers out.
        plot, caption: setting and numbers in.
        rows: the numbers that the paper prints of this figure, beside ours. claims: the orders and trends that it states.
            Numbers in; nothing is computed again, so a verdict may differ between the fast setting and the full one.
        paper: in which the figure is. printed: lines that the command prints; setting and numbers in.
        parts: of a figure that takes long, the parts of its table, which the command keeps when it is stopped; their rows
            together are those of ``numbers``. None where a figure is computed at once.
    """

    name: str
    title: str
    setting: S
    fast: S
    numbers: Callable[[S, Sources], Numbers]
    plot: Callable[[S, Numbers], go.Figure]
    caption: Callable[[S, Numbers], Caption]
    rows: Callable[[Numbers], list[Row]] = lambda numbers: []
    claims: Callable[[Numbers], list[Claim]] = lambda numbers: []
    paper: str = "arXiv:2602.22718"
    printed: Callable[[S, Numbers], list[str]] = lambda setting, numbers: []
    parts: Callable[[S, Sources], Iterable[FigurePart]] | None = None

    def of(self, fast: bool, seeds: int | None = None) -> S:
        """Return the setting, or the fast one; with ``seeds`` in place of its own number where it has one.

        Raises:
            InputError: ``seeds`` is below 1, or the setting has none.
        """
        setting = self.fast if fast else self.setting
        if seeds is None:
            return setting
        if not hasattr(setting, "seeds"):
            raise InputError(f"figure {self.name!r} has no seeds; leave the number of seeds out")
        if seeds < 1:
            raise InputError(f"seeds is {seeds}; a whole number of 1 or more is needed")
        return replace(setting, seeds=seeds)  # type: ignore[type-var]

    @property
    def file_name(self) -> str:
        """Return ``figure_02b``: files of all figures sort in the paper's order; ``figure_real_main`` without a number."""
        digits = "".join(c for c in self.name if c.isdigit())
        if not digits:
            return f"figure_{self.name}"
        return f"figure_{int(digits):02d}{self.name[len(digits) :]}"
