"""Report section on other ways to generate and to learn: what they cost, and what they do to the data."""

from __future__ import annotations

from collections.abc import Iterator

from rlhfless.analysis import RunSetup
from rlhfless.analysis.what_ifs.compare import WaysCompared
from rlhfless.analysis.what_ifs.outcome import WayOutcome
from rlhfless.analysis.what_ifs.words import data_in_words
from rlhfless.plots import plot_what_ifs
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import number, usd
from rlhfless.report.savings import percent

TITLE = "What-ifs: other ways to generate and to learn"


def what_ifs_section(page: Page, compared: WaysCompared, setup: RunSetup) -> None:
    """Add the table of all ways and the figure, by the same numbers."""
    page.section(TITLE)
    for sentence in _basis(compared, setup):
        page.text(sentence)
    page.figure(plot_what_ifs(compared, legend=False))
    cost = "cost" if compared.has_price else "GPU-hours"
    head = ("", "way", "change", "what it does to the data", "time", "time saved", cost, f"{cost} saved", "least time possible")
    rows = [_row(place, way, compared) for place, way in enumerate((compared.base, *compared.ways))]
    page.table("Whole steps under every way, the cheapest first; numbers are those of the figure", head, rows, text_columns=4)
    for name, why in compared.left_out.items():
        page.text(f"Left out: {name}. {why[:1].upper()}{why[1:]}.")


def _basis(compared: WaysCompared, setup: RunSetup) -> Iterator[str]:
    steps = compared.base.steps
    yield (
        f"Each way is simulated on the lengths of the last {f'{steps} steps' if steps > 1 else 'step'} of the log. Times are "
        "of whole steps. All GPUs are paid throughout, but where a way releases them."
    )
    if not setup.synchronous:
        yield "This run learns on responses of older weights already; as logged is a synchronous step with the same responses."


def _row(place: int, way: WayOutcome, compared: WaysCompared) -> tuple[str, ...]:
    cost = usd(way.usd(compared.setting)) if compared.has_price else number(way.gpu_s / 3600)
    saved = (1 - way.time_s / compared.base.time_s, 1 - way.gpu_s / compared.base.gpu_s)
    time, cost_saved = (percent(share) for share in saved) if place else ("", "")
    return (
        f"{place}", way.name, way.change, data_in_words(way.data), _time(way), time, cost or "none", cost_saved,
        number(way.least_time_s, "s"),
    )  # fmt: skip


def _time(way: WayOutcome) -> str:
    """Return the time, with its range where an assumption has one."""
    ends = way.parameters
    span = f" ({number(ends['low_s'])} to {number(ends['high_s'])})" if "low_s" in ends else ""
    return f"{number(way.time_s, 's')}{span}"
