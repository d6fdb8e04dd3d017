"""Reads the traces that plots are given: a trace, or a folder that holds one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError
from rlhfless.trace import Trace, read_trace
from solver.model.errors import as_given

NO_TRACE = "there is no trace; a run without a folder keeps none"


def trace_of(given: Any, plot: str) -> Trace:
    """Return what a plot draws: the trace that it was given, or that of a folder.

    Args:
        plot: its name, for the message.

    Raises:
        InputError: it is neither.
        TraceError: the folder holds no trace.
    """
    if isinstance(given, Trace):
        return given
    if isinstance(given, str | Path):
        return read_trace(given)
    if given is None:
        raise InputError(f"{plot}: {NO_TRACE}; plot step.trace, as in {plot}(list(trainer)[-1].trace)")
    if isinstance(getattr(given, "trace", None), Trace):
        raise InputError(f"{plot} got {as_given(given)}; give its trace, as in {plot}(step.trace)")
    raise InputError(f"{plot} got {as_given(given)}; a trace, such as read_trace(folder), or the folder of one is needed")


def traces_of(given: Any, plot: str) -> dict[str, Trace]:
    """Return the traces of several schedules, by name; see ``trace_of``."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"{plot} got {as_given(given)}; traces by name are needed, such as {{'mine': read_trace(folder), ...}}"
        )
    return {str(name): trace_of(one, plot) for name, one in given.items()}
