"""Milliseconds of a decode iteration of the torch engine, beside transformers' own ``generate`` on the same prompts.

A Qwen2 model with random weights (hidden 128, 4 layers, vocabulary 32), prompts of 20 tokens, responses of a forced length,
float32, one thread for both. Run: ``python tests/benchmarks/torch_engine_speed.py [response_tokens]``
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch_engine import TorchEngine
from rlhfless.engine.torch_forward import RowModel
from solver.admission import Admission

PROMPT_TOKENS, EOS = 20, 0


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=512, max_position_embeddings=512, tie_word_embeddings=True, pad_token_id=EOS, eos_token_id=EOS,
        bos_token_id=None, initializer_range=128**-0.5,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def engine_s(rows: RowModel, prompts: np.ndarray, tokens: int) -> float:
    engine = TorchEngine(rows, Admission(len(prompts), 1 << 30), "measured", eos_id=EOS)
    engine.add([Request(i, PROMPT_TOKENS, tokens, target_tokens=tokens, prompt_ids=p, seed=i) for i, p in enumerate(prompts)])
    start = time.perf_counter()
    engine.advance(math.inf)
    return time.perf_counter() - start


def generate_s(hf: Qwen2ForCausalLM, prompts: np.ndarray, tokens: int) -> float:
    ids = torch.from_numpy(prompts)
    start = time.perf_counter()
    with torch.inference_mode():
        out = hf.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens
        )
    assert out.shape[1] == PROMPT_TOKENS + tokens
    return time.perf_counter() - start


def main(tokens: int) -> None:
    torch.set_num_threads(1)
    hf = model()
    rows = RowModel(hf)
    print(f"bit-stable from {rows.stable_rows} rows on; contexts of {PROMPT_TOKENS} to {PROMPT_TOKENS + tokens} tokens")
    print(f"{'batch':>5} {'engine ms':>10} {'generate ms':>12} {'ratio':>6}   (per iteration, prefill included, best of 3)")
    for batch in (1, 4, 8, 16, 32, 64):
        prompts = np.random.default_rng(0).integers(1, 32, (batch, PROMPT_TOKENS))
        engine_s(rows, prompts, 8)
        generate_s(hf, prompts, 8)
        ours = min(engine_s(rows, prompts, tokens) for _ in range(3)) / tokens * 1e3
        theirs = min(generate_s(hf, prompts, tokens) for _ in range(3)) / tokens * 1e3
        print(f"{batch:>5} {ours:>10.2f} {theirs:>12.2f} {theirs / ours:>6.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
