"""Bit by bit: no row sees the others, prefill is decoding, and a response depends on weights, prompt and seed only."""

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
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.kv_cache import BLOCK  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel, one_thread  # noqa: E402
from rlhfless.engine.torch.prefill import Segment, prefill  # noqa: E402
from rlhfless.engine.torch.weights import ARCHITECTURES  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.latency import LatencyModel  # noqa: E402

LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=0.1, prefill_per_token_s=0.01)
RESPONSES = 10


@pytest.fixture(scope="module")
def model():
    return DecoderModel(tiny_model(hidden=128, layers=4))


class Unstable(DecoderModel):
    """Takes the path of GPUs and of bfloat16: prefill attends a whole segment at once, padding attends to nothing."""

    bit_stable = False


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("path", "precision", "tolerance"),
    [(DecoderModel, torch.float32, 1e-5), (Unstable, torch.float32, 1e-5), (DecoderModel, torch.bfloat16, 0.1)],
)
def test_forward_equals_transformers(kind, tied, path, precision, tolerance):
    """Segments that begin a row and that follow, three lengths in a batch, padding. Logits reach 2 to 5, where neighbouring
    numbers of bfloat16 are up to 0.03 apart; both passes round in another order."""
    hf = tiny_model(kind, seed=3, tie_word_embeddings=tied).to(precision)
    model, tokens, ends = path(hf), torch.arange(300) * 7 % VOCAB, [299, 199, 40]
    assert model.bit_stable == (path is DecoderModel and precision == torch.float32)
    cache, rows = model.new_cache(), model.padded(3, 64)
    cache.reserve_rows(rows)
    fed, at = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), cache.spare)
    fed[:3], at[:3] = tokens[ends], torch.tensor(ends)
    with torch.inference_mode(), one_thread(hf.device):
        expected = hf(tokens[None]).logits[0].float()
        prefill(model, cache, [Segment(0, 0, tokens[:170]), Segment(1, 0, tokens[:40])])
        prefill(model, cache, [Segment(0, 170, tokens[170:299]), Segment(1, 40, tokens[40:199]), Segment(2, 0, tokens[:40])])
        found = model.logits(model.decode(cache, fed, at, 300, rows - 3))[:3]
    torch.testing.assert_close(found, expected[ends], atol=tolerance, rtol=tolerance)


@torch.inference_mode()
def test_logits_of_a_row_are_the_same_bits_in_every_batch(model):
    """Batch sizes 1 to 64, rows at other places, other neighbours, longer neighbours; contexts of one and of two calls."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 480, 64)
    contexts = [torch.from_numpy(rng.integers(1, VOCAB, n)) for n in lengths]
    alone = model.new_cache()
    alone.reserve_rows(model.padded(1, 64))

    def prefilled(context):
        prefill(model, alone, [Segment(0, 0, context[:-1])])
        return alone.take(0, len(context) - 1)

    def logits(chosen, width=0):
        cache, rows = model.new_cache(), model.padded(len(chosen), 64)
        cache.reserve_rows(rows)
        tokens, positions = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), cache.spare)
        for row, c in enumerate(chosen):
            cache.put(row, kv[c])
            tokens[row], positions[row] = contexts[c][-1], lengths[c] - 1
        width = max(width, max(lengths[c] for c in chosen))
        return model.logits(model.decode(cache, tokens, positions, int(width), rows - len(chosen)))[: len(chosen)]

    with one_thread(model.device):
        kv = [prefilled(context) for context in contexts]  # once: decoding is what is looked at here
        expected = logits(range(64))
        for size in [*range(1, 18), 31, 33, 63]:
            chosen = rng.permutation(64)[:size]
            assert torch.equal(logits(chosen), expected[chosen]), size
        for row in (3, 4, 5):
            for width in range(BLOCK, 513, BLOCK):
                assert torch.equal(logits([row], width)[0], expected[row]), (row, width)


@torch.inference_mode()
def test_prefill_is_decoding_token_by_token(model):
    tokens = torch.arange(300) * 5 % VOCAB
    cache = model.new_cache()
    cache.reserve_rows(model.padded(2, 64))
    with one_thread(model.device):
        prefill(model, cache, [Segment(1, 0, tokens)])
        rows = model.padded(1, 64)
        for i in range(300):
            fed, at = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), cache.spare)
            fed[0], at[0] = tokens[i], i
            model.decode(cache, fed, at, i + 1, rows - 1)
    assert torch.equal(cache.take(0, 300), cache.take(1, 300))


@pytest.fixture(scope="module")
def requests():
    rng = np.random.default_rng(1)
    return [
        Request(i, n, 60, prompt_ids=rng.integers(1, VOCAB, n), seed=77 * i, target_tokens=None if i % 3 else 40 + i)
        for i, n in enumerate(rng.integers(1, 50, RESPONSES).tolist())
    ]


@pytest.fixture(scope="module")
def expected(model, requests):
    """Ids and log-probabilities of every response from an engine of its own."""
    return [run([engine(model, Admission(1, 10**6))], [[r]])[r.response] for r in requests]


def test_the_path_of_gpus_draws_the_same_where_precision_allows(requests, expected):
    """In float32 races are decided by more than rounding: refill and batches of all sizes included."""
    unstable = Unstable(tiny_model(hidden=128, layers=4))
    found = run([engine(unstable, Admission(4, 10**6))], [requests])
    for i, (ids, logprobs) in enumerate(expected):
        assert found[i][0] == ids
        np.testing.assert_allclose(found[i][1], logprobs, atol=1e-4)


def engine(model, admission):
    return TorchEngine(model, admission, LATENCY, eos_id=EOS)


def run(engines, queues):
    for e, queue in zip(engines, queues, strict=True):
        e.add(queue)
    done = [c for e in engines for c in e.advance(math.inf).completions]
    return {c.response: (c.token_ids.tolist(), c.logprobs.tolist()) for c in done}


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_tokens_depend_on_weights_prompt_and_seed_only(model, requests, expected, data):
    """Any assignment and order, any admission, any cut, KV moved or recomputed: the same ids and log-probabilities."""
    actors = data.draw(st.integers(1, 3), label="actors")
    admission = data.draw(
        st.sampled_from([Admission(4, 10**6), Admission(10, 10**6), Admission(10, 130, "preempt"), Admission(1, 120)])
    )
    engines = [engine(model, admission) for _ in range(actors)]
    order = data.draw(st.permutations(requests))
    queues = [order[a::actors] for a in range(actors)]
    for e, queue in zip(engines, queues, strict=True):
        e.add(queue)
    found = {}

    def keep(progress):
        found.update({c.response: (c.token_ids.tolist(), c.logprobs.tolist()) for c in progress.completions})

    for _ in range(data.draw(st.integers(0, 3), label="cuts")):
        source, target = (engines[data.draw(st.integers(0, actors - 1))] for _ in range(2))
        some = data.draw(st.none() | st.lists(st.integers(0, RESPONSES - 1), max_size=4))
        taken, progress = source.cut(source.clock_s + data.draw(st.floats(0, 40)), some)
        keep(progress)
        moved = data.draw(st.booleans(), label="KV moved")
        target.add([r if moved else replace(r, kv=None) for r in taken])
    for e in engines:
        keep(e.advance(math.inf))
    assert [found[i] for i in range(RESPONSES)] == expected


def test_contexts_of_several_calls_are_the_same_beside_longer_ones(model):
    """Attention over 420 cells and more splits its sums elsewhere than attention over 270, which a response has alone."""
    rng = np.random.default_rng(2)
    asked = [
        Request(i, n, 12, prompt_ids=rng.integers(1, VOCAB, n), seed=i, target_tokens=10)
        for i, n in enumerate([40, 200, 250, 262, 300, 390, 420])
    ]
    alone = [run([engine(model, Admission(1, 10**6))], [[r]])[r.response] for r in asked]
    together = run([engine(model, Admission(7, 10**6))], [asked])
    in_pairs = run([engine(model, Admission(2, 10**6))], [asked[::-1]])
    assert [together[i] for i in range(7)] == alone
    assert [in_pairs[i] for i in range(7)] == alone


def test_the_number_of_threads_changes_nothing(model, requests, expected):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = run([engine(model, Admission(10, 10**6))], [requests])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert [found[i] for i in range(RESPONSES)] == expected
