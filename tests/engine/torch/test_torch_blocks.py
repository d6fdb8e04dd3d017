"""Attention over blocks: the same tokens and log-probabilities as masked attention over whole rows, in less memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch_models import EOS, VOCAB, tiny_model  # noqa: E402

from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch import block_attention as blocks  # noqa: E402
from rlhfless.engine.torch.attention import PLAIN, Masks, attention  # noqa: E402
from rlhfless.engine.torch.block_cache import BlockCache  # noqa: E402
from rlhfless.engine.torch.capacity import admission_within  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.kv_cache import KVCache  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel  # noqa: E402
from rlhfless.engine.torch.row_models import row_model  # noqa: E402
from rlhfless.engine.torch.sampling import Sampling  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from solver import Admission, Drafting, LatencyModel  # noqa: E402

LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=2**-6, per_kv_token_s=2**-14, prefill_per_token_s=2**-6)
GREEDY, LONGEST, COUNT = Sampling(0.0), 400, 8
SHAPE = 2, 2, 8, 128  # layers, kv_heads, head_dim, cells


@pytest.fixture(scope="module")
def models():
    hf = tiny_model()
    return [DecoderModel(hf, LONGEST, attention=how) for how in ("masked", "blocks")]


def requests(count=COUNT):
    """Prompts of one to four blocks, some shared; every third length is forced."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(1, VOCAB, int(rng.integers(3, 110))) for _ in range(-(-count // 2))]
    return [
        Request(
            i, len(prompts[i // 2]), 14, prompt_ids=prompts[i // 2], prompt=i // 2, shares_prompt=i % 4 < 2, seed=i,
            target_tokens=8 + i % 6 if i % 3 == 0 else None,
        )
        for i in range(count)
    ]  # fmt: skip


def decoded(model, admission, drafting=None, sampling=GREEDY):
    """Completions, also of responses that were cut and came back with their KV states; and the most blocks that were held."""
    engine = TorchEngine(model, admission, LATENCY, eos_id=EOS, sampling=sampling, drafting=drafting)
    engine.add(requests())
    done, held = [], 0
    for _ in range(6):
        done += engine.advance(engine.peek_next_event_s()).completions
        held = max(held, engine.held_bytes)
    cut, progress = engine.cut(engine.clock_s, [r for r in engine.running() if r % 2])
    engine.add(cut)
    done += [*progress.completions, *engine.advance(math.inf).completions]
    return {c.response: c for c in done}, max(held, engine.held_bytes)


@pytest.mark.full
@pytest.mark.parametrize(
    ("admission", "drafting"),
    [
        (Admission(4, 260, "preempt"), None),
        (Admission(4, 1 << 20), Drafting(length=3, max_draft_tokens=3, min_match=1)),
    ],
)
def test_greedy_tokens_are_those_of_masked_attention(models, admission, drafting):
    """In batches that change, with prompts that are shared, cuts, evictions and drafts."""
    (expected, rows), (found, held) = (decoded(model, admission, drafting) for model in models)
    assert sorted(found) == sorted(expected) == list(range(COUNT))
    for response, one in found.items():
        assert drafting is None or one.accepted_tokens is not None
        assert one.token_ids.tolist() == expected[response].token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, expected[response].logprobs, atol=1e-5)
    assert held < rows / 2


def filled(kind, rows, tokens, seed=0):
    cache = kind(*SHAPE, torch.float32, torch.device("cpu"))
    cache.reserve_rows(rows)
    generator = torch.Generator().manual_seed(seed)
    for row in np.random.default_rng(seed).permutation(rows).tolist():
        cache.put(row, torch.randn(2, SHAPE[0], SHAPE[1], tokens[row], SHAPE[2], generator=generator))
    return cache


@pytest.mark.parametrize("columns", [1, 3])
def test_a_pass_attends_as_with_a_mask(columns):
    positions = torch.tensor([1, 31, 32, 63, 64, 100])[:, None] + torch.arange(columns)
    tokens = (positions[:, -1] + 1).tolist()
    by_rows, by_blocks = (filled(kind, 6, tokens) for kind in (KVCache, BlockCache))
    queries = torch.randn(6 * columns, SHAPE[1], 3, SHAPE[2], generator=torch.Generator().manual_seed(2))
    attend = blocks.block_attention(by_blocks, positions, 128)
    for layer in range(SHAPE[0]):
        keys, values = by_rows.read(layer, slice(0, 6), 128)
        expected = torch.cat(
            [
                attention(queries[i::columns], keys, values, Masks(by_rows, positions[:, i], 128).of(None), PLAIN)
                for i in range(columns)
            ]
        )
        found = attend(layer, queries, PLAIN)
        torch.testing.assert_close(torch.cat([found[i::columns] for i in range(columns)]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_mask_names_the_blocks_that_are_seen(columns):
    """Full ones are seen whole, others in part, and all others not at all: kernels on GPUs rely on it."""
    positions = torch.tensor([0, 30, 31, 32, 63, 95])[:, None] + torch.arange(columns)
    cache = filled(BlockCache, 6, (positions[:, -1] + 1).tolist())
    mask, size = blocks.block_mask(cache, positions, 128), cache.block_tokens
    row, query, cell = torch.meshgrid(*map(torch.arange, (6, columns, len(cache.owner) * size)), indexing="ij")
    seen = mask.mask_mod(row, torch.zeros_like(row), query, cell).view(6, columns, -1, size)
    for i in range(6):
        full = mask.full_kv_indices[i, 0, 0, : mask.full_kv_num_blocks[i, 0, 0]].tolist()
        partial = mask.kv_indices[i, 0, 0, : mask.kv_num_blocks[i, 0, 0]].tolist()
        assert len({*full, *partial}) == len(full) + len(partial)
        assert full == [b for b in full if seen[i, :, b].all()]
        assert {*full, *partial} == set(torch.nonzero(seen[i].any(0).any(-1)).flatten().tolist())


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_compiled_kernel_reads_what_the_mask_names(monkeypatch):
    """The CPU's kernel, which skips blocks as those of GPUs do. torch 2.13 compiles it for single shapes only."""
    monkeypatch.setattr(blocks, "_unfused", blocks._compiled())
    for columns in (1, 3):
        test_a_pass_attends_as_with_a_mask(columns)


@settings(max_examples=10)
@given(st.data())
def test_rows_hold_what_was_put_there(data):
    """Whatever moves; and no block belongs to two rows, nor to none without being free."""
    rows = 4
    caches = [filled(kind, rows, [1] * rows) for kind in (KVCache, BlockCache)]
    lengths, by_blocks = [1] * rows, caches[1]
    for step in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(["put", "move", "swap", "release"]))
        one, other = data.draw(st.permutations(range(rows)))[:2]
        if what == "put":
            start = data.draw(st.integers(0, lengths[one]))
            count = data.draw(st.integers(1, SHAPE[3] - 1 - start))
            kv = torch.randn(2, SHAPE[0], SHAPE[1], count, SHAPE[2], generator=torch.Generator().manual_seed(step))
            for cache in caches:
                cache.put(one, kv, start)
            lengths[one] = max(lengths[one], start + count)
        elif what == "move":
            for cache in caches:
                cache.move(one, other, lengths[one])
            lengths[other], lengths[one] = lengths[one], 0
        elif what == "swap":
            for cache in caches:
                cache.swap(one, other)
            lengths[one], lengths[other] = lengths[other], lengths[one]
        else:
            by_blocks.release(one)
            lengths[one] = 0
        for row, tokens in enumerate(lengths):
            assert torch.equal(*(cache.take(row, tokens) for cache in caches))
        held = [block for of in by_blocks._held for block in of]
        assert sorted([0, *held, *by_blocks._free]) == list(range(len(by_blocks.owner)))
        assert by_blocks.used_blocks == sum(-(-tokens // by_blocks.block_tokens) for tokens in lengths)


def test_capacity_is_in_blocks(models):
    """More responses fit than rows of the longest context, and their blocks always do."""
    masked, model = models
    row = masked.cells * masked.kv_bytes_per_token
    memory = int((masked.weight_bytes + 4.5 * row) / 0.9)
    by_rows, by_blocks = (admission_within(m, memory) for m in models)
    assert by_rows.max_batch == 4
    assert by_blocks.max_batch > 4
    worst = by_blocks.max_batch - 1 + -(-(by_blocks.kv_capacity_tokens - by_blocks.max_batch + 1) // 32)
    assert (worst + 1) * 32 * model.kv_bytes_per_token <= 4.5 * row
    with refused(MemoryError):
        admission_within(model, model.weight_bytes)


def test_unknown_ways_to_attend_are_refused():
    with refused(InputError, "'paged'", "masked", "blocks"):
        DecoderModel(tiny_model(), attention="paged")
    with refused(InputError, "'blocks'", "'own'"):
        row_model("transformers", tiny_model(), attention="blocks")
