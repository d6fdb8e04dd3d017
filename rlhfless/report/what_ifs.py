"""Report section on other ways to generate and to learn: what they cost, and what they do to the data."""

from __future__ import annotations

from collections.abc import Iterator

from rlhfless.analysis import RunSetup
from rlhfless.analysis.what_ifs.compare import WaysCompared
from rlhfless.analysis.what_ifs.dynamic_sampling import USELESS_SHARES
from rlhfless.analysis.what_ifs.outcome import WayOutcome
from rlhfless.analysis.what_ifs.words import data_in_words
from rlhfless.plots import plot_what_ifs
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import number
from rlhfless.report.savings import percent

TITLE = "What-ifs: other ways to generate and to learn"
ONE_DRAW = (
    "The lengths are one draw from the log's scalars, a lognormal one with independent responses. Other draws give other "
    "numbers."
)


def what_ifs_section(page: Page, compared: WaysCompared, setup: RunSetup, drawn: bool = False) -> None:
    """Add the table of all ways and the figure, by the same numbers.

    Args:
        drawn: whether the lengths were drawn from a log's scalars.
    """
    page.section(TITLE, folded=True)
    for sentence in _basis(compared, setup):
        page.text(sentence)
    if drawn:
        page.text(ONE_DRAW)
    page.figure(plot_what_ifs(compared, legend=False))
    ways = list(enumerate((compared.base, *compared.ways)))
    unit = "cost (USD)" if compared.has_price else "GPU-hours"
    head = ("", "way", "time", "time saved", unit, "cost saved", "least time possible", "stale tokens", "dropped responses")
    rows = [_row(place, way, compared) for place, way in ways]
    page.table("Whole steps under every way, the cheapest first; numbers are those of the figure", head, rows, text_columns=2)
    page.heading("What each way changes, and what it does to the data")
    page.facts((f"{place} {way.name}", f"{way.change}{_range(way)} Data: {data_in_words(way.data)}.") for place, way in ways)
    for name, why in compared.left_out.items():
        page.text(f"Left out: {name}. {why[:1].upper()}{why[1:]}.")


def _basis(compared: WaysCompared, setup: RunSetup) -> Iterator[str]:
    steps = compared.base.steps
    yield (
        f"Each way is simulated on the lengths of the last {f'{steps} steps' if steps > 1 else 'step'} of the log. Times are "
        "of whole steps. All GPUs are paid throughout, but where a way releases them."
    )
    yield from compared.paid_once()
    if not setup.synchronous:
        yield "This run learns on responses of older weights already; as logged is a synchronous step with the same responses."


def _row(place: int, way: WayOutcome, compared: WaysCompared) -> tuple[str, ...]:
    cost = way.usd(compared.setting) if compared.has_price else way.gpu_s / 3600
    data = way.data
    time, cost_saved = (percent(share) for share in compared.saved(way)) if place else ("", "")
    return (
        f"{place}", way.name, number(way.time_s, "s"), time, number(cost), cost_saved, number(way.least_time_s, "s"),
        percent(data.stale_tokens / max(data.learned_tokens, 1)), f"{data.dropped_responses:,}",
    )  # fmt: skip


def _range(way: WayOutcome) -> str:
    """Return the range of the time where an assumption has one, as a further sentence."""
    if "low_s" not in way.parameters:
        return ""
    low, high = USELESS_SHARES
    least, most = (number(way.parameters[end], "s") for end in ("low_s", "high_s"))
    return f" With {low:.0%} to {high:.0%}, all steps take {least} to {most}."
