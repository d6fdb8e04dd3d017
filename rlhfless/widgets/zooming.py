"""``zoom``: a dashboard with the timeline of a step with any number of spans; zooming in draws single spans.

A step with too many spans for bars is drawn as a heatmap of busy shares. Zooming in draws the visible part again, as a finer
heatmap or, once it has few enough spans, as bars.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhfless.plots import plot_timeline
from rlhfless.plots.style import clean, message_figure
from rlhfless.plots.timeline_data import MAX_SPANS
from rlhfless.trace import Limits, Trace
from rlhfless.widgets.latest_request import LatestRequestWorker, Newest
from rlhfless.widgets.panes import Panes
from rlhfless.widgets.run_table import read_run


class Zoom(Panes):
    """The timeline that ``zoom`` makes.

    Attributes:
        between_s: the visible part, in seconds since the step's start; None for the whole step.
    """

    instead = "Without widgets, plot_timeline(trace, step) of rlhfless.plots draws it."

    def __init__(self, trace: Trace, step: int | None, run: str | None, max_spans: int) -> None:
        super().__init__(((("timeline", 1),),), on_zoom=self._zoomed)
        self._trace, self._step, self._run, self._max_spans = trace, step, run, max_spans
        self.between_s: tuple[float, float] | None = None
        self.error: Exception | None = None
        self._asked = 0
        self._wanted: tuple[float, float] | None = None
        self._latest: LatestRequestWorker[tuple[int, tuple[float, float] | None]] = LatestRequestWorker(
            self._work, self._failed
        )
        self._show(0, None)

    def wait(self, timeout_s: float | None = 30.0) -> bool:
        """Wait until the newest zoom is drawn; returns whether that happened within the timeout."""
        return self._latest.wait(timeout_s)

    def _zoomed(self, _: str, between_s: tuple[float, float] | None) -> None:
        if between_s != self._wanted:
            self._asked += 1
            self._wanted = between_s
            self.ask(["timeline"], lambda: self._latest.submit((self._asked, between_s)))

    def _work(self, request: tuple[int, tuple[float, float] | None], newest: Newest) -> None:
        asked, between_s = request
        self._show(asked, between_s)
        self.answered(newest, ())

    def _show(self, asked: int, between_s: tuple[float, float] | None) -> None:
        self.between_s = between_s
        figure: Any = plot_timeline(self._trace, self._step, self._run, max_spans=self._max_spans, between_s=between_s)
        figure.update_yaxes(fixedrange=True)  # one zooms into time
        self.draw("timeline", figure, asked)

    def _failed(self, error: Exception) -> None:
        """Show the error instead of the timeline, which stays grey, as it is not the visible part."""
        self.error = error
        self.draw("timeline", message_figure("GPU timeline", clean(f"{type(error).__name__}: {error}", 200)), self._asked)


def zoom(
    trace: Trace | str | Path,
    step: int | None = None,
    run: str | None = None,
    *,
    max_spans: int = MAX_SPANS,
    limits: Limits | None = None,
) -> Zoom:
    """Show the GPU timeline of a step of any size, to zoom into; double-click shows the whole step again.

    The same without widgets: ``plot_timeline(trace, step, between_s=(from, to))``.

    Args:
        trace: any trace, or its folder. step: the last one when None. run: the first one of the trace when None.
        max_spans: the visible part is drawn as bars where it has at most so many spans.
        limits: maximal amounts to read of a folder; None takes the default.

    Raises:
        TraceError: it is no trace, or larger than the limits.
    """
    return Zoom(read_run(trace, limits=limits), step, run, max_spans)
