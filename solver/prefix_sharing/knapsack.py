"""Finds the best ancestor-closed set of nodes of a tree under a capacity: the knapsack behind the choice of prefixes.

Input: nodes in preorder with a weight and a value. A set is closed when it holds the parent of each of its nodes. The root
(node 0, weight and value 0) is in every set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import FloatArray, IntArray

MAX_CELLS = 50_000_000  # nodes x capacity that the dynamic programme may fill; some 60 ms
BISECTION_STEPS = 40  # of the price of a unit of weight


def best_closed(parent: IntArray, values: FloatArray) -> tuple[NDArray[np.bool_], float]:
    """Return (V,) the closed set of largest value without a capacity, and that value; subtrees without positive value
    are left out."""
    total = values.tolist()
    parents = parent.tolist()
    for v in range(len(total) - 1, 0, -1):
        if total[v] > 0:
            total[parents[v]] += total[v]
    selected = np.zeros(len(total), bool)
    selected[0] = True
    for v in range(1, len(total)):
        selected[v] = total[v] > 0 and selected[parents[v]]
    return selected, float(total[0])


def best_under_capacity(
    parent: IntArray, last: IntArray, weights: IntArray, values: FloatArray, capacity: int
) -> tuple[NDArray[np.bool_], float]:
    """Return (V,) a closed set of weight ``capacity`` at most, and an upper bound on the value of every such set.

    Exact (the bound is the set's value) when the capacity does not bind, and up to ``MAX_CELLS`` cells by the dynamic
    programme. Beyond that, a price per unit of weight gives a bound and a set that may miss the optimum.
    """
    selected, value = best_closed(parent, values)
    if int(weights[selected].sum()) <= capacity:
        return selected, value
    if len(parent) * (capacity + 1) <= MAX_CELLS:
        return _by_dynamic_programme(last, weights, values, capacity)
    return _by_price(parent, weights, values, capacity)


def _by_dynamic_programme(
    last: IntArray, weights: IntArray, values: FloatArray, capacity: int
) -> tuple[NDArray[np.bool_], float]:
    """Return the best set and its value.

    Goes through the preorder backwards. At node v either take it and continue at v + 1, or skip its subtree, to ``last[v]``.
    """
    count = len(last)
    next_if_skipped = last.tolist()
    uses_left: dict[int, int] = {}  # how many nodes still need the row of the node that follows their subtree
    for v in range(count):
        uses_left[next_if_skipped[v]] = uses_left.get(next_if_skipped[v], 0) + 1
    rows: dict[int, FloatArray] = {count: np.zeros(capacity + 1)}
    next_row = rows[count]
    take_bits: list[NDArray[np.uint8]] = [np.zeros(0, np.uint8)] * count
    for v in range(count - 1, -1, -1):
        skip, weight = rows[next_if_skipped[v]], int(weights[v])
        best = skip.copy()
        take = np.zeros(capacity + 1, bool)
        if weight <= capacity:
            value_if_taken = next_row[: capacity + 1 - weight] + values[v]
            take[weight:] = value_if_taken > skip[weight:]
            np.maximum(best[weight:], value_if_taken, out=best[weight:])
        take_bits[v] = np.packbits(take)
        uses_left[next_if_skipped[v]] -= 1
        if not uses_left[next_if_skipped[v]]:
            del rows[next_if_skipped[v]]
        if v in uses_left:
            rows[v] = best
        next_row = best
    selected = np.zeros(count, bool)
    v, room = 0, capacity
    while v < count:
        if take_bits[v][room >> 3] >> (7 - (room & 7)) & 1:
            selected[v] = True
            room -= int(weights[v])
            v += 1
        else:
            v = next_if_skipped[v]
    selected[0] = True
    return selected, float(next_row[capacity])


def _by_price(parent: IntArray, weights: IntArray, values: FloatArray, capacity: int) -> tuple[NDArray[np.bool_], float]:
    """Return a set that fits, and the Lagrangian bound ``min over p of p * capacity + max (value - p * weight)``.

    ``best_closed`` finds the inner maximum exactly. The set is the one at the smallest price that fits, with further paths
    added while they fit.
    """
    low, high = 0.0, float((values / np.maximum(weights, 1)).max(initial=0.0))  # at `high` no path pays
    fitting = np.zeros(len(parent), bool)
    fitting[0] = True
    bound = np.inf
    for _ in range(BISECTION_STEPS):
        price = (low + high) / 2
        selected, value = best_closed(parent, values - price * weights)
        bound = min(bound, value + price * capacity)
        if int(weights[selected].sum()) <= capacity:
            fitting, high = selected, price
        else:
            low = price
    return _with_more_paths(parent, weights, values, capacity, fitting), bound


def _with_more_paths(
    parent: IntArray, weights: IntArray, values: FloatArray, capacity: int, selected: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return the set with more paths (a node and its missing ancestors) added while they fit, largest value per
    weight first."""
    selected = selected.copy()
    room = capacity - int(weights[selected].sum())
    parents, weight, value = parent.tolist(), weights.tolist(), values.tolist()
    path_weight, path_value = [0] * len(parents), [0.0] * len(parents)
    for v in range(1, len(parents)):
        if not selected[v]:
            path_weight[v] = weight[v] + path_weight[parents[v]]
            path_value[v] = value[v] + path_value[parents[v]]
    ends = [v for v in range(1, len(parents)) if path_value[v] > 0]
    for v in sorted(ends, key=lambda v: -path_value[v] / max(path_weight[v], 1)):
        missing = []
        while not selected[v]:
            missing.append(v)
            v = parents[v]
        missing_weight = sum(weight[u] for u in missing)
        if missing and missing_weight <= room and sum(value[u] for u in missing) > 0:
            selected[missing] = True
            room -= missing_weight
    return selected


def best_chains(parent: IntArray, values: FloatArray, leaves: int) -> tuple[NDArray[np.bool_], float]:
    """Return (V,) the closed set of largest value with at most ``leaves`` leaves, and that value, for values of 0 or more.

    Every node is extended by its best child, which cuts the tree into chains. The ``leaves`` best chains are the optimum. A
    further leaf adds at most the best chain that hangs on the set, and a chain never beats the one it hangs on.
    """
    total = values.tolist()
    parents = parent.tolist()
    best_child = [-1] * len(total)
    best_child_value = [0.0] * len(total)
    for v in range(len(total) - 1, -1, -1):
        total[v] += best_child_value[v]
        if v and total[v] > 0 and total[v] >= best_child_value[parents[v]]:
            best_child_value[parents[v]], best_child[parents[v]] = total[v], v
    heads = [v for v in range(len(total)) if (v == 0 or best_child[parents[v]] != v) and total[v] > 0]
    heads = sorted(heads, key=lambda v: (-total[v], v))[:leaves]
    selected = np.zeros(len(total), bool)
    selected[0] = True
    for head in heads:
        v = head
        while v >= 0:
            selected[v] = True
            v = best_child[v]
    return selected, float(sum(total[v] for v in heads))
