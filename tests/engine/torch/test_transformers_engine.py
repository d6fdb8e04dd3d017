"""The transformers engine: every architecture decodes what ``generate`` does, and keeps the engine protocol's promises."""

import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_architectures import ARCHITECTURES, EOS, VOCAB, tiny  # noqa: E402

from rlhfless.engine.common.sampling import Sampling  # noqa: E402
from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel, counting, one_thread  # noqa: E402
from rlhfless.engine.torch.prefixes import compute_prefixes  # noqa: E402
from rlhfless.engine.torch.row_models import row_model  # noqa: E402
from rlhfless.engine.torch.transformers_model import TransformersModel  # noqa: E402
from rlhfless.errors import ClosedError  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.drafting import Drafting  # noqa: E402
from solver.model.latency import LatencyModel  # noqa: E402

LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=0.1)
PROMPTS = [np.random.default_rng(1).integers(0, EOS, count) for count in (3, 9, 5)]
EXACT = 1e-4  # of log-probabilities in float32, sums in another order, which kernels choose


@pytest.fixture(autouse=True, scope="module")
def one_thread_each():
    with one_thread(torch.device("cpu")):
        yield


def engine(model, slots=2, **more):
    return TorchEngine(model, Admission(slots, 1 << 20), LATENCY, eos_id=EOS, **more)


def asked(tokens=10, **more):
    return [Request(i, len(ids), tokens, prompt_ids=ids, seed=i, **more) for i, ids in enumerate(PROMPTS)]


def decoded(one, requests):
    one.add(requests)
    return sorted(one.advance(math.inf).completions, key=lambda c: c.response)


def logprobs_of(hf, prompt, ids, forbidden=None):
    with torch.no_grad():
        logits = hf(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
    if forbidden is not None:
        logits[:, forbidden] = -math.inf
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_greedy_tokens_are_those_of_generate(kind):
    """Two slots for three responses of different lengths, whose contexts become longer than a sliding window."""
    hf = tiny(kind)
    completions = decoded(engine(TransformersModel(hf), sampling=Sampling(temperature=0)), asked())
    longest = torch.from_numpy(PROMPTS[1])[None]
    with torch.no_grad():
        expected = hf.generate(longest, max_new_tokens=10, do_sample=False)[0, longest.shape[1] :]
    assert completions[1].token_ids.tolist() == expected.tolist()
    for prompt, c in zip(PROMPTS, completions, strict=True):
        np.testing.assert_allclose(c.logprobs, logprobs_of(hf, prompt, c.token_ids), atol=EXACT, rtol=0)


def test_at_least_twenty_architectures_are_tried():
    assert len(ARCHITECTURES) >= 20


@pytest.fixture(scope="module")
def hf():
    return tiny("gpt_oss", seed=4)


def alone(model):
    return [decoded(engine(model, 1), [r])[0] for r in asked(16)]


@pytest.fixture(scope="module")
def model(hf):
    return TransformersModel(hf)


@pytest.fixture(scope="module")
def by_themselves(model):
    return alone(model)


def together(model):
    return decoded(engine(model, 3), asked(16))


def drafted(model):
    """Drafts come from the same response, so that most are accepted."""
    history = [(c.token_ids,) for c in alone(model)]
    requests = [replace(r, history=h) for r, h in zip(asked(16), history, strict=True)]
    completions = decoded(engine(model, 3, drafting=Drafting(max_draft_tokens=3, length=3)), requests)
    assert sum(c.accepted_tokens for c in completions) > 16
    return completions


def cut(model, moved=True):
    first, second = engine(model, 3), engine(model)
    first.add(asked(16))
    taken, progress = first.cut(6.0, [0, 2])
    assert [r.generated_tokens > 0 for r in taken] == [True, True]
    second.add([r if moved else replace(r, kv=None) for r in taken])
    rest = [*first.advance(math.inf).completions, *second.advance(math.inf).completions]
    return sorted([*progress.completions, *rest], key=lambda c: c.response)


def recomputed(model):
    return cut(model, moved=False)


def prefixed(model):
    """All but the last tokens of the longest prompt were computed elsewhere."""
    kv = compute_prefixes(model, {1: PROMPTS[1][:7]})[1]
    first, second, third = asked(16)
    with counting(model) as fed:
        completions = decoded(engine(model, 3), [first, replace(second, prompt=1, cached_tokens=7, prefix_kv=kv), third])
    assert fed.prefill == 2 + 1 + 4
    return completions


@pytest.mark.parametrize("way", [together, drafted, cut, recomputed, prefixed])
def test_sampled_tokens_depend_on_the_seed_alone(hf, model, by_themselves, way):
    """To rounding: log-probabilities are a forward pass's, and no token of these seeds is as close as that."""
    for prompt, c, own in zip(PROMPTS, way(model), by_themselves, strict=True):
        assert c.token_ids.tolist() == own.token_ids.tolist()
        np.testing.assert_allclose(c.logprobs, logprobs_of(hf, prompt, c.token_ids), atol=EXACT, rtol=0)


def test_a_forced_length_forbids_the_end_of_text(hf):
    for prompt, c in zip(PROMPTS, decoded(engine(TransformersModel(hf)), asked(30, target_tokens=20)), strict=True):
        assert c.response_tokens == 20
        assert EOS not in c.token_ids
        np.testing.assert_allclose(c.logprobs, logprobs_of(hf, prompt, c.token_ids, EOS), atol=EXACT, rtol=0)


def test_loaded_weights_are_copied_and_freed_ones_come_back():
    old, new = tiny("gemma3_text", seed=1), tiny("gemma3_text", seed=2)
    model = TransformersModel(old)
    before = decoded(engine(model), asked())
    one = engine(model)
    one.sync(new, 1)
    with torch.no_grad():
        for weight in new.parameters():
            weight.zero_()
    after = decoded(one, asked())
    assert [c.token_ids.tolist() for c in after] != [c.token_ids.tolist() for c in before]
    held = model.weight_bytes
    model.free()
    assert model.weight_bytes == 0
    with pytest.raises(ClosedError, match="released"):
        decoded(engine(model), asked())
    model.load(old.state_dict())
    assert model.weight_bytes == held == sum(w.numel() * 4 for w in old.parameters())
    assert [c.token_ids.tolist() for c in decoded(engine(model), asked())] == [c.token_ids.tolist() for c in before]


def test_tied_weights_are_one_tensor_and_other_weights_are_refused():
    tied, loose = tiny("llama", tie_word_embeddings=True), tiny("llama")
    model = TransformersModel(tied)
    model.load({name: w for name, w in tied.state_dict().items() if name != "lm_head.weight"})
    head, state = "lm_head.weight", loose.state_dict()
    with refused(ValueError, head, "model.embed_tokens.weight"):
        model.load(loose)
    with refused(ValueError, "model.norm.weight"):
        model.load({name: w for name, w in state.items() if name != "model.norm.weight"})
    with refused(ValueError, "model.norm.weight", "(8,)", "(32,)"):
        model.load({**state, "model.norm.weight": torch.zeros(8)})
    with refused(ValueError, "model.layers.2"):
        model.load(tiny("llama", num_hidden_layers=3))
    assert decoded(engine(model), asked())[0].response_tokens > 0, "the weights in use stay"


def test_bfloat16_converts_parameters_and_no_rotary_frequency():
    hf = tiny("qwen3_moe")
    model = TransformersModel(hf, dtype=torch.bfloat16)
    assert model.weight_bytes == sum(w.numel() * 2 for w in hf.parameters())
    assert model._model.model.rotary_emb.inv_freq.dtype == torch.float32
    for prompt, c in zip(PROMPTS, decoded(engine(model), asked()), strict=True):
        assert np.abs(c.logprobs - logprobs_of(hf, prompt, c.token_ids)).mean() < 0.3


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 40, "factor": 4.0}  # fmt: skip


def test_a_rotary_embedding_that_changes_with_the_context_limits_the_context():
    hf = tiny("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=40)
    assert TransformersModel(hf).max_tokens == 40
    with refused(ValueError, "'phi3'", "40", "41"):
        TransformersModel(hf, 41)


@pytest.mark.parametrize(
    ("kind", "more", "named"),
    [
        ("bloom", {"n_head": 4}, "0 of its 2 layers"),
        ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}, "head"),
        ("mamba", {}, "linear_attention"),
    ],
)
def test_a_model_that_cannot_be_decoded_is_one_sentence_that_names_an_engine(kind, more, named):
    with refused(ValueError, repr(kind), named, "vLLM"):
        TransformersModel(tiny(kind, **more))


def test_the_torch_engine_names_the_transformers_engine():
    with refused(ValueError, "'gemma2'", "engine 'transformers'"):
        DecoderModel(tiny("gemma2"))
    with refused(ValueError, "forward", "'fast'"):
        row_model("fast", tiny("llama"))


def test_a_model_whose_rows_change_each_other_is_refused(monkeypatch):
    """Here one whose positions are ignored: no configuration tells, but its logits do."""
    hf = tiny("llama")
    own = type(hf.model).forward

    def forward(self, input_ids=None, position_ids=None, **more):
        return own(self, input_ids=input_ids, **more)

    monkeypatch.setattr(type(hf.model), "forward", forward)
    with refused(ValueError, "'llama'", "logits"):
        TransformersModel(hf)


def test_vocabulary_and_limits_are_the_models(hf):
    model = TransformersModel(hf, 64)
    assert (model.vocabulary, model.layer_count, model.max_tokens) == (VOCAB, 2, 64)
    assert not model.bit_stable
