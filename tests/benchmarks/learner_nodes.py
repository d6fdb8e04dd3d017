"""Three GRPO updates of a model of 0.5B shape, sharded over two Ray nodes of this machine (FSDP2 over gloo): time and memory.

    python tests/benchmarks/learner_nodes.py --json results/learner_nodes.json

The model is random, with the shape of Qwen2.5-0.5B. Ray places two processes on two nodes with logical resources, and each
computes with one thread. Batches are random tokens with random rewards. Peaks are the largest resident memory (VmHWM) of each
process; that of the first one has the pages of the whole weights that it shares with the trainer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learner_memory import TINY, peak_bytes
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from ray_samples import two_nodes

from rlhfless.executor.distributed.ray.cluster import RayCluster
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.learner.process_group import make_learner

SIZE = {
    "hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936,
}  # fmt: skip
OPTIONS: dict[str, Any] = {"learning_rate": 1e-5, "kl_coef": 0.0, "gradient_checkpointing": True}
PROMPT, RESPONSE, RESPONSES = 8, 24, 4


def batch(step: int, vocabulary: int) -> Batch:
    """Random responses to two prompts."""
    rng = np.random.default_rng(step)
    prompts, responses = (rng.integers(2, vocabulary, (RESPONSES, size)).tolist() for size in (PROMPT, RESPONSE))
    return Batch(prompts, responses, rng.random(RESPONSES), np.repeat([0, 1], RESPONSES // 2))


def main() -> None:
    """Print a line per step, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a model of next to no weights, which says nothing")
    parser.add_argument("--json", type=Path, help="file of the results")
    given = parser.parse_args()
    config = Qwen2Config(**(TINY if given.tiny else SIZE), tie_word_embeddings=True, dtype="float32")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    with two_nodes() as nodes:
        cluster = RayCluster(nodes.address, runtime_env={})
        learner: Any = make_learner("grpo", model, processes=2, placement="ray", **OPTIONS)
        try:
            began = time.perf_counter()
            learner.begin()  # starts the processes
            row: dict[str, Any] = {"weights": sum(p.numel() for p in model.parameters()), "load_s": time.perf_counter() - began}
            row |= {"nodes": len(set(learner._group.nodes)), "peak_loaded_bytes": [peak_bytes(pid) for pid in learner.pids]}
            row["steps"] = []
            for step in range(given.steps):
                numbers = learner.learn(batch(step, config.vocab_size))
                row["steps"].append({"seconds": numbers["seconds"], "loss": numbers["loss"], "grad_norm": numbers["grad_norm"]})
                print(f"step {step}: {row['steps'][-1]}", flush=True)
            row["peak_bytes"] = [peak_bytes(pid) for pid in learner.pids]
        finally:
            learner.close()
            cluster.close()
    print(row)
    if given.json is not None:
        given.json.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
