"""Decoding speed of the torch engine by batch size, beside that of another checkout, in turns.

Each round decodes a batch of equal responses (40 tokens after a prompt of 32, 300 or 420) with Qwen2 models of random weights
in float32, with one thread. Both checkouts have a process of their own, and their rounds alternate, so that both meet the same
machine. Seconds are CPU time. Ratios are medians over rounds; below 1 is slower than before.

Run: ``python tests/benchmarks/engine_rows.py --before CHECKOUT [--rounds 5] [--json OUT]``; other kernels are measured with a
variable of the environment, such as ``MKL_ENABLE_INSTRUCTIONS=AVX2``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
ROWS = (1, 4, 8, 32, 128)
PROMPTS, TOKENS = (32, 300, 420), 40


def serve(size: str) -> None:
    """Decode a batch for each line ``ROWS PROMPT`` that comes, and print the CPU seconds that it took."""
    import torch
    from torch_engine_speed import EOS, VOCAB, model

    from rlhfless.engine.protocol import Request
    from rlhfless.engine.torch.engine import TorchEngine
    from rlhfless.engine.torch.model import DecoderModel
    from solver.model.admission import Admission

    torch.set_num_threads(1)
    decoder = DecoderModel(model(size))
    ids = np.random.default_rng(0).integers(1, VOCAB, 512)
    for line in sys.stdin:
        rows, prompt = map(int, line.split())
        engine = TorchEngine(decoder, Admission(rows, 1 << 30), "measured", eos_id=EOS)
        asked = [
            Request(i, prompt, TOKENS, target_tokens=TOKENS, prompt_ids=ids[:prompt], prompt=0, shares_prompt=True, seed=i)
            for i in range(rows)
        ]
        engine.add(asked)
        engine.commit_next()  # with the prefill
        start = time.process_time()
        engine.advance(math.inf)
        print(time.process_time() - start, flush=True)
        engine.close()


def process(folder: Path, size: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, str(HERE), "--serve", size]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def seconds(running: subprocess.Popen[str], rows: int, prompt: int) -> float:
    assert running.stdin is not None
    assert running.stdout is not None
    print(rows, prompt, file=running.stdin, flush=True)
    return float(running.stdout.readline())


def compare(before: Path, size: str, rows: int, prompt: int, rounds: int, pair: list[subprocess.Popen[str]]) -> dict[str, Any]:
    """Return the medians of both checkouts, and of the ratio of neighbouring rounds; the first round warms up."""
    took = [[seconds(running, rows, prompt) for running in pair] for _ in range(rounds + 1)][1:]
    old, new = (statistics.median(column) for column in zip(*took, strict=True))
    ratios = sorted(a / b for a, b in took)
    return {
        "model": size, "rows": rows, "prompt": prompt, "before_ms": 1e3 * old / TOKENS, "now_ms": 1e3 * new / TOKENS,
        "ratio": statistics.median(ratios), "ratios": [ratios[0], ratios[-1]],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, default=HERE.parents[2], help="checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="one small case: tries the script, its numbers say nothing")
    parser.add_argument("--serve", metavar="SIZE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    found = []
    print("model  rows  prompt  before, ms per iteration    now  speed now / before (least, most)")
    for size in ["0.5M"] if options.tiny else ["0.5M", "4M"]:
        pair = [process(folder, size) for folder in (options.before.resolve(), HERE.parents[2])]
        for prompt in PROMPTS[:1] if options.tiny else PROMPTS:
            for rows in ROWS[:1] if options.tiny else ROWS:
                row = compare(options.before, size, rows, prompt, 1 if options.tiny else options.rounds, pair)
                found.append(row)
                print(
                    f"{size:>5} {rows:>5} {prompt:>7} {row['before_ms']:>25.2f} {row['now_ms']:>6.2f}  {row['ratio']:.2f} "
                    f"({row['ratios'][0]:.2f}, {row['ratios'][1]:.2f})",
                    flush=True,
                )
        for running in pair:
            running.communicate()
    if options.json:
        kernels = {name: os.environ.get(name) for name in ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ATEN_CPU_CAPABILITY")}
        options.json.write_text(json.dumps({"kernels": kernels, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
