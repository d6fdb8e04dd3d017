"""Real vLLM with a tiny model, against the torch engine and transformers' own forward pass, all in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import refused
from vllm_samples import (
    EOS,
    GREEDY,
    LATENCY,
    LIMIT,
    LONGEST,
    ROOMY,
    VOCABULARY,
    by_response,
    factory_of,
    model_of,
    needs_vllm,
    requests,
    torch_engine,
)

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Completion, EngineSpan, Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.vllm.adapter import VllmError
from rlhfless.engine.vllm.engine import VllmEngine
from rlhfless.engine.vllm.weight_folders import write_weights
from rlhfless.errors import InputError
from solver.model.admission import Admission
from solver.timing.batch import Batch
from solver.timing.batching import schedule

pytestmark = needs_vllm
Call = Callable[..., Any]
Outcome = tuple[dict[int, Completion], list[EngineSpan]]


def by_torch(wanted: Sequence[Request], seed: int = 3) -> dict[int, Completion]:
    engine = torch_engine(seed)
    engine.add(wanted)
    return by_response(engine.advance(math.inf).completions)


def assert_same(found: dict[int, Completion], expected: dict[int, Completion]) -> None:
    assert sorted(found) == sorted(expected)
    for response, one in found.items():
        other = expected[response]
        assert one.token_ids.tolist() == other.token_ids.tolist(), f"response {response}"
        assert (one.finish_reason, one.response_tokens) == (other.finish_reason, other.response_tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


# --- run where vLLM is ------------------------------------------------------------------------------------------------


def decode(folder: Path, version: int, wanted: Sequence[Request], sampling: Sampling, admission: Admission = ROOMY) -> Outcome:
    engine = factory_of(folder, version, sampling)(LATENCY, admission)
    assert engine.weights_version == version
    engine.add(wanted)
    progress = engine.advance(math.inf)
    engine.close()
    assert engine.weights_version is None
    return by_response(progress.completions), list(progress.spans)


def decode_in_pieces(folder: Path, wanted: Sequence[Request], every: int) -> tuple[Outcome, int]:
    """Everything is cut, and comes back, after every so many iterations; returns how often it was, too."""
    engine = factory_of(folder, 0)(LATENCY, ROOMY)
    completions, spans, cuts = [], [], 0
    waiting = list(wanted)
    while waiting:
        engine.add(waiting)
        for _ in range(every):
            progress = engine.step(engine.clock_s, lambda: engine.clock_s + 1.0)
            completions += progress.completions
            spans += progress.spans
        tokens = engine.generated_tokens()
        waiting, progress = engine.cut(engine.clock_s)
        assert {r.response: r.generated_tokens for r in waiting} == tokens
        assert not progress.completions
        assert not engine.running()
        assert not engine.waiting()
        cuts += 1
    engine.close()
    return (by_response(completions), spans), cuts


def decode_elsewhere(folder: Path, wanted: Sequence[Request], every: int, tamper: bool = False) -> tuple[Outcome, int]:
    """As in ``decode_in_pieces``, but what was cut goes to an engine that has nothing but the KV states, as bytes; returns how
    many of their tokens there were, too."""
    from rlhfless.engine.vllm import kv_connector as vllm_connector
    from rlhfless.engine.vllm import worker_backend as vllm_backend

    engine = factory_of(folder, 0)(LATENCY, ROOMY)
    completions, spans, moved_tokens = [], [], 0
    waiting = list(wanted)
    while waiting:
        engine.add(waiting)
        for _ in range(every):
            progress = engine.step(engine.clock_s, lambda: engine.clock_s + 1.0)
            completions += progress.completions
            spans += progress.spans
        cut, _ = engine.cut(engine.clock_s)
        assert engine.replica._engine.reset_prefix_cache()
        for cache in vllm_connector.caches.values():
            cache.fill_(7.0)
        waiting = []
        for request in cut:
            if request.kv is not None:
                moved_tokens += request.kv.tokens
                assert request.kv.tokens == (request.context_tokens - 1) // 32 * 32
                form, buffers = vllm_backend.Backend().pack(request.kv)
                stored = [bytearray(len(buffer.raw())) if tamper else bytearray(buffer) for buffer in buffers]
                kv = vllm_backend.Backend().unpack(form, stored, "cpu")
                for buffer in stored:
                    buffer[:] = bytes(len(buffer))
                request = replace(request, kv=kv)
            waiting.append(request)
    engine.close()
    return (by_response(completions), spans), moved_tokens


def decode_with_other_ends(folder: Path, wanted: Sequence[Request], ends: Sequence[int]) -> dict[int, Completion]:
    """As if the model's generation config, which vLLM reads when it starts, had named these as ends of text."""
    engine = factory_of(folder, 0)(LATENCY, ROOMY)
    processor = engine.replica._engine.input_processor
    before, processor.generation_config_fields = processor.generation_config_fields, {"eos_token_id": list(ends)}
    try:
        engine.add(wanted)
        return by_response(engine.advance(math.inf).completions)
    finally:
        processor.generation_config_fields = before
        engine.close()


def load_while_decoding(first: Path, folder: Path, version: int) -> None:
    engine = factory_of(first, 0)(LATENCY, ROOMY)
    engine.add(requests(1))
    engine.step(0.0, lambda: 1.0)
    try:
        engine.sync(folder, version)
    finally:
        engine.close()


def mislabelled(folder: Path) -> None:
    """vLLM says that it decoded with other weights than it should have."""
    engine = factory_of(folder, 0)(LATENCY, ROOMY)
    engine.replica._engine.set_weight_version("12")
    engine.add([replace(requests(1)[0], target_tokens=1)])
    try:
        engine.advance(math.inf)
    finally:
        engine.close()


def other_settings(folder: Path) -> None:
    replace(factory_of(folder, 0), max_tokens=64)(LATENCY, ROOMY)


def _in_chunks(folder: Path, wanted: Sequence[Request], budget: int, sampling: Sampling) -> tuple[Any, ...]:
    """Fed tokens of every iteration, the iteration after which each response ends, and tokens, with another token budget."""
    replica = factory_of(folder, 0, sampling)(LATENCY, ROOMY).replica
    scheduler = replica._engine.engine_core.engine_core.scheduler
    before, scheduler.max_num_scheduled_tokens = scheduler.max_num_scheduled_tokens, budget
    engine = VllmEngine(replica, ROOMY, eos_id=EOS, sampling=sampling)
    engine.add(wanted)
    fed, ended, tokens = [], {}, {}
    try:
        while engine.running() or engine.waiting():
            done = engine.step(engine.clock_s, lambda: engine.clock_s + 1.0).completions
            fed.append(sum(engine.replica.fed_tokens.values()))
            ended |= {c.response: len(fed) for c in done}
            tokens |= {c.response: c.token_ids.tolist() for c in done}
    finally:
        scheduler.max_num_scheduled_tokens = before
        engine.close()
    return fed, ended, tokens


def counted(folder: Path, wanted: Sequence[Request], budget: int) -> tuple[Any, ...]:
    return _in_chunks(folder, wanted, budget, GREEDY)[:2]


def sampled_in_chunks(folder: Path, wanted: Sequence[Request], budget: int) -> tuple[Any, ...]:
    return _in_chunks(folder, wanted, budget, Sampling(1.0))


# --- what it decodes --------------------------------------------------------------------------------------------------


@pytest.fixture
def first(vllm_weights: Path) -> Path:
    return vllm_weights / "weights-0"


@pytest.mark.full
@pytest.mark.parametrize("budget", [16, 40])
def test_its_iterations_are_those_of_mixed_prefill(call: Call, first: Path, budget: int) -> None:
    """With prompts of up to several budgets, more responses than slots, and forced lengths."""
    rng = np.random.default_rng(budget)
    wanted = [
        replace(
            r, target_tokens=int(rng.integers(1, 12)), prompt_ids=rng.integers(2, 30, size=r.prompt_tokens).astype(np.int64)
        )
        for r in requests(14, longest=90)
    ]
    fed, ended = call(counted, first, wanted, budget)
    columns = (np.array([getattr(r, name) for r in wanted]) for name in ("target_tokens", "prompt_tokens", "prompt_tokens"))
    remaining, context, most = columns
    stays = schedule(Batch(remaining, context, context, most + LIMIT, ROOMY), budget)
    batch, _, prompts = stays.per_iteration()
    assert fed == (batch + prompts).tolist()
    assert ended == dict(enumerate(stays.last.tolist()))


@pytest.mark.full
def test_a_chunk_draws_nothing_from_a_responses_stream(call: Call, first: Path) -> None:
    wanted = requests(6, longest=90)
    sampling = Sampling(1.0)
    whole, _ = call(decode, first, 0, wanted, sampling)
    _, _, tokens = call(sampled_in_chunks, first, wanted, 16)
    assert tokens == {i: c.token_ids.tolist() for i, c in whole.items()}


@pytest.mark.full
def test_greedy_tokens_are_those_of_the_torch_engine(call: Call, first: Path) -> None:
    wanted = requests(14)  # more than there are slots
    found, spans = call(decode, first, 0, wanted, GREEDY)
    assert_same(found, by_torch(wanted))
    assert sum(s.tokens for s in spans if s.phase == "decode") == sum(c.response_tokens for c in found.values())
    assert sum(s.tokens for s in spans if s.phase == "prefill") == sum(c.prefill_tokens_computed for c in found.values())
    assert all(s.batch_mean <= s.slots == ROOMY.max_batch for s in spans)


PENALISED, ENDS = Sampling(temperature=0, repetition_penalty=30.0), (EOS, 20, 22)


def decode_penalised(folder: Path, wanted: Sequence[Request]) -> dict[int, Completion]:
    """With several stop tokens, and cut after some tokens, so that what was generated comes back as a part of the context."""
    engine = replace(factory_of(folder, 0, PENALISED), eos_id=ENDS)(LATENCY, ROOMY)
    engine.add(wanted)
    completions: list[Completion] = []
    for _ in range(5):
        completions += engine.advance(engine.peek_next_event_s()).completions
    cut, progress = engine.cut(engine.clock_s)
    assert any(r.generated_tokens for r in cut)
    engine.add(cut)
    completions += [*progress.completions, *engine.advance(math.inf).completions]
    engine.close()
    return by_response(completions)


@pytest.mark.full
def test_a_penalty_and_several_stop_tokens_are_those_of_the_torch_engine(call: Call, first: Path) -> None:
    wanted = requests(6)
    engine = TorchEngine(DecoderModel(model_of(3), LONGEST), ROOMY, LATENCY, eos_id=ENDS, sampling=PENALISED)
    engine.add(wanted)
    expected = by_response(engine.advance(math.inf).completions)
    assert {int(c.token_ids[-1]) for c in expected.values()} == set(ENDS)
    assert_same(call(decode_penalised, first, wanted), expected)


@pytest.mark.full
def test_a_response_ends_at_the_tokenizers_end_of_text_only(call: Call, first: Path) -> None:
    """Though the model has other ids that end a text, such as those of a chat's turns."""
    wanted = [replace(r, max_tokens=12) for r in requests(6)]
    expected = by_torch(wanted)
    ends = [EOS, *{int(i) for c in expected.values() for i in c.token_ids[:-1]}]
    assert len(ends) > 2
    assert_same(call(decode_with_other_ends, first, wanted, ends), expected)


@pytest.mark.full
def test_prompts_have_ids_that_the_model_knows(call: Call, first: Path) -> None:
    one = replace(requests(1)[0], prompt_tokens=2, prompt_ids=np.array([2, VOCABULARY - 1]), max_tokens=3)
    assert_same(call(decode, first, 0, [one], GREEDY)[0], by_torch([one]))
    with refused(ValueError, str(VOCABULARY), str(VOCABULARY - 1)):
        call(decode, first, 0, [replace(one, prompt_ids=np.array([2, VOCABULARY]))], GREEDY)


@pytest.mark.full
def test_cut_responses_go_on_where_they_were(call: Call, first: Path) -> None:
    wanted = requests(5)
    (found, spans), cuts = call(decode_in_pieces, first, wanted, 9)
    assert cuts > 3
    assert_same(found, by_torch(wanted))
    assert sum(s.tokens for s in spans if s.phase == "decode") == sum(c.response_tokens for c in found.values())


@pytest.mark.full
def test_a_kv_state_that_is_handed_over_is_not_computed_again(call: Call, first: Path) -> None:
    """Whole blocks of 32 tokens go from engine to engine, what is left of a context is computed, tokens are what they were."""
    wanted = requests(8)
    (found, spans), moved_tokens = call(decode_elsewhere, first, wanted, 13)
    assert_same(found, by_torch(wanted))
    assert moved_tokens > 32 * 8
    computed = sum(c.prefill_tokens_computed for c in found.values())
    assert sum(s.tokens for s in spans if s.phase == "prefill") == computed
    long = replace(requests(1)[0], prompt_ids=np.arange(70, dtype=np.int64) % 28 + 2, prompt_tokens=70, target_tokens=30)
    (found, _), moved_tokens = call(decode_elsewhere, first, [long], 10)
    assert moved_tokens == 64 + 64
    assert found[0].prefill_tokens_computed == 70 + (80 - 64) + (90 - 64)
    (other, _), _ = call(decode_elsewhere, first, [long], 10, True)
    assert np.abs(other[0].logprobs - found[0].logprobs).max() > 1e-2, "states of others change nothing"


@pytest.mark.full
def test_what_the_prefix_cache_holds_is_not_computed_again(call: Call, first: Path) -> None:
    """Blocks of 32 tokens; whoever comes back finds the full ones of its context."""
    long = replace(requests(1)[0], prompt_ids=np.arange(70, dtype=np.int64) % 28 + 2, prompt_tokens=70, target_tokens=30)
    (found, _), cuts = call(decode_in_pieces, first, [long], 10)
    assert cuts == 3
    assert found[0].prefill_tokens_computed == 70 + (80 - 64) + (90 - 64)


@pytest.mark.full
def test_forced_lengths_are_kept_and_the_end_is_never_drawn(call: Call, first: Path) -> None:
    rng = np.random.default_rng(2)
    wanted = [replace(r, target_tokens=int(rng.integers(1, LIMIT + 1)), target_finish="stop") for r in requests(12)]
    found, _ = call(decode, first, 0, wanted, Sampling(temperature=2.0))
    assert {i: c.response_tokens for i, c in found.items()} == {r.response: r.target_tokens for r in wanted}
    assert all(c.finish_reason == "stop" and EOS not in c.token_ids for c in found.values())
    (again, _), _ = call(decode_in_pieces, first, wanted, 7)
    assert {i: c.response_tokens for i, c in again.items()} == {r.response: r.target_tokens for r in wanted}


@pytest.mark.full
@pytest.mark.parametrize("sampling", [Sampling(temperature=1.5), Sampling(temperature=0.7, top_k=5)])
def test_logprobs_are_those_that_tokens_were_drawn_with(call: Call, first: Path, sampling: Sampling) -> None:
    """Though an iteration takes fewer prompt tokens than the batch has: a prompt waits whole, as a random stream could not be
    wound back after a part of it."""
    assert sum(r.prompt_tokens for r in requests(ROOMY.max_batch)) > LONGEST
    found, _ = call(decode, first, 0, requests(8), sampling)
    model = model_of(3)
    for request in requests(8):
        one = found[request.response]
        ids = torch.tensor(np.concatenate([request.prompt_ids, one.token_ids]))[None]
        with torch.no_grad():
            logits = model(ids).logits[0, request.prompt_tokens - 1 : -1] / sampling.temperature
        if sampling.top_k:
            logits[logits < logits.topk(sampling.top_k).values[:, -1:]] = -math.inf
        logprobs = torch.log_softmax(logits, -1)
        np.testing.assert_allclose(one.logprobs, logprobs.gather(1, ids[0, request.prompt_tokens :, None])[:, 0], atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("generated", [0, 3])
def test_tokens_are_drawn_from_the_models_distribution(call: Call, first: Path, generated: int) -> None:
    """First tokens of many responses, from their beginning or from where each was cut: Pearson's statistic, which exceeds this
    limit once in 100,000 times if the draws are right; they are the same in every run."""
    prompt, count = np.array([7, 11, 5], dtype=np.int64), 800
    so_far = np.array([4, 9, 6], dtype=np.int64)[:generated]
    wanted = [
        Request(
            i, 3, LIMIT, prompt_ids=prompt, seed=i, target_tokens=generated + 1, generated_tokens=generated,
            generated_ids=so_far, logprobs=np.zeros(generated), first_token_s=0.0 if generated else None,
        )
        for i in range(count)
    ]  # fmt: skip
    found, _ = call(decode, first, 0, wanted, Sampling(temperature=1.0))
    with torch.no_grad():
        logits = model_of(3)(torch.tensor(np.concatenate([prompt, so_far]))[None]).logits[0, -1].double()
    logits[EOS] = -math.inf
    expected = torch.softmax(logits, -1).numpy() * count
    drawn = np.bincount([c.token_ids[-1] for c in found.values()], minlength=len(expected))
    common = expected >= 5
    cells = [*zip(drawn[common], expected[common], strict=True), (drawn[~common].sum(), expected[~common].sum())]
    statistic = sum((d - e) ** 2 / e for d, e in cells if e > 0)
    freedom = len(cells) - 1
    assert freedom >= 10
    assert statistic < freedom + 4.27 * math.sqrt(2 * freedom) + 12


@pytest.mark.full
def test_the_same_seed_draws_the_same_tokens(call: Call, first: Path) -> None:
    (once, _), (again, _) = (call(decode, first, 0, requests(8), Sampling(temperature=1.0)) for _ in range(2))
    assert {i: c.token_ids.tolist() for i, c in once.items()} == {i: c.token_ids.tolist() for i, c in again.items()}
    assert once[0].token_ids.tolist() != once[1].token_ids.tolist()  # which have the same prompt


@pytest.mark.full
def test_whoever_is_evicted_goes_on_later(call: Call, first: Path) -> None:
    wanted = requests(8)
    found, spans = call(decode, first, 0, wanted, GREEDY, Admission(6, 300, "preempt"))
    assert_same(found, by_torch(wanted))
    assert max(s.kv_tokens for s in spans) <= 300
    assert any(c.prefill_tokens_computed > r.prompt_tokens for r, c in zip(wanted, (found[i] for i in range(8)), strict=True))


# --- its weights ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_new_weights_are_taken_over_without_a_new_start(call: Call, first: Path, tmp_path: Path) -> None:
    wanted = requests(6)
    newer = write_weights(model_of(4), tmp_path, 7)
    before, _ = call(decode, first, 0, wanted, GREEDY)
    after, _ = call(decode, newer, 7, wanted, GREEDY)
    assert_same(after, by_torch(wanted, seed=4))
    assert {i: c.token_ids.tolist() for i, c in after.items()} != {i: c.token_ids.tolist() for i, c in before.items()}
    back, _ = call(decode, first, 0, wanted, GREEDY)
    assert_same(back, before)


@pytest.mark.full
def test_other_weights_than_the_steps_are_refused(call: Call, first: Path, tmp_path: Path) -> None:
    newer = write_weights(model_of(4), tmp_path, 7)
    with refused(InputError):
        call(decode, newer, 8, requests(1), GREEDY)
    with refused(VllmError):
        call(load_while_decoding, first, write_weights(model_of(4), tmp_path, 1), 1)
    with refused(VllmError, "12"):
        call(mislabelled, first)
    assert_same(call(decode, first, 0, requests(2), GREEDY)[0], by_torch(requests(2)))


@pytest.mark.full
def test_one_process_holds_one_replica(call: Call, first: Path) -> None:
    with refused(VllmError):
        call(other_settings, first)
