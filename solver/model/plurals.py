"""Words of sentences for people: a number and what it counts, in the right form."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 step``, ``2 steps``; ``plural`` is said where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
