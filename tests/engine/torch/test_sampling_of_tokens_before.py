"""Repetition penalties and several stop tokens: what is sampled depends on the response's own tokens."""

import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_architectures import EOS, VOCAB, tiny  # noqa: E402

from rlhfless.engine.common.sampling import Sampling  # noqa: E402
from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.factory import TorchEngineFactory  # noqa: E402
from rlhfless.engine.torch.model import one_thread  # noqa: E402
from rlhfless.engine.torch.row_models import FORWARDS, row_model  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.drafting import Drafting  # noqa: E402
from solver.model.latency import LatencyModel  # noqa: E402

LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=0.1)
PROMPTS = [np.random.default_rng(1).integers(0, EOS, count) for count in (3, 40, 5, 4)]
GREEDY = Sampling(temperature=0, repetition_penalty=1.5)


@pytest.fixture(autouse=True, scope="module")
def one_thread_each():
    with one_thread(torch.device("cpu")):
        yield


@pytest.fixture(scope="module")
def hf():
    return tiny("llama", seed=3)


@pytest.fixture(scope="module", params=FORWARDS)
def model(hf, request):
    return row_model(request.param, hf)


@pytest.fixture(scope="module")
def generated(hf):
    more = {"max_new_tokens": 20, "do_sample": False, "repetition_penalty": 1.5}
    with torch.no_grad():
        return {i: hf.generate(torch.from_numpy(p)[None], **more)[0, len(p) :].tolist() for i, p in enumerate(PROMPTS)}


def engine(model, slots=2, rule="reserve", memory=1 << 20, eos_id=EOS, **more):
    return TorchEngine(model, Admission(slots, memory, rule), LATENCY, **{"eos_id": eos_id, "sampling": GREEDY, **more})


def asked(**more):
    return [Request(i, len(ids), 20, prompt_ids=ids, seed=i, **more) for i, ids in enumerate(PROMPTS)]


def tokens(completions):
    return {c.response: c.token_ids.tolist() for c in completions}


def decoded(one, requests):
    one.add(requests)
    return one.advance(math.inf).completions


def plain(model):
    return tokens(decoded(engine(model), asked()))


def evicted(model):
    return tokens(decoded(engine(model, 3, "preempt", 70), asked()))


def drafted(model):
    history = plain(model)
    requests = [replace(r, history=(np.array(history[r.response]),)) for r in asked()]
    completions = decoded(engine(model, drafting=Drafting(max_draft_tokens=3, length=3)), requests)
    assert sum(c.accepted_tokens for c in completions) > 10
    return tokens(completions)


def cut(model):
    first, second = engine(model, 4), engine(model)
    first.add(asked())
    first.peek_next_event_s()
    taken, progress = first.cut(5.0, [0, 2])
    assert [r.generated_tokens > 0 for r in taken] == [True, True]
    second.add(taken)
    rest = [*first.advance(math.inf).completions, *second.advance(math.inf).completions]
    return tokens([*progress.completions, *rest])


@pytest.mark.parametrize("way", [plain, evicted, drafted, cut])
def test_penalised_greedy_tokens_are_those_of_generate(model, generated, way):
    assert way(model) == generated


def test_a_penalty_makes_a_difference(model, generated):
    assert tokens(decoded(engine(model, sampling=Sampling(temperature=0)), asked())) != generated


def test_log_probabilities_are_those_after_the_penalty(hf, model):
    sampling = Sampling(0.7, top_k=9, repetition_penalty=1.5)
    for c in decoded(engine(model, sampling=sampling), asked()):
        context = [*PROMPTS[c.response], *c.token_ids]
        with torch.no_grad():
            logits = hf(torch.tensor([context])).logits[0, len(PROMPTS[c.response]) - 1 : -1]
        for k, row in enumerate(logits):
            seen = list(set(context[: len(PROMPTS[c.response]) + k]))
            row[seen] = torch.where(row[seen] < 0, row[seen] * 1.5, row[seen] / 1.5)
            row /= 0.7
            row[row < row.topk(9).values[-1]] = -math.inf
            assert torch.log_softmax(row, -1)[c.token_ids[k]] == pytest.approx(c.logprobs[k], abs=1e-4)


ENDS = (EOS, 7, 11, 7)


def test_each_of_several_tokens_ends_a_response(model):
    requests = [Request(i, 3, 30, prompt_ids=PROMPTS[0], seed=i) for i in range(16)]
    completions = decoded(engine(model, 8, eos_id=ENDS, sampling=Sampling()), requests)
    for c in completions:
        assert not set(ENDS) & set(c.token_ids[:-1].tolist())
        assert c.finish_reason == ("stop" if c.token_ids[-1] in ENDS else "length")
    assert {int(c.token_ids[-1]) for c in completions if c.finish_reason == "stop"} == set(ENDS)


@pytest.mark.parametrize("drafting", [None, Drafting(max_draft_tokens=3, length=3)])
def test_a_forced_length_forbids_all_of_them_and_nothing_is_drafted_beyond(model, drafting):
    history = tuple(np.array([3, end, 5, 6] * 8) for end in ENDS)
    requests = [Request(i, 3, 30, prompt_ids=PROMPTS[0], seed=i, target_tokens=25, history=history) for i in range(6)]
    for c in decoded(engine(model, 8, eos_id=ENDS, sampling=Sampling(), drafting=drafting), requests):
        assert c.response_tokens == 25
        assert not set(ENDS) & set(c.token_ids.tolist())


def test_wrong_values_are_one_sentence_each(model):
    for wrong in (0.0, -1.0, math.nan, math.inf, "1"):
        with refused(ValueError, "repetition_penalty"):
            Sampling(repetition_penalty=wrong)
    for wrong in ((), (EOS, VOCAB), (-1,), (EOS, "7")):
        with refused(ValueError, "eos_id", VOCAB - 1):
            TorchEngineFactory(model, wrong)
