"""Whatever is planned, cut and moved: every response exactly once, tokens and KV memory accounted for, spans consistent."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch_models import EOS, VOCAB, tiny_model  # noqa: E402

from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.simulated.engine import SimulatedEngine  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel, counting  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.latency import LatencyModel  # noqa: E402

# Sums of these powers of two have no rounding, so two engines' times can be compared with ==.
LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=0.25, per_kv_token_s=2**-10, prefill_per_token_s=2**-6)
LIMIT, RESPONSES = 12, 8


@pytest.fixture(scope="module")
def model():
    return DecoderModel(tiny_model())


def requests_of(data):
    """Lengths of their own, given, or none at all; some come later, some share their prompt."""
    asked = []
    for i in range(data.draw(st.integers(1, RESPONSES), label="responses")):
        prompt = data.draw(st.integers(0, 2))
        ids = np.random.default_rng(prompt).integers(1, VOCAB, 3 + 4 * prompt)
        asked.append(
            Request(
                i, len(ids), LIMIT, prompt_ids=ids, seed=i, prompt=prompt, shares_prompt=data.draw(st.booleans()),
                target_tokens=data.draw(st.none() | st.integers(0, LIMIT)), available_s=float(data.draw(st.integers(0, 20))),
            )
        )  # fmt: skip
    return asked


class Watched:
    """An engine and everything that it committed; checks after every commit that memory and counts are sound."""

    def __init__(self, model, admission):
        self.engine, self.admission = TorchEngine(model, admission, LATENCY, eos_id=EOS), admission
        self.spans, self.completions, self.asked = [], [], {}

    def add(self, requests):
        self.asked |= {r.response: r for r in requests}
        self.engine.add(requests)
        self.check()

    def keep(self, progress):
        self.spans += progress.spans
        self.completions += progress.completions
        self.check()

    def check(self):
        engine, admission = self.engine, self.admission
        running, tokens = engine.running(), engine.generated_tokens()
        assert set(tokens) == {*running, *engine.waiting()}
        assert len(set(running)) == len(running) <= admission.max_batch
        contexts = {i: self.asked[i].prompt_tokens + tokens[i] for i in running}
        held = sum(admission.held_tokens(contexts[i], self.asked[i].prompt_tokens + LIMIT) for i in running)
        grown = len(running) if admission.rule == "preempt" else 0  # who overflows leaves at the next iteration
        assert 0 <= held <= admission.kv_capacity_tokens + grown
        assert engine._loop.queue._reserved == sum(self.asked[i].prompt_tokens + LIMIT for i in running)
        assert sorted(s.request.response for s in engine._loop.rows.of) == sorted(running)

    def check_spans(self):
        for a, b in zip(self.spans, self.spans[1:], strict=False):
            assert a.end_s <= b.start_s + 1e-9
        for s in self.spans:
            assert s.end_s > s.start_s
            assert s.tokens > 0
            assert s.kv_tokens > 0
            assert 0 < s.batch_mean <= s.slots == self.admission.max_batch


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_response_once_and_every_token_accounted_for(model, data):
    asked = requests_of(data)
    admission = data.draw(
        st.sampled_from([Admission(3, 1 << 20), Admission(8, 60), Admission(8, 50, "preempt"), Admission(1, 23, "preempt")])
    )
    actors = [Watched(model, admission) for _ in range(data.draw(st.integers(1, 3), label="actors"))]
    with counting(model) as fed:
        for r in asked:
            actors[data.draw(st.integers(0, len(actors) - 1))].add([r])
        for _ in range(data.draw(st.integers(0, 5), label="disturbances")):
            source, target = (actors[data.draw(st.integers(0, len(actors) - 1))] for _ in range(2))
            at_s = source.engine.clock_s + data.draw(st.integers(0, 12))
            if data.draw(st.booleans(), label="cut"):
                some = data.draw(st.none() | st.lists(st.integers(0, RESPONSES - 1), max_size=3))
                taken, progress = source.engine.cut(at_s, some)
                source.keep(progress)
                moved = data.draw(st.booleans())
                target.add([r if moved else replace(r, kv=None) for r in taken])
            else:
                if data.draw(st.booleans(), label="peek"):
                    at_s = source.engine.peek_next_event_s()
                source.keep(source.engine.advance(min(at_s, 1e6)))
        for actor in actors:
            actor.keep(actor.engine.advance(math.inf))
            assert (actor.engine.running(), actor.engine.waiting()) == ((), ())
            actor.check_spans()
    done = {c.response: c for actor in actors for c in actor.completions}
    assert sorted(done) == [r.response for r in asked] == sorted(c.response for a in actors for c in a.completions)
    for r in asked:
        c = done[r.response]
        assert c.response_tokens == len(c.token_ids) == len(c.logprobs) <= LIMIT
        assert c.response_tokens == r.target_tokens or (r.target_tokens is None and c.response_tokens > 0)
        assert r.available_s <= c.start_s <= c.first_token_s <= c.time_s
    spans = [s for actor in actors for s in actor.spans]
    decoded, prefilled = (sum(s.tokens for s in spans if s.phase == phase) for phase in ("decode", "prefill"))
    assert decoded == fed.decode == sum(c.response_tokens for c in done.values())
    assert prefilled == fed.prefill == sum(c.prefill_tokens_computed for c in done.values())


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_lengths_of_zero_and_more_take_the_time_of_the_simulated_engine(model, data):
    """Trace replay: with given lengths both engines complete, start and cut alike, at the same moments."""
    asked = [
        replace(r, target_tokens=data.draw(st.integers(0, 4)), target_finish=f"reason {r.response}", shares_prompt=False)
        for r in requests_of(data)
    ]
    admission = data.draw(st.sampled_from([Admission(2, 1 << 20), Admission(8, 50)]))
    real, simulated = TorchEngine(model, admission, LATENCY, eos_id=EOS), SimulatedEngine(LATENCY, admission)
    real.add(asked)
    simulated.add(asked)

    def told(completions):
        return sorted(
            (c.time_s, c.response, c.response_tokens, c.finish_reason, c.start_s, c.first_token_s, c.prefill_tokens_computed)
            for c in completions
        )

    cut_s = data.draw(st.none() | st.integers(0, 25), label="cut at")
    if cut_s is not None:
        at_s = float(cut_s)
        assert told(real.advance(at_s).completions) == told(simulated.advance(at_s).completions)
        (mine, one), (theirs, other) = real.cut(at_s), simulated.cut(at_s)
        assert told(one.completions) == told(other.completions)
        assert real.clock_s >= simulated.clock_s  # an idle simulated engine's clock stays
        assert sorted((r.response, r.generated_tokens) for r in mine) == sorted(
            (r.response, r.generated_tokens) for r in theirs
        )
        again = [replace(r, available_s=real.clock_s) for r in mine]
        real.add(again)
        simulated.add([replace(r, kv="kv" if r.kv is not None else None) for r in again])
    assert told(real.advance(math.inf).completions) == told(simulated.advance(math.inf).completions)


def test_a_response_of_no_tokens_ends_when_it_is_its_time(model):
    e = TorchEngine(model, Admission(1, 100), LATENCY, eos_id=EOS)
    ids = np.array([1, 2, 3])
    busy = Request(0, 3, 9, prompt_ids=ids, target_tokens=2)
    e.add(
        [busy]
        + [Request(i, 3, 9, prompt_ids=ids, target_tokens=0, available_s=at_s) for i, at_s in ((1, 0.0), (2, 0.5), (3, 50.0))]
    )
    assert (e.peek_next_event_s(), e.waiting()) == (0.0, (0, 1, 2, 3))
    done = {c.response: c for c in e.advance(math.inf).completions}
    first_s = float(LATENCY.prefill_s(3) + LATENCY.iteration_s(1, 3))
    assert [done[i].time_s for i in (1, 2, 3)] == [0.0, first_s, 50.0]
    for i in (1, 2, 3):
        assert (done[i].response_tokens, len(done[i].token_ids), done[i].prefill_tokens_computed) == (0, 0, 0)
        assert done[i].start_s == done[i].first_token_s == done[i].time_s
    e.add([Request(9, 3, 9, prompt_ids=ids, target_tokens=0)])
    assert [(c.response, c.time_s) for c in e.step(60.0, lambda: 61.0).completions] == [(9, 60.0)]
