"""Orders work items by the items that they wait for.

Many items may wait for the same ones: the end of learning on every server waits for all responses. Such a group is looked at
once, so that the time grows with items and servers, not with their product.
"""

from __future__ import annotations

from collections.abc import Sequence

from solver.model.errors import PlanningError

Waits = tuple[int, ...]
"""Indices of the items that an item waits for."""


def groups_of(waits: Sequence[Waits]) -> tuple[list[Waits], list[int]]:
    """Return the different groups of items that are waited for, and the number of the group that each item waits for."""
    number: dict[Waits, int] = {}
    known: dict[int, int] = {}  # by identity, as hashing a long tuple takes long
    numbers = []
    for items in waits:
        if id(items) not in known:
            known[id(items)] = number.setdefault(items, len(number))
        numbers.append(known[id(items)])
    return list(number), numbers


def in_order(waits: Sequence[Waits]) -> list[int]:
    """Return items so that each comes after those that it waits for, the lower index first where both orders would do.

    Raises:
        PlanningError: items wait for each other in a circle.
    """
    groups, numbers = groups_of(waits)
    members: list[list[int]] = [[] for _ in groups]
    for item, group in enumerate(numbers):
        members[group].append(item)
    left, then = [len(set(items)) for items in groups], dict[int, list[int]]()
    for group, items in enumerate(groups):
        for before in set(items):
            then.setdefault(before, []).append(group)
    ordered = [item for item, group in enumerate(numbers) if not left[group]]
    for before in ordered:
        opened: list[int] = []
        for group in then.get(before, ()):
            left[group] -= 1
            if not left[group]:
                opened += members[group]
        ordered += sorted(opened)
    if len(ordered) < len(waits):
        stuck = next(item for item, group in enumerate(numbers) if left[group])
        raise PlanningError(f"work item {stuck} waits for itself; remove the circle of items that wait for each other")
    return ordered
