"""The parts of every reproduced figure: a setting, its numbers, its plot and a caption.

A figure's file ends with ``FIGURE``, made of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from rlhfless.paper.workloads import Sources

S = TypeVar("S")


class Caption(NamedTuple):
    """The context of a figure: what was measured, what is a model, what the paper prints, where and why they differ."""

    measured: str
    modelled: str
    paper: str
    differs: str

    def lines(self) -> list[tuple[str, str]]:
        """Return heading and text of each part."""
        return [
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


@dataclass(frozen=True)
class PaperFigure(Generic[S]):
    """One figure of the paper.

    Attributes:
        name: as in the paper (``2b``). title: of the plot.
        setting: the paper's setting, as far as it is printed. fast: a smaller one of the same kind, for a quick preview.
        numbers: setting and sources of workloads in, numbers out.
        plot, caption: setting and numbers in.
    """

    name: str
    title: str
    setting: S
    fast: S
    numbers: Callable[[S, Sources], Numbers]
    plot: Callable[[S, Numbers], go.Figure]
    caption: Callable[[S, Numbers], Caption]

    def of(self, fast: bool) -> S:
        """Return the setting, or the fast one."""
        return self.fast if fast else self.setting

    @property
    def file_name(self) -> str:
        """Return ``figure_02b``: files of all figures sort in the paper's order."""
        digits = "".join(c for c in self.name if c.isdigit())
        return f"figure_{int(digits):02d}{self.name[len(digits) :]}"
