"""Report text on preparation and learning while other responses are decoded: what this would have saved of a logged run."""

from __future__ import annotations

from collections.abc import Sequence

from rlhfless.analysis.framework_defaults import RunSetup
from rlhfless.analysis.phase_savings import PhaseSavings
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import number
from rlhfless.report.savings import percent, percent_range

WORK = {
    False: "preparation of finished responses (stage fusion)",
    True: "preparation, and gradients of finished groups (streaming)",
}
"""By whether gradients are accumulated, too."""


def overlaps_section(page: Page, overlaps: Sequence[PhaseSavings], setup: RunSetup) -> None:
    """Add what an overlap with generation would have saved of whole steps; nothing without the times of other phases."""
    if not overlaps:
        return
    page.heading("Preparation and learning while other responses are decoded")
    where = "GPUs of replicas that wait for a step's last responses" if setup.colocated else "the learner's GPUs, which wait"
    page.text(
        f"Finished responses could be prepared on {where}. Gradients could be accumulated there, too. The optimizer still "
        "steps once, after all responses, so the update is the same up to rounding. No response is moved."
    )
    page.table(
        "Time of whole steps that is saved while other responses are decoded",
        ("work", "time saved", "if every waiting GPU worked, at most"),
        [(WORK[one.learns], percent_range(one.low, one.high), percent(one.most)) for one in overlaps],
    )
    loaded = f" Models are loaded in no time, or within {number(overlaps[0].load_s, 's')}." if setup.colocated else ""
    needs = (
        " The models and the learner's state must fit on the GPUs of one replica."
        if setup.colocated and overlaps[-1].learns
        else ""
    )
    page.text(
        "Seconds of preparation and learning are spread over responses by their tokens. The range covers resampled steps and "
        f"every way in which the run may have assigned responses.{loaded}{needs} Training with RLHFless does this with "
        "preparation: overlap and learning: stream."
    )
