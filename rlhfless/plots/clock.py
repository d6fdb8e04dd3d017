"""Says which clock the times of a figure come from: a virtual one with its latency profile, or the wall clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlhfless.plots.style import clean
from rlhfless.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


def clock_words(meta: Mapping[str, Any]) -> str:
    """Return the clock of a run for a subtitle, such as ``virtual clock, profile h100-qwen2.5-3b-tp1``.

    Args:
        meta: of a trace or a ``StepRecord``: ``clock``, ``charging`` and ``profile``, as far as they are known.

    Returns:
        The empty text for a log that was recorded elsewhere, without a clock of this project.

    Example:
        >>> clock_words({"clock": "virtual", "charging": "profile", "profile": "cpu-tiny-qwen2"})
        'virtual clock, profile cpu-tiny-qwen2'
    """
    if meta.get("clock") == "wall":
        return "wall clock"
    if meta.get("clock") != "virtual":
        return ""
    if meta.get("charging") == "measured":
        return "virtual clock, iterations measured on this run's device"
    return "virtual clock" + (f", profile {clean(meta['profile'])}" if meta.get("profile") else "")


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
    return results.attrs.get("clock", {})
