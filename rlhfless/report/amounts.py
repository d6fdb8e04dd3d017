"""Amounts of a run in words: dollars where its price is known, GPU-hours elsewhere, and shares where its GPUs are not known."""

from __future__ import annotations

from rlhfless.plots.style import number
from rlhfless.report.not_stated import GPUS, PRICE, PROFILE
from rlhfless.report.savings import percent_range
from rlhfless.report.study import LoggedRunFindings

LEAST_HOURS = 0.1  # of a run that is told in GPU-hours; a shorter one is told in GPU-seconds


def is_priced(findings: LoggedRunFindings) -> bool:
    """Return whether the price of a GPU was stated, and is not 0."""
    return PRICE not in findings.not_stated and findings.cost.usd_per_gpu_hour > 0


def unknown(findings: LoggedRunFindings) -> list[str]:
    """Return which of GPUs and profile the run's GPU-hours need and nobody stated."""
    missing = [GPUS] if GPUS in findings.not_stated else []
    if PROFILE in findings.not_stated and not findings.cost.logged_steps:
        missing.append(PROFILE)
    return missing


def of_the_run(findings: LoggedRunFindings, share: float) -> str:
    """Return a share of the run's cost: dollars where the price was stated, else GPU-hours."""
    if is_priced(findings):
        return number(share * findings.cost.usd, "USD")
    hours = findings.cost.gpu_hours
    return number(share * hours, "GPU-hours") if hours >= LEAST_HOURS else number(3600 * share * hours, "GPU-seconds")


def amount_range(findings: LoggedRunFindings, low: float, high: float) -> str:
    """Return a range of shares of the run's cost as amounts with one unit; of shares where the GPUs are not known."""
    if unknown(findings):
        return percent_range(low, high)
    least, most = of_the_run(findings, low), of_the_run(findings, high)
    if least == most:
        return least
    value, _, unit = least.partition(" ")
    return f"{value if most.endswith(f' {unit}') else least} to {most}"


def gpu_hours(hours: float) -> str:
    """Return GPU-hours, or GPU-seconds of a short run: ``326 GPU-hours``."""
    return number(hours, "GPU-hours") if hours >= LEAST_HOURS else number(3600 * hours, "GPU-seconds")
