"""Report text and table of a log's cross-checks: measured against counted or simulated values, and the profile's calibration.

Inputs are the cross-checks and calibrations of ``rlhfless.analysis``, as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhfless.analysis import Calibration
from rlhfless.latency.held_out_errors import errors_in_words
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import MINUS, counted, number
from rlhfless.report.words import Words
from rlhfless.trace.metrics.cross_check import CrossCheck

MAX_LISTED = 3  # contradictions that a paragraph names


def contradicted(checks: Sequence[CrossCheck], calibrated: Calibration, words: Words) -> str:
    """Return as a paragraph how simulated times were scaled, and what contradicts; the empty text where all agrees."""
    source = words.source
    scaled = [check for check in checks if _is_scaled(check, calibrated)]
    wrong = [check for check in checks if check.contradicts and check not in scaled]
    texts = [
        f"Generation of a step took {check.logged_value(check.logged)} in the {source} and {check.ours_value(check.ours)} "
        f"{check.how}, so simulated times are multiplied by {number(calibrated.factor)}."
        for check in scaled
    ]
    if wrong:
        sentences = ". ".join(_sentence(check) for check in wrong[:MAX_LISTED])
        texts.append(f"The {source} contradicts numbers of this report. {sentences}.")
    if len(wrong) > MAX_LISTED:
        further = counted(len(wrong) - MAX_LISTED, "further contradiction")
        texts.append(f"The table of measurements lists {further}.")
    if any(check.column == "generate_s" for check in wrong):
        texts.append(
            f"Simulated times are multiplied by {number(calibrated.factor)}, the least factor that agrees with the {source}."
            if calibrated.factor > 1
            else f"Simulated times come from the profile, without a correction by the {source}."
        )
    return " ".join(texts)


def _is_scaled(check: CrossCheck, calibrated: Calibration) -> bool:
    """Return whether a difference is the one by which simulated times were scaled, and so none of the report's."""
    return check.contradicts and check.column == "generate_s" and calibrated.steps > 0


def checks_table(page: Page, checks: Sequence[CrossCheck], calibrated: Calibration, words: Words) -> None:
    """Add a table with one row per quantity that the log or trace measured."""
    rows = [
        (
            check.quantity.name, check.how, f"{check.steps:,}", check.logged_value(check.logged), check.ours_value(check.ours),
            check.difference,
            f"{check.logged_value(check.worst_logged)} / {check.ours_value(check.worst_ours)} (step {check.worst_step})",
            check.allowed, f"before scaling by {number(calibrated.factor)}" if _is_scaled(check, calibrated) else check.verdict,
        )
        for check in checks
    ]  # fmt: skip
    worst = f"worst step: {words.source} / report"
    head = ("quantity", "how this report has it", "steps", words.source, "report", "difference", worst, "tolerance", "verdict")
    page.table(f"Measured in the {words.source} and in this report: means over steps", head, rows, text_columns=2)


def calibrated_by(calibrated: Calibration, what: str) -> str:
    """Return how the profile was calibrated, and its error on held-out steps.

    Args:
        calibrated: by at least one step. what: the two times whose ratio is the factor, in words.
    """
    factor, checked = number(calibrated.factor), calibrated.checked
    if calibrated.steps == 1 or checked is None:
        return f"by {factor}, the ratio of {what}, from one step. The error on other steps is unknown."
    spread = f"(10th to 90th percentile over steps: {number(calibrated.low)} to {number(calibrated.high)})"
    ours, constant = (errors_in_words(errors) for errors in (checked.errors, checked.constant_errors))
    steps = counted(calibrated.steps, "step")
    how = (
        f"by {factor}, so that the mean of {steps} equals the measured mean {spread}. The mean is used because a constant time "
        "per step predicts held-out steps better than the profile does"
        if calibrated.by_constant
        else f"by {factor}, the median over {steps} of the ratio of {what} {spread}"
    )
    return (
        f"{how}. Relative error on held-out steps ({checked.how}): {ours}; with a constant time per step: {constant}. Later "
        "steps may run at another speed: allow for the largest error there."
    )


def _sentence(check: CrossCheck) -> str:
    text = str(check).replace("(-", f"({MINUS}")
    return text[0].upper() + text[1:]
