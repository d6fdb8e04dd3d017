"""Responses of several turns on a simulated engine, against an actor that is run one iteration at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.multi_turn import MultiTurnEngine, MultiTurnEngines, Turns
from rlhfless.errors import InputError
from solver.model.admission import Admission
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel

LATENCY = LatencyModel(
    "one at a time", 1, base_s=1 / 2, per_response_s=1 / 8, per_kv_token_s=1 / 1024, prefill_base_s=1 / 4,
    prefill_per_token_s=1 / 64, join_s=1 / 32, max_batch=8,
)  # fmt: skip
LIMIT = 40
CONVERSATIONS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.0, 0.5, 1.0, 7.25])), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=6,
)
"""(prompt tokens, turns as (tokens, seconds of the wait after it))."""


@dataclass
class Talk:
    """A response while it is decoded."""

    prompt: int
    turns: list[tuple[int, float]]
    ready_s: float = 0.0
    tokens: int = 0
    turn: int = 0
    left: int = 0
    has_kv: bool = False
    events: list[float] = field(default_factory=list)


def one_at_a_time(talks: list[Talk], slots: int, kv_tokens: int, keeps: bool) -> list[float]:
    """Seconds at which each response is complete."""
    clock, end = 0.0, {}
    queue, batch, waits = list(talks), [], []
    held = []  # those that have a slot
    while queue or batch or waits:
        back = sorted((t for t in waits if t.ready_s <= clock), key=lambda t: t.ready_s)
        waits = [t for t in waits if t not in back]
        joins: list[Talk] = []
        if keeps:
            joins += back
        else:
            queue += back
        while queue and len(held) < slots and sum(t.prompt + LIMIT for t in [*held, queue[0]]) <= kv_tokens:
            held.append(queue.pop(0))
            joins.append(held[-1])
        if not batch and not joins:
            clock = min(t.ready_s for t in waits)
            continue
        for t in joins:
            t.left = t.turns[t.turn][0]
        missing = sum(t.prompt + t.tokens for t in joins if not t.has_kv)
        batch += joins
        clock += (1 / 4 + missing / 64 if missing else 0.0) + len(joins) / 32
        clock += 1 / 2 + len(batch) / 8 + sum(t.prompt + t.tokens for t in batch) / 1024
        for t in batch:
            t.tokens, t.left = t.tokens + 1, t.left - 1
        for t in [t for t in batch if not t.left]:
            batch.remove(t)
            wait_s, t.turn = t.turns[t.turn][1], t.turn + 1
            if t.turn == len(t.turns):
                end[id(t)] = clock
                held.remove(t)
                continue
            t.ready_s, t.has_kv = clock + wait_s, keeps
            waits.append(t)
            if not keeps:
                held.remove(t)
    return [end[id(t)] for t in talks]


def engine_of(conversations: list[tuple[int, list[tuple[int, float]]]], slots: int, kv: int, keeps: bool) -> MultiTurnEngine:
    turns = {
        i: Turns(tuple(tokens for tokens, _ in of), tuple(wait for _, wait in of[:-1]))
        for i, (_, of) in enumerate(conversations)
    }
    engine = MultiTurnEngines(turns, keeps)(LATENCY, Admission(slots, kv), 0.0)
    engine.add(requests_of(conversations))
    return engine


def requests_of(conversations: list[tuple[int, list[tuple[int, float]]]]) -> list[Request]:
    return [
        Request(i, prompt, LIMIT, target_tokens=sum(tokens for tokens, _ in of)) for i, (prompt, of) in enumerate(conversations)
    ]


@settings(max_examples=60)
@given(CONVERSATIONS, st.integers(1, 4), st.sampled_from([50, 100, 1000]), st.booleans())
def test_turns_and_waits_are_those_of_one_iteration_at_a_time(
    conversations: list[tuple[int, list[tuple[int, float]]]], slots: int, kv_tokens: int, keeps: bool
) -> None:
    expected = one_at_a_time([Talk(prompt, of) for prompt, of in conversations], slots, kv_tokens, keeps)
    engine = engine_of(conversations, slots, kv_tokens, keeps)
    progress = engine.advance(math.inf)
    found = {one.response: one for one in progress.completions}
    assert len(progress.completions) == len(found) == len(conversations)  # nobody is lost or doubled
    assert [found[i].time_s for i in range(len(conversations))] == pytest.approx(expected)
    lengths = [sum(tokens for tokens, _ in of) for _, of in conversations]
    assert [found[i].response_tokens for i in range(len(lengths))] == lengths
    assert sum(span.tokens for span in progress.spans if span.phase == "decode") == sum(lengths)


@settings(max_examples=20)
@given(CONVERSATIONS, st.integers(1, 4), st.booleans(), st.floats(0.1, 3.0))
def test_small_advances_commit_the_same(
    conversations: list[tuple[int, list[tuple[int, float]]]], slots: int, keeps: bool, step_s: float
) -> None:
    at_once, often = (engine_of(conversations, slots, 1000, keeps) for _ in range(2))
    expected = [(one.response, one.time_s) for one in at_once.advance(math.inf).completions]
    found, now_s = [], 0.0
    while len(found) < len(conversations):
        assert often.peek_next_event_s() < math.inf
        unfinished = {*often.running(), *often.waiting()}
        assert unfinished == set(range(len(conversations))) - {response for response, _ in found} == {*often.generated_tokens()}
        now_s += step_s
        progress = often.advance(now_s)
        assert all(one.time_s <= now_s for one in progress.completions)
        found += [(one.response, one.time_s) for one in progress.completions]
    assert found == expected


@settings(max_examples=20)
@given(CONVERSATIONS, st.integers(1, 4), st.sampled_from([50, 1000]))
def test_without_waits_kept_caches_are_one_turn(
    conversations: list[tuple[int, list[tuple[int, float]]]], slots: int, kv_tokens: int
) -> None:
    """But for what joining costs, a response whose tools answer at once decodes on."""
    one_turn = [(prompt, [(sum(tokens for tokens, _ in of), 0.0)]) for prompt, of in conversations]
    plain = SimulatedEngine(LATENCY, Admission(slots, kv_tokens))
    plain.add(requests_of(one_turn))
    found = engine_of(one_turn, slots, kv_tokens, True).advance(math.inf).completions
    assert [(c.response, c.time_s) for c in found] == [(c.response, c.time_s) for c in plain.advance(math.inf).completions]


def test_what_makes_no_turns_is_refused() -> None:
    for turns in (Turns((), ()), Turns((1, 2), ()), Turns((1,), (1.0,)), Turns((1, -2), (0.0,)), Turns((1, 2), (-1.0,))):
        with refused(PlanningError, "response 0"):
            MultiTurnEngines({0: turns}, True)
    with refused(PlanningError, "reserve"):
        MultiTurnEngines({}, True)(LATENCY, Admission(2, 100, "preempt"), 0.0)
    engine = MultiTurnEngines({0: Turns((1, 2), (1.0,))}, False)(LATENCY, Admission(2, 100), 0.0)
    with refused(InputError, "response 0"):
        engine.add([Request(0, 3, LIMIT, target_tokens=4)])
    with refused(PlanningError, "cannot move"):
        engine.cut(0.0)
