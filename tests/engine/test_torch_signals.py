"""What the torch engine returns beside tokens, and what stops it."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch_models import EOS, VOCAB, tiny_model  # noqa: E402

from rlhfless.engine import kv_cache  # noqa: E402
from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch_engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch_forward import RowModel, one_thread  # noqa: E402
from solver.admission import Admission  # noqa: E402
from solver.latency import LatencyModel  # noqa: E402

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
    return TorchEngine(RowModel(hf), Admission(3, 1 << 20), LATENCY, eos_id=EOS, **more)


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


def test_an_unknown_signal_is_refused(hf):
    with pytest.raises(ValueError, match="signal 'mood' is unknown; choose of eos_logprob, entropy, hidden"):
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
    with pytest.raises(FloatingPointError, match=r"logits for response 41 are not numbers; .* load finite weights"):
        e.advance(math.inf)


@pytest.mark.parametrize(
    ("told", "fits"),
    [
        ("MemTotal: 9 kB\nMemAvailable:     1000 kB\n", "; 0.00 GiB are free, enough for a cache of 3 slots beside it"),
        ("MemTotal: 9 kB\n", ""),
        (None, ""),
    ],
)
def test_a_cache_that_does_not_fit_says_what_would(hf, monkeypatch, tmp_path, told, fits):
    model = RowModel(hf)
    cache = model.new_cache()
    cache.reserve_rows(2)
    assert model.cells * model.kv_bytes_per_token == 544 * 512, "1000 KiB hold three rows and a half"
    if told is not None:
        (tmp_path / "meminfo").write_text(told)
    monkeypatch.setattr(kv_cache, "MEMINFO", tmp_path / "meminfo")

    def full(*size):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(type(cache.data), "new_zeros", full, raising=False)
    said = rf"cannot grow to 9 slots of 544 tokens, 0.00 GiB; it has 2 slots{fits}: use fewer slots, a shorter"
    with pytest.raises(MemoryError, match=said):
        cache.reserve_rows(9)


def test_the_memory_that_is_free_is_asked_for(hf):
    """For real: more than there is anywhere, on a machine that says what it has."""
    if not kv_cache.MEMINFO.exists():
        pytest.skip("only Linux says how much memory is available")
    model = RowModel(hf)
    cache = model.new_cache()
    a_row = model.cells * model.kv_bytes_per_token
    with pytest.raises(MemoryError) as error:
        cache.reserve_rows((1 << 56) // a_row)
    fits = int(re.search(r"enough for a cache of (\d+) slots beside it", str(error.value))[1])
    assert 0 < fits * a_row < 1 << 50
