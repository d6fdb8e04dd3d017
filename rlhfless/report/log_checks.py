"""Report text and table of a log's cross-checks: measured against counted or simulated values, and the profile's calibration.

Inputs are the cross-checks and calibrations of ``rlhfless.analysis``, as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhfless.analysis import Calibration
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number
from rlhfless.trace.metrics.cross_check import CrossCheck

MOST = 3  # contradictions that a paragraph names


def contradicted(checks: Sequence[CrossCheck], calibrated: Calibration) -> str:
    """Return the contradictions as a paragraph; the empty text where there are none."""
    wrong = [check for check in checks if check.contradicts]
    if not wrong:
        return ""
    text = f"The log contradicts what is counted or simulated here. {'. '.join(_sentence(check) for check in wrong[:MOST])}."
    if len(wrong) > MOST:
        text += f" {counted(len(wrong) - MOST, 'further contradiction')} in the table of what the log measured."
    if any(check.column == "generate_s" for check in wrong):
        text += (
            f" Simulated times are multiplied by {number(calibrated.factor)} to meet the log's."
            if calibrated.steps
            else " Simulated times are not corrected by the log's."
        )
    return text


def checks_table(page: Page, checks: Sequence[CrossCheck]) -> None:
    """Add a table with one row per quantity that the log measured."""
    rows = [
        (
            check.quantity.name, check.how, f"{check.steps:,}", check.value(check.logged), check.value(check.ours),
            check.difference, f"{check.value(check.worst_logged)} / {check.value(check.worst_ours)} (step {check.worst_step})",
            check.allowed, "contradiction" if check.contradicts else "agrees",
        )
        for check in checks
    ]  # fmt: skip
    head = ("quantity", "ours is", "steps", "the log", "ours", "difference", "worst step: log / ours", "allowed", "")
    page.table("What the log measured, beside what is counted or simulated: means over steps", head, rows, text_columns=2)


def calibrated_by(calibrated: Calibration, what: str) -> str:
    """Return how the profile was calibrated, and its error on held-out steps.

    Args:
        calibrated: by at least one step. what: the two times that were compared, in words.
    """
    factor, checked = number(calibrated.factor), calibrated.checked
    if calibrated.steps == 1 or checked is None:
        return f"by {factor}, from one step: {what}. How far other steps are off is not known."
    spread = f"(10th to 90th percentile {number(calibrated.low)} to {number(calibrated.high)})"
    ours, constant = (
        f"median {np.median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}"
        for errors in (checked.errors, checked.constant_errors)
    )
    steps = counted(calibrated.steps, "step")
    how = (
        f"by {factor}, by which the mean of {steps} takes as long as was measured {spread}. A constant is used because it is "
        "closer to left-out steps than the profile"
        if calibrated.by_constant
        else f"by {factor}, the median over {steps} of {what} {spread}"
    )
    return f"{how}. Relative error out of sample ({checked.how}): {ours}; of a constant: {constant}."


def _sentence(check: CrossCheck) -> str:
    text = str(check)
    return text[0].upper() + text[1:]
