"""What the engine computes is what transformers' own forward pass computes, for every supported architecture."""

import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch_models import EOS, VOCAB, tiny_model  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch.capacity import admission_within  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel, counting, one_thread  # noqa: E402
from rlhfless.engine.torch.prefixes import compute_prefixes  # noqa: E402
from rlhfless.engine.torch.weights import ARCHITECTURES  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.latency import LatencyModel  # noqa: E402

LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=0.1)
TOLERANCE = 2e-5  # of log-probabilities of about -3 in float32, sums in another order
PROMPT, LIMIT = np.random.default_rng(2).integers(1, VOCAB, 37), 40


@pytest.fixture(scope="module", params=ARCHITECTURES)
def hf(request):
    return tiny_model(request.param, seed=4, tie_word_embeddings=request.param != "llama")


def asked(**more):
    """Six samples of one prompt, of different lengths."""
    return [
        Request(i, len(PROMPT), LIMIT, prompt_ids=PROMPT, seed=i, target_tokens=12 + 5 * i, prompt=0, **more) for i in range(6)
    ]


def engine(model, slots=2):
    return TorchEngine(model, Admission(slots, 1 << 20), LATENCY, eos_id=EOS)


def plain(model):
    """Two slots for six responses: rows are filled again four times."""
    e = engine(model)
    e.add(asked())
    return e.advance(math.inf).completions


def shared(model):
    e = engine(model)
    e.add(asked(shares_prompt=True))
    return e.advance(math.inf).completions


def prefixed(model):
    """All but the last tokens of the prompt were computed elsewhere."""
    with one_thread(model.device):
        kv = compute_prefixes(model, {0: PROMPT[:29]})[0]
    e = engine(model)
    e.add(asked(cached_tokens=29, prefix_kv=kv))
    return e.advance(math.inf).completions


def migrated(model, moved=True):
    """Two are cut and go on elsewhere, with their KV state or without."""
    first, second = engine(model, 4), engine(model)
    first.add(asked())
    taken, progress = first.cut(9.0, [1, 3])
    assert [r.generated_tokens > 0 for r in taken] == [True, True]
    second.add([r if moved else replace(r, kv=None) for r in taken])
    return [*progress.completions, *first.advance(math.inf).completions, *second.advance(math.inf).completions]


def recomputed(model):
    return migrated(model, moved=False)


def assert_logits(hf, completions):
    """Log-probabilities of all tokens are transformers' within ``TOLERANCE``; forced lengths forbid the end of text."""
    for c in completions:
        with torch.no_grad(), one_thread(hf.device):
            logits = hf(torch.tensor([[*PROMPT, *c.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
        logits[:, EOS] = -math.inf
        expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(c.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(c.logprobs, expected.numpy(), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("way", [plain, shared, prefixed, migrated, recomputed])
def test_logits_are_those_of_transformers(hf, way):
    """Log-probabilities of all tokens, whatever way their KV state took, within ``TOLERANCE``."""
    model = DecoderModel(hf)
    with counting(model) as fed:
        completions = way(model)
    assert sorted(c.response for c in completions) == list(range(6))
    for c in completions:
        assert c.response_tokens == 12 + 5 * c.response
    assert_logits(hf, completions)
    context = len(PROMPT) - 1
    computed = {plain: 6 * context, shared: context, prefixed: 29 + 6 * (context - 29), migrated: 6 * context}
    if way in computed:
        assert fed.prefill == computed[way]


ROPES = {
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 64},
    "dynamic": {"factor": 4.0},
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 64},
}


def with_rope(kind, rope):
    return tiny_model(kind, seed=4, rope_parameters={"rope_type": rope, "rope_theta": 1e4, **ROPES[rope]})


@pytest.mark.parametrize("rope", ["linear", "llama3", "yarn"])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logits_are_those_of_transformers_with_other_rotary_embeddings(kind, rope):
    """Contexts reach beyond the original 64 positions."""
    hf = with_rope(kind, rope)
    assert hf.base_model.rotary_emb.rope_type == rope
    usual, there = (m.base_model.rotary_emb(torch.ones(1), torch.tensor([[70]]))[0] for m in (tiny_model(kind), hf))
    assert not torch.allclose(usual, there), "it makes a difference"
    completions = plain(DecoderModel(hf))
    assert max(len(PROMPT) + c.response_tokens for c in completions) > 64
    assert_logits(hf, completions)


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_rotary_embeddings_that_change_with_the_context_are_refused(rope):
    with refused(ValueError, "'llama'"):
        DecoderModel(with_rope("llama", rope))


def test_an_unknown_architecture_is_refused_and_the_known_ones_are_named():
    named = "the torch engine decodes llama, qwen2 and qwen3 models with full attention and fixed rotary embeddings, not"
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1, n_positions=8))
    with refused(ValueError, str(named), "'gpt2'"):
        DecoderModel(gpt)
    sliding = Qwen2Config(
        vocab_size=8, hidden_size=8, num_hidden_layers=2, num_attention_heads=1, num_key_value_heads=1, intermediate_size=8,
        use_sliding_window=True, sliding_window=4, max_window_layers=0,
    )  # fmt: skip
    with refused(ValueError, str(named), "'qwen2'"):
        DecoderModel(Qwen2ForCausalLM(sliding))


def test_memory_that_holds_no_actor_says_what_is_needed_and_that_is_enough():
    model = DecoderModel(tiny_model(), 100)
    with refused(MemoryError) as error:
        admission_within(model, 1 << 10)
    needed = float(str(error.value).split(" need ")[1].split()[0])
    assert admission_within(model, int((needed + 0.001) * 2**30)).max_batch >= 1
