"""The admission rule that planner and engines share: when a response may join an actor's batch, and when it is evicted.

The rule works on counts and tokens only. At every iteration boundary, in this order:

1. ``preempt`` only: while the contexts of the batch exceed the KV memory, the youngest response (last admitted) is evicted to
the front of the queue. Its KV cache is dropped, and recomputed when it joins again.
2. If nothing was evicted, responses join from the front of the queue while a slot is free and their KV fits. The first
   one that does not fit blocks those behind it.

Under ``reserve`` a response counts with its prompt and the response limit from the start, so none is ever evicted. Under
``preempt`` it counts with the tokens of its present context.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.errors import PlanningError, as_given, is_whole

RULES = ("reserve", "preempt")


def check_rule(rule: str) -> None:
    """Refuse a rule that is not one of ``RULES`` (a PlanningError)."""
    if not isinstance(rule, str) or rule not in RULES:
        raise PlanningError(f"admission rule {as_given(rule)} is unknown; choose one of {', '.join(RULES)}")


@dataclass(frozen=True)
class Admission:
    """Slots and KV memory of one actor, and the admission rule (``reserve`` or ``preempt``)."""

    max_batch: int
    kv_capacity_tokens: int
    rule: str = "reserve"

    def __post_init__(self) -> None:
        check_rule(self.rule)
        for name in ("max_batch", "kv_capacity_tokens"):
            if not is_whole(getattr(self, name), 1):
                raise PlanningError(f"{name} is {as_given(getattr(self, name))}; a whole number of at least 1 is needed")

    def held_tokens(self, context_tokens: int, max_tokens: int) -> int:
        """Return the KV tokens a response counts for: its context now, or the most it can reach (prompt and limit)."""
        return max_tokens if self.rule == "reserve" else context_tokens

    def admits(self, batch: int, held_tokens: int, newcomer_tokens: int) -> bool:
        """Return whether a response that counts ``newcomer_tokens`` may join ``batch`` responses that count ``held_tokens``."""
        return batch < self.max_batch and held_tokens + newcomer_tokens <= self.kv_capacity_tokens

    def overflows(self, batch: int, held_tokens: int) -> bool:
        """Return whether the youngest response has to be evicted; a batch of one never overflows."""
        return self.rule == "preempt" and batch > 1 and held_tokens > self.kv_capacity_tokens
