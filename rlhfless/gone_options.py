"""Options of training that are gone, in configurations that earlier versions stored (traces, runs, files of options).

Where such an option was off, nothing changes and the configuration is read without it. Where it was on, a run cannot begin or
continue: it is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GONE: dict[str, Any] = {"attention": "masked", "weight_sync": "folder"}
"""Option -> its value where it was off."""

_OFF = {**GONE, "tensor_parallel": 1}  # an option of vLLM still, which is off where it is left out


def without_gone(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration without what was off in it: options that are gone, or off by another value today.

    Example:
        >>> without_gone({"gpus": 16, "attention": "masked"})
        {'gpus': 16}
    """
    return {name: value for name, value in stored.items() if name not in _OFF or value != _OFF[name]}


def refusal(stored: Mapping[str, Any]) -> str | None:
    """Return why a stored configuration cannot be used: it has an option that is gone and was on; None where it can."""
    name = next((name for name in without_gone(stored) if name in GONE), None)
    if name is None:
        return None
    return f"{name} is {stored[name]!r}, an option that is gone; leave it out, or use the version of rlhfless that wrote it"
