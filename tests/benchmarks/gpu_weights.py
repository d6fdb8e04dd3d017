"""Weights from the learner's GPU to a vLLM replica on another one, a part of `gpu_engine.py`: by NCCL, and by a folder.

It needs two GPUs and vLLM, and says what is missing where it does not run. Each way runs a pool of one actor for ``STEPS``
steps with other weights in each. The seconds and bytes are those of the trace's span ``sync``, in the actor. Publishing is
timed in the learner: the folder is written there. In the first step the replica starts with the folder's weights, or makes the
group of NCCL. Greedy tokens of the two ways have to be equal: both send the same weights. Modules that need more than the other
parts are imported where they are used.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from typing import Any

import numpy as np
import torch
from gpu_checks import ragged_prompts

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.sampling import Sampling
from rlhfless.latency.measure import CausalLM
from solver import Cluster, LatencyModel, Plan
from solver.model.plan import ActorPlan

STEPS, TOKENS = 3, 32
SHARE = 0.4  # of a GPU's memory, beside the model of the other parts
LATENCY = LatencyModel("by hand", 1, 1e-2, 0.0, max_batch=8, kv_capacity_tokens=1 << 14)


def missing(device: str) -> str | None:
    """Why weights cannot be sent between GPUs here; None where they can."""
    if not device.startswith("cuda"):
        return "NCCL sends between GPUs, and this is the CPU"
    if (count := torch.cuda.device_count()) < 2:
        return f"NCCL sends between GPUs, and there is {count}"
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed"
    return None


def weights_by_ways(lm: CausalLM, device: str) -> dict[str, Any]:
    """Seconds and bytes of each way; raises where tokens differ."""
    if why := missing(device):
        return {"skipped": why}
    from rlhfless.training.sending_gpu import THIS_MACHINE
    from rlhfless.training.weight_sync import FolderSync, NcclSync

    precision = str(lm.model.dtype).removeprefix("torch.")
    learner = copy.deepcopy(lm.model).to(torch.device("cuda", torch.cuda.device_count() - 1))
    ways: dict[str, Any] = {"folder": FolderSync(), "nccl": NcclSync(THIS_MACHINE, lm.model.dtype)}
    found: dict[str, Any] = {"model": lm.name, "precision": precision}
    tokens: dict[str, Any] = {}
    for way, sync in ways.items():
        found[way], tokens[way] = synced(learner, sync, ["cuda:0"], precision)
    found["ratio"] = found["folder"][-1]["seconds"] / found["nccl"][-1]["seconds"]
    found["equal_tokens"] = tokens["folder"] == tokens["nccl"]
    print(f"the folder takes {found['ratio']:.2f} times as long as NCCL")
    if not found["equal_tokens"]:
        raise AssertionError("weights that came by NCCL give other tokens than those of the folder")
    return found


def synced(learner: Any, sync: Any, devices: list[str], precision: str) -> tuple[list[dict[str, float]], list[list[list[int]]]]:
    """Steps of one actor, with other weights in each.

    Args:
        learner: a copy of it is changed from step to step. sync: a ``WeightSync``. devices: of the actor; none for the CPU.

    Returns:
        Seconds and bytes by step, and the greedy tokens of every step's responses.
    """
    from rlhfless.executor import ProcessPool
    from rlhfless.training.engines import VllmEngines

    model = copy.deepcopy(learner)
    prompts = ragged_prompts(model.config.vocab_size)
    longest = max(map(len, prompts)) + TOKENS
    options = {"gpu_memory_utilization": SHARE} if devices else {}
    engines = VllmEngines(0, longest, Sampling(temperature=0), precision, sync, options=options)
    actor = ActorPlan("gpu", (0,), 0, tuple(range(len(prompts))), (), LATENCY.max_batch)
    plan = Plan((actor,), "by hand", 0.0, 0.0, 0.0)
    steps, tokens = [], []
    try:
        with ProcessPool(devices) as pool:
            for step in range(STEPS):
                with torch.no_grad():
                    model.get_input_embeddings().weight.copy_(learner.get_input_embeddings().weight.roll(step, 0))
                began_s = time.perf_counter()
                factory = engines.of_step(model, step)
                published_s = time.perf_counter() - began_s
                asked = [
                    Request(i, len(ids), TOKENS, target_tokens=TOKENS, prompt_ids=ids, seed=i) for i, ids in enumerate(prompts)
                ]
                record = pool.run_step(plan, asked, factory, LATENCY, Cluster(1, 1, 1), step=step)
                (span,) = [span for span in record.spans if span["phase"] == "sync"]
                received_s = span["end_s"] - span["start_s"]
                seconds = published_s + received_s
                steps.append(
                    {"publish_s": published_s, "receive_s": received_s, "seconds": seconds, "bytes": int(span["bytes"])}
                )
                tokens.append([np.asarray(record.completions[i].token_ids).tolist() for i in range(len(prompts))])
                engines.release()
                print(f"{type(sync).__name__}, step {step}: {seconds:.3f} s for {span['bytes']:,} bytes", flush=True)
    finally:
        engines.close()
    return steps, tokens
