"""Options of what a user states about a logged run: its GPUs, how it dispatched and learned, and prices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from rlhfless.cli.options import Decorator, calibrate_option, hardware_options, outside_generation, together
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from rlhfless.report.study import Assumptions
    from rlhfless.run import Run

HEADINGS = {
    "The GPUs": ("gpus", "gpus_per_node", "gpus_per_actor", "profile", "usd_per_gpu_hour"),
    "The run that was logged": ("dispatch", "learner_gpus", "prepare_s", "learn_s", "calibrate"),
}
"""For commands whose help has headings (``WithHeadings``)."""

logged_hardware_options = hardware_options(
    gpus="The run had this many GPUs.  [default: the trace's]",
    profile="Use this latency profile: a shipped name or a JSON file.  [default: the trace's, or l40s-qwen2.5-3b-tp2]",
)
"""Adds the options of ``hardware_options`` for a run that was logged."""


def refuse_without_gpus(run: Run, path: Path) -> None:
    """Refuse a run whose number of GPUs neither --gpus nor its trace states.

    Raises:
        InputError: it is such a run.
    """
    if run.hardware.gpus is None:
        raise InputError(f"{path}: does not say how many GPUs the run had; --gpus N is needed")


def assumed_profile(run: Run) -> list[str]:
    """Return a sentence on the profile that is assumed, because neither options nor the trace state one; else nothing."""
    from rlhfless.report.not_stated import PROFILE

    return [f"Assumed: {sentence}." for name, sentence in run.assumptions.not_stated.items() if name == PROFILE]


def assumption_options(*before: Decorator) -> Decorator:
    """Return options of how a run dispatched and learned, after those of ``before``, as the argument ``assumptions``."""
    options: list[Decorator] = [
        *before,
        click.option(
            "--dispatch",
            help="The run dispatched prompts in equal chunks (static) or least-loaded.  [default: its framework's]",
        ),
        *outside_generation(None, "the log's", "as its framework does"),
        calibrate_option,
    ]  # fmt: skip

    def made() -> Callable[..., Assumptions]:
        return stated_assumptions

    return together("assumptions", made, options)


def stated_assumptions(
    dispatch: str | None,
    learner_gpus: int | None,
    prepare_s: float | None,
    learn_s: float | None,
    calibrate: bool,
    prices: tuple[str, ...] = (),
) -> Assumptions:
    """Return what the user states about a logged run.

    Raises:
        InputError: seconds are below 0, or a price is not of the form NAME=USD.
    """
    from rlhfless.report.study import Assumptions

    for name, seconds in (("--prepare-s", prepare_s), ("--learn-s", learn_s)):
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise InputError(f"{name} is {seconds}; a finite number of seconds of 0 or more is needed")
    by_name = {}
    for pair in prices:
        name, _, usd = pair.partition("=")
        try:
            by_name[name] = float(usd)
        except ValueError:
            by_name[name] = -1.0
        if not name or not 0 <= by_name[name] < float("inf"):
            raise InputError(f"--price {pair}: is not of the form NAME=USD; spot=1.90 is an example")
    return Assumptions(dispatch, learner_gpus, prepare_s, learn_s, calibrate, by_name)
