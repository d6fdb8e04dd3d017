"""Peak memory of the learner's processes while they load a model: per process, beside what their shards take.

    python tests/benchmarks/learner_memory.py --json results/learner_memory.json

A random Qwen2 of 152 million weights is sharded over two processes of this machine (FSDP2 over gloo), with and without a
reference model. The peak is the largest resident memory (VmHWM) of a process once all have loaded, minus that of a process
that loads a model of next to no weights. Shared pages count in each process that has touched them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhfless.training.learner.process_group import make_learner

SIZE = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "num_attention_heads": 12, "vocab_size": 50304}
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}


def peak_bytes(pid: int) -> int:
    """Largest resident memory of a process so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def loaded(size: dict[str, int], processes: int, kl_coef: float) -> tuple[list[int], int]:
    """Peaks of the processes after loading, and the bytes of one model."""
    heads = size["num_attention_heads"]
    config = Qwen2Config(**size, num_key_value_heads=heads, tie_word_embeddings=True, dtype="float32")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    learner: Any = make_learner("grpo", model, processes=processes, learning_rate=1e-5, kl_coef=kl_coef)
    try:
        learner.begin()
        return [peak_bytes(pid) for pid in learner.pids], sum(p.numel() * 4 for p in model.parameters())
    finally:
        learner.close()


def main() -> None:
    """Print a line per case, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a model of next to no weights, which says nothing")
    parser.add_argument("--json", type=Path, help="file of the results")
    given = parser.parse_args()
    rows = []
    for kl_coef in (0.0, 0.1):
        nothing, _ = loaded(TINY, given.processes, kl_coef)
        peaks, model_bytes = loaded(TINY if given.tiny else SIZE, given.processes, kl_coef)
        models = 2 if kl_coef else 1
        over = [peak - min(nothing) for peak in peaks]
        shard = models * model_bytes // given.processes
        rows.append({"reference": bool(kl_coef), "model_bytes": model_bytes, "shard_bytes": shard, "peak_bytes": over})
        peaks_mib = ", ".join(f"{peak / 2**20:.0f}" for peak in over)
        print(
            f"{'with' if kl_coef else 'without'} reference: peaks of {peaks_mib} MiB by rank; shards take "
            f"{shard / 2**20:.0f} MiB, a whole model {model_bytes / 2**20:.0f} MiB"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
