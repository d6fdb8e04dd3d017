"""The simulated engine with drafts: today's engine without them, and the contract of passes with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simulated import (
    ODD_S,
    admissions,
    assert_same_completions,
    assert_tiled,
    facts,
    latencies,
    requests,
)  # fmt: skip

from rlhfless.engine.common.draft_lengths import FIRST_TOKENS
from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request
from rlhfless.engine.simulated.accepted_runs import DraftedRuns, DrawnRuns, MeasuredRuns
from rlhfless.engine.simulated.drafted import DraftedEngine, DraftedEngineFactory
from rlhfless.engine.simulated.drafted_pass import Pass
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.errors import InputError
from solver import LatencyModel
from solver.lengths.remaining import KnownLengths
from solver.model.acceptance import Acceptance
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S

NO_DRAFTS = DraftedEngineFactory(Drafting(length=4), MeasuredRuns({}))  # the drafter offers nothing
LENGTH_0 = DraftedEngineFactory(Drafting(length=0), DrawnRuns(Acceptance([1.0])))
TENTH = LatencyModel("tenth", 1, 0.1, 0.0, prefill_per_token_s=0.01)
WIDE = Admission(8, 1 << 40)


def drawn(length: int | str, survival: Sequence[float] = (0.7, 0.6, 0.3, 0.1), **more: Any) -> DraftedEngineFactory:
    drafting = Drafting(max_draft_tokens=len(survival), length=length)  # type: ignore[arg-type]
    return DraftedEngineFactory(drafting, DrawnRuns(Acceptance(list(survival)), **more))


def new_requests(lengths: Sequence[int], limit: int = 200, prompt_tokens: int = 5) -> list[Request]:
    return [Request(i, prompt_tokens, limit, target_tokens=n, prompt=i // 4) for i, n in enumerate(lengths)]


def by_response(completions: Sequence[Completion]) -> dict[int, tuple[int | None, int | None, int | None]]:
    return {c.response: (c.passes, c.drafted_tokens, c.accepted_tokens) for c in completions}


def areas(spans: Sequence[EngineSpan], phase: str) -> list[float]:
    own = [s for s in spans if s.phase == phase]
    return [
        sum(s.tokens for s in own), *(sum(x) for x in zip(*[
            (s.end_s - s.start_s, s.batch_mean * (s.end_s - s.start_s), s.kv_tokens * (s.end_s - s.start_s)) for s in own
        ], strict=True)),
    ]  # fmt: skip


@pytest.mark.parametrize("given_drafts", [NO_DRAFTS, LENGTH_0], ids=["nothing offered", "length 0"])
@given(data=st.data(), latency=latencies(), admission=admissions())
@settings(max_examples=40, deadline=None)
def test_without_drafts_it_is_the_engine_without_drafting(given_drafts, data, latency, admission):
    """Whatever is added, cut and moved back: the same state at every stop, the same record."""
    engines = (given_drafts(latency, admission, 0.0), SimulatedEngine(latency, admission))
    records: tuple[Progress, Progress] = (Progress([], []), Progress([], []))
    now_s, first = 0.0, 0
    for action in data.draw(st.lists(st.sampled_from(["add", "hop", "hop", "cut", "cut some"]), min_size=1, max_size=8)):
        if action == "add":
            new = data.draw(requests(first, 5, now_s))
            first += len(new)
            for engine in engines:
                engine.add(new)
        elif action == "hop":
            now_s += data.draw(st.integers(1, 40)) * ODD_S
            for engine, record in zip(engines, records, strict=True):
                step = engine.advance(now_s)
                record.completions.extend(step.completions)
                record.spans.extend(step.spans)
            mine, other = engines
            assert mine.clock_s == pytest.approx(other.clock_s, rel=1e-9, abs=1e-12)
            assert mine.running() == other.running()
            assert sorted(mine.waiting()) == sorted(other.waiting())
            assert mine.generated_tokens() == other.generated_tokens()
        else:
            chosen = None if action == "cut" else data.draw(st.lists(st.integers(0, 20), unique=True))
            back_s = data.draw(st.integers(0, 20)) * ODD_S
            taken = []
            for engine, record in zip(engines, records, strict=True):
                out, step = engine.cut(now_s, chosen)
                record.completions.extend(step.completions)
                record.spans.extend(step.spans)
                out.sort(key=lambda r: r.response)
                taken.append([(r.response, r.generated_tokens, r.kv, r.prefill_tokens_computed) for r in out])
                engine.add([replace(r, available_s=max(now_s, engine.clock_s) + back_s) for r in out[::2]])
            assert taken[0] == taken[1]
    for engine, record in zip(engines, records, strict=True):
        step = engine.advance(math.inf)
        record.completions.extend(step.completions)
        record.spans.extend(step.spans)
        assert engine.generated_tokens() == {}
    assert_same_completions(records[0].completions, records[1].completions)
    for phase in ("prefill", "decode"):
        assert areas(records[0].spans, phase) == pytest.approx(areas(records[1].spans, phase), rel=1e-9, abs=1e-12)


@given(
    st.data(), latencies(), admissions(), st.sampled_from([1, 3, 4, "adaptive"]), st.integers(0, 99),
    st.sampled_from([0.0, 0.4]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_passes_and_accepted_tokens_sum_to_the_tokens(data, latency, admission, length, seed, spread):
    new = data.draw(requests(0, 10, 0.0))
    engine = drawn(length, seed=seed, spread=spread)(latency, admission, 0.0)
    engine.add(new)
    progress = engine.advance(math.inf)
    assert sorted(c.response for c in progress.completions) == [r.response for r in new]
    for c in progress.completions:
        assert c.passes is not None
        assert c.drafted_tokens is not None
        assert c.accepted_tokens is not None
        assert c.passes + c.accepted_tokens == c.response_tokens
        assert 0 <= c.accepted_tokens <= c.drafted_tokens <= 4 * c.passes
        assert math.ceil(c.response_tokens / 5) <= c.passes
    assert_tiled(progress.spans, [r.available_s for r in new])
    decode = [s for s in progress.spans if s.phase == "decode"]
    for name in ("drafted_tokens", "accepted_tokens"):
        assert sum(getattr(s, name) for s in decode) == sum(getattr(c, name) for c in progress.completions)
    assert sum(s.tokens for s in decode) == sum(c.response_tokens for c in progress.completions)
    fed = sum(c.passes + c.drafted_tokens for c in progress.completions)
    assert sum(s.fed_tokens for s in decode) == fed


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_perfect_drafts_need_the_fewest_passes(lengths, length):
    engine = drawn(length, [1.0] * 5)(TENTH, WIDE, 0.0)
    engine.add(new_requests(lengths))
    passes = {c.response: c.passes for c in engine.advance(math.inf).completions}
    assert passes == {i: math.ceil(n / (length + 1)) for i, n in enumerate(lengths)}


def test_wrong_drafts_change_no_pass_and_cost_what_they_feed():
    """Affine: 1 ms per fed token. Two responses of 10 tokens with 3 wrong drafts each, which end at the limit of 12."""
    latency = LatencyModel("x", 1, 5e-3, 1e-3)
    engine = drawn(3, [0.0] * 3)(latency, WIDE, 0.0)
    engine.add(new_requests([10, 10], limit=12))
    progress = engine.advance(math.inf)
    drafted = 8 * 3 + 3 + 2  # 11, 10, ... 3, 2 tokens may follow the one that every pass yields
    assert by_response(progress.completions) == {0: (10, drafted, 0), 1: (10, drafted, 0)}
    seconds = 10 * (5e-3 + 2e-3 + DRAFT_CALL_S) + 2 * drafted * (1e-3 + DRAFT_TOKEN_S)
    assert engine.clock_s == pytest.approx(seconds, rel=1e-12)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(0, 4),
    st.lists(st.tuples(st.floats(0, 0.3), st.sets(st.integers(0, 7))), max_size=5), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_moved_responses_keep_their_runs(lengths, length, moves, with_kv):
    """With a fixed length, passes do not depend on the batch, on the time or on the engine."""
    factory = drawn(length, spread=0.4, seed=3)
    stays, here, there = (factory(LatencyModel("x", 1, 5e-3, 1e-3), WIDE, 0.0) for _ in range(3))
    for engine in (stays, here):
        engine.add(new_requests(lengths))
    completions: list[Completion] = []
    for wait_s, some in moves:
        taken, progress = here.cut(here.clock_s + wait_s, sorted(some))
        completions += progress.completions
        there.add([replace(r, kv=r.kv if with_kv else None, available_s=here.clock_s) for r in taken])
        here, there = there, here
    for engine in (here, there):
        completions += engine.advance(math.inf).completions
    assert by_response(completions) == by_response(stays.advance(math.inf).completions)


@given(st.data(), latencies(), admissions(), st.sampled_from([2, "adaptive"]))
@settings(max_examples=40, deadline=None)
def test_many_hops_are_one_long_way_and_looking_ahead_changes_nothing(data, latency, admission, length):
    new = data.draw(requests(0, 8, 0.0))
    one, many = (drawn(length)(latency, admission, 0.0) for _ in range(2))
    one.add(new)
    many.add(new)
    far = one.advance(math.inf)
    completions, now_s = [], 0.0
    while len(completions) < len(new):
        now_s += data.draw(st.sampled_from([1.0, 7.3, 31.0])) * 1e-3
        before = facts(many)
        peeked = many.peek_next_event_s()
        assert facts(many) == before
        step = many.advance(now_s)
        assert all(peeked <= c.time_s * (1 + 1e-12) for c in step.completions)
        completions += step.completions
    assert_same_completions(completions, far.completions)
    assert by_response(completions) == by_response(far.completions)


@given(st.data(), latencies(), admissions(), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_no_completion_comes_before_the_predicted_time(data, latency, admission, completions):
    new = data.draw(requests(0, 8, 0.0))
    engine = drawn(4, [0.9, 0.8, 0.7, 0.6])(latency, admission, 0.0)
    engine.add(new)
    ends = []
    for _ in range(60 * len(new) + 10):
        peeked = engine.peek_next_event_s(completions)
        assert math.isinf(peeked) == (len(new) - len(ends) < completions)
        if math.isinf(peeked):
            break
        done = [c.time_s for c in engine.advance(peeked).completions]
        assert sum(t < peeked * (1 - 1e-12) for t in done) < completions
        ends += done
    else:
        pytest.fail("the prediction never becomes infinite")
    assert len(engine.advance(math.inf).completions) == len(new) - len(ends) < completions


def test_drafts_are_cut_before_anybody_is_evicted():
    """Two contexts of 5 tokens in 14: of 8 wanted tokens 4 are drafted. Their 16 tokens are then too many for both."""
    engine = drawn(4, [1.0] * 4)(TENTH, Admission(4, 14, "preempt"), 0.0)
    engine.add(new_requests([12, 12]))
    span = engine.advance(0.2 + 2 * DRAFT_CALL_S).spans[-1]
    assert (span.drafted_tokens, span.tokens) == (4, 6)
    assert (engine.running(), engine.waiting(), engine.generated_tokens()) == ((0,), (1,), {0: 3, 1: 3})


@given(st.data(), latencies(), st.sampled_from([3, "adaptive"]))
@settings(max_examples=30, deadline=None)
def test_a_pass_feeds_no_more_than_the_budget_of_mixed_prefill(data, latency, length):
    mixed, fed = latency.with_mixed_prefill(latency.token_budget or 12), []

    class Counted(DraftedEngine):
        def _timed(self, planned: Pass) -> Pass:
            super()._timed(planned)
            fed.append(len(planned.batch) + int(planned.drafted.sum()) + planned.prompt_tokens)
            return planned

    engine = Counted(mixed, Admission(8, 1 << 40), 0.0, drawn(length))
    new = data.draw(requests(0, 8, 0.0))
    engine.add(new)
    assert len(engine.advance(math.inf).completions) == len(new)
    assert max(fed, default=0) <= mixed.token_budget


def test_adaptive_drafts_switch_themselves_off():
    """A wrong token costs what a right one does: a sample of 32 tokens is refused, then none are drafted."""
    latency = LatencyModel("x", 1, 1e-4, 1e-3, max_batch=8)
    engine = drawn("adaptive", [0.0] * 4)(latency, WIDE, 0.0)
    engine.add(new_requests([150] * 8))
    done = engine.advance(math.inf).completions
    plain = 150 * (1e-4 + 8e-3)
    assert engine.clock_s < 1.05 * plain
    assert sum(c.drafted_tokens for c in done) == FIRST_TOKENS
    assert all(c.passes == 150 for c in done)


def test_critical_lengths_follow_predicted_lengths():
    """Drafts are too dear for all, but the one long response is alone at the end, and is drafted for from the beginning."""
    latency = LatencyModel("x", 1, 5e-3, 2e-3)
    lengths = [180, *[100] * 7]
    known = KnownLengths(np.array(lengths, float), np.full(8, 5.0), 200)
    ends, drafted = {}, {}
    for length in ("adaptive", "critical"):
        drafting = Drafting(max_draft_tokens=4, length=length)  # type: ignore[arg-type]
        runs = DrawnRuns(Acceptance([0.5, 0.3, 0.2, 0.1]))
        engine = DraftedEngine(latency, WIDE, 0.0, DraftedEngineFactory(drafting, runs, known))
        engine.add(new_requests(lengths))
        engine.advance(0.5)
        taken, _ = engine.cut(0.5)
        drafted[length] = [r.drafted_tokens for r in taken]
        engine.add(taken)
        engine.advance(math.inf)
        ends[length] = engine.clock_s
    assert drafted["critical"][0] > 2 * drafted["adaptive"][0]
    assert sum(drafted["critical"][1:]) <= sum(drafted["adaptive"][1:])
    assert ends["critical"] < ends["adaptive"]


def test_critical_lengths_without_predictions_are_refused():
    engine = drawn("critical")(TENTH, WIDE, 0.0)
    engine.add(new_requests([5]))
    with refused(PlanningError, "critical", "predictor"):
        engine.advance(1.0)


def test_a_request_without_its_true_length_is_refused():
    with refused(InputError, "response 7", "target_tokens"):
        drawn(2)(TENTH, WIDE, 0.0).add([Request(7, 1, 10)])


# --- accepted runs -------------------------------------------------------------------------------------------------------


def test_drawn_runs_have_the_survival_and_a_prefix_is_the_same():
    acceptance = Acceptance([0.8, 0.5, 0.1])
    one = DrawnRuns(acceptance, seed=4).of(7, 60_000)
    assert one.available.tolist() == [3] * 60_000
    shares = [(one.accepted > j).mean() for j in range(3)]
    assert shares == pytest.approx([0.8, 0.5, 0.1], abs=0.01)
    assert DrawnRuns(acceptance, seed=4).of(7, 50).accepted.tolist() == one.accepted[:50].tolist()
    assert DrawnRuns(acceptance, seed=4).of(8, 50).accepted.tolist() != one.accepted[:50].tolist()
    assert DrawnRuns(acceptance, seed=5).of(7, 50).accepted.tolist() != one.accepted[:50].tolist()


def test_spread_is_a_power_of_the_survival_for_each_response():
    drawn_runs = DrawnRuns(Acceptance([0.8, 0.5]), spread=0.35)
    powers = np.log([drawn_runs.survival(i) for i in range(800)]) / np.log([0.8, 0.5])
    assert powers[:, 0] == pytest.approx(powers[:, 1])
    assert np.log(powers[:, 0]).std() == pytest.approx(0.35, rel=0.1)
    assert np.median(powers[:, 0]) == pytest.approx(1.0, abs=0.05)


def test_measured_runs_accept_nothing_behind_their_end():
    runs = MeasuredRuns({3: DraftedRuns(np.array([4, 2]), np.array([1, 2]))})
    assert [run.tolist() for run in runs.of(3, 4)] == [[4, 2, 0, 0], [1, 2, 0, 0]]
    assert [run.tolist() for run in runs.of(3, 1)] == [[4], [1]]
    assert [run.tolist() for run in runs.of(9, 2)] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("wrong", [{"spread": -1.0}, {"spread": math.nan}, {"seed": 0.5}])
def test_drawn_runs_with_wrong_arguments_are_refused(wrong):
    with refused(PlanningError, next(iter(wrong))):
        DrawnRuns(Acceptance([0.5]), **wrong)
