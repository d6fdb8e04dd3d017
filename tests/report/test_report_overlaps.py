"""What a report says of preparation and learning while other responses are decoded."""

from __future__ import annotations

import html
import re

from syrupy.assertion import SnapshotAssertion

from rlhfless.analysis import run_setup
from rlhfless.analysis.phase_savings import PhaseSavings
from rlhfless.plots.export.html_page import Page
from rlhfless.report.overlaps import overlaps_section

STAGE_FUSION = PhaseSavings(learns=False, low=0.012, mean=0.02, high=0.031, most=0.05, load_s=0.4)
STREAMING = PhaseSavings(learns=True, low=0.04, mean=0.08, high=0.12, most=0.16, load_s=0.4)


def section(overlaps: tuple[PhaseSavings, ...], learner_gpus: int) -> str:
    page = Page("Overlaps", "")
    page.section("Possible savings")
    overlaps_section(page, overlaps, run_setup("trl", learner_gpus=learner_gpus))
    ours = page.render("").partition("<h2")[2].partition("<script")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", ours)).split())


def test_both_overlaps_are_said_with_ranges_and_conditions(snapshot: SnapshotAssertion) -> None:
    assert section((STAGE_FUSION, STREAMING), learner_gpus=0) == snapshot(name="on the GPUs that generate")
    assert section((STREAMING,), learner_gpus=2) == snapshot(name="on a learner of its own")


def test_nothing_is_said_without_times() -> None:
    assert "while other responses" not in section((), learner_gpus=0)
