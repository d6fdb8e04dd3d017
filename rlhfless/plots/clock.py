"""Says which clock the times of a figure come from: a virtual one with its latency profile, or the wall clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlhfless.plots.style import clean
from rlhfless.trace import Trace, clock

if TYPE_CHECKING:
    import pandas as pd


def clock_words(meta: Mapping[str, Any]) -> str:
    """Return the clock of a run for a subtitle, such as ``virtual clock, profile h100-qwen2.5-3b-tp1`` (``trace.clock``)."""
    profile = meta.get("profile")
    return clock.clock_words({**meta, "profile": clean(profile)} if profile else meta)


def clocks_words(traces: Mapping[str, Trace]) -> str:
    """Return the clock of several schedules: once where it is the same, else each with its name."""
    words = {name: clock_words(trace.meta) for name, trace in traces.items()}
    if len(set(words.values())) <= 1:
        return next(iter(words.values()), "")
    return "; ".join(f"{clean(name, 30)}: {said}" for name, said in words.items() if said)


def with_clock(subtitle: str, meta: Mapping[str, Any]) -> str:
    """Return a subtitle that ends with the clock, where it is known and not named already."""
    words = clock_words(meta)
    return subtitle if words and words in subtitle else "; ".join(filter(None, [subtitle, words]))


def clock_of_results(results: pd.DataFrame) -> Mapping[str, Any]:
    """Return the clock of the times in a table of results, as far as the table says it (``attrs["clock"]`` of a pandas table).

    Tables of ``rlhfless.simulate`` say it; adding columns and choosing rows keeps it.
    """
    clock: Mapping[str, Any] = results.attrs.get("clock", {})
    return clock
