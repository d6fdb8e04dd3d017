"""How often a token depends on the batch, on recomputation or on the precision: the measured side of the engine's promise.

In float32 on the CPU tokens are a function of weights, prompt and seed, bit for bit; in bfloat16, or on a GPU, they are so only
in distribution, because a matrix product of another shape rounds differently. Forced lengths, so that a flipped token ends
nothing early; a response counts from its first different token on. For every setting the same responses are decoded

- ``batch``: 64 at once, against one alone;
- ``recomputed``: cut in the middle and their context computed anew by prefill, against undisturbed.

Reported: share of responses that differ at all, and chance per token to be the first that differs (flips / tokens until then).
Run: ``python tests/benchmarks/flip_rate.py [--device cuda] [-o results.json] [--tiny]``
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.model import DecoderModel
from solver.model.admission import Admission
from solver.model.latency import LatencyModel

VOCAB, TOKENS, RESPONSES = 4096, 96, 64
CLOCK = LatencyModel("ticks", 1, base_s=1.0, per_response_s=0.0)


def rows(device: str, dtype: torch.dtype) -> DecoderModel:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=1024, max_position_embeddings=512, initializer_range=256**-0.5, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return DecoderModel(Qwen2ForCausalLM(config).eval().to(device, dtype), 256)


def requests(count: int) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(i, 20 + i % 30, TOKENS, target_tokens=TOKENS, prompt_ids=rng.integers(1, VOCAB, 20 + i % 30), seed=i)
        for i in range(count)
    ]


def decoded(model: DecoderModel, asked: list[Request], cut_after: int | None = None) -> dict[int, np.ndarray]:
    engine = TorchEngine(model, Admission(len(asked), 1 << 30), CLOCK, eos_id=0)
    engine.add(asked)
    if cut_after is not None:
        engine.advance(cut_after + 0.5)
        taken, _ = engine.cut(engine.clock_s)
        engine.add([replace(r, kv=None) for r in taken])
    return {c.response: c.token_ids for c in engine.advance(math.inf).completions if c.token_ids is not None}


def compared(a: dict[int, np.ndarray], b: dict[int, np.ndarray]) -> dict[str, float]:
    first = [int(np.argmax(a[i] != b[i])) if (a[i] != b[i]).any() else None for i in a]
    flips = sum(f is not None for f in first)
    until = sum(TOKENS if f is None else f + 1 for f in first)
    return {"responses_that_differ": flips / len(first), "flips_per_token": flips / until}


def rates(device: str, responses: int = RESPONSES) -> Iterator[dict[str, Any]]:
    """One row for each precision and setting."""
    for dtype in (torch.float32, torch.bfloat16):
        model = rows(device, dtype)
        together = decoded(model, requests(responses))
        alone = {i: ids for r in requests(responses) for i, ids in decoded(model, [r]).items()}
        again = decoded(model, requests(responses), cut_after=TOKENS // 2)
        for what, other in (("batch", alone), ("recomputed", again)):
            yield {"precision": str(dtype).removeprefix("torch."), "against": what, **compared(together, other)}


def print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['precision']:>9} {row['against']:>11}: {row['responses_that_differ']:.1%} of responses differ, "
        f"{row['flips_per_token']:.2e} per token"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    responses = 2 if options.tiny else RESPONSES
    torch.set_num_threads(1)
    found = []
    print(f"{responses} responses of {TOKENS} tokens on {options.device}")
    for row in rates(options.device, responses):
        found.append(row)
        print_row(row)
    if options.output:
        name = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine() + " CPU"
        about = {"device": name, "torch": importlib.metadata.version("torch"), "responses": responses, "tokens": TOKENS}
        options.output.write_text(json.dumps({**about, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
