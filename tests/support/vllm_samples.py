"""A tiny model for real vLLM, a process that runs it, and a stand-in for the tests of what needs no tokens.

The model is the project's own with heads as wide as vLLM's CPU build needs them (a multiple of 32). vLLM changes the process
that it runs in (threads, environment), so it never starts in that of the tests: ``vllm/worker_backend`` calls functions in
another.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import multiprocessing
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.vllm import adapter as vllm_adapter
from rlhfless.engine.vllm import start_up
from rlhfless.engine.vllm.engine import VllmEngine
from rlhfless.engine.vllm.factory import VllmEngineFactory
from rlhfless.engine.vllm.iteration import NewResponse, StepOutput
from rlhfless.engine.vllm.kv_blocks import BlocksKV
from rlhfless.engine.vllm.start_up import VllmSettings
from rlhfless.engine.vllm.weight_folders import write_weights
from rlhfless.executor import Lifecycle, StepRecord
from rlhfless.executor.distributed.pool.lifecycle import StepHistory
from rlhfless.system.scratch_folders import SHARED_MEMORY
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel
from solver.model.runtime_rules import ActorView, Decision, Move, StepState, Trigger

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed; `make test-full` installs its CPU build"
)
EOS = CharTokenizer().eos_token_id
LIMIT, LONGEST, VOCABULARY = 48, 160, CharTokenizer().vocab_size
GREEDY = Sampling(temperature=0)
LATENCY = LatencyModel("tiny", 1, 2e-3, 40e-6, 100e-9, max_batch=6, kv_capacity_tokens=1 << 20)
ROOMY = Admission(6, 1 << 20)


def model_of(seed: int) -> Any:
    return tiny_qwen2(CharTokenizer(), seed, hidden=128, layers=2, heads=4, kv_heads=2, intermediate=256)


def factory_of(folder: Path, version: int, sampling: Sampling = GREEDY, drafting: Drafting | None = None) -> VllmEngineFactory:
    """An iteration computes no more prompt tokens than the longest context has, so most prompts of a batch have to wait."""
    few = {"max_num_batched_tokens": LONGEST}
    return VllmEngineFactory(
        str(folder), version, EOS, LONGEST, sampling, dtype="float32", eager=True, options=few, drafting=drafting
    )


def requests(count: int = 10, limit: int = LIMIT, longest: int = 80) -> list[Request]:
    """Prompts of many lengths, some of them twice."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(2, 30, size=int(rng.integers(1, longest))).astype(np.int64) for _ in range(count)]
    return [Request(i, len(prompts[i // 2]), limit, prompt_ids=prompts[i // 2], seed=i, prompt=i // 2) for i in range(count)]


def torch_engine(seed: int, sampling: Sampling = GREEDY, admission: Admission = ROOMY) -> TorchEngine:
    return TorchEngine(DecoderModel(model_of(seed), LONGEST), admission, LATENCY, eos_id=EOS, sampling=sampling)


def by_response(completions: Sequence[Completion]) -> dict[int, Completion]:
    assert len({c.response for c in completions}) == len(completions), "a response completed twice"
    return {c.response: c for c in completions}


@dataclass
class Shuffle:
    """Whenever something completes while both actors decode, some responses change places."""

    name: str = "shuffle"
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        decoding = [any(state.generated_tokens[r] > 0 for r in actor.running) for actor in state.actors]
        if sum(decoding) < 2:
            return []
        moves: list[Decision] = []
        for one, other in itertools.permutations(state.actors, 2):
            moves += [Move(int(r), other.actor) for r in self.rng.permutation(one.unfinished)[:2]]
        return moves


class RightAfter:
    """Expects the next step so soon that its actors start when the last one is over, and not before, so that none is kept."""

    def next_start_s(self, history: StepHistory) -> float | None:
        over = len(history.generated_s) == len(history.starts_s)
        return history.generated_s[-1] + history.start_s if over else None


AHEAD = Lifecycle(idle_timeout_s=0.0, prewarm=RightAfter(), patience_s=600.0)


def start_s(record: StepRecord, holder: str) -> float:
    return sum(s["end_s"] - s["start_s"] for s in record.spans if s["holder"] == holder and s["phase"] == "start")


def assert_handed_over(record: StepRecord) -> None:
    """KV states arrive as they were sent, and what came with one is not computed again."""
    sent, received = ([s for s in record.spans if s["phase"] == phase] for phase in ("migrate", "transfer"))
    assert sum(s["bytes"] for s in sent) == sum(s["bytes"] for s in received) > 0
    assert {s["from_actor"] for s in received} <= {s["holder"] for s in sent}


# --- a process that runs vLLM -----------------------------------------------------------------------------------------


def vllm_process(root: Path, drafting: Drafting | None = None) -> Iterator[Callable[..., Any]]:
    """``call(function, *arguments)`` runs a function in a process with a running replica of ``model_of(3)``, version 0."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as there:
        there.submit(_start, write_weights(model_of(3), root, 0), drafting).result()
        yield lambda function, *arguments: there.submit(function, *arguments).result()
        with contextlib.suppress(BrokenProcessPool):  # vLLM takes seconds to put its memory in order, which ends with it
            there.submit(os._exit, 0).result()


def _start(folder: Path, drafting: Drafting | None) -> None:
    from rlhfless.engine.vllm import worker_backend as vllm_process

    backend = vllm_process.Backend()
    backend.use_device("cpu")
    assert backend.start_server(factory_of(folder, 0, drafting=drafting), LATENCY)


def shared_memory_of(pids: Iterable[int]) -> set[Path]:
    """Shared memory that they have mapped, by whatever name it was."""
    inodes = set()
    for pid in pids:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        inodes |= {int(line.split()[4]) for line in lines if f"{SHARED_MEMORY}/" in line}
    return {file for file in SHARED_MEMORY.iterdir() if file.stat().st_ino in inodes}


# --- stand-ins --------------------------------------------------------------------------------------------------------


def token_after(context_tokens: int, forced: bool) -> int:
    """The end of text in one case of eleven."""
    return EOS if not forced and context_tokens % 11 == 10 else 2 + context_tokens % 20


class ScriptedReplica:
    """Draws what depends on the length of the context alone, so that it does not matter who was cut when: ``token_after``."""

    def __init__(self, slots: int, kv_tokens: int, hands_over: bool) -> None:
        self.hands_over, self.vocabulary, self.token_budget, self.block_tokens = hands_over, VOCABULARY, 2048, 8
        self.settings, self.version, self.talked_s = VllmSettings(1, slots, kv_tokens, LONGEST), 0, 0.0
        self.here: dict[str, dict[str, Any]] = {}
        self.fed_tokens: dict[str, int] = {}
        self.drafting: Drafting | None = None
        self.drafts_off: str | None = None
        self.rng = np.random.default_rng(3)  # of how many drafted tokens are right

    def draft_with(self, drafting: Drafting | None, latency: LatencyModel | None = None) -> None:
        self.drafting = drafting

    def add(self, new: NewResponse, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        assert new.name not in self.here, "a name is used twice"
        tokens = len(new.ids)
        there = 0 if new.kv is None else min(new.kv.tokens, (tokens - 1) // 8 * 8)  # as the connector: the last is computed
        self.here[new.name] = {"tokens": tokens, "left": new.tokens, "forced": new.forced, "missing": tokens - there}
        assert new.prompt_tokens <= tokens
        assert len(self.here) <= self.settings.slots, "more responses than slots"

    def step(self) -> list[StepOutput]:
        held = sum(one["tokens"] for one in self.here.values())
        assert len(self.here) == 1 or held <= self.settings.kv_tokens, "more KV tokens than there is memory for"
        drawn = []
        self.fed_tokens = {name: one.pop("missing", 1) for name, one in self.here.items()}
        for name, one in list(self.here.items()):
            decodes = self.drafting is not None and one.pop("decodes", False)
            drafted = min(self.drafting.max_draft_tokens, one["left"] - 1) if decodes else 0
            ids: list[int] = []
            for _ in range(1 + (int(self.rng.integers(drafted + 1)) if drafted else 0)):
                ids.append(token_after(one["tokens"], one["forced"]))
                one["tokens"] += 1
                if ids[-1] == EOS:
                    break
            one["left"] -= len(ids)
            one["decodes"] = True
            if finished := one["left"] == 0 or ids[-1] == EOS:
                del self.here[name]
            drawn.append(StepOutput(name, ids, [-0.5] * len(ids), finished, drafted))
        return drawn

    def abort(self, names: Sequence[str]) -> None:
        for name in names:
            self.here.pop(name, None)

    def hand_over(self, names: Sequence[str]) -> dict[str, BlocksKV]:
        """Blocks of 8 tokens; what is in them does not matter."""
        full = {name: (self.here[name]["tokens"] - 1) // 8 for name in names if name in self.here}
        self.abort(names)
        return {
            name: BlocksKV({"layer": torch.zeros(count, 1)}, 8) for name, count in full.items() if count and self.hands_over
        }

    def load(self, folder: Path, version: int) -> None:
        self.version = version

    def sleep(self) -> None:
        self.version = None


def scripted(admission: Admission, hands_over: bool = False, drafting: Drafting | None = None) -> VllmEngine:
    replica: Any = ScriptedReplica(admission.max_batch, admission.kv_capacity_tokens, hands_over)
    return VllmEngine(replica, admission, eos_id=EOS, drafting=drafting, latency=LATENCY)


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, says: str) -> list[dict[str, Any]]:
    """A vLLM whose engine says something when it is started; returns what engines were asked for."""
    asked: list[dict[str, Any]] = []

    class Engine:
        @staticmethod
        def from_engine_args(arguments: object) -> None:
            raise ValueError(says)

    vllm, parts = types.ModuleType("vllm"), types.ModuleType("vllm.sampling_params")
    vllm.LLMEngine, vllm.EngineArgs = Engine, lambda **arguments: asked.append(arguments)  # type: ignore[attr-defined]
    parts.RequestOutputKind = types.SimpleNamespace(DELTA=0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", parts)
    monkeypatch.setattr(vllm_adapter, "check_version", lambda: "0.32")
    monkeypatch.setattr(start_up, "_connector", lambda: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return asked
