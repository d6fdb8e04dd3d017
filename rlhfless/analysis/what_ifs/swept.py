"""A way at several settings of its knob, and the one that is shown.

Knobs, settings and rule are those of the diagnosis (``diagnosis.knobs``), which says what each setting saves at most.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import NamedTuple

from rlhfless.analysis.what_ifs.collected_steps import Collected
from rlhfless.analysis.what_ifs.outcome import KnobOutcome, RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import gpus_of


class Setting(NamedTuple):
    """One setting of a knob: its value, what steps do with it, and the simulated steps."""

    value: float
    same: Hashable
    simulate: Callable[[], Collected]


def simulated(settings: Iterable[Setting]) -> dict[float, Collected]:
    """Return the simulated steps by setting; settings under which steps do the same are simulated once."""
    by_what: dict[Hashable, Collected] = {}
    found = {}
    for value, same, simulate in settings:
        if same not in by_what:
            by_what[same] = simulate()
        found[value] = by_what[same]
    return found


def saved(found: dict[float, Collected], own_s: float) -> dict[float, float]:
    """Return the share of the run's own seconds that each setting saves; 0 where the run takes no time."""
    return {value: 1 - steps.time_s / own_s if own_s else 0.0 for value, steps in found.items()}


def with_settings(run: RunToChange, outcome: WayOutcome, knob: str, found: dict[float, Collected]) -> WayOutcome:
    """Return the outcome of one setting with all of them."""
    settings = (
        KnobOutcome(value, steps.time_s, gpus_of(run) * steps.time_s, steps.ledger.change())
        for value, steps in sorted(found.items())
    )
    return replace(outcome, knob=knob, swept=tuple(settings))
