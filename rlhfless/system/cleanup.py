"""Cleaning up after an error, without hiding it: what fails meanwhile is a note of the error that came first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


def clean_up(*actions: Callable[[], object], after: BaseException | None = None) -> None:
    """Call every action, also when one of them fails.

    The first error is the one that people need, so later ones become notes of it. An interrupt ends the program or the cell as
    usual, once the remaining actions were called.

    Args:
        after: the error after which things are cleaned up, which the caller raises again; None: there was none.

    Raises:
        Exception: without ``after``, the first error of an action. KeyboardInterrupt: of an action, in any case.
    """
    first, interrupt = after, None
    for action in actions:
        try:
            action()
        except Exception as error:
            if first is None:
                first = error
            elif error is not first:
                first.add_note(f"While cleaning up after it: {type(error).__name__}: {error}")
        except BaseException as error:
            interrupt = error if interrupt is None else interrupt
    if interrupt is not None:
        raise interrupt
    if after is None and first is not None:
        raise first


@contextlib.contextmanager
def cleaning_up(*actions: Callable[[], object]) -> Iterator[None]:
    """Context after which every action is called, as by ``clean_up``, whether it ends with an error or not."""
    try:
        yield
    except BaseException as error:
        clean_up(*actions, after=error)
        raise
    clean_up(*actions)
