"""What the torch engine returns beside tokens, and what stops it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch_models import EOS, VOCAB, tiny_model  # noqa: E402

from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel, one_thread  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.latency import LatencyModel  # noqa: E402
from solver.model.runtime_rules import SIGNAL_TOKENS  # noqa: E402

LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=0.1)
NAMES = ("eos_logprob", "entropy", "hidden")


@pytest.fixture(scope="module")
def hf():
    return tiny_model()


def requests(count=5):
    rng = np.random.default_rng(0)
    return [
        Request(i, 4 + i, 30, prompt_ids=rng.integers(1, VOCAB, 4 + i), seed=i, target_tokens=12 + i if i % 2 else None)
        for i in range(count)
    ]


def engine(hf, **more):
    return TorchEngine(DecoderModel(hf), Admission(3, 1 << 20), LATENCY, eos_id=EOS, **more)


def test_signals_are_those_of_transformers_own_pass(hf):
    e = engine(hf, signals=NAMES)
    asked = requests()
    e.add(asked)
    plain = engine(hf)
    plain.add(asked)
    expected_ids = {c.response: c.token_ids.tolist() for c in plain.advance(math.inf).completions}
    for c in e.advance(math.inf).completions:
        assert c.token_ids.tolist() == expected_ids[c.response]
        context = torch.tensor([[*asked[c.response].prompt_ids, *c.token_ids]])
        with torch.no_grad(), one_thread(hf.device):
            out = hf(context, output_hidden_states=True)
        at = slice(len(asked[c.response].prompt_ids) - 1, -1)
        distribution = torch.distributions.Categorical(logits=out.logits[0, at])
        np.testing.assert_allclose(c.signals["eos_logprob"], distribution.logits[:, EOS], atol=1e-4)
        np.testing.assert_allclose(c.signals["entropy"], distribution.entropy(), atol=1e-4)
        np.testing.assert_allclose(c.signals["hidden"], out.hidden_states[-1][0, at], atol=1e-4)


def test_signals_move_with_a_response(hf):
    asked = requests(4)
    whole = engine(hf, signals=NAMES)
    whole.add(asked)
    expected = {c.response: c.signals for c in whole.advance(math.inf).completions}
    first, second = engine(hf, signals=NAMES), engine(hf, signals=NAMES)
    first.add(asked)
    first.advance(6.0)
    taken, progress = first.cut(first.clock_s)
    second.add(taken)
    done = progress.completions + second.advance(math.inf).completions
    for c in done:
        for name in NAMES:
            np.testing.assert_array_equal(c.signals[name], expected[c.response][name])
    assert any(r.generated_tokens for r in taken)
    for r in taken:
        if r.generated_tokens:
            np.testing.assert_array_equal(r.signals["entropy"], expected[r.response]["entropy"][: r.generated_tokens])


@pytest.mark.parametrize("moved", [False, True])
def test_signals_of_running_responses_are_means_over_their_last_committed_tokens(hf, moved):
    asked = [replace(r, target_tokens=28) for r in requests(4)]
    whole = engine(hf, signals=NAMES)
    whole.add(asked)
    expected = {c.response: c.signals for c in whole.advance(math.inf).completions}
    e = engine(hf, signals=NAMES)
    e.add(asked)
    assert e.recent_signals()[0].size == 0
    for to_s in (3.0, 9.0, 27.0, 33.0):
        e.advance(to_s)
        if moved:
            taken, _ = e.cut(e.clock_s)
            e = engine(hf, signals=NAMES, start_s=e.clock_s)
            e.add(taken)
        tokens = {r: n for r, n in e.generated_tokens().items() if n}
        responses, told = e.recent_signals()
        assert sorted(responses.tolist()) == sorted(tokens)
        for name in NAMES:
            for response, values in zip(responses.tolist(), told[name], strict=True):
                known = expected[response][name][: tokens[response]]
                np.testing.assert_allclose(values, known[-SIGNAL_TOKENS:].mean(axis=0), rtol=1e-4, atol=1e-5)
        assert e.recent_signals()[1].keys() == told.keys()
    for c in e.advance(math.inf).completions:
        np.testing.assert_array_equal(c.signals["entropy"], expected[c.response]["entropy"])


def test_an_engine_that_was_asked_for_no_signals_tells_none(hf):
    e = engine(hf)
    e.add(requests(2))
    e.advance(6.0)
    assert e.recent_signals()[1] == {}


def test_an_unknown_signal_is_refused(hf):
    with refused(InputError, "'mood'", "eos_logprob"):
        engine(hf, signals=["mood"])


@pytest.mark.parametrize("forced", [True, False])
def test_logits_that_are_no_numbers_stop_with_the_response(forced):
    broken = tiny_model(seed=1, tie_word_embeddings=False)
    with torch.no_grad():
        broken.model.embed_tokens.weight[7, 0] = float("nan")  # only a context with this token is spoilt
    e = engine(broken)
    good = Request(0, 3, 9, prompt_ids=np.array([1, 2, 3]), seed=0, target_tokens=2)
    bad = replace(good, response=41, prompt_ids=np.array([1, 7, 3]), target_tokens=9 if forced else None)
    e.add([good, bad])
    with refused(FloatingPointError, "response 41"):
        e.advance(math.inf)
