"""Simulates a step coarsely ahead of time, re-planning included, on response lengths drawn from a forecast.

It is used to compare start plans and prices of time on the same lengths. It is too coarse to predict times.

The simulation advances from one re-planning round to the next (solver.replanning.migrations). Between two rounds every actor
decodes at its current speed, corrected once for the responses that complete meanwhile. Then it sends the responses that its
link can carry in that time. Responses without a free slot or KV memory wait, in order of admission, until others complete.
Under ``preempt`` the youngest responses wait again as contexts grow, and their contexts are computed again. So the result
includes start-up, prefill, whole actors, queues, link time and the stalls of moves, for the price of a few dozen rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from solver.lengths.remaining import RemainingLengths
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray, Workload
from solver.replanning.marginal_value import delay_s, stall_s
from solver.replanning.migrations import LinkSchedule, look
from solver.replanning.running_responses import valued

COARSE_LOOKS = 10  # looks while the longest response decodes
LAST_LOOKS = 4 * COARSE_LOOKS  # then, or once nothing waits any more, everything that is left decodes to its end where it is
MOST_LOOKS = 20 * COARSE_LOOKS  # the same, whatever waits


def drawn_lengths(remaining: RemainingLengths, workload: Workload, seed: int) -> FloatArray:
    """Return the (R,) tokens that each response still generates, drawn from the forecast: evenly spread quantiles, in random
    order."""
    n = len(workload)
    tokens = workload.generated_tokens.astype(float)
    quantile = (np.random.default_rng(seed).permutation(n) + 0.5) / n
    everyone = np.arange(n)
    goes_on, ends = np.zeros(n), np.ceil(remaining.most_tokens(everyone, tokens))
    while np.any(ends - goes_on > 1):  # halving for the first token after which the response is no longer alive
        middle = np.ceil((goes_on + ends) / 2)
        alive = remaining.survival(everyone, tokens, tokens + middle) > quantile
        goes_on, ends = np.where(alive, np.minimum(middle, ends - 1), goes_on), np.where(alive, ends, middle)
    return np.asarray(np.maximum(ends, 1.0))


def busy_ahead(
    groups: Sequence[IntArray],
    left: FloatArray,
    remaining: RemainingLengths,
    workload: Workload,
    latency: LatencyModel,
    price: float | None,
    admission: str = "reserve",
) -> tuple[FloatArray, int]:
    """Return the (K,) approximate seconds that each actor is busy once it can decode, and the number of responses that move.

    Args:
        groups: the responses that each actor starts with; those beyond its slots and memory join when there is room.
        left: (R,) tokens that each response still generates. The simulated decisions see only the forecast ``remaining``.
        price: actor-seconds that a second of makespan is worth when the step is re-planned; None when nothing moves.
        admission: ``reserve`` or ``preempt``.

    Raises:
        PlanningError: there is more than one latency model; the simulation handles actors of one kind only.
    """
    if not isinstance(latency, LatencyModel):
        raise PlanningError(
            "looking ahead needs one latency model for all actors; re-plan mixed clusters without looking ahead"
        )
    model = latency.affine
    actors = np.arange(len(groups))
    owner = np.zeros(len(workload), np.int64)
    for k, group in enumerate(groups):
        owner[group] = k
    prompt = workload.prompt_tokens[workload.prompt_of].astype(float)
    tokens = workload.generated_tokens.astype(float)
    end = tokens + left
    context = np.bincount(owner, weights=prompt + tokens, minlength=len(groups))
    clock = np.where(context > 0, model.prefill_s(context), 0.0) + model.join_s * np.bincount(owner, minlength=len(groups))
    busy = clock.copy()
    alive = np.concatenate([np.asarray(group, dtype=np.int64) for group in groups])  # in order of admission
    alive = alive[left[alive] > 0]
    links, moved = LinkSchedule(), 0
    now, least_s = float(clock.min()), 0.0
    still_s = clock[owner] - now  # for which each response stands still yet
    ran = np.zeros(len(workload), dtype=bool)  # before the last look
    growth = 0.0  # tokens by which contexts grew since
    for number in range(MOST_LOOKS):
        if not len(alive):
            break
        own = owner[alive]
        held = prompt[alive] + (workload.max_response_tokens if admission == "reserve" else tokens[alive] + growth / 2)
        queued = _queued(own, len(groups), model, held)
        if number >= LAST_LOOKS and not queued.any():
            break
        if admission == "preempt":
            evicted = queued & ran[alive]
            again_s = np.where(evicted, model.recompute_s(prompt[alive] + tokens[alive]), 0.0)
            still_s[alive] += np.bincount(own, weights=again_s, minlength=len(groups))[own]
        ran[alive] = ~queued
        load = np.where(queued, 0.0, model.per_response_s + model.per_kv_token_s * (prompt[alive] + tokens[alive]))
        step: FloatArray = np.asarray(model.base_s + np.bincount(own, weights=load, minlength=len(groups)), dtype=float)
        longest_s = float(((end[alive] - tokens[alive]) * step[own]).max())
        least_s = max(least_s, longest_s / (2 * COARSE_LOOKS), 1e-9)
        pause = max(longest_s / COARSE_LOOKS, least_s)
        wait: FloatArray = np.where(queued, pause, np.minimum(still_s[alive], pause))
        tokens[alive], ended, busy_s = _decode(pause, own, load, step, end[alive] - tokens[alive], tokens[alive], wait, model)
        still_s[alive] -= np.where(queued, 0.0, wait)
        for k in np.unique(own[queued]):  # those that join on the way decode for the rest of the pause: a negative wait
            mine = own == k
            at_s = _joins_s(busy_s[mine], held[mine], queued[mine], ended[mine], model)
            joins = alive[queued & mine][: len(at_s)]
            still_s[joins] -= pause - at_s
            ran[joins] = True
        growth = pause / float(step.max())
        np.maximum.at(busy, own[ended], now + busy_s[ended])
        now += pause
        alive = alive[~ended]
        live = np.unique(owner[alive])
        if len(live) < 2 or price is None:
            continue
        place = np.full(len(groups), -1)
        place[live] = np.arange(len(live))
        mine = place[owner[alive]]
        s = valued(
            actors[live], np.zeros(len(live), np.int64), alive, mine, still_s[alive] <= 0, tokens[alive], prompt[alive],
            np.maximum(model.max_batch - np.bincount(mine, minlength=len(live)), 0), remaining, model, price,
        )  # fmt: skip
        found = look(s, remaining, price, links)
        until = now + pause
        held = prompt + tokens
        delay, stall = delay_s(model, held, 0.0), stall_s(model, held)
        sent_s = now
        while found.lists and sent_s < until:
            for _, move in found.send(sent_s, links):
                i = move.response
                sender = int(owner[i])
                busy[sender] = max(busy[sender], links.free_s.get(sender, sent_s))
                owner[i] = move.to_actor
                moved += 1
                still_s[i] += delay[i] + step[move.to_actor] / 2
                if stall[i] > 0:
                    still_s[alive[owner[alive] == move.to_actor]] += stall[i]
            sent_s = max(found.next_s(sent_s, links), sent_s + model.base_s)
    if len(alive):
        own = owner[alive]
        load = model.per_response_s + model.per_kv_token_s * (prompt[alive] + end[alive])
        step = np.asarray(model.base_s + np.bincount(own, weights=load, minlength=len(groups)), dtype=float)
        np.maximum.at(busy, own, now + still_s[alive] + (end[alive] - tokens[alive]) * step[own])
    return busy, moved


def _queued(own: IntArray, actors: int, model: LatencyModel, held: FloatArray) -> NDArray[np.bool_]:
    """Return (n,) whether each response, in order of admission, waits for one of its actor's slots or for memory; the
    first never waits."""
    count = np.bincount(own, minlength=actors)
    full = np.bincount(own, weights=held, minlength=actors) > model.kv_capacity_tokens
    waits = np.zeros(len(own), dtype=bool)
    for k in np.flatnonzero((count > model.max_batch) | full):
        mine = np.flatnonzero(own == k)
        fit = int(np.cumsum(held[mine]).searchsorted(model.kv_capacity_tokens, side="right"))
        waits[mine[max(1, min(fit, model.max_batch)) :]] = True
    return waits


def _joins_s(
    busy_s: FloatArray, held: FloatArray, queued: NDArray[np.bool_], ended: NDArray[np.bool_], model: LatencyModel
) -> FloatArray:
    """Return (m,) when the first m of an actor's queued responses join: those that find room when others complete.

    Args:
        busy_s, held, queued, ended: (n,) of the actor's responses: when each is complete if it has ``ended``, KV tokens.
    """
    order = np.argsort(busy_s[ended], kind="stable")
    free_s, freed = busy_s[ended][order], np.cumsum(held[ended][order])
    room = model.kv_capacity_tokens - float(held[~queued].sum())
    slots = model.max_batch - int(np.count_nonzero(~queued))
    waiting = np.cumsum(held[queued])
    completions = np.maximum(freed.searchsorted(waiting - room), np.arange(len(waiting)) - slots)
    joins: FloatArray = free_s[completions[completions < len(free_s)]]
    return joins


def _decode(
    pause: float, own: IntArray, load: FloatArray, step: FloatArray, left: FloatArray, tokens: FloatArray, wait: FloatArray,
    model: LatencyModel,
) -> tuple[FloatArray, NDArray[np.bool_], FloatArray]:  # fmt: skip
    """Return (n,) tokens after ``pause`` seconds of which each response first waits, whether it is complete by then,
    and after how many seconds."""
    for _ in range(2):  # the second time with the load that the first leaves
        decodes = np.clip(left * step[own], 0.0, pause - wait)
        grown = load + model.per_kv_token_s * decodes / step[own] / 2
        step = np.asarray(model.base_s + np.bincount(own, weights=grown * decodes / pause, minlength=len(step)), dtype=float)
    time_s = left * step[own]
    ended = (time_s <= pause - wait) & (wait < pause)
    return np.where(ended, tokens + left, tokens + (pause - wait) / step[own]), ended, wait + time_s
