"""Ways to decode prompts greedily for `vllm_drafts.py`: the torch engine and vLLM, without and with drafts, one thread each.

Knows the engines. They are imported in the process that decodes, as vLLM reads its environment when it is imported.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

MODEL = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"
LONGEST = 400  # prompt and response
MOST = 8  # tokens of a draft
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 12}
NGRAM = {"method": "ngram", "num_speculative_tokens": MOST, **LOOKUP}


@dataclass(frozen=True)
class Asked:
    """A prompt's token ids, and those of its earlier responses."""

    prompt: np.ndarray
    earlier: Sequence[np.ndarray]


@dataclass(frozen=True)
class Answers:
    """Token ids of every response, and the passes that all together took (one each per token without drafts)."""

    ids: list[list[int]]
    passes: int


Decode = Callable[[Sequence[Asked], int], Answers]  # prompts, and how many responses are in the batch


@cache
def shipped_prompts() -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """Prompts of the shipped run with the responses of their last visit."""
    from draft_speed import Contest

    return Contest().groups


def prompts_of(count: int, number: int) -> list[Asked]:
    """Prompts of the shipped run for one round, each once where there are enough."""
    groups = shipped_prompts()
    chosen = np.random.default_rng(0).permutation(len(groups))
    return [Asked(*groups[chosen[(number * count + i) % len(groups)]]) for i in range(count)]


def drafting_of(way: str) -> Any:
    """How our drafter drafts; None: not at all."""
    from solver import Drafting

    if not way.endswith(("own", "earlier")):
        return None
    return Drafting(max_draft_tokens=MOST, history="last" if way.endswith("earlier") else "none", siblings=False)


def requests_of(asked: Sequence[Asked], limit: int) -> list[Any]:
    """As requests of an engine."""
    from rlhfless.engine.protocol import Request

    return [
        Request(i, len(a.prompt), limit, prompt_ids=a.prompt, prompt=i, seed=i, history=a.earlier) for i, a in enumerate(asked)
    ]


def answers_of(completions: Sequence[Any]) -> Answers:
    """What an engine completed."""
    done = sorted(completions, key=lambda c: c.response)
    passes = sum(c.response_tokens if c.passes is None else c.passes for c in done)
    return Answers([c.token_ids.tolist() for c in done], passes)


def torch_way(way: str, slots: int, limit: int, weights: Path) -> Decode:
    """The torch engine on one thread."""
    import torch

    from rlhfless.engine.common.engine_drafts import EngineDrafts
    from rlhfless.engine.torch.engine import TorchEngine
    from rlhfless.engine.torch.iteration_clock import MEASURED
    from rlhfless.engine.torch.model import DecoderModel
    from rlhfless.engine.torch.pretrained import load_model
    from rlhfless.engine.torch.sampling import Sampling
    from rlhfless.latency import load_profile
    from solver import Admission

    torch.set_num_threads(1)
    model, tokenizer = load_model(str(MODEL), "cpu")
    rows, latency, drafting = DecoderModel(model, LONGEST), load_profile("cpu-tiny-qwen2"), drafting_of(way)
    end = tokenizer.eos_token_id

    def decode(asked: Sequence[Asked], size: int) -> Answers:
        admission = Admission(size, 1 << 30)
        drafts = None if drafting is None else EngineDrafts(drafting, latency, admission, rows.vocabulary, end)
        engine = TorchEngine(rows, admission, MEASURED, eos_id=end, sampling=Sampling(temperature=0), drafting=drafts)
        engine.add(requests_of(asked, limit))
        return answers_of(engine.advance(math.inf).completions)

    return decode


def weights_for_vllm(folder: Path) -> Path:
    """Write the shipped weights as vLLM reads them, below a folder."""
    from rlhfless.engine.torch.pretrained import load_model
    from rlhfless.engine.vllm.weight_folders import write_weights

    return write_weights(load_model(str(MODEL), "cpu")[0], folder, 0)


def vllm_way(way: str, slots: int, limit: int, weights: Path) -> Decode:
    """vLLM's own interface on one thread, with its own method or none."""
    return vllm_with(NGRAM if way.endswith("ngram") else None, slots, limit, weights)


def vllm_with(speculation: dict[str, Any] | None, slots: int, limit: int, weights: Path) -> Decode:
    """vLLM's ``LLM`` with a ``speculative_config``."""
    from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
    from rlhfless.engine.torch.devices import compute_on
    from rlhfless.engine.vllm.start_up import VllmSettings, engine_arguments, prepare_environment

    compute_on("cpu")
    options: dict[str, Any] = {"disable_log_stats": False}
    if speculation is not None:
        options["speculative_config"] = speculation
    prepare_environment(True, (), weights.parent)
    os.environ["NUMBA_NUM_THREADS"] = "1"  # else numba, which looks n-grams up, gives torch's kernels two threads again
    import vllm

    most = MOST if speculation else 0
    settings = VllmSettings(1, slots, slots * LONGEST, LONGEST, dtype="float32", options=options, max_draft_tokens=most)
    model = vllm.LLM(**engine_arguments(settings, weights, on_cpu=True, eager=True, hands_over=False))
    end = CharTokenizer().eos_token_id
    sampling = vllm.SamplingParams(temperature=0, max_tokens=limit, stop_token_ids=[end], ignore_eos=True, detokenize=False)

    def accepted() -> int:
        return int(sum(m.value for m in model.get_metrics() if m.name == "vllm:spec_decode_num_accepted_tokens"))

    def decode(asked: Sequence[Asked], size: int) -> Answers:
        before, ids = accepted(), []
        for first in range(0, len(asked), size):
            prompts = [{"prompt_token_ids": a.prompt.tolist()} for a in asked[first : first + size]]
            ids += [list(out.outputs[0].token_ids) for out in model.generate(prompts, sampling, use_tqdm=False)]
        return Answers(ids, sum(map(len, ids)) - (accepted() - before))

    return decode


def our_drafts_in_vllm(way: str, slots: int, limit: int, weights: Path) -> Decode:
    """vLLM with our drafter, through our engine."""
    from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
    from rlhfless.engine.torch.sampling import Sampling
    from rlhfless.engine.vllm import worker_backend
    from rlhfless.engine.vllm.factory import VllmEngineFactory
    from rlhfless.latency import load_profile
    from solver import Admission

    worker_backend.use_device("cpu")
    latency = replace(load_profile("cpu-tiny-qwen2"), max_batch=slots, kv_capacity_tokens=slots * LONGEST)
    factory = VllmEngineFactory(
        str(weights), 0, CharTokenizer().eos_token_id, LONGEST, Sampling(temperature=0), dtype="float32", eager=True,
        drafting=drafting_of(way),
    )  # fmt: skip

    def decode(asked: Sequence[Asked], size: int) -> Answers:
        engine = factory(latency, Admission(size, slots * LONGEST))
        engine.add(requests_of(asked, limit))
        done: list[Any] = []
        while engine.running() or engine.waiting():
            done += engine.step(engine.clock_s, lambda: engine.clock_s + 1.0).completions
        engine.close()
        return answers_of(done)

    return decode


def decoder(way: str, slots: int, limit: int, weights: Path) -> Decode:
    """Return what decodes in a way.

    Args:
        slots: responses in a batch at most. limit: tokens of a response at most. weights: folder that vLLM reads.
    """
    makes = {"torch": torch_way, "vllm, our": our_drafts_in_vllm, "vllm": vllm_way}
    return next(make for start, make in makes.items() if way.startswith(start))(way, slots, limit, weights)
