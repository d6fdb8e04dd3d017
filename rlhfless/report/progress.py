"""A progress bar over the parts of a report, on stderr where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Begin = Callable[[str], None]
"""Is called with the name of each part when it begins."""

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
