"""Late opening: a lower bound on the cost of any plan within a makespan, for one offer of actors.

Input: ``Items``, which says what items and their loads w_i are. Item i is n_i iterations long, and an iteration of base time a.
With one offer a sequence of actors is only a number of them, so the actors open one after the other without any choice. That
takes a tenth of a millisecond, where the bound for several offers (``solver.bounds.sequences``) takes some. And it can tell
long actors from short ones, which makes it tighter where slots bind.

**Statement.** The j-th of N actors spends at least r_j on start and sync. The prewarmed ones come first, so that the sum of any
N is at least the sum of the N least. Each spends e on a first prefill call if every actor makes one; else e is 0. Take any plan
with makespan at most M, refill and any admission order included, and any k. Items are sorted by length, longest first. N_k
actors hold any of the k longest items. Their longest items m_1, m_2, ... are among those k and satisfy

    (load)     sum_j (M - r_j - e - a n_{m_j})   >=  sum_{i <= k} w_i
    (slots)    sum_j (M - r_j)                   >=  sum_{i <= k} (w_i + a N_i / s + e R_i / s)
    (memory)   sum_j (M - r_j - e)               >=  sum_{i <= k} (w_i + a h_i / K)

with s slots and K KV tokens of memory. N_i are the iterations of item i, and R_i is the number of its responses that compute a
prompt. Its h_i are the KV tokens times iterations that it occupies (``reserve``: iterations times prompt + limit; ``preempt``:
the sum of the contexts). With ``share_prefill`` e stands on the left of (slots) instead.

*Proof.* An actor runs at least n_m iterations, m its longest item. It runs at least (sum N)/s iterations, because none decodes
more than s responses. And it runs at least (sum h)/K, because none holds more than K tokens. Each iteration costs a, and the
loads come on top. It makes at least R/s prefill calls: some slot serves at least R/s responses, which join at different times.
It ends by M; restricting the sums over an actor's items to the k longest only lowers the right-hand sides. Add up.

**Greedy.** Open every next actor at the first (longest) item at which a family is violated. *Claim:* the j-th actor opens no
earlier in any feasible solution. *Proof* by induction: if the first j - 1 open no later than the greedy's, their capacities are
no larger, as n falls along the order. So where the greedy needs a j-th actor the other solution needs one at or before. Hence
the greedy has the least number of actors and, each opening being latest, the least sum of longest lengths. The actor-seconds of
any plan within M are therefore at least

    sum_j r_j + max(N e + a sum of longest, a sum N / s + max(N e, e R / s), N e + a sum h / K) + sum w ,

and if the greedy needs more actors than there are, no plan keeps M. A plan of at least A actors, none of them empty, costs at
least the same with two changes. N is raised to A, and the A - N shortest lengths are added to the sum of longest. Its longest
items are distinct, so the last A - N of them are no shorter than the A - N shortest of all. (An actor of zero lengths only may
need no first prefill call. But then the plan without it is no worse and has one actor less, unless A forbids that.)

**Long and short actors.** Where slots bind, neither sum alone is tight. Actors of long items have no time to fill their slots;
actors of short ones fill them and run longer than their longest item. For any k call an actor long if it holds one of the k
longest items. Let the greedy open G actors among those k, with longest items summing to S. Another plan opens G + x with x >=
0, whose longest items sum to at least S + x n_k. The loads that long actors take beyond the k items' own are at most

    Q(x) = sum_{j <= G} (M - r_j - e) - a S - sum_{i <= k} w_i  +  x (M - r - e - a n_k)        (r the least r_j),

so of the V_k = sum_{i > k} N_i / s iterations that the other items take of an actor for themselves, long actors absorb at
most q_k Q(x), q_k the largest (N_i / s) / w_i of any of them, and short actors run the rest. All actors together run at least

    S + min over x >= 0 of ( x n_k + max(0, V_k - q_k Q(x)) )

iterations; the minimum of this convex function is at x = 0 or where the last term vanishes. (A plan whose longest items sum to
more than S + x n_k runs longer and absorbs less.) The same holds for memory with h_i / K in place of N_i / s.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.timing.items import Items

BISECTIONS, NARROW = 40, 1e-4  # of the least makespan, and the relative width at which they end
THRESHOLDS = 1000  # values of k that are tried


class CostBound(ABC):
    """Lower bound on the cost of generation as a function of the makespan, for the predicted lengths of ``items``.

    Attributes:
        least_actors: actors of every plan in question, at least.
        done: whether actors release their GPUs once done; else they hold them for ``after_s`` seconds beyond the makespan.
    """

    def __init__(self, items: Items, least_actors: int | None = None) -> None:
        problem, self.items = items.problem, items
        self.least_actors = problem.needed_actors if least_actors is None else least_actors
        self.done = problem.release == "done"
        self.after_s = problem.phases.seconds if problem.release == "step" else 0.0

    @abstractmethod
    def at(self, makespan_s: float, stop_above: float = math.inf, low_s: float = 0.0) -> float:
        """Return the bound for plans with makespans between ``low_s`` and ``makespan_s``, or ``stop_above`` if it is higher.

        It never rises with ``makespan_s``, and is infinite when there is no such plan. ``low_s`` only matters where GPUs are
        held until the end.
        """

    @property
    def shortest_makespan_s(self) -> float:
        """Return a lower bound on the makespan: every item takes its time alone."""
        return self.items.shortest_makespan_s

    @property
    def longest_makespan_s(self) -> float:
        """Return the makespan of everything one after the other on the slowest actor, from which on the bound no longer
        falls."""
        return max(self.items.shortest_makespan_s, self.items.longest_makespan_s)

    @property
    def least_makespan_s(self) -> float:
        """Return a lower bound on the makespan of every plan, by bisection; infinite when there is no plan."""
        low, high = self.shortest_makespan_s, self.longest_makespan_s
        if math.isinf(self.at(high)):
            return math.inf
        for _ in range(BISECTIONS):
            if high - low <= NARROW * high:
                break
            middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
            low, high = (low, middle) if math.isfinite(self.at(middle)) else (middle, high)
        return low


class LateOpening(CostBound):
    """The bound for one offer."""

    def __init__(self, items: Items, least_actors: int | None = None) -> None:
        super().__init__(items, least_actors)
        problem, workload, order = items.problem, items.problem.workload, items.order
        offer, total = items.offers[0], len(items)
        self._rate, self._base_s, self._prewarmed = float(items.rate[0]), float(items.base_s[0]), offer.prewarmed
        self._sync_s, self._start_s = float(items.sync_s[0]), float(items.start_s[0])
        self._call_s = float(items.call_s[0]) if items.call_at_least else 0.0
        self._most_actors = min(offer.max_actors, problem.max_actors or total, total)
        load, slots = items.load[0], int(items.slots[0])
        self._load = _running(load)
        by_slots, by_memory = items.steps / slots, items.occupied / float(items.kv_tokens[0])
        self._in_slots = self._base_s * float(by_slots.sum())
        self._in_memory = self._base_s * float(by_memory.sum())
        # calls that slots force, where each response computes its own prompt
        computes = (workload.iterations > 0) & (workload.context_tokens > 0) & (not problem.share_prefill)
        calls = np.add.reduceat(computes[order].astype(float), items.edge[:-1]) * float(items.call_s[0]) / slots
        self._slot_calls_s = float(calls.sum())
        self._slot_load = _running(load + self._base_s * by_slots + calls)
        self._kv_load = _running(load + self._base_s * by_memory)
        # for slots and for memory, where they can bind: running sums of the iterations that items take of an actor for
        # themselves, and the most such iterations per load of any item from there on
        held = float((np.diff(items.edge) * items.held).sum())
        binding: list[FloatArray] = [by_slots] if len(order) > slots else []
        binding += [by_memory] if held > items.kv_tokens[0] else []
        self._scarce = [(_running(part), _most_after(part, load)) for part in binding]

    def at(self, makespan_s: float, stop_above: float = math.inf, low_s: float = 0.0) -> float:
        """See ``CostBound``."""
        opened = self._opened(makespan_s)
        if opened is None:
            return math.inf
        actors, longest, openings = opened
        if actors < self.least_actors:
            longest += float(self.items.length[len(self.items) - (self.least_actors - actors) :].sum())
            actors = self.least_actors
        calls = actors * self._call_s
        iterations_s = max(
            calls + self._base_s * longest,
            self._in_slots + max(calls, self._slot_calls_s),
            calls + self._in_memory,
            calls + self._base_s * self._long_and_short(makespan_s, np.array(openings)),
        )
        seconds = float(self._ready_s(actors)) + iterations_s + float(self._load[-1])
        if not self.done:
            seconds = max(seconds, actors * low_s) + actors * self.after_s
        return min(stop_above, self._rate * seconds)

    def _ready_s(self, actors: int | IntArray) -> FloatArray:
        """Return the seconds of start and sync of so many actors together, the prewarmed ones first."""
        return np.asarray(actors * self._sync_s + np.maximum(0, np.asarray(actors) - self._prewarmed) * self._start_s)

    def _opened(self, makespan_s: float) -> tuple[int, float, list[int]] | None:
        """Return the least number of actors within the makespan, the sum of their longest items, and the items at which they
        open; None if there are not as many."""
        items, total, call, base = self.items, len(self.items), self._call_s, self._base_s
        tolerance = 1e-12 * max(1.0, float(self._load[-1]))
        first_s = float(self._ready_s(1)) + call + base * float(items.length[0]) + float(self._load[1])
        if makespan_s + tolerance < first_s or self.least_actors > self._most_actors:
            return None
        longest, opened_at = 0.0, 0
        openings: list[int] = []
        while opened_at < total:
            openings.append(opened_at)
            actors = len(openings)
            if actors > self._most_actors:
                return None
            longest += float(items.length[opened_at])
            ready = actors * self._sync_s + max(0, actors - self._prewarmed) * self._start_s
            room = actors * makespan_s - ready + tolerance
            without_calls = room - actors * call
            # the first k whose sum over the k longest items exceeds the capacity: a further actor opens at item k-1
            reached = int(self._load.searchsorted(without_calls - base * longest, side="right"))
            in_slots = room if self._slot_calls_s > 0 else without_calls
            for sums, capacity in ((self._slot_load, in_slots), (self._kv_load, without_calls)):
                if sums.item(min(reached, total)) > capacity:
                    reached = int(sums.searchsorted(capacity, side="right"))
            opened_at = reached - 1
        return len(openings), longest, openings

    def _long_and_short(self, makespan_s: float, openings: IntArray) -> float:
        """Return a lower bound on the iterations of all actors, by the last part of the module docstring: the best over some
        ``k``, slots and memory."""
        items, total = self.items, len(self.items)
        if not self._scarce or total == 1:
            return 0.0
        k = np.concatenate([openings[1:], np.arange(1, total, -(-total // THRESHOLDS))])
        long_actors = openings.searchsorted(k)  # those that open before the k-th item
        longest = np.cumsum(items.length[openings])[long_actors - 1].astype(float)
        shortest = items.length[k - 1].astype(float)  # of the k longest items
        call, step = self._call_s, self._base_s
        tolerance = 1e-12 * max(1.0, float(self._load[-1]), makespan_s)
        room = long_actors * (makespan_s - call) - self._ready_s(long_actors)
        absorbed = np.maximum(0.0, room - step * longest - self._load[k]) + tolerance
        by_one_more = np.maximum(1e-300, makespan_s - self._sync_s - call - step * shortest)
        least = 0.0
        for used, per_load in self._scarce:
            needed, absorbs = used[-1] - used[k], per_load[k]
            # what brings no load is absorbed without limit
            none_more = np.where(np.isfinite(absorbs), np.maximum(0.0, needed - np.minimum(absorbs, 1e300) * absorbed), 0.0)
            with np.errstate(over="ignore"):
                until_gone = shortest * none_more / np.maximum(absorbs, 1e-300) / by_one_more
            least = max(least, float((longest + np.minimum(none_more, until_gone)).max()))
        return least


def _running(values: FloatArray) -> FloatArray:
    return np.concatenate([[0.0], np.cumsum(values)])


def _most_after(used: FloatArray, load: FloatArray) -> FloatArray:
    """Return (m,) the largest ``used / load`` of any item from there on."""
    ratio = np.divide(used, load, out=np.full(len(used), np.inf), where=load > 0)
    return np.maximum.accumulate(np.where(used > 0, ratio, 0.0)[::-1])[::-1]
