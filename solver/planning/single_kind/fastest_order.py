"""Finds the order of admission in which a group of responses is done first, by branch and bound.

Inputs: lengths, reserved KV tokens and prompts of one group on an actor that reserves memory, with separate prefill. Its loads
do not depend on the order; iterations and prefill calls do. Responses join in order, each in the first iteration with a free
slot and memory. So the orders are a tree: a node has a set of responses admitted, and when each slot is free. With one call per
iteration in which a prompt is computed, a node costs at least two parts together. One is the base times of as many iterations
as its open slots and memory need for what waits. The other is the calls so far, plus one per batch that waits. Nodes that agree
in what waits and when slots are free are visited once. The search stops after a counted number of nodes.

Minimising iterations alone is makespan scheduling on identical machines (P||Cmax). With the longest response first, the first
leaf is that of longest processing time first (Graham 1969).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from solver.model.workload import IntArray, Workload

Batch = tuple[tuple[int, int], ...]
"""Iterations in which responses of the batch end and the KV tokens that each reserves, sorted."""


class Admitted(NamedTuple):
    """Responses admitted so far: the iteration in which the last of them joined, the batch then, prefill calls, and whether
    that iteration has one."""

    now: int
    batch: Batch
    calls: int
    called: bool


@dataclass(frozen=True, eq=False)
class WaitingGroup:
    """Responses of one group that need iterations, longest first.

    Attributes:
        lengths, reserved: iterations and KV tokens of each. first_call, later_call: whether it computes anything when it is the
            first of its prompt to join, and when it is not. prompt: of each.
        slots, kv_tokens: of the actor, the latter infinite where memory cannot bind. base_s, call_s: of an iteration, a call.
    """

    lengths: list[int]
    reserved: list[int]
    first_call: list[bool]
    later_call: list[bool]
    prompt: list[int]
    slots: int
    kv_tokens: float
    base_s: float
    call_s: float

    @classmethod
    def of(
        cls,
        workload: Workload,
        responses: IntArray,
        room: tuple[int, float],
        costs_s: tuple[float, float],
        shares_prompts: bool,
    ) -> WaitingGroup:
        """Return the group of ``responses``, all of which need iterations.

        Args:
            room: slots and KV tokens. costs_s: of an iteration and of a prefill call.
        """
        context = workload.context_tokens[responses]
        later = workload.generated_tokens[responses] if shares_prompts else context
        return cls(
            workload.iterations[responses].tolist(), workload.reserved_tokens[responses].tolist(),
            (context > 0).tolist(), (later > 0).tolist(), workload.prompt_of[responses].tolist(), *room, *costs_s,
        )  # fmt: skip

    @cached_property
    def kinds(self) -> list[tuple[int, ...]]:
        """Return what tells responses apart."""
        return list(zip(self.lengths, self.reserved, self.first_call, self.later_call, self.prompt, strict=True))

    @cached_property
    def siblings(self) -> list[int]:
        """Return the responses of the same prompt as each, as bits."""
        return [sum(1 << j for j, other in enumerate(self.prompt) if other == prompt) for prompt in self.prompt]

    def joined(self, admitted: Admitted, i: int, waiting: int) -> Admitted:
        """Return what is admitted once response ``i`` of those ``waiting`` has joined."""
        now, batch, calls, called = admitted
        used, gone = sum(tokens for _, tokens in batch), 0
        while gone < len(batch) and (len(batch) - gone >= self.slots or used + self.reserved[i] > self.kv_tokens):
            now = batch[gone][0]
            used -= batch[gone][1]
            gone += 1
        called = called and now == admitted.now
        alone = waiting & self.siblings[i] == self.siblings[i]
        calls_now = (self.first_call if alone else self.later_call)[i] and not called
        stay = [entry for entry in batch[gone:] if entry[0] > now]
        after = tuple(sorted([*stay, (now + self.lengths[i], self.reserved[i])]))
        return Admitted(now, after, calls + calls_now, called or calls_now)

    def seconds_of(self, order: Iterable[int]) -> float:
        """Return the seconds of iterations and calls in an order of admission."""
        waiting, admitted = (1 << len(self.lengths)) - 1, Admitted(0, (), 0, False)
        for i in order:
            admitted, waiting = self.joined(admitted, i, waiting), waiting & ~(1 << i)
        return self.least_s(admitted, waiting)

    def least_s(self, admitted: Admitted, left: int) -> float:
        """Return a lower bound on the seconds of all iterations and calls of an order that still has to admit the responses
        ``left`` (as bits)."""
        now, batch, calls, called = admitted
        iterations = batch[-1][0]
        if left:
            waits = [i for i in range(len(self.lengths)) if left >> i & 1]
            open_slots, lengths = self.slots - len(batch), [self.lengths[i] for i in waits]
            first = now if open_slots else batch[0][0]
            taken = sum(end - now for end, _ in batch) + sum(lengths)
            held = sum((end - now) * tokens for end, tokens in batch) + sum(self.lengths[i] * self.reserved[i] for i in waits)
            at_once = max(-(-taken // self.slots), math.ceil(held / self.kv_tokens * (1 - 1e-12)))
            iterations = max(iterations, first + max(lengths), now + at_once)
            callers = sum(self.later_call[i] for i in waits) - (open_slots if called else 0)
            calls += max(0, -(-callers // self.slots))
        return self.base_s * iterations + self.call_s * calls


class FastestOrder:
    """One search.

    Args:
        known_s: seconds of iterations and calls of an order that is known; only faster ones are found. enough_s: stops there.

    Attributes:
        order: positions in the group in the fastest order found; None if none is faster than what was known.
        best_s: its seconds of iterations and calls. nodes_left: of the number granted; 0 if the search did not end.
    """

    def __init__(self, group: WaitingGroup, known_s: float, enough_s: float, most_nodes: int) -> None:
        self.group, self.best_s, self.enough_s, self.nodes_left = (
            group,
            known_s * (1 - 1e-12),
            enough_s * (1 + 1e-12),
            most_nodes,
        )
        self.order: list[int] | None = None
        self._seen: dict[tuple[int, Batch, int, bool], int] = {}
        self._order: list[int] = []
        self._visit((1 << len(group.lengths)) - 1, Admitted(0, (), 0, False))

    @property
    def ended(self) -> bool:
        """Return whether no other order is faster, or the one found is fast enough."""
        return self.nodes_left > 0 or self.best_s <= self.enough_s

    def _visit(self, waiting: int, admitted: Admitted) -> None:
        """Try all orders of the responses ``waiting`` (as bits) after those that are admitted."""
        group, key = self.group, (waiting, admitted.batch, admitted.now, admitted.called)
        if self._seen.get(key, math.inf) <= admitted.calls or self.nodes_left <= 0:
            return
        self._seen[key] = admitted.calls
        self.nodes_left -= 1
        tried = set()
        for i, kind in enumerate(group.kinds):
            if not waiting >> i & 1 or kind in tried:
                continue
            tried.add(kind)
            after, left = group.joined(admitted, i, waiting), waiting & ~(1 << i)
            least_s = group.least_s(after, left)
            if least_s >= self.best_s:
                continue
            self._order.append(i)
            if left:
                self._visit(left, after)
            else:
                self.best_s, self.order = least_s, list(self._order)
            self._order.pop()
            if self.best_s <= self.enough_s:
                return
