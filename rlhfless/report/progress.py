"""Progress on stderr: a bar over the parts of a report on a terminal, and over simulated steps, as lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Begin = Callable[[str], None]
"""Is called with the name of each part when it begins."""

LINE_EVERY_S = 10.0  # between two lines of progress, where there is no terminal
PARTS = 11  # of the report of a log with responses


def silent(part: str) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(parts: int = PARTS) -> Iterator[Begin]:
    """Yield what shows the part that begins, and how many of all parts are done; the bar vanishes at the end."""
    from tqdm.auto import tqdm

    begun = 0
    with tqdm(total=parts, leave=False, disable=None, bar_format="{desc}: |{bar}| {n_fmt} of {total_fmt}, {elapsed}") as bar:

        def begin(part: str) -> None:
            nonlocal begun
            bar.update(int(0 < begun < parts))
            begun += 1
            bar.set_description_str(part)

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
                print(f"rlhfless: simulated step {step}, {done} of {steps}, after {took}", file=sys.stderr, flush=True)

        yield finished
