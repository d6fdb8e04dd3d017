"""``diagnose``: asks every section of the arithmetic what it finds in a log, and ranks what limits the run."""

from __future__ import annotations

from collections.abc import Callable

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected, Part

Section = Callable[[LoggedRun, Collected], Part]
"""Returns what it finds in a run; the parts of the sections before it are given."""

SECTIONS: tuple[Section, ...] = ()
"""In this order: each may use the numbers of those before it."""


def collect(run: LoggedRun) -> Collected:
    """Return what all sections find."""
    found = Collected()
    for section in SECTIONS:
        found.add(section(run, found))
    return found
