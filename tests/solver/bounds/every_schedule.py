"""Every schedule of whole iterations of a tiny workload: what bounds that hold for every policy are tested against.

Knows latency models and actors as numbers; nothing of plans or bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import solver


class Hand(NamedTuple):
    """An actor that may be started: its latency model, when it can decode, and what it costs per second."""

    latency: solver.LatencyModel
    ready_s: float
    rate: float


def schedules(work: solver.Workload, hands: Sequence[Hand], most: int) -> set[tuple[float, float]]:
    """(makespan, cost) of every schedule of whole iterations on some of the ``hands``, of the first ``most`` states.

    The actor that is earliest takes any batch of free responses that fits into its slots and KV memory, waits for another, or
    is released. Migration costs nothing, a prompt is prefilled once, for all, and a response joins once.
    """
    remaining, prompt_of = work.remaining_tokens.tolist(), work.prompt_of.tolist()
    context = work.context_tokens.tolist()
    count = len(remaining)
    seen: set[object] = set()
    ends: set[tuple[float, float]] = set()
    # state: clock of every actor (None: released), tokens done, moment at which each response is free, prompts prefilled,
    # and what the released ones cost
    stack = [
        (tuple(hand.ready_s if used else None for hand, used in zip(hands, start, strict=True)), (0,) * count, (0.0,) * count,
         frozenset(), 0.0)
        for start in itertools.product((False, True), repeat=len(hands)) if any(start)
    ]  # fmt: skip
    while stack and len(seen) < most:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        clocks, done, free, prefilled, paid = state
        running = [k for k in range(len(hands)) if clocks[k] is not None]
        if all(d >= n for d, n in zip(done, remaining, strict=True)):
            last = max(f for f, n in zip(free, remaining, strict=True) if n > 0)
            ends.add((last, paid + sum(hands[k].rate * clocks[k] for k in running)))
            continue
        if not running:
            continue
        k = min(running, key=lambda j: clocks[j])
        now, (latency, _, rate) = clocks[k], hands[k]

        def then(clock, done=done, free=free, prefilled=prefilled, paid=paid, k=k, clocks=clocks):
            return ((*clocks[:k], clock, *clocks[k + 1 :]), done, free, prefilled, paid)

        stack.append(then(None, paid=paid + rate * now))
        later = [f for i, f in enumerate(free) if f > now and done[i] < remaining[i]]
        if later:
            stack.append(then(min(later)))
        open_ = [i for i in range(count) if done[i] < remaining[i] and free[i] <= now]
        for size in range(1, min(len(open_), latency.max_batch) + 1):
            for batch in itertools.combinations(open_, size):
                kv_tokens = sum(context[i] + done[i] for i in batch)
                if size > 1 and kv_tokens > latency.kv_capacity_tokens:
                    continue
                new = {prompt_of[i] for i in batch} - prefilled
                took = float(latency.iteration_s(size, kv_tokens))
                took += latency.prefill_per_token_s * sum(int(work.prompt_tokens[p]) for p in new)
                took += latency.join_s * sum(done[i] == 0 for i in batch)
                end = round(now + took, 12)
                stack.append(
                    then(
                        end,
                        done=tuple(d + (i in batch) for i, d in enumerate(done)),
                        free=tuple(end if i in batch else f for i, f in enumerate(free)),
                        prefilled=prefilled | new,
                    )
                )
    return ends
