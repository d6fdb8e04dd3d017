"""Says which clock the times of a run come from: a virtual one with its latency profile, or the wall clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def clock_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``clock_words`` needs of a trace's ``meta``; tables of its numbers have it as ``attrs["clock"]``."""
    return {name: meta[name] for name in ("clock", "charging", "profile") if name in meta}


def clock_words(meta: Mapping[str, Any]) -> str:
    """Return the clock of a run in words, such as ``virtual clock, profile h100-qwen2.5-3b-tp1``.

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
    return "virtual clock" + (f", profile {meta['profile']}" if meta.get("profile") else "")
