"""The parts of `gpu_engine.py` that check: greedy tokens beside ``generate``, memory, and drafts.

Each part prints what it found and returns what goes into the result file. A check that fails raises, and the result says so.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np
import torch
from gpu_workload import LIMIT

from rlhfless.engine.common.engine_drafts import EngineDrafts
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.row_models import row_model
from rlhfless.latency.measure import CausalLM
from solver import LatencyModel
from solver.model.admission import Admission
from solver.model.drafting import Drafting

PROMPTS, TOKENS = 8, 48
LENGTHS = (0, 2, 4, 8)  # of drafts
DRAFTED = 16  # responses
MEMORY_ROWS = 64


def ragged_prompts(vocabulary: int, count: int = PROMPTS) -> list[np.ndarray]:
    """Prompts of different lengths, drawn."""
    rng = np.random.default_rng(2)
    return [rng.integers(1, vocabulary, 9 + 7 * i) for i in range(count)]


def greedy(lm: CausalLM) -> dict[str, Any]:
    """The engine's greedy tokens beside those of ``generate``, in the model's precision and in float32, by both forward passes.

    In float32 all have to be equal. In bfloat16 the two add in another order, and logits are often equal to the last bit that
    it has: the result says how many responses are equal, and, of the others, how far apart the two logits were in float32.

    Raises:
        AssertionError: A token differs in float32.
    """
    exact = copy.deepcopy(lm.model).float()
    found = {"prompts": PROMPTS, "tokens": TOKENS, "float32": beside_generate(exact, exact)}
    found["transformers, float32"] = beside_generate(exact, exact, "transformers")
    own = str(lm.model.dtype).removeprefix("torch.")
    if own != "float32":
        found[own] = beside_generate(lm.model, exact)
    print(found)
    for forward in ("float32", "transformers, float32"):
        if found[forward]["equal"] < PROMPTS:
            raise AssertionError(f"greedy tokens differ in float32: {found[forward]}")
    return found


def beside_generate(model: Any, exact: Any, forward: str = "own") -> dict[str, Any]:
    """How many responses are equal; of the others, the first different token and its margin.

    Args:
        exact: the model in float32, which tells the two tokens' logits apart. forward: see ``row_model``.
    """
    prompts = ragged_prompts(model.config.vocab_size)
    rows = row_model(forward, model, len(prompts[-1]) + TOKENS)
    engine = TorchEngine(rows, Admission(PROMPTS, 1 << 40), MEASURED, eos_id=0, sampling=Sampling(temperature=0))
    asked = [Request(i, len(p), TOKENS, target_tokens=TOKENS, prompt_ids=p, seed=i) for i, p in enumerate(prompts)]
    ours = _tokens(engine, asked)
    engine.close()
    rows.free()
    differ = []
    for prompt, tokens in zip(prompts, ours, strict=True):
        theirs = _generated(model, prompt)
        if theirs != tokens:
            at = next(i for i, (a, b) in enumerate(zip(theirs, tokens, strict=True)) if a != b)
            differ.append({"token": at, "margin": _margin(exact, [*prompt.tolist(), *tokens[:at]], theirs[at], tokens[at])})
    return {"equal": PROMPTS - len(differ), "different": differ}


def _generated(model: Any, prompt: np.ndarray) -> list[int]:
    ids = torch.from_numpy(prompt)[None].to(model.device)
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=TOKENS, max_new_tokens=TOKENS,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def _margin(exact: Any, ids: list[int], one: int, other: int) -> float:
    """Difference of two tokens' logits after these ids."""
    with torch.inference_mode():
        logits = exact(torch.tensor([ids], device=exact.device)).logits[0, -1]
    return float((logits[one] - logits[other]).abs())


def _tokens(engine: TorchEngine, asked: list[Request]) -> list[list[int]]:
    return [c.token_ids.tolist() for c in _completions(engine, asked)]  # type: ignore[union-attr]


def _completions(engine: TorchEngine, asked: list[Request]) -> list[Completion]:
    engine.add(asked)
    return sorted(engine.advance(math.inf).completions, key=lambda c: c.response)


def memory(lm: CausalLM) -> dict[str, Any]:
    """Bytes of weights and KV cache as plans count them, beside those that tensors take, and the device's where it tells.

    Raises:
        AssertionError: A plan counts fewer bytes than the tensors take.
    """
    before = torch.cuda.memory_allocated() if lm.device.type == "cuda" else None
    rows = DecoderModel(lm.model, LIMIT)
    cache = rows.new_cache()
    cache.reserve_rows(MEMORY_ROWS)
    device = None if before is None else torch.cuda.memory_allocated() - before
    found = {
        "weight_bytes": rows.weight_bytes, "weight_tensor_bytes": _tensor_bytes(lm.model),
        "kv_bytes": MEMORY_ROWS * rows.cells * rows.kv_bytes_per_token, "kv_tensor_bytes": cache.data.nbytes,
        "device_bytes": device,
    }  # fmt: skip
    cache.free()
    rows.free()
    print(found)
    for what in ("weight", "kv"):
        if found[f"{what}_bytes"] < found[f"{what}_tensor_bytes"]:
            raise AssertionError(f"{what}: plans count {found[f'{what}_bytes']:,} bytes, fewer than there are")
    return found


def _tensor_bytes(model: Any) -> int:
    storages = {w.untyped_storage().data_ptr(): w.untyped_storage() for w in model.parameters()}
    return sum(storage.nbytes() for storage in storages.values())


def drafts(lm: CausalLM, lengths: np.ndarray) -> dict[str, Any]:
    """Tokens per second with drafts of fixed lengths that are all accepted, against without: the most that drafts can bring.

    Each response drafts from itself, as it was decoded without drafts. On a GPU a pass over several tokens of a response may
    round otherwise than one over one token, so the result says how many responses have the same tokens.

    Args:
        lengths: of the responses, in tokens.
    """
    count = min(len(lengths), DRAFTED)
    vocabulary = lm.model.config.vocab_size
    prompts = np.random.default_rng(3).integers(1, vocabulary, (count, 64))
    rows = DecoderModel(lm.model, 64 + LIMIT + max(LENGTHS))
    plain: list[Completion] = []
    found: dict[str, Any] = {"responses": count, "tokens": int(lengths[:count].sum())}
    for length in LENGTHS:
        history = [[c.token_ids] for c in plain] or [()] * count
        asked = [
            Request(i, 64, LIMIT, target_tokens=int(n), prompt_ids=prompts[i], prompt=i, seed=i, history=history[i])
            for i, n in enumerate(lengths[:count])
        ]
        admission, source = Admission(count, 1 << 40), None
        if length:
            drafting = Drafting(length=length, siblings=False)
            source = EngineDrafts(drafting, LatencyModel(lm.kind, 1, 1.0, 0.0), admission, vocabulary, 0)
        engine = TorchEngine(rows, admission, MEASURED, eos_id=0, drafting=source)
        begin = time.perf_counter()
        done = _completions(engine, asked)
        seconds = time.perf_counter() - begin - engine.journal.prepare_s
        engine.close()
        plain = plain or done
        same = sum(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(plain, done, strict=True))
        passes = sum(c.passes or c.response_tokens for c in done)
        found[f"length {length}"] = {
            "seconds": seconds, "tokens_per_s": found["tokens"] / seconds, "passes": passes, "same_tokens": same,
        }  # fmt: skip
        print(f"drafts of {length}: {found['tokens'] / seconds:,.0f} tokens/s, {passes} passes, {same} of {count} the same")
    rows.free()
    return found
