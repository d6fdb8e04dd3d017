"""Late-opening relaxation: a lower bound on the actor-seconds of any plan within a makespan, for one kind of actor.

Input: ``SortedWork``. Notation: an iteration takes a + b * batch + c * KV tokens. Item i (a response, or a prompt's responses
kept together) is n_i iterations long and brings the load w_i, the sum over its responses of

    b n + c (p n + n (n - 1) / 2) + prefill_per_token * p      (p tokens of context; the last term where it computes them).

With ``share_prefill`` an actor computes a prompt once for all its responses there. Then only the prompt's longest response
carries the last term, because the actor that holds it pays it at least once.

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

from dataclasses import dataclass

import numpy as np

from solver.planning.single_kind.items import SortedWork

THRESHOLDS = 1000  # values of k that are tried


@dataclass(frozen=True)
class Relaxed:
    """The relaxation at one makespan: least number of actors, and least actor-seconds of all of them together."""

    actors: int
    actor_s: float


def relaxed(work: SortedWork, makespan_s: float, min_actors: int | None = None) -> Relaxed | None:
    """Return the relaxation at ``makespan_s`` over plans of at least ``min_actors`` actors; None if no such plan keeps the
    makespan.

    ``min_actors`` defaults to the work's own bound. The module docstring has the proof.
    """
    least = work.min_actors if min_actors is None else max(min_actors, work.min_actors)
    total, call = len(work), work.call_least_s
    tolerance = 1e-12 * max(1.0, float(work.load[-1]))
    first_s = work.ready_of(0) + call + work.base_s * float(work.length[0]) + float(work.load[1])
    if makespan_s + tolerance < first_s or least > work.max_actors:
        return None
    shares = work.call_shares_s > 0
    actors, longest, opened_at = 0, 0.0, 0
    openings: list[int] = []
    while opened_at < total:
        actors += 1
        if actors > work.max_actors:
            return None
        openings.append(opened_at)
        longest += float(work.length[opened_at])
        room = actors * makespan_s - work.ready_s(actors) + tolerance
        without_calls = room - actors * call
        # the first k whose sum over the k longest items exceeds the capacity: a further actor opens at item k-1
        reached = int(work.load.searchsorted(without_calls - work.base_s * longest, side="right"))
        for sums, capacity in ((work.slot_load, room if shares else without_calls), (work.kv_load, without_calls)):
            if sums.item(min(reached, total)) > capacity:
                reached = int(sums.searchsorted(capacity, side="right"))
        opened_at = reached - 1
    if actors < least:
        longest += float(work.length[total - (least - actors) :].sum())
        actors = least
    calls = actors * call
    at_slots = work.base_s * float(work.steps[-1]) / work.max_batch
    iterations = max(
        calls + work.base_s * longest,
        at_slots + max(calls, work.call_shares_s),
        calls + float(work.kv_load[-1] - work.load[-1]),
        calls + work.base_s * _long_and_short(work, makespan_s, openings),
    )
    return Relaxed(actors, work.ready_s(actors) + iterations + float(work.load[-1]))


def _long_and_short(work: SortedWork, makespan_s: float, openings: list[int]) -> float:
    """Return a lower bound on the iterations of all actors, by the last part of the module docstring: the best over
    some ``k``, slots and memory."""
    total = len(work)
    if not work.scarce or total == 1:
        return 0.0
    opened = np.array(openings)
    k = np.concatenate([opened[1:], np.arange(1, total, -(-total // THRESHOLDS))])
    long_actors = opened.searchsorted(k)  # those that open before the k-th item
    ready = work.sync_s * long_actors + work.start_s * np.maximum(long_actors - work.prewarmed, 0)
    longest = np.cumsum(work.length[opened])[long_actors - 1].astype(float)
    shortest = work.length[k - 1].astype(float)  # of the k longest items
    call, step = work.call_least_s, work.base_s
    tolerance = 1e-12 * max(1.0, float(work.load[-1]), makespan_s)
    absorbed = np.maximum(0.0, long_actors * (makespan_s - call) - ready - step * longest - work.load[k]) + tolerance
    by_one_more = np.maximum(1e-300, makespan_s - work.sync_s - call - step * shortest)
    least = 0.0
    for used, per_load in work.scarce:
        needed, absorbs = used[-1] - used[k], per_load[k]
        # what brings no load is absorbed without limit
        none_more = np.where(np.isfinite(absorbs), np.maximum(0.0, needed - np.minimum(absorbs, 1e300) * absorbed), 0.0)
        with np.errstate(over="ignore"):
            until_gone = shortest * none_more / np.maximum(absorbs, 1e-300) / by_one_more
        least = max(least, float((longest + np.minimum(none_more, until_gone)).max()))
    return least
