"""A view of a run as lines of text, where no widgets are displayed: one for each phase, complete step and state."""

from __future__ import annotations

import math
import threading
from typing import TextIO

from rlhfless.trace.metrics.growing_step import StepCost
from rlhfless.widgets.live_run import LiveRun, RunStatus


def print_phases(run: LiveRun, file: TextIO | None = None) -> LiveRun:
    """Print a line whenever a step enters a phase or is complete, and whenever the state of the run changes; return the run.

    Args:
        file: where to; None prints in the notebook or terminal.

    Example:
        >>> from rlhfless.widgets import LiveRun, print_phases, steps_of
        >>> live_run = print_phases(LiveRun(steps_of(trainer)))  # doctest: +SKIP
        >>> live_run.run()  # doctest: +SKIP
        running
        step 7: starting
        step 7: weight sync
        step 7: generating
        step 7: rewards
        step 7: learning
        step 7: saving
        step 7: complete, 310.2 GPU-seconds (12.1% idle), cost unknown
        done
    """
    printed, state, one_at_a_time = sum(cost.complete for cost in run.costs), run.state, threading.Lock()

    def say(line: str) -> None:
        print(f"{line}\n", end="", file=file, flush=True)  # as one piece: cells print meanwhile

    def say_complete(status: RunStatus) -> None:
        nonlocal printed
        complete = [cost for cost in status.costs if cost.complete]
        for cost in complete[printed:]:
            say(f"step {cost.step}: complete, {in_words(cost)}")
        printed = len(complete)

    def on_phase() -> None:
        with one_at_a_time:
            status = run.status()
            say_complete(status)
            if status.phase is not None:
                say(f"step {status.phase.step}: {status.phase.name}")

    def on_change() -> None:
        nonlocal state
        with one_at_a_time:
            status = run.status()
            if status.state == state:
                return
            state = status.state
            say_complete(status)
            say(state if status.error is None else f"{state}: {type(status.error).__name__}: {status.error}")

    run.on_phase, run.on_change = on_phase, on_change
    return run


def in_words(cost: StepCost) -> str:
    """Return GPU-seconds of a step, its idle share, and dollars where every GPU has a price."""
    idle = f"{cost.idle_gpu_seconds / cost.gpu_seconds:.1%} idle" if cost.gpu_seconds > 0 else "idle share unknown"
    usd = "cost unknown" if math.isnan(cost.cost_usd) else f"{cost.cost_usd:.4g} USD"
    return f"{cost.gpu_seconds:,.1f} GPU-seconds ({idle}), {usd}"
