"""Progress: a bar on stderr over the parts of a report on a terminal, and over simulated steps, as lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlhfless.system.notices import notice
from solver.model.plurals import counted

Begin = Callable[[str], None]
"""Is called with the name of each part when it begins."""

LINE_EVERY_S = 10.0  # between two lines of progress, where there is no terminal
PARTS = 11  # of the report of a log with responses
CPU_S = 0.2  # of a report, for each step that it simulates, times the root of its responses: 4.5 s of 512, 20 s of 10,240
LONG_S = 30.0  # of CPU time, from which a report is announced


def silent(part: str) -> None:
    """Show nothing."""


def long_work(responses: Sequence[int], draws: int = 1) -> str:
    """Return what a report simulates and how long that takes, as the line before it begins; empty where it is soon done.

    Args:
        responses: of each simulated step. draws: of their lengths, each of which is simulated.

    Example:
        >>> long_work([10_240], 4)
        'simulating 10,240 responses in 4 draws of their lengths: about 2 minutes of one processor core'
        >>> long_work([64, 64])
        ''
    """
    cpu_s = CPU_S * draws * sum(math.sqrt(one) for one in responses)
    if cpu_s < LONG_S:
        return ""
    lengths = f" in {draws} draws of their lengths" if draws > 1 else ""
    minutes = counted(math.ceil(cpu_s / 60), "minute")
    return f"simulating {counted(sum(responses), 'response')}{lengths}: about {minutes} of one processor core"


@contextmanager
def progress_bar(parts: int = PARTS, work: str = "") -> Iterator[Begin]:
    """Yield what shows the part that begins, and how many of all parts are done; the bar vanishes at the end.

    Args:
        work: what takes minutes, in a sentence, which is printed before it begins; where there is no terminal, a line per part
            follows. Empty for less, of which nothing is shown without a terminal.
    """
    from tqdm.auto import tqdm

    begun, begun_s = 0, time.monotonic()
    if work:
        notice(f"rlhfless: {work}")
    with tqdm(total=parts, leave=False, disable=None, bar_format="{desc}: |{bar}| {n_fmt} of {total_fmt}, {elapsed}") as bar:

        def begin(part: str) -> None:
            nonlocal begun
            bar.update(int(0 < begun < parts))
            begun += 1
            bar.set_description_str(part)
            if bar.disable and work:
                notice(f"rlhfless: {part}, after {time.monotonic() - begun_s:.0f} s")

        yield begin


@contextmanager
def step_progress(steps: int, every_s: float = LINE_EVERY_S) -> Iterator[Callable[[int], None]]:
    """Yield what shows that a step is simulated: a bar on a terminal, elsewhere a line at most every so many seconds."""
    from tqdm.auto import tqdm

    begun_s = line_s = time.monotonic()
    done = 0
    with tqdm(total=steps, desc="simulated", unit="step", leave=False, disable=None) as bar:

        def finished(step: int) -> None:
            nonlocal done, line_s
            done += 1
            bar.update()
            now_s = time.monotonic()
            if bar.disable and done < steps and now_s - line_s >= every_s:
                line_s = now_s
                took = f"{now_s - begun_s:.0f} s"
                notice(f"rlhfless: simulated step {step}, {done} of {steps}, after {took}")

        yield finished
