"""Finds the best ancestor-closed set of nodes of a tree under a capacity: the knapsack behind the choice of prefixes.

Input: nodes in preorder with a weight and a value. A set is closed when it holds the parent of each of its nodes; the root
(node 0, weight and value 0) is in every set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import FloatArray, IntArray

MOST_CELLS = 50_000_000  # nodes x capacity that the exact programme may fill; some 60 ms
HALVINGS = 40  # of the price of a unit of weight


def best_closed(parent: IntArray, values: FloatArray) -> tuple[NDArray[np.bool_], float]:
    """Return (V,) the closed set of largest value without a capacity, and that value; subtrees without positive value
    are left out."""
    total = values.tolist()
    up = parent.tolist()
    for v in range(len(total) - 1, 0, -1):
        if total[v] > 0:
            total[up[v]] += total[v]
    taken = np.zeros(len(total), bool)
    taken[0] = True
    for v in range(1, len(total)):
        taken[v] = total[v] > 0 and taken[up[v]]
    return taken, float(total[0])


def best_under_capacity(
    parent: IntArray, last: IntArray, weights: IntArray, values: FloatArray, capacity: int
) -> tuple[NDArray[np.bool_], float]:
    """Return (V,) a closed set of weight ``capacity`` at most, and an upper bound on the value of every such set.

    Exact (the bound is the set's value) when the capacity does not bind, and up to ``MOST_CELLS`` cells by the dynamic
    programme over the preorder: at node v either take it and continue at v + 1, or skip its subtree, to ``last[v]``.
    Beyond that a Lagrangian price per unit of weight gives the bound, ``min over p of p * capacity + max (value - p *
    weight)``, whose inner maximum ``best_closed`` finds exactly; the set is the one at the smallest price that fits, filled
    up with the paths that bring most per weight.
    """
    taken, value = best_closed(parent, values)
    if int(weights[taken].sum()) <= capacity:
        return taken, value
    if len(parent) * (capacity + 1) <= MOST_CELLS:
        return _by_dynamic_programme(last, weights, values, capacity)
    return _by_price(parent, weights, values, capacity)


def _by_dynamic_programme(
    last: IntArray, weights: IntArray, values: FloatArray, capacity: int
) -> tuple[NDArray[np.bool_], float]:
    count = len(last)
    after = last.tolist()
    waiting: dict[int, int] = {}  # how many nodes still need the row of the node that follows their subtree
    for v in range(count):
        waiting[after[v]] = waiting.get(after[v], 0) + 1
    rows: dict[int, FloatArray] = {count: np.zeros(capacity + 1)}
    following = rows[count]
    take_bits: list[NDArray[np.uint8]] = [np.zeros(0, np.uint8)] * count
    for v in range(count - 1, -1, -1):
        skip, weight = rows[after[v]], int(weights[v])
        best = skip.copy()
        take = np.zeros(capacity + 1, bool)
        if weight <= capacity:
            with_it = following[: capacity + 1 - weight] + values[v]
            take[weight:] = with_it > skip[weight:]
            np.maximum(best[weight:], with_it, out=best[weight:])
        take_bits[v] = np.packbits(take)
        waiting[after[v]] -= 1
        if not waiting[after[v]]:
            del rows[after[v]]
        if v in waiting:
            rows[v] = best
        following = best
    taken = np.zeros(count, bool)
    v, room = 0, capacity
    while v < count:
        if take_bits[v][room >> 3] >> (7 - (room & 7)) & 1:
            taken[v] = True
            room -= int(weights[v])
            v += 1
        else:
            v = after[v]
    taken[0] = True
    return taken, float(following[capacity])


def _by_price(parent: IntArray, weights: IntArray, values: FloatArray, capacity: int) -> tuple[NDArray[np.bool_], float]:
    low, high = 0.0, float((values / np.maximum(weights, 1)).max(initial=0.0))  # at `high` no path is worth taking
    fits = np.zeros(len(parent), bool)
    fits[0] = True
    bound = np.inf
    for _ in range(HALVINGS):
        price = (low + high) / 2
        taken, value = best_closed(parent, values - price * weights)
        bound = min(bound, value + price * capacity)
        if int(weights[taken].sum()) <= capacity:
            fits, high = taken, price
        else:
            low = price
    return _filled(parent, weights, values, capacity, fits), bound


def _filled(
    parent: IntArray, weights: IntArray, values: FloatArray, capacity: int, taken: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return the set with more paths (a node and its missing ancestors) added while they fit, largest value per
    weight first."""
    taken = taken.copy()
    room = capacity - int(weights[taken].sum())
    up, w, x = parent.tolist(), weights.tolist(), values.tolist()
    path_weight, path_value = [0] * len(up), [0.0] * len(up)
    for v in range(1, len(up)):
        if not taken[v]:
            path_weight[v] = w[v] + path_weight[up[v]]
            path_value[v] = x[v] + path_value[up[v]]
    worth = [v for v in range(1, len(up)) if path_value[v] > 0]
    for v in sorted(worth, key=lambda v: -path_value[v] / max(path_weight[v], 1)):
        missing = []
        while not taken[v]:
            missing.append(v)
            v = up[v]
        weight = sum(w[u] for u in missing)
        if missing and weight <= room and sum(x[u] for u in missing) > 0:
            taken[missing] = True
            room -= weight
    return taken


def best_chains(parent: IntArray, values: FloatArray, leaves: int) -> tuple[NDArray[np.bool_], float]:
    """Return (V,) the closed set of largest value with at most ``leaves`` leaves, and that value, for values of 0 or more.

    Every node is extended by its best child, which cuts the tree into chains; the ``leaves`` best chains are the optimum (a
    further leaf adds at most the best chain that hangs on what is taken, and a chain never beats the one it hangs on).
    """
    total = values.tolist()
    up = parent.tolist()
    heavy = [-1] * len(total)
    best_child = [0.0] * len(total)
    for v in range(len(total) - 1, -1, -1):
        total[v] += best_child[v]
        if v and total[v] > 0 and total[v] >= best_child[up[v]]:
            best_child[up[v]], heavy[up[v]] = total[v], v
    heads = [v for v in range(len(total)) if (v == 0 or heavy[up[v]] != v) and total[v] > 0]
    heads = sorted(heads, key=lambda v: (-total[v], v))[:leaves]
    taken = np.zeros(len(total), bool)
    taken[0] = True
    for head in heads:
        v = head
        while v >= 0:
            taken[v] = True
            v = heavy[v]
    return taken, float(sum(total[v] for v in heads))
