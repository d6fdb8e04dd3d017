"""The tokens that end a response: one, or several, as chat models have."""

from __future__ import annotations

from collections.abc import Sequence


def stop_ids(eos_id: int | Sequence[int]) -> tuple[int, ...]:
    """Return the ids of one token or of several, each once, in order."""
    return tuple(dict.fromkeys(eos_id)) if isinstance(eos_id, Sequence) else (eos_id,)
