"""The torch engine: what it decodes, and what the clock, the spans and the batch look like meanwhile."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch_models import EOS, VOCAB, tiny_model  # noqa: E402

from rlhfless.engine.common.sampling import Sampling  # noqa: E402
from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.factory import TorchEngineFactory  # noqa: E402
from rlhfless.engine.torch.gumbel_noise import exponentials, places, streams, token_keys  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel, one_thread  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.latency import LatencyModel  # noqa: E402

LATENCY = LatencyModel(
    "test", 1, base_s=1.0, per_response_s=0.25, per_kv_token_s=2**-10, prefill_base_s=0.5, prefill_per_token_s=2**-6,
    join_s=2**-3,
)  # fmt: skip
ROOMY = Admission(8, 1 << 20)


@pytest.fixture(scope="module")
def hf():
    return tiny_model()


@pytest.fixture(scope="module")
def model(hf):
    return DecoderModel(hf)


def request(response, prompt_tokens=5, max_tokens=30, **more):
    ids = np.random.default_rng(response).integers(1, VOCAB, prompt_tokens)
    return Request(response, prompt_tokens, max_tokens, prompt_ids=ids, seed=1000 + response, **more)


def engine(model, admission=ROOMY, charge=LATENCY, **more):
    return TorchEngine(model, admission, charge, eos_id=EOS, **more)


def alone(model, r):
    """The completion of a response that had an engine to itself."""
    one = engine(model)
    one.add([replace(r, available_s=0.0)])
    (completion,) = one.advance(math.inf).completions
    return completion


def reference(hf, r, temperature=1.0, top_p=1.0):
    """The same response by transformers' own forward pass, the whole context again for every token."""
    ids, logprobs = [], []
    keys = token_keys(streams([r.seed]), np.zeros(1, np.int64), r.max_tokens)[:, 0].copy()
    noise = exponentials(torch.from_numpy(keys.view(np.int32).reshape(-1, 2)), places(VOCAB, hf.device)).double().numpy()
    while len(ids) < r.max_tokens and EOS not in ids:
        with torch.no_grad(), one_thread(hf.device):
            logits = hf(torch.tensor([[*r.prompt_ids, *ids]])).logits[0, -1].double().numpy()
        p = np.exp((logits - logits.max()) / (temperature or 1.0))
        p /= p.sum()
        if top_p < 1:
            order = np.argsort(-p, kind="stable")
            p[order[np.cumsum(p[order]) - p[order] >= top_p]] = 0
        token = int(p.argmax() if temperature == 0 else (p / noise[len(ids)]).argmax())
        logprobs.append(np.log(p[token] / p.sum()))
        ids.append(token)
    return ids, logprobs


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.0), Sampling(0.7), Sampling(1.0, 0.8)])
def test_decodes_what_transformers_decodes(hf, model, sampling):
    requests = [request(i, 3 + i) for i in range(6)]
    batch = engine(model, sampling=sampling)
    batch.add(requests)
    completions = {c.response: c for c in batch.advance(math.inf).completions}
    for r in requests:
        ids, logprobs = reference(hf, r, sampling.temperature, sampling.top_p)
        assert completions[r.response].token_ids.tolist() == ids
        np.testing.assert_allclose(completions[r.response].logprobs, logprobs, atol=1e-4)


def test_ends_at_eos_at_the_limit_and_at_a_forced_length(model):
    requests = [request(i) for i in range(12)] + [request(20, target_tokens=17, target_finish="aborted")]
    e = engine(model)
    e.add(requests)
    completions = {c.response: c for c in e.advance(math.inf).completions}
    assert len(completions) == len(requests)
    reasons = set()
    for r in requests[:-1]:
        c = completions[r.response]
        assert c.response_tokens == len(c.token_ids) == len(c.logprobs) <= r.max_tokens
        assert EOS not in c.token_ids[:-1].tolist()
        assert c.finish_reason == ("stop" if c.token_ids[-1] == EOS else "length")
        assert c.finish_reason == "stop" or c.response_tokens == r.max_tokens
        reasons.add(c.finish_reason)
    assert reasons == {"stop", "length"}
    forced = completions[20]
    assert (forced.response_tokens, forced.finish_reason) == (17, "aborted")
    assert EOS not in forced.token_ids.tolist()


def test_profile_charging_is_what_one_computes_by_hand(model):
    e = engine(model, Admission(2, 1 << 20), start_s=3.0)
    e.add([request(0, 5, target_tokens=2), request(1, 7, target_tokens=1), request(2, 4, target_tokens=1)])
    first = LATENCY.prefill_s(12) + LATENCY.iteration_s(2, 12) + 2 * LATENCY.join_s
    second = LATENCY.prefill_s(4) + LATENCY.iteration_s(2, 6 + 4) + LATENCY.join_s
    assert e.peek_next_event_s() == 3.0 + first
    progress = e.advance(math.inf)
    assert [(c.response, c.time_s) for c in progress.completions] == [
        (1, 3.0 + first),
        (0, 3.0 + first + second),
        (2, 3.0 + first + second),
    ]
    assert [(s.phase, s.tokens, s.batch_mean, s.kv_tokens) for s in progress.spans] == [
        ("prefill", 10, 2, 10),  # the last token of each prompt is decoded, and charged for all the same
        ("decode", 2, 2, 12),
        ("prefill", 3, 1, 3),
        ("decode", 2, 2, 10),
    ]
    by_response = {c.response: c for c in progress.completions}
    assert (by_response[0].start_s, by_response[0].first_token_s) == (3.0, 3.0 + first)
    assert (by_response[2].start_s, by_response[2].first_token_s) == (3.0 + first, 3.0 + first + second)
    assert [by_response[i].prefill_tokens_computed for i in range(3)] == [4, 6, 3]
    assert e.clock_s == 3.0 + first + second
    assert e.peek_next_event_s() == math.inf


@pytest.mark.parametrize("charge", [LATENCY, "measured"])
def test_spans_tile_the_busy_time(model, charge):
    e = engine(model, Admission(3, 1 << 20), charge)
    e.add([request(i, 3 + i) for i in range(8)] + [request(9, available_s=1e6)])
    progress = e.advance(math.inf)
    assert {c.response for c in progress.completions} == {*range(8), 9}
    breaks = [b.start_s - a.end_s for a, b in zip(progress.spans, progress.spans[1:], strict=False)]
    assert sum(gap > 1 for gap in breaks) == 1  # idle until the last one is available, and nothing else
    np.testing.assert_allclose([gap for gap in breaks if gap <= 1], 0, atol=1e-9)
    assert all(s.end_s > s.start_s and 0 < s.batch_mean <= 3 and s.slots == 3 for s in progress.spans)
    decoded = sum(s.tokens for s in progress.spans if s.phase == "decode")
    assert decoded == sum(c.response_tokens for c in progress.completions)
    prefilled = sum(s.tokens for s in progress.spans if s.phase == "prefill")
    assert prefilled == sum(c.prefill_tokens_computed for c in progress.completions)
    assert progress.spans[-1].end_s == e.clock_s == progress.completions[-1].time_s


@pytest.mark.parametrize("charge", [LATENCY, "measured"])
def test_peek_commits_nothing_and_advance_only_what_ends_in_time(model, charge):
    e = engine(model, charge=charge)
    e.add([request(i, target_tokens=4) for i in range(3)])
    end = e.peek_next_event_s()
    assert e.peek_next_event_s() == end
    assert (e.clock_s, e.generated_tokens(), e.running()) == (0.0, {0: 0, 1: 0, 2: 0}, ())
    early = e.advance(end * (1 - 1e-9))
    assert (early.completions, early.spans, e.clock_s) == ([], [], 0.0)
    e.advance(end)
    assert (e.clock_s, e.generated_tokens(), e.running()) == (end, {0: 1, 1: 1, 2: 1}, (0, 1, 2))
    assert e.peek_next_event_s() > end
    assert len(e.advance(math.inf).completions) == 3


@pytest.mark.parametrize("charge", [LATENCY, "measured"])
def test_peeking_and_stepping_change_no_token(model, charge):
    requests = [request(i, 3 + i % 4, available_s=2.0 * i) for i in range(8)]
    e = engine(model, Admission(3, 1 << 20), charge)
    completions = []
    for r in requests:  # each is added while an iteration may have been run ahead
        e.peek_next_event_s()
        e.add([r])
        for _ in range(2):
            if (at := e.peek_next_event_s()) < math.inf:
                completions += e.advance(at).completions
    completions += e.advance(math.inf).completions
    assert {c.response for c in completions} == set(range(8))
    for c in completions:
        np.testing.assert_array_equal(c.token_ids, alone(model, requests[c.response]).token_ids)


def test_a_late_arrival_joins_at_the_next_boundary_and_an_idle_clock_jumps(model):
    e = engine(model)
    e.add([request(0, target_tokens=3), request(1, target_tokens=1, available_s=1.5), request(2, available_s=100.0)])
    assert (e.running(), e.waiting()) == ((), (0, 1, 2))
    boundary = float(LATENCY.prefill_s(5) + LATENCY.iteration_s(1, 5) + LATENCY.join_s)
    completions = {c.response: c for c in e.advance(99.0).completions}
    assert completions[1].start_s == boundary
    assert e.clock_s == completions[0].time_s < 99.0
    assert e.peek_next_event_s() == 100.0 + LATENCY.prefill_s(5) + LATENCY.iteration_s(1, 5) + LATENCY.join_s
    e.add([request(3, target_tokens=1, available_s=50.0)])
    assert e.peek_next_event_s() == 50.0 + LATENCY.prefill_s(5) + LATENCY.iteration_s(1, 5) + LATENCY.join_s
    assert {c.start_s for c in e.advance(math.inf).completions} == {50.0, 100.0}


def test_cut_commits_the_iteration_under_way(model):
    e = engine(model, Admission(2, 1 << 20))
    e.add([request(i, target_tokens=9) for i in range(3)])
    first = e.peek_next_event_s()
    taken, progress = e.cut(first + 1e-3)
    assert [r.response for r in taken] == [0, 1, 2]
    assert [r.generated_tokens for r in taken] == [2, 2, 0]
    assert [r.kv is None for r in taken] == [False, False, True]
    assert all(len(r.generated_ids) == len(r.logprobs) == r.generated_tokens for r in taken)
    assert progress.spans[-1].end_s == e.clock_s > first
    assert (e.running(), e.waiting(), e.generated_tokens(), e.peek_next_event_s()) == ((), (), {}, math.inf)
    e.add([request(7, target_tokens=2)])
    assert e.cut(e.clock_s)[0][0].kv is None  # nothing was under way: not even its prefill is committed
    idle_s = e.clock_s
    assert e.cut(idle_s + 5.0)[0] == []
    assert e.clock_s == idle_s + 5.0


def test_some_responses_can_be_taken_off_and_the_others_continue(model):
    requests = [request(i, target_tokens=12) for i in range(5)]
    e = engine(model)
    e.add(requests)
    e.advance(e.peek_next_event_s() * 3)
    taken, _ = e.cut(e.clock_s, [1, 3])
    assert [r.response for r in taken] == [1, 3]
    assert e.running() == (0, 2, 4)
    other = engine(model, start_s=e.clock_s)
    other.add(taken)
    completions = e.advance(math.inf).completions + other.advance(math.inf).completions
    for c in completions:
        np.testing.assert_array_equal(c.token_ids, alone(model, requests[c.response]).token_ids)
        assert c.start_s == 0.0
        assert c.prefill_tokens_computed == 4


def test_reserve_never_evicts_and_stays_within_memory(model):
    e = engine(model, Admission(8, 100, "reserve"))
    e.add([request(i, 5, 30, target_tokens=20 + i) for i in range(6)])
    most = 0
    while (at := e.peek_next_event_s()) < math.inf:
        before = set(e.running())
        done = {c.response for c in e.advance(at).completions}
        assert before - done <= set(e.running())
        most = max(most, len(e.running()))
    assert most == 2  # 2 x 35 of 100 tokens


def test_preempt_evicts_the_youngest_and_changes_no_token(model):
    requests = [request(i, 5, 30, target_tokens=20 + i) for i in range(6)]
    e = engine(model, Admission(8, 60, "preempt"))
    e.add(requests)
    completions, evictions = [], 0
    while (at := e.peek_next_event_s()) < math.inf:
        before = e.running()
        progress = e.advance(at)
        completions += progress.completions
        gone = set(before) - set(e.running()) - {c.response for c in progress.completions}
        assert gone == set(before[len(before) - len(gone) :])
        assert e.waiting()[: len(gone)] == tuple(r for r in before if r in gone)
        evictions += len(gone)
        for span in progress.spans:
            assert span.phase == "prefill" or span.kv_tokens <= 60
    assert evictions > 0
    assert sum(c.prefill_tokens_computed for c in completions) > 6 * 5
    assert {c.response for c in completions} == set(range(6))
    for c in completions:
        np.testing.assert_array_equal(c.token_ids, alone(model, requests[c.response]).token_ids)


def test_preempt_run_ahead_and_forgotten_changes_no_token(model):
    requests = [request(i, 5, 30, target_tokens=20 + i) for i in range(6)]
    e = engine(model, Admission(8, 60, "preempt"), "measured")
    e.add(requests)
    completions, turn = [], 0
    while (at := e.peek_next_event_s()) < math.inf:
        turn += 1
        if turn % 3 == 0:  # forget what was run: a cut of nobody at the boundary
            e.cut(e.clock_s, [])
            at = e.peek_next_event_s()
        completions += e.advance(at).completions
    assert {c.response for c in completions} == set(range(6))
    for c in completions:
        np.testing.assert_array_equal(c.token_ids, alone(model, requests[c.response]).token_ids)


def test_training_the_model_in_place_shows_only_after_sync():
    hf = tiny_model(seed=5)
    e = TorchEngineFactory(DecoderModel(hf), EOS)(LATENCY, ROOMY)

    def tokens():
        e.add([replace(request(0, target_tokens=25), available_s=e.clock_s)])
        return e.advance(math.inf).completions[0].token_ids.tolist()

    before = tokens()
    with torch.no_grad():
        for p in hf.parameters():
            p.mul_(1.3)
    assert tokens() == before
    e.sync(hf, 1)
    after = tokens()
    assert after != before
    assert e.weights_version == 1
    e.sync(tiny_model(seed=5).state_dict(), 2)
    assert tokens() == before
    e.close()
    e.close()


def test_refusals_are_one_sentence_each(hf, model):
    e = engine(model, Admission(4, 100))
    for wrong, named in [
        (replace(request(0), prompt_ids=None), ("prompt_ids", "prompt_tokens", "5")),
        (replace(request(0), prompt_ids=np.array([1])), ("1 prompt_ids", "prompt_tokens", "5")),
        (request(3, 0), ()),
        (replace(request(0), prompt_ids=np.full(5, VOCAB)), ("32", "0 to 31")),
        (replace(request(0), prompt_ids=np.full(5, -1)), ("-1", "0 to 31")),
        (replace(request(0), generated_tokens=2), ("0 generated_ids", "0 logprobs", "generated_tokens", "2")),
        (request(0, 80, 30), ("110 tokens", "100")),
        (request(9, 512, 30), ("512 tokens",)),
        (request(0, 500, 30), ("530 tokens", "512 tokens", "12")),
        (request(0, max_tokens=0), ("0 of 0 tokens",)),
        (request(0, kv=torch.zeros(2, 4, 2, 3, 16)), ("3 tokens", "4")),
    ]:
        with refused(InputError, f"response {wrong.response}", *named):
            e.add([wrong])
    with refused(InputError, "'clock'"):
        engine(model, charge="clock")
    with refused(InputError):
        Sampling(temperature=-1.0)
    hf.config.hidden_act, act = "gelu", hf.config.hidden_act
    try:
        with refused(ValueError):
            DecoderModel(hf)
    finally:
        hf.config.hidden_act = act


def test_without_torch_the_message_names_the_extra():
    blocked = "import sys; sys.modules['torch'] = None; import rlhfless.engine.protocol, rlhfless.engine.common.spans; "
    run = [sys.executable, "-c", blocked + "import rlhfless.engine.torch.engine"]
    error = subprocess.run(run, capture_output=True, text=True).stderr
    assert error.endswith("the torch engine needs torch, which is not installed: pip install 'rlhfless[torch]'\n")


@pytest.mark.parametrize("forced", [True, False])
def test_logits_that_are_no_numbers_stop_with_the_response(forced):
    broken = tiny_model(seed=1, tie_word_embeddings=False)
    with torch.no_grad():
        broken.model.embed_tokens.weight[7, 0] = float("nan")  # only a context with this token is spoilt
    e = TorchEngine(DecoderModel(broken), Admission(3, 1 << 20), LATENCY, eos_id=EOS)
    good = Request(0, 3, 9, prompt_ids=np.array([1, 2, 3]), seed=0, target_tokens=2)
    bad = replace(good, response=41, prompt_ids=np.array([1, 7, 3]), target_tokens=9 if forced else None)
    e.add([good, bad])
    with refused(FloatingPointError, "response 41"):
        e.advance(math.inf)
