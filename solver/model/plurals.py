"""Formats counts for messages: a number with its noun in singular or plural."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 step`` or ``2 steps``; give ``plural`` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
