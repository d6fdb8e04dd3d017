"""Moves in two steps on the virtual clock: when a copy is there, when its response leaves, and that nothing else changes."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import (
    Orders,
    Restless,
    Step,
    Stepping,
    assert_sound,
    execute,
    in_steps,
    plan_of,
    random_step,
    run,
    uniform_step,
)  # fmt: skip
from replay_samples import executed, factory, torch_requests, torch_step
from scripted_drafters import ScriptedDrafter

from rlhfless.executor import StepFailed, StepRecord, run_step
from solver.model.drafting import Drafting
from solver.model.runtime_rules import Cut, Decision, Move

ITERATION_S = 0.1


def moved(
    lengths: list[int], groups: list[list[int]], at: dict[float, list[Decision]], two_step: bool | str, **latency: float
) -> StepRecord:
    """Actors of ``groups`` decode; prompts have 10 tokens, an iteration takes 0.1 s."""
    step = uniform_step(lengths, **latency)
    orders = {time_s: [in_steps(one, two_step) for one in decisions] for time_s, decisions in at.items()}
    record = run(step, plan_of(groups, Orders(orders)), migration="move")
    assert_sound(record, step, cuts_only=False)
    return record


def sent(record: StepRecord, response: int = 0) -> list[tuple[float, float, float, bool]]:
    """(start, end, tokens, in the background) of everything that was sent of a response."""
    rows = [s for s in record.spans if s["phase"] == "migrate" and json.loads(s["detail"])["response"] == response]
    return [(round(s["start_s"], 9), round(s["end_s"], 9), s["kv_tokens"], s["background"]) for s in rows]


def by_hand(decided_s: float, length: int, base_s: float, per_token_s: float, two_step: bool) -> float:
    """When a response that moves from one actor with nothing else to another one is complete, tick by tick of 0.1 s.

    The other actor decodes something else all the time, so a response joins at its next tick.
    """
    tick = math.ceil(round(decided_s / ITERATION_S, 9))  # the first boundary at or after the decision
    tokens = tick
    if tokens >= length:
        return length * ITERATION_S
    there_s = tick * ITERATION_S + base_s + per_token_s * (10 + tokens)
    if two_step:
        copied = 10 + tokens
        while round(tick * ITERATION_S, 9) < round(there_s, 9):  # it decodes on
            tick, tokens = tick + 1, tokens + 1
            if tokens >= length:
                return length * ITERATION_S
        there_s = tick * ITERATION_S + base_s + per_token_s * (10 + tokens - copied)
    joins = math.ceil(round(there_s / ITERATION_S, 9))
    return (joins + length - tokens) * ITERATION_S


def test_every_time_is_that_of_a_brute_force() -> None:
    seen = Counter[bool]()
    rng = np.random.default_rng(0)
    for _ in range(60):
        length = int(rng.integers(6, 40))
        decided_s, per_token_s = float(rng.uniform(0.1, 2.0)), float(rng.choice([1e-3, 0.0071, 0.0313]))
        base_s = float(rng.choice([0.0, 0.0503]))
        for two_step in (False, True):
            record = moved(
                [length, 60], [[0], [1]], {decided_s: [Move(0, 1)]}, two_step,
                transfer_base_s=base_s, transfer_per_kv_token_s=per_token_s,
            )  # fmt: skip
            expected_s = by_hand(decided_s, length, base_s, per_token_s, two_step)
            assert record.completions[0].time_s == pytest.approx(expected_s)
            seen[any(background for *_, background in sent(record))] += 1
            assert record.actor_of[0] == ("actor-1" if record.moves else "actor-0")
    assert min(seen.values()) > 25


def test_the_copy_is_sent_behind_decoding_and_the_rest_at_a_boundary() -> None:
    """14 tokens take 0.7 s, in which 7 more are decoded; these take 0.35 s."""
    record = moved([30, 30], [[0], [1]], {0.35: [Move(0, 1)]}, True, transfer_per_kv_token_s=0.05)
    assert sent(record) == [(0.4, 1.1, 14.0, True), (1.1, 1.45, 7.0, False)]
    received = [s for s in record.spans if s["phase"] == "transfer"]
    assert all(s["background"] and s["holder"] == "actor-1" and s["from_actor"] == "actor-0" for s in received)
    (event,) = [json.loads(e["detail"]) for e in record.events if e["name"] == "move"]
    assert event == {"responses": 1, "to": {"actor-1": [0]}, "copied_first": 1}
    one_step = moved([30, 30], [[0], [1]], {0.35: [Move(0, 1)]}, False, transfer_per_kv_token_s=0.05)
    assert (record.completions[0].time_s, one_step.completions[0].time_s) == (pytest.approx(3.4), pytest.approx(3.8))


def test_a_link_sends_what_stands_still_first() -> None:
    """Two responses are copied, one after the other; the second copy begins with the tokens that are there by then, and waits
    while the rest of the first is sent.
    """
    cut = Cut(0, (Move(0, 2), Move(1, 2)))
    record = moved([40, 40, 40], [[0, 1], [], [2]], {0.35: [cut]}, True, transfer_per_kv_token_s=0.03)
    assert sent(record, 0) == [(0.4, 0.82, 14.0, True), (0.9, 1.05, 5.0, False)]
    assert sent(record, 1) == [(0.82, 1.51, 18.0, True), (1.6, 1.84, 8.0, False)]
    (released,) = [a["end_s"] for a in record.allocations if a["holder"] == "actor-0"]
    assert released == pytest.approx(1.84)


@pytest.mark.parametrize(("per_token_s", "copies"), [(0.009, False), (0.0095, True)])
def test_auto_copies_first_where_that_saves_more_than_an_iteration(per_token_s: float, copies: bool) -> None:
    """13 tokens are known when it is decided. Two are decoded during the copy, so the transfer of 11 tokens is saved."""
    assert (11 * per_token_s > ITERATION_S) == copies
    record = moved([30, 30], [[0], [1]], {0.35: [Move(0, 1)]}, "auto", transfer_per_kv_token_s=per_token_s)
    assert [background for *_, background in sent(record)] == ([True, False] if copies else [False])


def test_a_response_that_completes_while_it_is_copied_stays() -> None:
    """Its receiver is released when this is known, and the copy ends with it."""
    record = moved([8, 3], [[0], [1]], {0.15: [Move(0, 1)]}, True, transfer_per_kv_token_s=0.2)
    assert sent(record) == [(0.2, 0.8, 12.0, True)]
    assert (record.moves, record.actor_of[0]) == (0, "actor-0")
    assert record.completions[0].time_s == pytest.approx(0.8)
    assert {a["holder"]: a["end_s"] for a in record.allocations} == {k: pytest.approx(0.8) for k in ("actor-0", "actor-1")}


@pytest.mark.parametrize("cut", [False, True])
def test_a_response_that_gets_another_receiver_meanwhile_leaves_in_one_step(cut: bool) -> None:
    again: Decision = Cut(1, (Move(0, 2), Move(1, 2))) if cut else Move(0, 2)
    record = moved(
        [30, 30, 30], [[0], [1], [2]], {0.35: [Move(0, 1)], 0.75: [again]}, True, transfer_per_kv_token_s=0.05
    )  # fmt: skip
    assert sent(record) == [(0.4, 0.75, 14.0, True), (0.8, 1.7, 18.0, False)]
    assert record.actor_of[0] == "actor-2"
    assert record.completions[0].time_s == pytest.approx((17 + 30 - 8) * ITERATION_S)


def test_a_response_that_is_given_back_meanwhile_stays() -> None:
    record = moved(
        [30, 30], [[0], [1]], {0.35: [Move(0, 1)], 0.75: [Move(0, 0)]}, True, transfer_per_kv_token_s=0.05
    )  # fmt: skip
    assert sent(record) == [(0.4, 0.75, 14.0, True)]
    assert (record.moves, record.actor_of[0], record.completions[0].time_s) == (0, "actor-0", pytest.approx(3.0))


class Watched(Restless):
    """Sees every response in one place only."""

    def decide(self, now_s: float, state: Any) -> list[Decision]:
        places = Counter(r for a in state.actors for r in (*a.running, *a.waiting, *a.arriving))
        assert max(places.values(), default=1) == 1
        assert not any(state.complete[r] for r in places)
        assert all(a.unfinished_count == len(a.unfinished) and a.arriving_count == len(a.arriving) for a in state.actors)
        unfinished = np.flatnonzero(~np.asarray(state.complete))
        tokens = state.prompt_tokens + state.generated_tokens
        assert state.context_tokens == tokens[unfinished].sum()
        assert all(state.context_of(int(r)) == tokens[r] for r in unfinished)
        return super().decide(now_s, state)


@pytest.mark.parametrize("admission", ["reserve", "preempt"])
def test_nothing_is_lost_doubled_or_known_too_early(admission: str) -> None:
    copied = moves = 0
    for seed in range(20):
        step = random_step(seed)
        rule = Stepping(Watched(seed), True if seed % 2 else "auto")
        migration = "cheaper" if seed % 3 else "move"
        record = execute(step, "random", seed=seed, rule=rule, admission=admission, migration=migration)
        assert_sound(record, step, cuts_only=False)
        copied += sum(s["background"] and s["phase"] == "migrate" for s in record.spans)
        moves += record.moves
    assert copied > 10
    assert moves > 10


@pytest.mark.parametrize("drafts", [False, True])
def test_real_tokens_and_log_probabilities_are_those_of_an_unmoved_response(drafts: bool) -> None:
    copied = accepted = 0
    for seed in range(3):
        step = torch_step(seed)
        plain = executed(step, "static", None).step.record
        drafting = None
        if drafts:
            known = {r: c.token_ids.tolist() for r, c in plain.completions.items() if c.token_ids is not None}
            says = lambda r, so_far, most, known=known: known[r][len(so_far) : len(so_far) + most]  # noqa: E731
            drafting = Drafting(ScriptedDrafter(says), max_draft_tokens=3, length=2)
        rule = Stepping(Restless(seed, start_s=5.0), True)
        ran = executed(step, "static", rule, migration="move", drafting=drafting, two_step=True)
        record = ran.step.record
        for response, completion in record.completions.items():
            assert np.array_equal(completion.token_ids, plain.completions[response].token_ids)
            assert np.array_equal(completion.logprobs, plain.completions[response].logprobs)
            accepted += completion.accepted_tokens or 0
        copied += sum(s["background"] and s["phase"] == "migrate" for s in record.spans)
    assert copied > 5
    assert bool(accepted) == drafts


def test_measured_iterations_are_moved_in_one_step() -> None:
    """There is no measured time behind iterations, so none is made up."""
    step = uniform_step([30, 30], transfer_per_kv_token_s=0.05)
    for charging, copies in (("profile", [True, False]), ("measured", [False])):
        plan = plan_of([[0], [1]], Orders({0.35: [Move(1, 0, two_step=True)]}))
        record = run_step(
            plan, torch_requests(step), factory(), step.latency, step.cluster, migration="move", charging=charging
        )  # fmt: skip
        assert [background for *_, background in sent(record, 1)] == copies
        assert record.actor_of[1] == "actor-0"


def test_an_unknown_number_of_steps_is_refused() -> None:
    step = uniform_step([9, 9])
    with refused(StepFailed, "two_step", "both"):
        run(step, plan_of([[0], [1]], Orders({0.35: [Move(0, 1, two_step="both")]})))


def random_move(rng: np.random.Generator) -> tuple[Step, list[list[int]], float, list[Decision]]:
    """A step of up to 9 responses on 2 or 3 actors, of which one is cut or moves a response at some time."""
    actors, lengths = int(rng.integers(2, 4)), rng.integers(5, 60, int(rng.integers(2, 10)))
    step = uniform_step(
        lengths.tolist(), base_s=0.01, per_response_s=float(rng.choice([0.0, 1e-3, 4e-3])),
        per_kv_token_s=float(rng.choice([0.0, 1e-5])), transfer_base_s=float(rng.choice([0.0, 2e-3])),
        transfer_per_kv_token_s=float(10 ** rng.uniform(-5, -2)),
    )  # fmt: skip
    owner = np.append([0, 1], rng.integers(0, actors, len(lengths) - 2))
    groups = [np.flatnonzero(owner == k).tolist() for k in range(actors)]
    moves = [Move(r, 1) for r in groups[0]]
    at_s = float(rng.uniform(0.0, 0.01 * min(lengths[0], lengths[1])))
    return step, groups, at_s, [Cut(0, tuple(moves))] if rng.random() < 0.5 and at_s < 0.04 else [moves[0]]


@pytest.mark.full
def test_auto_is_at_most_little_slower_than_one_step() -> None:
    """On 1,000 random steps; a response that stays on a slow actor for its copy may lose to one that stands still."""
    ratios = []
    for seed in range(1000):
        step, groups, at_s, decisions = random_move(np.random.default_rng(seed))
        records = [
            run(step, plan_of(groups, Stepping(Orders({at_s: [*decisions]}), how)), migration="move") for how in (False, "auto")
        ]
        if any(s["background"] and s["phase"] == "migrate" for s in records[1].spans):
            ratios.append(records[1].makespan_s / records[0].makespan_s)
        else:
            assert records[0].spans == records[1].spans
    assert len(ratios) > 100
    assert max(ratios) < 1.02
    assert np.mean(ratios) < 0.97
    assert np.mean(np.array(ratios) > 1 + 1e-9) < 0.15
