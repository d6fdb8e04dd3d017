"""The simulated engine does what a plain engine does that computes one iteration after the other.

``PlainEngine`` is written from the protocol and the admission rule; it shares the latency model with the engine, no more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request
from rlhfless.engine.simulated.engine import MOVED_KV, SimulatedEngine
from rlhfless.errors import InputError
from solver import LatencyModel, Workload
from solver.model.admission import Admission
from solver.timing.batch import Batch
from solver.timing.evaluate import cached_tokens
from solver.timing.timeline import timeline

LIMIT = 20
ODD_S = math.pi * 1e-3  # moments that never fall on an iteration boundary


@dataclass
class Held:
    """A response in the plain engine."""

    request: Request
    tokens: int
    kv: bool
    there: int
    shares: bool
    start_s: float | None
    first_token_s: float | None
    prefill: int
    fed: int = 0  # tokens of its context that are computed, while some are missing

    @property
    def context(self) -> int:
        return self.request.prompt_tokens + self.tokens

    @property
    def counted(self) -> int:
        return self.request.prompt_tokens + self.request.max_tokens

    @property
    def left(self) -> int:
        assert self.request.target_tokens is not None
        return self.request.target_tokens - self.tokens


@dataclass
class PlainEngine:
    """One iteration after the other."""

    latency: LatencyModel
    admission: Admission
    clock_s: float = 0.0
    batch: list[Held] = field(default_factory=list)
    queue: list[Held] = field(default_factory=list)
    arriving: list[Held] = field(default_factory=list)
    done: list[Completion] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"prefill": 0.0, "decode": 0.0})
    tokens: dict[str, int] = field(default_factory=lambda: {"prefill": 0, "decode": 0})
    known: set[int | None] = field(default_factory=set)  # prompts that are there for all that share them

    def add(self, requests: Iterable[Request]) -> None:
        for r in requests:
            kv, there = r.kv is not None, (r.cached_tokens, r.shares_prompt)
            new = Held(r, r.generated_tokens, kv, *there, r.start_s, r.first_token_s, r.prefill_tokens_computed)
            self.arriving.append(new)
        self.arriving.sort(key=lambda h: h.request.available_s)
        self._take_in()

    def advance(self, to_s: float) -> None:
        while True:
            self._take_in()
            if self.clock_s > to_s:
                return
            for h in [h for h in self.queue if h.left <= 0]:
                self.queue.remove(h)
                self._complete(h)
            if not self.batch and not self.queue:
                if not self.arriving or self.arriving[0].request.available_s > to_s:
                    return
                self.clock_s = self.arriving[0].request.available_s
                continue
            if not self._iterate(to_s):
                return

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> list[Request]:
        self.advance(at_s)
        if self.clock_s < at_s and (self.batch or self.queue):
            self._iterate(math.inf)
        taken = []
        for place in (self.batch, self.queue, self.arriving):
            for h in [h for h in place if responses is None or h.request.response in responses]:
                place.remove(h)
                taken.append(
                    replace(
                        h.request, generated_tokens=h.tokens, kv=MOVED_KV if h.kv else None, start_s=h.start_s,
                        first_token_s=h.first_token_s, prefill_tokens_computed=h.prefill, cached_tokens=0,
                        shares_prompt=False,
                    )
                )  # fmt: skip
        return taken

    def _take_in(self) -> None:
        while self.arriving and self.arriving[0].request.available_s <= self.clock_s:
            self.queue.append(self.arriving.pop(0))

    def _complete(self, h: Held) -> None:
        start = self.clock_s if h.start_s is None else h.start_s
        first = self.clock_s if h.first_token_s is None else h.first_token_s
        tokens = h.request.target_tokens
        assert tokens is not None
        done = Completion(h.request.response, self.clock_s, tokens, h.request.target_finish, first, start, h.prefill)
        self.done.append(done)

    def _counted(self, held: Iterable[Held]) -> int:
        return sum(h.counted if self.admission.rule == "reserve" else h.context for h in held)

    def _iterate(self, to_s: float) -> bool:
        """One iteration if it ends by ``to_s``; evictions belong to the boundary at its end."""
        if self.latency.mixes:
            return self._iterate_mixed(to_s)
        joining: list[Held] = []
        for h in self.queue:
            inside = [*self.batch, *joining]
            fits = self._counted([*inside, h]) <= self.admission.kv_capacity_tokens
            if len(inside) >= self.admission.max_batch or (inside and not fits):
                break
            joining.append(h)
        batch = [*self.batch, *joining]
        known, computed = set(self.known), []
        for h in joining:
            there = h.request.prompt_tokens if h.shares and h.request.prompt in known else h.there
            computed.append(0 if h.kv else h.context - there)
            if h.shares and not h.kv:
                known.add(h.request.prompt)
        new = sum(computed)
        prefill_s = float(self.latency.prefill_s(new)) if new else 0.0
        decode_s = float(self.latency.iteration_s(len(batch), sum(h.context for h in batch))) + self.latency.join_s * len(
            joining
        )
        if self.clock_s + prefill_s + decode_s > to_s:
            return False
        self.known = known
        for h, tokens in zip(joining, computed, strict=True):
            self.queue.remove(h)
            h.start_s = self.clock_s if h.start_s is None else h.start_s
            h.prefill += max(0, tokens - 1)  # the last one is decoded
            h.kv = True
        assert len(batch) <= self.admission.max_batch
        assert len(batch) == 1 or self._counted(batch) <= self.admission.kv_capacity_tokens
        self.clock_s += prefill_s + decode_s
        for h in batch:
            h.tokens += 1
            h.first_token_s = self.clock_s if h.first_token_s is None else h.first_token_s
            if h.left == 0:
                self._complete(h)
        self.seconds["prefill"] += prefill_s
        self.seconds["decode"] += decode_s
        self.tokens["prefill"] += sum(max(0, tokens - 1) for tokens in computed)
        self.tokens["decode"] += len(batch)
        self.batch = [h for h in batch if h.left > 0]
        self._evict()
        return True

    def _iterate_mixed(self, to_s: float) -> bool:
        """The same where prompts are fed beside decoding."""
        known, joining, fed = set(self.known), [], []  # fed: (response, tokens of its context before, tokens)
        decoding = [h for h in self.batch if h.kv]
        room = self.latency.token_budget - len(decoding)
        waiting = [*[h for h in self.batch if not h.kv], *self.queue]
        while room and waiting:
            h = waiting.pop(0)
            before = h.fed
            if h in self.queue:
                inside = [*self.batch, *joining]
                fits = self._counted([*inside, h]) <= self.admission.kv_capacity_tokens
                if len(inside) >= self.admission.max_batch or (inside and not fits):
                    break
                joining.append(h)
                before = h.context if h.kv else h.request.prompt_tokens if h.shares and h.request.prompt in known else h.there
            tokens = min(max(1, h.context - before), room)
            room -= tokens
            fed.append((h, before, min(tokens, h.context - before)))
            if before + tokens >= h.context:
                decoding.append(h)
                if h.shares:
                    known.add(h.request.prompt)
        prompts = self.latency.token_budget - room - len(decoding)
        step_s = float(self.latency.iteration_s(len(decoding), sum(h.context for h in decoding), prompts))
        took_s = step_s + self.latency.join_s * len(joining)
        if self.clock_s + took_s > to_s:
            return False
        self.known = known
        for h in joining:
            self.queue.remove(h)
            self.batch.append(h)
            h.start_s = self.clock_s if h.start_s is None else h.start_s
        for h, before, tokens in fed:
            h.fed = before + tokens
            h.kv = h.fed >= h.context
            h.prefill += tokens - (h.kv and tokens > 0)  # the last one is decoded
        prefill_s = step_s * prompts / (self.latency.token_budget - room) if decoding else took_s
        self.clock_s += took_s
        for h in decoding:
            h.tokens += 1
            h.first_token_s = self.clock_s if h.first_token_s is None else h.first_token_s
            if h.left == 0:
                self._complete(h)
        for phase, seconds, tokens in (("prefill", prefill_s, prompts), ("decode", took_s - prefill_s, len(decoding))):
            self.seconds[phase] += seconds
            self.tokens[phase] += tokens
        self.batch = [h for h in self.batch if h.left > 0]
        self._evict()
        return True

    def _evict(self) -> None:
        while self.admission.rule == "preempt" and len(self.batch) > 1:
            if self._counted(self.batch) <= self.admission.kv_capacity_tokens:
                break
            self.batch[-1].kv = self.batch[-1].shares = False
            self.batch[-1].there = self.batch[-1].fed = 0
            self.queue.insert(0, self.batch.pop())

    def generated_tokens(self) -> dict[int, int]:
        return {h.request.response: h.tokens for h in [*self.batch, *self.queue, *self.arriving]}


# --- random engines and scripts --------------------------------------------------------------------------------------


@st.composite
def latencies(draw: st.DrawFn) -> LatencyModel:
    """Affine models in which every term can be absent or large."""

    def one_of(*values: float) -> float:
        return draw(st.sampled_from(values))

    latency = LatencyModel(
        "small", 1, one_of(1e-3, 8e-3), one_of(0.0, 1e-4, 3e-3), one_of(0.0, 1e-5, 2e-4),
        prefill_base_s=one_of(0.0, 4e-3), prefill_per_token_s=one_of(0.0, 2e-4), join_s=one_of(0.0, 3e-3), max_batch=8,
    )  # fmt: skip
    budget = draw(st.sampled_from([None, 8, 9, 12, 20, 60]))
    return latency if budget is None else latency.with_mixed_prefill(budget)


@st.composite
def requests(draw: st.DrawFn, first: int, most: int = 6, now_s: float | None = None) -> list[Request]:
    """New responses to up to 3 prompts each, sharing them or not, with none, a part or all of them there: zero lengths, empty
    prompts; available at once, or at odd moments from ``now_s`` on."""
    made = []
    for response in range(first, first + draw(st.integers(1, most))):
        length = draw(st.integers(0, LIMIT))
        at_s = 0.0 if now_s is None or draw(st.booleans()) else now_s + draw(st.integers(0, 60)) * ODD_S
        finish = "length" if length == LIMIT else "stop"
        prompt = draw(st.integers(0, 2))
        tokens = (12, 5, 0)[prompt]
        made.append(
            Request(
                response, tokens, LIMIT, at_s, target_tokens=length, target_finish=finish, prompt=prompt,
                cached_tokens=min(tokens, draw(st.sampled_from([0, 0, 3, 12]))), shares_prompt=draw(st.booleans()),
            )
        )  # fmt: skip
    return made


@st.composite
def admissions(draw: st.DrawFn) -> Admission:
    """From 'one at a time' to 'everyone at once'; every response fits alone."""
    return Admission(draw(st.integers(1, 8)), draw(st.sampled_from([32, 40, 70, 1 << 40])), draw(st.sampled_from(RULES)))


RULES = ["reserve", "preempt"]


def key(c: Completion) -> tuple[float, int]:
    return round(c.time_s, 9), c.response


def assert_same_completions(mine: Sequence[Completion], other: Sequence[Completion]) -> None:
    assert [c.response for c in sorted(mine, key=key)] == [c.response for c in sorted(other, key=key)]
    for a, b in zip(sorted(mine, key=key), sorted(other, key=key), strict=True):
        assert (a.response_tokens, a.finish_reason, a.prefill_tokens_computed) == (
            b.response_tokens, b.finish_reason, b.prefill_tokens_computed,
        )  # fmt: skip
        for name in ("time_s", "start_s", "first_token_s"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9, abs=1e-12)


def assert_tiled(spans: Sequence[EngineSpan], idle_until: Sequence[float] = ()) -> None:
    """Spans follow on each other; gaps end only at ``idle_until``, when something arrived at an idle engine."""
    for a, b in itertools.pairwise([s for s in spans if s.end_s > s.start_s]):
        gap = b.start_s - a.end_s
        assert abs(gap) < 1e-9 or (gap > 0 and any(abs(b.start_s - t) < 1e-9 for t in idle_until))


@given(st.data(), latencies(), admissions())
@settings(max_examples=40, deadline=None)
def test_random_scripts_of_arrivals_hops_and_cuts(data, latency, admission):
    """Whatever is added, cut, moved elsewhere and back: state and record are those of the plain engine at every stop."""
    engine, plain = SimulatedEngine(latency, admission), PlainEngine(latency, admission)
    progress = Progress([], [])
    now_s, first, arrivals = 0.0, 0, [0.0]

    def note(step: Progress, until_s: float) -> None:
        assert all(c.time_s <= until_s for c in step.completions)
        assert [c.time_s for c in step.completions] == sorted(c.time_s for c in step.completions)
        progress.completions.extend(step.completions)
        progress.spans.extend(step.spans)

    for action in data.draw(st.lists(st.sampled_from(["add", "hop", "hop", "cut", "cut some"]), min_size=1, max_size=10)):
        if action == "add":
            new = data.draw(requests(first, 5, now_s))
            first += len(new)
            engine.add(new)
            plain.add(new)
            arrivals.extend(r.available_s for r in new)
        elif action == "hop":
            now_s += data.draw(st.integers(1, 40)) * ODD_S
            note(engine.advance(now_s), now_s)
            plain.advance(now_s)
        else:
            chosen = None
            if action == "cut some" and plain.generated_tokens():
                chosen = data.draw(st.lists(st.sampled_from(sorted(plain.generated_tokens())), unique=True))
            taken, step = engine.cut(now_s, chosen)
            other = plain.cut(now_s, chosen)
            note(step, math.inf)
            for a, b in zip(taken, other, strict=True):
                assert (a.response, a.generated_tokens, a.kv, a.prefill_tokens_computed) == (
                    b.response, b.generated_tokens, b.kv, b.prefill_tokens_computed,
                )  # fmt: skip
            # some come back, with their KV cache or without it
            back = [r for r in taken if data.draw(st.booleans())]
            delays = [data.draw(st.integers(0, 20)) * ODD_S for _ in back]
            lost_kv = [data.draw(st.booleans()) for _ in back]
            for one in (engine, plain):  # the sums of times of the two differ by rounding
                boundary_s = max(now_s, one.clock_s)
                moved = [
                    replace(r, available_s=boundary_s + d, kv=None if lost else r.kv)
                    for r, d, lost in zip(back, delays, lost_kv, strict=True)
                ]
                one.add(moved)
            arrivals.extend(r.available_s for r in moved)
        if action == "hop":  # an addition may be taken in at once or when time goes on: only then it must show
            assert engine.clock_s == pytest.approx(plain.clock_s, rel=1e-9, abs=1e-12)
            assert engine.running() == tuple(h.request.response for h in plain.batch)
            assert engine.waiting() == tuple(h.request.response for h in [*plain.queue, *plain.arriving])
            assert engine.generated_tokens() == plain.generated_tokens()
    note(engine.advance(math.inf), math.inf)
    plain.advance(math.inf)
    assert_same_completions(progress.completions, plain.done)
    assert engine.generated_tokens() == {}
    assert_tiled(progress.spans, arrivals)
    for phase in ("prefill", "decode"):
        own = [s for s in progress.spans if s.phase == phase]
        assert sum(s.tokens for s in own) == plain.tokens[phase]
        assert sum(s.end_s - s.start_s for s in own) == pytest.approx(plain.seconds[phase], rel=1e-9, abs=1e-12)
    assert all(s.batch_mean <= engine.slots * (1 + 1e-9) for s in progress.spans)


@given(st.data(), latencies(), admissions())
@settings(max_examples=40, deadline=None)
def test_undisturbed_it_is_the_timeline_of_evaluate(data, latency, admission):
    """With prefixes that were received and prompts that are shared, as ``evaluate`` counts them."""
    received, shares = data.draw(st.tuples(st.integers(0, 12), st.integers(0, 5))), data.draw(st.booleans())
    new = [replace(r, cached_tokens=(*received, 0)[r.prompt], shares_prompt=shares) for r in data.draw(requests(0, 10))]
    work = Workload([12, 5, 0], [r.prompt for r in new], [r.target_tokens for r in new], max_response_tokens=LIMIT)
    there = cached_tokens(work, range(len(new)), (0, 1), received, shares)
    run = timeline(Batch.of(work, np.arange(len(work)), there, admission), latency)
    engine = SimulatedEngine(latency, admission, 3.0)
    engine.add(new)
    progress = engine.advance(math.inf)
    times = {c.response: c.time_s for c in progress.completions}
    np.testing.assert_allclose([times[i] for i in range(len(new))], 3.0 + run.end_s, rtol=1e-12)
    assert engine.clock_s == pytest.approx(3.0 + run.busy_s, rel=1e-12)
    spans = [s for s in progress.spans if s.end_s > s.start_s]
    assert_tiled(spans)
    assert sum(s.end_s - s.start_s for s in spans) == pytest.approx(run.busy_s, rel=1e-9, abs=1e-12)
    if spans:
        assert (spans[0].start_s, spans[-1].end_s) == (pytest.approx(3.0), pytest.approx(engine.clock_s))
    decode = [s for s in progress.spans if s.phase == "decode"]
    assert sum(s.tokens for s in decode) == work.response_tokens.sum()
    stays = run.residency.last > run.residency.first
    assert sum(c.prefill_tokens_computed for c in progress.completions) == run.residency.computed()[stays].sum()


@given(st.data(), latencies(), admissions())
@settings(max_examples=40, deadline=None)
def test_many_hops_are_one_long_way(data, latency, admission):
    new = data.draw(requests(0, 8, 0.0))
    hop_s = data.draw(st.sampled_from([1.0, 7.3, 31.0])) * 1e-3
    one, many = SimulatedEngine(latency, admission), SimulatedEngine(latency, admission)
    one.add(new)
    many.add(new)
    far = one.advance(math.inf)
    completions, spans = [], []
    for k in range(1, math.ceil(one.clock_s / hop_s) + 2):
        step = many.advance(k * hop_s)
        completions += step.completions
        spans += step.spans
    assert_same_completions(completions, far.completions)
    for phase in ("prefill", "decode"):
        mine, other = ([s for s in some if s.phase == phase] for some in (spans, far.spans))
        assert sum(s.tokens for s in mine) == sum(s.tokens for s in other)
        for weight in ("batch_mean", "kv_tokens"):
            area = [sum(getattr(s, weight) * (s.end_s - s.start_s) for s in some) for some in (mine, other)]
            assert area[0] == pytest.approx(area[1], rel=1e-9, abs=1e-12)


def facts(engine: SimulatedEngine) -> tuple[object, ...]:
    return engine.clock_s, engine.generated_tokens(), engine.running(), engine.waiting()


@given(st.data(), latencies(), admissions(), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_peek_commits_nothing_and_no_completion_comes_before_it(data, latency, admission, completions):
    engine = SimulatedEngine(latency, admission)
    new = data.draw(requests(0, 8, 0.0))
    engine.add(new)
    left = len(new)
    for _ in range(10 * len(new) + 10):
        before = facts(engine)
        peeked = engine.peek_next_event_s(completions)
        assert facts(engine) == before
        if math.isinf(peeked):
            break
        ahead = SimulatedEngine(latency, admission)  # what would come before it, tried on another engine
        ahead.add(new)
        early = ahead.advance(np.nextafter(peeked, -math.inf)).completions
        assert len(early) < len(new) - left + completions
        left -= len(engine.advance(peeked).completions)
    else:
        pytest.fail("peek never becomes infinite")
    assert left < completions  # it is infinite only when there are not that many
    assert len(engine.advance(math.inf).completions) == left


@given(st.data(), latencies(), admissions())
@settings(max_examples=40, deadline=None)
def test_peek_knows_the_completions_that_arrivals_have_a_part_in(data, latency, admission):
    """Unless they share prompts: what they compute then depends on who has joined."""
    new = [replace(r, shares_prompt=False) for r in data.draw(requests(0, 8, 0.0))]
    engine, ahead = SimulatedEngine(latency, admission), SimulatedEngine(latency, admission)
    for one in (engine, ahead):
        one.add(new)
    before = facts(engine)
    ends = [c.time_s for c in ahead.advance(math.inf).completions]
    assert [engine.peek_next_event_s(k + 1) for k in range(len(new) + 2)] == [*ends, math.inf, math.inf]
    assert facts(engine) == before
    assert [c.time_s for c in engine.advance(math.inf).completions] == ends


@given(st.data(), latencies(), admissions())
@settings(max_examples=40, deadline=None)
def test_looking_ahead_changes_nothing(data, latency, admission):
    """An engine that was asked what comes next at every stop goes the same way, to the bit, as one that was not."""
    asked, other = SimulatedEngine(latency, admission), SimulatedEngine(latency, admission)
    completions, first, now_s = ([], []), 0, 0.0
    for _ in range(data.draw(st.integers(1, 6))):
        new = data.draw(requests(first, 4, now_s))
        first += len(new)
        now_s += data.draw(st.integers(0, 30)) * ODD_S
        leaving = data.draw(st.lists(st.integers(0, first), max_size=2)) if data.draw(st.booleans()) else None
        for one, done in zip((asked, other), completions, strict=True):
            one.add(new)
            if one is asked:
                one.peek_next_event_s(data.draw(st.integers(1, 6)))
            done += one.advance(now_s).completions
            if leaving is not None:
                done += one.cut(now_s, leaving)[1].completions
    for one, done in zip((asked, other), completions, strict=True):
        done += one.advance(math.inf).completions
    mine, others = ([vars(c) for c in done] for done in completions)
    assert mine == others
    assert facts(asked) == facts(other)


# --- by hand -------------------------------------------------------------------------------------------------------------

TENTH = LatencyModel("tenth", 1, 0.1, 0.0, prefill_per_token_s=0.01)


def test_only_iterations_that_end_by_then_are_committed():
    engine = SimulatedEngine(TENTH, Admission(4, 1000))
    engine.add([Request(0, 0, 10, target_tokens=3)])
    assert engine.advance(0.0999).spans == []
    assert engine.generated_tokens() == {0: 0}
    engine.advance(0.1999)
    assert (engine.clock_s, engine.generated_tokens()) == (0.1, {0: 1})
    assert engine.running() == (0,)


def test_an_idle_engine_jumps_and_a_busy_one_admits_at_the_next_boundary():
    engine = SimulatedEngine(TENTH, Admission(4, 1000))
    engine.add([Request(0, 0, 10, 1.03, target_tokens=2)])
    assert engine.advance(1.0).spans == []
    assert engine.clock_s <= 1.0
    engine.add([Request(1, 0, 10, 1.05, target_tokens=2)])
    ends = {c.response: c for c in engine.advance(math.inf).completions}
    assert (ends[0].start_s, ends[0].time_s) == (pytest.approx(1.03), pytest.approx(1.23))
    assert (ends[1].start_s, ends[1].first_token_s) == (pytest.approx(1.13), pytest.approx(1.23))


def test_peek_looks_through_an_arrival():
    """Response 1 joins at 0.3, the first boundary after 0.25; 0 completes at 0.5, and 1 at 0.6."""
    engine = SimulatedEngine(TENTH, Admission(4, 1000))
    engine.add([Request(0, 0, 10, target_tokens=5), Request(1, 0, 10, 0.25, target_tokens=3)])
    assert [engine.peek_next_event_s(k) for k in (1, 2, 3)] == [pytest.approx(0.5), pytest.approx(0.6), math.inf]
    assert (engine.clock_s, engine.running(), engine.waiting()) == (0.0, (), (0, 1))


def test_a_cut_lets_the_iteration_under_way_finish():
    engine = SimulatedEngine(TENTH, Admission(1, 1000))
    engine.add(
        [Request(0, 10, 10, target_tokens=2), Request(1, 10, 10, target_tokens=5), Request(2, 3, 10, 9.0, target_tokens=1)]
    )
    taken, progress = engine.cut(0.25)  # prefill 0.1 and two iterations: response 0 completes at 0.3
    assert [c.response for c in progress.completions] == [0]
    assert engine.clock_s == pytest.approx(0.3)
    assert [(r.response, r.generated_tokens, r.kv) for r in taken] == [(1, 0, None), (2, 0, None)]
    assert engine.peek_next_event_s() == math.inf
    assert engine.cut(0.3)[0] == []


@pytest.mark.parametrize(("kept", "prefill_s"), [(True, 0.0), (False, 0.12)])
def test_a_moved_response_is_prefilled_only_without_its_kv_cache(kept, prefill_s):
    sender, receiver = SimulatedEngine(TENTH, Admission(4, 1000)), SimulatedEngine(TENTH, Admission(4, 1000), 1.0)
    sender.add([Request(0, 10, 10, target_tokens=5)])
    (moved,), _ = sender.cut(0.25)
    assert (moved.generated_tokens, moved.kv, moved.prefill_tokens_computed) == (2, MOVED_KV, 9)
    receiver.add([replace(moved, available_s=2.0, kv=moved.kv if kept else None)])
    progress = receiver.advance(math.inf)
    (done,) = progress.completions
    assert done.time_s == pytest.approx(2.0 + prefill_s + 0.3)
    assert (done.start_s, done.first_token_s) == (0.0, pytest.approx(0.2))
    assert done.prefill_tokens_computed == 9 + (0 if kept else 11)
    assert sum(s.tokens for s in progress.spans if s.phase == "decode") == 3


def test_zero_lengths_complete_at_once_and_peek_knows_it():
    engine = SimulatedEngine(TENTH, Admission(1, 1000), 2.0)
    engine.add([Request(0, 4, 10, target_tokens=4), Request(1, 4, 10, target_tokens=0)])
    assert engine.peek_next_event_s() == 2.0
    assert engine.advance(1.9).completions == []
    (done,) = engine.advance(2.0).completions
    assert (done.response, done.time_s, done.start_s, done.first_token_s, done.prefill_tokens_computed) == (1, 2.0, 2.0, 2.0, 0)
    assert [c.response for c in engine.advance(math.inf).completions] == [0]


def shared(response: int, **changes: object) -> Request:
    """A response of three tokens to a prompt of 10 that others share."""
    return replace(Request(response, 10, 20, target_tokens=3, prompt=0, shares_prompt=True), **changes)  # type: ignore[arg-type]


def test_a_prompt_is_computed_once_for_all_who_share_it():
    """One slot: the first lacks 10 - 4 tokens, of which it decodes the last, the second none; the third has its own prompt."""
    engine = SimulatedEngine(TENTH, Admission(1, 1000))
    engine.add([shared(0, cached_tokens=4), shared(1, cached_tokens=4), shared(2, prompt=1)])
    progress = engine.advance(math.inf)
    assert [c.prefill_tokens_computed for c in progress.completions] == [5, 0, 9]
    assert [c.time_s for c in progress.completions] == pytest.approx([0.36, 0.66, 1.06])
    assert [s.tokens for s in progress.spans if s.phase == "prefill"] == [5, 9]


def test_who_shares_a_prompt_computes_it_when_the_first_left_before_it_joined():
    engine = SimulatedEngine(TENTH, Admission(1, 1000))
    engine.add([Request(9, 0, 20, target_tokens=5), shared(0), shared(1), shared(2)])
    (moved,), _ = engine.cut(0.05, [0])
    assert (moved.kv, moved.cached_tokens, moved.shares_prompt) == (None, 0, False)
    progress = engine.advance(math.inf)
    assert [(c.response, c.prefill_tokens_computed) for c in progress.completions] == [(9, 0), (1, 9), (2, 0)]


def test_a_response_that_leaves_before_it_joined_leaves_its_prefix_behind():
    """And one that has joined takes its whole context along."""
    engine, receiver = (SimulatedEngine(TENTH, Admission(1, 1000)) for _ in range(2))
    engine.add([shared(0, cached_tokens=10), shared(1, cached_tokens=10), shared(2, cached_tokens=10, available_s=7.0)])
    taken, _ = engine.cut(0.15)
    assert [(r.generated_tokens, r.kv, r.cached_tokens) for r in taken] == [(2, MOVED_KV, 0), (0, None, 0), (0, None, 0)]
    receiver.add(taken)
    done = receiver.advance(math.inf).completions
    assert {c.response: c.prefill_tokens_computed for c in done} == {0: 0, 1: 9, 2: 9}


@pytest.mark.parametrize("wrong", [{"cached_tokens": 11}, {"cached_tokens": -1}, {"prompt": None}])
def test_a_prefix_that_cannot_be_is_refused(wrong):
    with refused(InputError, "response 3", "cached_tokens", "10"):
        SimulatedEngine(TENTH, Admission(1, 100)).add([shared(3, **wrong)])


def test_a_request_without_its_true_length_is_refused():
    with refused(InputError, "response 7", "target_tokens"):
        SimulatedEngine(TENTH, Admission(1, 100)).add([Request(7, 1, 10)])
