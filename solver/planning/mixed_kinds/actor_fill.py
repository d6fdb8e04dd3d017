"""State of one actor while it is filled: the items that it has taken, and the time that one more item would add.

Input: ``MixedWork``. Each slot is tracked: a response goes to the slot that is free first. It lengthens the actor only if it
outlasts every other slot, and short responses fill the slots next to long ones. Groups are therefore not contiguous in length.
Prompts that stay together are admitted response by response in the end, the longest of all first. While they are taken, the
time of an actor that refills is only estimated. Its slots share all work except the shortest response, which comes last.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import IntArray
from solver.planning.mixed_kinds.items import MixedWork


class Items:
    """The numbers per item that filling an actor needs, as lists: reading single numbers from arrays is slow."""

    def __init__(self, work: MixedWork) -> None:
        starts, works = work.edge[:-1], work.iterations > 0
        columns = (
            work.length,
            np.add.reduceat(works, starts, dtype=np.int64),
            np.add.reduceat(np.where(works, work.held, 0.0), starts),
            work.prompt[starts],
            work.computes[starts],
            work.recomputes[starts],
        )
        # length, responses that need an iteration, KV tokens that admission counts for them, prompt, whether the first of them
        # computes where the prompt is not there, and where it is
        self.rows: list[tuple[int, int, float, int, bool, bool]] = list(zip(*(c.tolist() for c in columns), strict=True))
        self.together = len(work) < len(work.order)
        self.steps: list[float] = work.steps.tolist()
        self.shortest: list[float] = np.minimum.reduceat(np.where(works, work.iterations, np.inf), starts).tolist()
        self.recomputing: list[int] = np.add.reduceat(work.recomputes, starts, dtype=np.int64).tolist()
        self.uncached_load: list[list[float]] = work.uncached_load.tolist()
        shares = not self.together and bool((work.computes != work.recomputes).any() or work.repeated.any())
        self.repeated: list[list[float]] | None = work.repeated.tolist() if shares else None
        everything = np.arange(len(work.order))
        self.at_once = [work.at_once(r, everything) for r in range(len(work.offers))]
        self.allowed: list[list[bool] | None] = [None if row.all() else row.tolist() for row in work.allowed]


class ActorUnderFill:
    """An actor while it is filled; times in seconds and iterations since it could decode."""

    __slots__ = (
        "allowed", "at_once", "base_s", "busy", "cached_prompts", "call_s", "calls", "closed_until", "ends", "free_s", "group",
        "items", "joins", "kv", "memory", "offer", "rate", "recomputing", "repeated", "shortest", "size", "slots",
        "steps", "uncached_load", "used_s",
    )  # fmt: skip

    def __init__(self, work: MixedWork, items: Items, offer: int, free_s: float, tilt: tuple[float, int]) -> None:
        self.items, self.offer, self.free_s = items, offer, free_s
        self.base_s, self.call_s = float(work.base_s[offer]), float(work.call_s[offer])
        self.rate, self.closed_until = float(work.rate[offer]) * tilt[0], tilt[1]
        self.uncached_load, self.allowed = items.uncached_load[offer], items.allowed[offer]
        self.repeated = None if items.repeated is None else items.repeated[offer]
        self.slots, self.memory = int(work.slots[offer]), float(work.kv_tokens[offer])
        self.at_once = items.at_once[offer]
        self.used_s, self.kv = 0.0, 0.0
        self.busy: float = 0  # iterations
        self.size = 0  # responses
        self.ends: list[int] = []  # a heap: when each taken slot is free again
        self.joins: set[int] = set()  # iterations with a prefill call
        self.cached_prompts: set[int] = set()  # prompts, where actors share them
        self.group: list[int] = []  # items
        self.steps, self.shortest, self.recomputing, self.calls = 0.0, math.inf, 0, 0.0  # of prompts that stay together

    def refilled(self, i: int) -> tuple[float, float]:
        """Return about how many iterations and prefill calls the responses taken and those of item i need together."""
        items = self.items
        length, size, held, _, computes, _ = items.rows[i]
        longest = items.rows[self.group[0]][0] if self.group else length
        calls = 1.0 if computes or self.calls > 0 else 0.0
        if self.size + size <= self.slots and self.kv + held <= self.memory:
            return longest, calls
        shortest = min(self.shortest, items.shortest[i])
        iterations = max(longest, (self.steps + items.steps[i] - shortest) / self.at_once + shortest)
        late = (self.recomputing + items.recomputing[i]) * max(0.0, 1.0 - self.at_once / (self.size + size))
        return iterations, calls - iterations * math.expm1(-late / iterations)  # several may join in the same iteration

    def take(self, i: int, extra_s: float) -> None:
        """Assign item i to this actor, which makes it busy for ``extra_s`` longer."""
        items = self.items
        length, size, held, prompt, computes, recomputes = items.rows[i]
        if items.together:
            self.busy, self.calls = self.refilled(i)
            self.steps += items.steps[i]
            self.shortest = min(self.shortest, items.shortest[i])
            self.recomputing += items.recomputing[i]
            self.kv += held
        else:
            if len(self.ends) < self.slots and (not self.ends or self.kv + held <= self.memory):
                begin = 0
                heapq.heappush(self.ends, length)
                self.kv += held
            else:
                begin = self.ends[0]
                heapq.heapreplace(self.ends, begin + length)
            if begin + length > self.busy:
                self.busy = begin + length
            if recomputes if prompt in self.cached_prompts else computes:
                self.joins.add(begin)
            if self.repeated is not None:
                self.cached_prompts.add(prompt)
        self.size += size
        self.used_s += extra_s
        self.group.append(i)


def prefills_of(work: MixedWork, chosen: IntArray) -> NDArray[np.bool_]:
    """Return (len(chosen),) which positions of ``work.order`` have tokens to prefill on an actor that admits them in
    this order."""
    owner, turn = work.prompt[chosen], np.arange(len(chosen))
    first = np.empty(int(owner.max(initial=-1)) + 1, dtype=np.int64)  # of each prompt; of equal indices the last is assigned
    first[owner[::-1]] = turn[::-1]
    return np.where(first[owner] == turn, work.computes[chosen], work.recomputes[chosen])


def iterations_and_calls(work: MixedWork, chosen: IntArray, slots: int) -> tuple[int, int]:
    """Return iterations and prefill calls of one actor that admits ``chosen`` positions of ``work.order`` in this
    order into ``slots`` slots."""
    working = chosen[work.iterations[chosen] > 0]
    lengths = work.iterations[working].tolist()
    prefills = prefills_of(work, working).tolist()
    ends: list[int] = lengths[:slots]
    joins = {0} if any(prefills[:slots]) else set()
    longest = max(ends, default=0)
    heapq.heapify(ends)
    for n, prefill in zip(lengths[slots:], prefills[slots:], strict=True):
        start = ends[0]
        heapq.heapreplace(ends, start + n)
        longest = max(longest, start + n)
        if prefill:
            joins.add(start)
    return longest, len(joins)
