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
from solver.replanning.migrations import LinkSchedule, plan_round
from solver.replanning.running_responses import ResponseArrays, valued

COARSE_ROUNDS = 10  # re-planning rounds while the longest response decodes
MIN_ROUNDS = 4 * COARSE_ROUNDS  # then, or when nothing waits any more, all responses decode to their end on their actors
MAX_SIMULATED_ROUNDS = 20 * COARSE_ROUNDS  # then they do so in any case


def drawn_lengths(remaining: RemainingLengths, workload: Workload, seed: int) -> FloatArray:
    """Return the (R,) tokens that each response still generates, drawn from the forecast: evenly spread quantiles, in random
    order."""
    n = len(workload)
    tokens = workload.generated_tokens.astype(float)
    quantile = (np.random.default_rng(seed).permutation(n) + 0.5) / n
    responses = np.arange(n)
    alive_until, ends = np.zeros(n), np.ceil(remaining.max_tokens(responses, tokens))
    while np.any(ends - alive_until > 1):  # bisection for the first token after which the response is complete
        middle = np.ceil((alive_until + ends) / 2)
        alive = remaining.survival(responses, tokens, tokens + middle) > quantile
        alive_until, ends = np.where(alive, np.minimum(middle, ends - 1), alive_until), np.where(alive, ends, middle)
    return np.asarray(np.maximum(ends, 1.0))


def simulated_busy_s(
    groups: Sequence[IntArray],
    remaining_tokens: FloatArray,
    remaining: RemainingLengths,
    workload: Workload,
    latency: LatencyModel,
    price: float | None,
    admission: str = "reserve",
) -> tuple[FloatArray, int]:
    """Return the (K,) approximate seconds that each actor is busy once it can decode, and the number of responses that move.

    Args:
        groups: the responses that each actor starts with; those beyond its slots and memory join when there is room.
        remaining_tokens: (R,) tokens that each response still generates. The simulated decisions see only the forecast
            ``remaining``.
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
    end = tokens + remaining_tokens
    context = np.bincount(owner, weights=prompt + tokens, minlength=len(groups))
    clock = np.where(context > 0, model.prefill_s(context), 0.0) + model.join_s * np.bincount(owner, minlength=len(groups))
    busy = clock.copy()
    alive = np.concatenate([np.asarray(group, dtype=np.int64) for group in groups])  # in order of admission
    alive = alive[remaining_tokens[alive] > 0]
    links, moved = LinkSchedule(), 0
    now_s, min_pause_s = float(clock.min()), 0.0
    stalled_s = clock[owner] - now_s  # for which each response still makes no progress
    was_running = np.zeros(len(workload), dtype=bool)  # in the last round
    growth = 0.0  # tokens by which contexts grew since
    for round_number in range(MAX_SIMULATED_ROUNDS):
        if not len(alive):
            break
        actor_of = owner[alive]
        held = prompt[alive] + (workload.max_response_tokens if admission == "reserve" else tokens[alive] + growth / 2)
        queued = _queued(actor_of, len(groups), model, held)
        if round_number >= MIN_ROUNDS and not queued.any():
            break
        if admission == "preempt":
            evicted = queued & was_running[alive]
            recompute_s = np.where(evicted, model.recompute_s(prompt[alive] + tokens[alive]), 0.0)
            stalled_s[alive] += np.bincount(actor_of, weights=recompute_s, minlength=len(groups))[actor_of]
        was_running[alive] = ~queued
        load = np.where(queued, 0.0, model.per_response_s + model.per_kv_token_s * (prompt[alive] + tokens[alive]))
        step: FloatArray = np.asarray(model.base_s + np.bincount(actor_of, weights=load, minlength=len(groups)), dtype=float)
        longest_s = float(((end[alive] - tokens[alive]) * step[actor_of]).max())
        min_pause_s = max(min_pause_s, longest_s / (2 * COARSE_ROUNDS), 1e-9)
        pause = max(longest_s / COARSE_ROUNDS, min_pause_s)
        wait: FloatArray = np.where(queued, pause, np.minimum(stalled_s[alive], pause))
        tokens[alive], ended, busy_s = _decode(
            pause, actor_of, load, step, end[alive] - tokens[alive], tokens[alive], wait, model
        )
        stalled_s[alive] -= np.where(queued, 0.0, wait)
        for k in np.unique(actor_of[queued]):  # responses that join within the pause decode for the rest of it: a negative wait
            on_actor = actor_of == k
            at_s = _joins_s(busy_s[on_actor], held[on_actor], queued[on_actor], ended[on_actor], model)
            joins = alive[queued & on_actor][: len(at_s)]
            stalled_s[joins] -= pause - at_s
            was_running[joins] = True
        growth = pause / float(step.max())
        np.maximum.at(busy, actor_of[ended], now_s + busy_s[ended])
        now_s += pause
        alive = alive[~ended]
        live = np.unique(owner[alive])
        if len(live) < 2 or price is None:
            continue
        position_of = np.full(len(groups), -1)
        position_of[live] = np.arange(len(live))
        position = position_of[owner[alive]]
        arrays = ResponseArrays(
            actors[live],
            np.maximum(model.max_batch - np.bincount(position, minlength=len(live)), 0), alive, position,
            stalled_s[alive] <= 0, tokens[alive], prompt[alive],
        )  # fmt: skip
        s = valued(arrays, remaining, model, price)
        migrations = plan_round(s, remaining, price, links)
        until = now_s + pause
        held = prompt + tokens
        delay, stall = delay_s(model, held, 0.0), stall_s(model, held)
        sent_s = now_s
        while migrations.candidates and sent_s < until:
            for _, move in migrations.send(sent_s, links):
                i = move.response
                sender = int(owner[i])
                busy[sender] = max(busy[sender], links.free_s.get(sender, sent_s))
                owner[i] = move.to_actor
                moved += 1
                stalled_s[i] += delay[i] + step[move.to_actor] / 2
                if stall[i] > 0:
                    stalled_s[alive[owner[alive] == move.to_actor]] += stall[i]
            sent_s = max(migrations.next_s(sent_s, links), sent_s + model.base_s)
    if len(alive):
        actor_of = owner[alive]
        load = model.per_response_s + model.per_kv_token_s * (prompt[alive] + end[alive])
        step = np.asarray(model.base_s + np.bincount(actor_of, weights=load, minlength=len(groups)), dtype=float)
        np.maximum.at(busy, actor_of, now_s + stalled_s[alive] + (end[alive] - tokens[alive]) * step[actor_of])
    return busy, moved


def _queued(actor_of: IntArray, actors: int, model: LatencyModel, held: FloatArray) -> NDArray[np.bool_]:
    """Return (n,) whether each response, in order of admission, waits for one of its actor's slots or for memory; the
    first never waits."""
    count = np.bincount(actor_of, minlength=actors)
    full = np.bincount(actor_of, weights=held, minlength=actors) > model.kv_capacity_tokens
    waits = np.zeros(len(actor_of), dtype=bool)
    for k in np.flatnonzero((count > model.max_batch) | full):
        responses = np.flatnonzero(actor_of == k)
        fit = int(np.cumsum(held[responses]).searchsorted(model.kv_capacity_tokens, side="right"))
        waits[responses[max(1, min(fit, model.max_batch)) :]] = True
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
    pause: float, actor_of: IntArray, load: FloatArray, step: FloatArray, remaining_tokens: FloatArray, tokens: FloatArray,
    wait: FloatArray, model: LatencyModel,
) -> tuple[FloatArray, NDArray[np.bool_], FloatArray]:  # fmt: skip
    """Return (n,) tokens after ``pause`` seconds of which each response first waits, whether it is complete by then,
    and after how many seconds."""
    for _ in range(2):  # the second pass uses the load that the first one leaves
        decodes = np.clip(remaining_tokens * step[actor_of], 0.0, pause - wait)
        grown = load + model.per_kv_token_s * decodes / step[actor_of] / 2
        step = np.asarray(
            model.base_s + np.bincount(actor_of, weights=grown * decodes / pause, minlength=len(step)), dtype=float
        )
    time_s = remaining_tokens * step[actor_of]
    ended = (time_s <= pause - wait) & (wait < pause)
    return np.where(ended, tokens + remaining_tokens, tokens + (pause - wait) / step[actor_of]), ended, wait + time_s
