"""What a way does to the data that is learned from, in words."""

from __future__ import annotations

from rlhfless.analysis.what_ifs.outcome import DataChange
from solver.model.plurals import counted

TOLD = 0.005  # of the mean length, below which responses count as equally long


def data_in_words(data: DataChange) -> str:
    """Return what a way does to the data.

    Example:
        >>> data_in_words(DataChange(100, 1000, stale_tokens=250, most_stale_steps=1, waiting_responses=4))
        '25% of the learned tokens are stale, by up to 1 step; 4 responses wait for a later step'
    """
    parts = ["on-policy"]
    if not data.on_policy:
        share = data.stale_tokens / data.learned_tokens if data.learned_tokens else 0.0
        parts = [f"{share:.0%} of the learned tokens are stale, by up to {counted(data.most_stale_steps, 'step')}"]
    if data.dropped_responses:
        started = data.learned_responses + data.dropped_responses + data.waiting_responses
        dropped = f"{counted(data.dropped_responses, 'response')} dropped ({data.dropped_responses / started:.0%})"
        parts.append(dropped)
    if data.waiting_responses:
        verb = "waits" if data.waiting_responses == 1 else "wait"
        parts.append(f"{counted(data.waiting_responses, 'response')} {verb} for a later step")
    ratio = data.learned_length_ratio
    if abs(1 - ratio) >= TOLD:
        parts.append(f"learned responses are {abs(1 - ratio):.0%} {'shorter' if ratio < 1 else 'longer'} than those started")
    return "; ".join(parts)
