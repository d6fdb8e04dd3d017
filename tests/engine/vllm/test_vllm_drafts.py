"""Drafts in vLLM: what the engine counts beside a stand-in, what is refused, and real vLLM with a tiny model in float32."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
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
    LONGEST,
    ROOMY,
    VOCABULARY,
    by_response,
    factory_of,
    model_of,
    needs_vllm,
    requests,
    scripted,
    stand_in,
    torch_engine,
    vllm_process,
)

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.vllm import factory, start_up
from rlhfless.engine.vllm.adapter import Replica
from rlhfless.engine.vllm.cpu_verification import repeated
from rlhfless.engine.vllm.factory import VllmEngineFactory
from rlhfless.engine.vllm.start_up import VllmSettings
from rlhfless.engine.vllm.weight_folders import write_weights
from rlhfless.errors import InputError
from solver.model.admission import Admission
from solver.model.drafting import Drafting

Call = Callable[..., Any]
FIXED = Drafting(length=4, max_draft_tokens=4, min_match=1)
NGRAM = Drafting("vllm-ngram", length=4, min_match=1)


def test_an_iteration_with_drafts_counts_all_of_its_tokens() -> None:
    """Of two responses with 20 tokens to go, drafts of three tokens each: the time of a chunk is shared by fed tokens."""
    engine = scripted(Admission(3, 1000), drafting=Drafting(max_draft_tokens=3))
    first, second, late = [replace(r, target_tokens=20) for r in requests(3)]
    engine.add([first, second, replace(late, available_s=0.5)])
    engine.step(0.0, lambda: 1.0)
    prefill, decode = engine.step(1.0, lambda: 2.0).spans
    assert (decode.drafted_tokens, decode.fed_tokens) == (6, 3 + 6)
    assert decode.tokens == 3 + decode.accepted_tokens == sum(engine.generated_tokens().values()) - 2
    assert decode.batch_mean == 3.0
    assert prefill.tokens == late.prompt_tokens
    assert prefill.end_s == decode.start_s == pytest.approx(2.0 - 9 / (9 + late.prompt_tokens))
    cut, _ = engine.cut(engine.clock_s)
    assert [r.passes for r in cut] == [2, 2, 1]
    assert all(r.passes + r.accepted_tokens == r.generated_tokens for r in cut)


REFUSED_WITH_DRAFTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "critical": ({"drafting": Drafting(length="critical")}, ("critical", "adaptive")),
    "min_p": ({"sampling": Sampling(1.0, min_p=0.1)}, ("min_p", "0.1")),
    "data parallel": ({"options": {"data_parallel_size": 2}}, ("data_parallel_size", "2")),
    "speculative_config": ({"options": {"speculative_config": {"method": "ngram"}}}, ("speculative_config",)),
}


@pytest.mark.parametrize(("changed", "named"), REFUSED_WITH_DRAFTS.values(), ids=REFUSED_WITH_DRAFTS)
def test_drafts_are_refused_with_what_vllm_does_not_honour_beside_them(changed: dict[str, Any], named: tuple[str, ...]) -> None:
    settings: dict[str, Any] = {"sampling": Sampling(1.0), "drafting": Drafting(), "options": {}} | changed
    with refused(InputError, *named):
        VllmEngineFactory("weights-0", 0, EOS, LONGEST, **settings)
    VllmEngineFactory("weights-0", 0, EOS, LONGEST, **{**settings, "drafting": None})


def test_a_vllm_without_the_method_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "")
    monkeypatch.setitem(sys.modules, "vllm.v1.spec_decode", None)  # the installed vLLM has it, once a test has imported it
    folder = write_weights(model_of(1), tmp_path, 0)
    with refused(InputError, "custom_class"):
        Replica(VllmSettings(1, 4, 100, 50, max_draft_tokens=4), [], folder, 0)


def test_a_drafter_of_vllm_itself_is_started_with_its_method() -> None:
    def config(drafting: Drafting) -> dict[str, Any]:
        settings = VllmEngineFactory("w", 0, EOS, LONGEST, drafting=drafting).compatibility_key(LATENCY)
        arguments = start_up.engine_arguments(settings, Path("w"), on_cpu=True, eager=True, hands_over=False)
        return dict(arguments["speculative_config"])

    table = {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [(1, LATENCY.max_batch, 3)]}
    runs = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    assert config(Drafting("vllm-ngram", length=3)) == {"method": "ngram", **runs, **table}
    assert config(Drafting("vllm-ngram", length=3, min_match=7))["prompt_lookup_max"] == 7
    assert config(Drafting("vllm-suffix", length=3)) == {"method": "suffix", **table}
    assert config(Drafting(length=3))["method"] == "custom_class"


def test_vllms_suffix_needs_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "")
    monkeypatch.setattr(factory, "check_version", lambda: "0.32")
    monkeypatch.setitem(sys.modules, "arctic_inference", None)
    folder = write_weights(model_of(1), tmp_path, 0)
    engines = VllmEngineFactory(str(folder), 0, EOS, LONGEST, drafting=Drafting("vllm-suffix", length=4))
    with refused(InputError, "'vllm-suffix'", "arctic-inference", "pip install", "'suffix'"):
        engines.measured()
    with refused(InputError, "arctic-inference"):
        Replica(engines.compatibility_key(LATENCY), [], folder, 0)


def test_drafts_have_kv_memory_of_their_own() -> None:
    """So that a draft never evicts a response."""
    plain, drafting = (
        start_up.engine_arguments(
            VllmSettings(1, 4, 3200, 1600, max_draft_tokens=most), Path("w"), on_cpu=True, eager=True, hands_over=False
        )
        for most in (0, 16)
    )
    assert "speculative_config" not in plain
    assert drafting["num_gpu_blocks_override"] - plain["num_gpu_blocks_override"] == 4 * 16 // 32
    assert drafting["speculative_config"]["num_speculative_tokens"] == 16


def test_values_of_responses_are_repeated_for_their_drafted_tokens() -> None:
    drafted = torch.tensor([2, 2, 5]).to(torch.int32)
    assert repeated(torch.tensor([0.0, 0.5, 0.7]), drafted, 5, 0, 1).tolist() == pytest.approx([1, 1, 0.7, 0.7, 0.7])
    assert repeated(torch.tensor([3, 4, 0]), drafted, 5).tolist() == [3, 3, 0, 0, 0]


# --- real vLLM --------------------------------------------------------------------------------------------------------


class Insists:
    """Drafts the same token again and again, right or wrong."""

    def __init__(self, token: int) -> None:
        self.token = token

    def start(self, response: int, prompt: int | None, prompt_ids: Any, history: Any, generated_ids: Any) -> None: ...

    def extend(self, response: int, tokens: Sequence[int]) -> None: ...

    def draft(self, response: int, most: int) -> list[int]:
        return [self.token] * most

    def remove(self, response: int) -> None: ...


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def call(weights: Path) -> Iterator[Call]:
    """Runs a function in a process with a replica that was started for drafts of four tokens."""
    yield from vllm_process(weights, FIXED)


def decode(
    folder: Path, wanted: Sequence[Request], sampling: Sampling, drafting: Drafting, every: int | None = None
) -> tuple[dict[int, Completion], list[Any], str | None]:
    """Completions, spans, and why drafts are off; after ``every`` iterations all responses are cut and come back."""
    engine = factory_of(folder, 0, sampling, drafting)(LATENCY, ROOMY)
    completions, spans, iterations = [], [], 0
    engine.add(wanted)
    while engine.running() or engine.waiting():
        progress = engine.step(engine.clock_s, lambda: engine.clock_s + 1.0)
        completions += progress.completions
        spans += progress.spans
        iterations += 1
        if every and iterations % every == 0:
            cut, _ = engine.cut(engine.clock_s)
            engine.add(cut)
    off = engine.drafts_off
    engine.close()
    return by_response(completions), spans, off


def assert_counted(found: dict[int, Completion], spans: Sequence[Any]) -> None:
    for c in found.values():
        assert c.passes + c.accepted_tokens == c.response_tokens
        assert c.accepted_tokens <= c.drafted_tokens
    decoded = [s for s in spans if s.phase == "decode"]
    assert sum(s.tokens for s in decoded) == sum(c.response_tokens for c in found.values())
    assert sum(s.drafted_tokens for s in decoded) == sum(c.drafted_tokens for c in found.values())
    assert sum(s.accepted_tokens for s in decoded) == sum(c.accepted_tokens for c in found.values())


@pytest.mark.full
@needs_vllm
def test_greedy_tokens_are_those_without_drafts(call: Call, weights: Path) -> None:
    """With drafts that are right, wrong or of siblings, of fixed or chosen lengths, and with responses that are cut."""
    folder, wanted = weights / "weights-0", requests(14)
    wanted[3], wanted[8] = replace(wanted[3], target_tokens=17), replace(wanted[8], target_tokens=1)
    plain = torch_engine(3)
    plain.add(wanted)
    expected = by_response(plain.advance(math.inf).completions)
    told = [replace(r, history=[expected[r.response].token_ids]) for r in wanted]
    alone = replace(FIXED, history="none")
    for drafting, every in ((FIXED, None), (FIXED, 3), (alone, None), (replace(FIXED, length="adaptive"), None)):
        found, spans, off = call(decode, folder, told, GREEDY, drafting, every)
        assert off is None
        assert {i: c.token_ids.tolist() for i, c in found.items()} == {i: c.token_ids.tolist() for i, c in expected.items()}
        for i, c in found.items():
            np.testing.assert_allclose(c.logprobs, expected[i].logprobs, atol=1e-4)
            assert c.finish_reason == expected[i].finish_reason
        assert_counted(found, spans)
    found, _, _ = call(decode, folder, told[:2], GREEDY, FIXED)
    for c in found.values():  # the first pass has no draft, and all drafts are right
        assert c.passes <= 1 + math.ceil((c.response_tokens - 1) / 5) + 1
    for token, why in ((VOCABULARY - 1, None), (VOCABULARY, f"the drafter Insists drafted {VOCABULARY}")):
        found, spans, off = call(decode, folder, wanted, GREEDY, replace(FIXED, drafter=Insists(token)))
        assert {i: c.token_ids.tolist() for i, c in found.items()} == {i: c.token_ids.tolist() for i, c in expected.items()}
        assert_counted(found, spans)
        assert off is None if why is None else off.startswith(why)
    assert sum(c.drafted_tokens for c in found.values()) == 0, "the drafter is switched off at its first draft"


@pytest.fixture(scope="module")
def call_ngram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Call, Path]]:
    """The same with vLLM's own ngram, and the folder of its weights."""
    root = tmp_path_factory.mktemp("ngram")
    for call in vllm_process(root, NGRAM):
        yield call, root / "weights-0"


@pytest.mark.full
@needs_vllm
def test_vllms_own_ngram_keeps_greedy_tokens(call_ngram: tuple[Call, Path]) -> None:
    """Prompts that repeat themselves, so that their text is a source of drafts; with responses that are cut, and not."""
    call, folder = call_ngram
    wanted = [replace(r, prompt_ids=np.resize(r.prompt_ids[:5], r.prompt_tokens)) for r in requests(8)]
    plain = torch_engine(3)
    plain.add(wanted)
    expected = by_response(plain.advance(math.inf).completions)
    for every in (None, 3):
        found, spans, off = call(decode, folder, wanted, GREEDY, NGRAM, every)
        assert off is None
        assert {i: c.token_ids.tolist() for i, c in found.items()} == {i: c.token_ids.tolist() for i, c in expected.items()}
        assert_counted(found, spans)
        assert sum(c.drafted_tokens for c in found.values()) >= sum(c.accepted_tokens for c in found.values()) > 0


@pytest.mark.full
@needs_vllm
def test_drafts_keep_the_distribution_of_tokens(call: Call, weights: Path) -> None:
    """Second and third tokens of many responses, drafted as the likeliest one: Pearson's statistic, which exceeds this limit
    once in 100,000 times if the draws are right; they are the same in every run."""
    prompt, count, sampling = np.array([7, 11, 5], dtype=np.int64), 1500, Sampling(temperature=0.7, top_k=20)
    tokens, begin = torch.arange(VOCABULARY), torch.tensor(prompt)
    pairs = torch.cartesian_prod(tokens, tokens)
    first = shares_after(begin[None], sampling)[0]
    second = shares_after(torch.cat([begin.expand(VOCABULARY, -1), tokens[:, None]], 1), sampling)
    third = shares_after(torch.cat([begin.expand(len(pairs), -1), pairs], 1), sampling)
    goes_on = np.arange(VOCABULARY) != EOS
    joint = (first * goes_on)[:, None] * second
    expected = [joint.sum(0), ((joint * goes_on).reshape(-1, 1) * third).sum(0)]
    drafting = replace(FIXED, drafter=Insists(int(expected[0].argmax())))
    wanted = [Request(i, 3, 3, prompt_ids=prompt, seed=i, prompt=0) for i in range(count)]
    found, spans, _ = call(decode, weights / "weights-0", wanted, sampling, drafting)
    assert_counted(found, spans)
    accepted = sum(c.accepted_tokens for c in found.values())
    assert 0 < accepted < sum(c.drafted_tokens for c in found.values())
    for place, shares in enumerate(expected, start=1):
        drawn = np.bincount([c.token_ids[place] for c in found.values() if len(c.token_ids) > place], minlength=VOCABULARY)
        assert_drawn_from(drawn, shares * count)


def shares_after(contexts: torch.Tensor, sampling: Sampling) -> np.ndarray:
    """What each context is continued with: probabilities by token."""
    with torch.no_grad():
        logits = model_of(3)(contexts).logits[:, -1].double() / sampling.temperature
    logits[logits < logits.topk(sampling.top_k).values[:, -1:]] = -math.inf
    return torch.softmax(logits, -1).numpy()


def assert_drawn_from(drawn: np.ndarray, expected: np.ndarray) -> None:
    """Pearson's test; what is expected less than five times, and responses that ended before, are one cell."""
    common = expected >= 5
    cells = [*zip(drawn[common], expected[common], strict=True), (drawn[~common].sum(), expected[~common].sum())]
    statistic = sum((d - e) ** 2 / e for d, e in cells if e > 0)
    freedom = len(cells) - 1
    assert freedom >= 8
    assert statistic < freedom + 4.27 * math.sqrt(2 * freedom) + 12
