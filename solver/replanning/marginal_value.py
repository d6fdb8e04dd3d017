"""Computes the marginal value of one more token of a response, and groups responses by it.

Inputs are loads, survival sums and the affine fit of an iteration. All functions here are formulas on arrays: they see no
running actors and no true lengths. "Worth" below means this marginal value.

**Worth of a token.** An actor with load W (the sum over its batch of l = b + c * context) takes a + W per iteration. Per
second it costs one actor-second, of which a response of load l causes the share l / W. Let the step end in X more seconds. A
response alive at x tokens that may still take r tokens chooses a load W_y for each of them: it minimises its expected cost
``sum_y S(y)/S(x) (a + W_y) l_y / W_y`` under ``sum_y (a + W_y) <= X``, which must hold for the longest outcome too.
Stationarity, ``a l_y S(y)/S(x) / W_y^2 = constant``, gives

    W* = (X - a r) sqrt(l) / Lambda ,   Lambda = sum_y sqrt(S(y)/S(x) l_y) ,   cost = E[sum l] + a Lambda^2 / (X - a r) .

With these loads the value q of one more token, in actor-seconds, must make W* the choice that minimises what a second costs
less what its progress is worth, ``l / W - q / (a + W)``: hence ``q = l (a + W*)^2 / W*^2``. Without the KV term and for a batch
of B* this is ``(a + b B*)^2 / (b B*^2)``. Equal responses give W* in proportion to the square root of the survival, so
actors in proportion to ``S / sqrt(S)``: square-root folding.

**Groups.** Actors are worth running as far as the progress of their batches exceeds what they cost:

    value of a grouping, per second = sum over actors of ( sum of q / (a + W) - 1 ) .

For equal loads groups that are contiguous in q are best. Exchanging two responses between actors of different speed raises the
sum exactly when the more valuable one goes to the faster actor.

**Price of time.** With ``price`` actor-seconds for every second of makespan, X minimises
``price X + a sum Lambda^2 / (X - a r)``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray

GROUPING_POINTS = 192  # positions, evenly spread over the sorted responses, at which a group may end


def price_of(left_s: float, base_s: float, max_tokens: FloatArray, root_load: FloatArray) -> float:
    """Return the actor-seconds that a makespan shorter by one second would cost when ``left_s`` seconds are left.

    The formula is ``a sum Lambda^2 / (X - a r)^2``.
    """
    room = left_s - base_s * max_tokens
    return math.inf if not len(room) or room.min() <= 0 else float((base_s * root_load**2 / room**2).sum())


def time_left_s(price: float, base_s: float, max_tokens: FloatArray, root_load: FloatArray) -> float:
    """Return the X at which the last second costs ``price`` actor-seconds; infinite when ``price`` is 0.

    Args:
        max_tokens, root_load: (n,) r and Lambda of the responses.
    """
    if price <= 0:
        return math.inf
    floor = base_s * float(max_tokens.max(initial=0.0))
    weight = base_s * root_load**2
    slack = floor - base_s * max_tokens
    low, high = 0.0, math.sqrt(float(weight.sum()) / price)
    x = high
    for _ in range(50):  # Newton's method on a convex falling function, kept inside a bracket
        room = np.maximum(x + slack, 1e-12)
        excess = float((weight / room**2).sum()) - price
        low, high = (x, high) if excess > 0 else (low, x)
        slope = 2 * float((weight / room**3).sum())
        next_x = x + excess / slope if slope > 0 else x
        next_x = next_x if low <= next_x <= high else (low + high) / 2
        if abs(next_x - x) <= 1e-9 * max(x, 1e-12):
            break
        x = next_x
    return floor + x


def token_value(left_s: float, base_s: float, load: FloatArray, max_tokens: FloatArray, root_load: FloatArray) -> FloatArray:
    """Return the (n,) values q in actor-seconds. A response that can no longer finish within X gets the value of running alone
    on an actor (W* = l)."""
    if math.isinf(left_s):
        return load.copy()  # W* grows without bound: (a + W*) / W* goes to 1
    room = np.maximum(left_s - base_s * max_tokens, 0.0)
    wanted = np.maximum(room * np.sqrt(load) / np.maximum(root_load, 1e-300), load)
    # what brings no load (no response, no tokens) is worth nothing, instead of 0 / 0
    return np.asarray(load * (1.0 + base_s / np.where(load > 0, np.maximum(wanted, 1e-150), 1.0)) ** 2)


def sends_kv(transfer_s: ArrayLike, recompute_s: ArrayLike) -> NDArray[np.bool_]:
    """Return whether a migrating response takes its KV cache along (True) or its context is recomputed (False).

    Waiting for the sender's link does not count. Only the migrating response waits for the link, while recomputing a context
    stops the receiver's whole batch. A cut that recomputed every context took up to 1.5 times as long as one that let them
    queue (policy ``random`` with tau, on GSM8K).
    """
    return np.asarray(np.asarray(transfer_s) <= np.asarray(recompute_s))


def two_step_saves_s(latency: LatencyModel, kv_tokens: float, iteration_s: float) -> float:
    """Return the seconds that a response stands still less if its KV cache is copied before it leaves; 0 where that is not
    more than an iteration.

    It stands still for the transfer of the tokens that it decodes during the copy, an iteration of ``iteration_s`` each. Less
    than an iteration is not worth it, as a response leaves and joins at boundaries of iterations only.

    Example:
        >>> slow = LatencyModel("slow link", 1, base_s=0.01, per_response_s=0.0, transfer_per_kv_token_s=1e-4)
        >>> round(two_step_saves_s(slow, 1000, 0.01), 6), two_step_saves_s(slow, 90, 0.01)
        (0.099, 0.0)
    """
    transfer_s = latency.transfer_s(kv_tokens)
    saved_s = transfer_s - latency.transfer_s(math.ceil(transfer_s / iteration_s))
    return saved_s if saved_s > iteration_s else 0.0


def delay_s(latency: LatencyModel, kv_tokens: FloatArray, iteration_s: FloatArray | float) -> FloatArray:
    """Return the seconds that a response stands still when it moves to an actor of ``latency``.

    The sum of three: the cheaper of transfer and recompute; the join; and half an iteration of ``iteration_s`` until it is
    admitted. A response without KV cache is there at once.
    """
    transfer = latency.transfer_base_s + latency.transfer_per_kv_token_s * kv_tokens
    recompute = latency.prefill_base_s + latency.prefill_per_token_s * kv_tokens
    moves = np.where(sends_kv(transfer, recompute), transfer, recompute)
    return np.asarray(np.where(kv_tokens > 0, moves + latency.join_s, 0.0) + np.asarray(iteration_s) / 2)


def stall_s(latency: LatencyModel, kv_tokens: FloatArray) -> FloatArray:
    """Return the seconds for which the receiver's whole batch stands still when a response moves.

    The sum of the join and the recomputation of the KV cache. The latter counts where it is cheaper than the transfer.
    """
    transfer = latency.transfer_base_s + latency.transfer_per_kv_token_s * kv_tokens
    recompute = latency.prefill_base_s + latency.prefill_per_token_s * kv_tokens
    computed = np.where(sends_kv(transfer, recompute), 0.0, recompute)
    return np.asarray(np.where(kv_tokens > 0, computed + latency.join_s, 0.0))


def group_by_token_value(
    load: FloatArray,
    token_value: FloatArray,
    base_s: float,
    most_groups: int,
    slots: int,
    reserved_tokens: FloatArray,
    kv_capacity_tokens: float,
) -> list[IntArray]:
    """Return contiguous groups of the responses sorted by token value, most valuable first, with the largest value (see above).

    A dynamic programme over the sorted responses, one layer per group: groups end at ``GROUPING_POINTS`` positions at most.
    Responses of equal token value keep the given order.

    Args:
        load, token_value, reserved_tokens: (n,) per response. slots, kv_capacity_tokens: what one actor admits at once.

    Returns:
        (n_k,) positions of each group. When the slots and memory of ``most_groups`` actors cannot hold all responses at once,
            responses of any token value have to queue. They are then assigned round-robin, so that no actor gets all long ones.
    """
    order = np.argsort(-token_value, kind="stable")
    n = len(order)
    ends = np.unique(np.linspace(0, n, min(n, GROUPING_POINTS) + 1).round().astype(np.int64))
    sums = [np.concatenate([[0.0], np.cumsum(x[order])])[ends] for x in (load, token_value, reserved_tokens)]
    loads, token_values, held = (x[None, :] - x[:, None] for x in sums)  # [i, j]: of the responses between ends i and j
    counts = ends[None, :] - ends[:, None]
    fits = (counts > 0) & (counts <= slots) & (held <= kv_capacity_tokens)
    value = np.where(fits, token_values / (base_s + np.maximum(loads, 0.0)) - 1.0, -np.inf)
    best = np.where(ends == 0, 0.0, -np.inf)
    previous_end: list[IntArray] = []
    total: list[float] = []
    for _ in range(most_groups):
        extended = best[:, None] + value
        previous_end.append(np.argmax(extended, axis=0))
        best = extended[previous_end[-1], np.arange(len(ends))]
        total.append(float(best[-1]))
        if len(total) > 2 and -math.inf < total[-1] < total[-2] < total[-3]:
            break  # past the best number of groups
    if max(total) == -math.inf:
        return [order[k::most_groups] for k in range(min(n, most_groups))]
    groups: list[IntArray] = []
    end = len(ends) - 1
    for layer in range(int(np.argmax(total)), -1, -1):
        start = int(previous_end[layer][end])
        groups.append(order[ends[start] : ends[end]])
        end = start
    return groups[::-1]
