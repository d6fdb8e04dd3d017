"""Generates the shipped GPU profiles from measured operator times: ``python -m rlhfless.latency.generate [NAME ...]``.

The operator times are those of ``rlhfless.latency.operators``: it runs offline and needs the extra ``rlhfless[profiles]``.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.latency.operators import (
    BYTES_PER_NUMBER,
    H100,
    L40S,
    LICENCE,
    LLAMA_70B,
    QWEN_3B,
    QWEN_7B,
    GpuKind,
    ModelConfig,
    all_reduce_ms,
    compile_engine,
)
from rlhfless.latency.profile import compose_profile, kv_capacity, load_profile, save_profile
from rlhfless.latency.shipped import ProfileError
from rlhfless.latency.timing import TimedChange
from solver.model.iteration_table import IterationTable
from solver.model.plurals import counted

BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
FED_TOKENS = (320, 384, 512, 640, 768, 1024, 1280, 1536, 1792, 2048)  # of mixed iterations with a full batch
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # KV tokens per fed token
MIXED_PROMPT_TOKENS = 256  # of the prompts that mixed iterations feed
PREFILL_PROMPTS = (1, 2, 4, 8, 16, 32)
PREFILL_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PREFILL_CALL_TOKENS = 8192
MAX_BATCH = 256
USABLE_FRACTION = 0.9
RESERVE_BYTES = 4 << 30
TRANSFER_BASE_S = 0.005


TARGETS: dict[str, tuple[ModelConfig, GpuKind, int]] = {
    "l40s-qwen2.5-3b-tp2": (QWEN_3B, L40S, 2),
    "l40s-qwen2.5-7b-tp4": (QWEN_7B, L40S, 4),
    "h100-qwen2.5-3b-tp1": (QWEN_3B, H100, 1),
    "h100-qwen2.5-3b-tp2": (QWEN_3B, H100, 2),
    "h100-llama2-70b-tp2": (LLAMA_70B, H100, 2),
}


def generate_profile(name: str, date: str) -> dict[str, Any]:
    """Return one profile of ``TARGETS``, ready for ``save_profile``.

    Raises:
        ProfileError: the name is not in ``TARGETS``, or the package with the database is not installed.
    """
    if name not in TARGETS:
        raise ProfileError(f"profile {name!r} is unknown; choose from {', '.join(sorted(TARGETS))}")
    model, gpu, gpus = TARGETS[name]
    engine, database = compile_engine(model, gpu, gpus)
    # predict_decode_latency(batch, n, 2) is the one iteration after the first token: n KV tokens per response.
    iteration_s = [[engine.predict_decode_latency(batch, n, 2) / 1e3 for n in CONTEXTS] for batch in BATCHES]
    iteration_s += [[_mixed_iteration_s(engine, fed, fed * n / MAX_BATCH) for n in CONTEXTS] for fed in FED_TOKENS]
    prefills = [
        TimedChange(prompts, tokens, 0, seconds, within_s=seconds)
        for prompts in PREFILL_PROMPTS
        for tokens in PREFILL_TOKENS
        if prompts * tokens <= PREFILL_CALL_TOKENS
        for seconds in [engine.predict_prefill_latency(prompts, tokens) / 1e3]
    ]
    weight_bytes = model.parameters * BYTES_PER_NUMBER
    capacity = kv_capacity(
        gpus=gpus,
        memory_bytes_per_gpu=gpu.memory_bytes,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        usable_fraction=USABLE_FRACTION,
        reserve_bytes_per_gpu=RESERVE_BYTES,
    )
    return compose_profile(
        name=name,
        model=model.name,
        kind=gpu.kind,
        gpus_per_actor=gpus,
        precision="bfloat16",
        max_batch=MAX_BATCH,
        capacity=capacity,
        table=IterationTable(np.array(BATCHES + FED_TOKENS), np.array(CONTEXTS), np.array(iteration_s)),
        changes=prefills,
        token_budget=FED_TOKENS[-1],
        start_s=round(weight_bytes / gpus / gpu.pcie_bytes_per_s, 4),
        sync_s=round(weight_bytes / gpus / gpu.link_bytes_per_s, 4),
        link=f"{gpu.link}, one link per actor",
        link_bytes_per_s=gpu.link_bytes_per_s,
        transfer_base_s=TRANSFER_BASE_S,
        origin=f"modelled from operator times measured on {gpu.system} ({database}), tensor parallel over "
        f"{counted(gpus, 'GPU')}",
        command=f"python -m rlhfless.latency.generate {name}",
        date=date,
        licence=LICENCE,
        assumptions=_assumptions(gpu, model, gpus, _all_reduce_share(engine)),
    )


def _mixed_iteration_s(engine: Any, fed_tokens: int, context: float) -> float:
    """Return the seconds of an iteration that feeds prompts beside ``MAX_BATCH`` responses of ``context`` tokens each.

    The database gives decoding responses the context of a prompt and half a response.
    """
    prompt = int(min(MIXED_PROMPT_TOKENS, context))
    ms = engine.mixed_step_latency(fed_tokens - MAX_BATCH, MAX_BATCH, prompt, 2 * round(context - prompt))
    return float(ms) / 1e3


def _all_reduce_share(engine: Any) -> float:
    """Return the share of all-reduce operators in a decode iteration of ``MAX_BATCH`` responses of 512 tokens."""
    operators = engine.run_static_per_op(batch_size=MAX_BATCH, isl=512, osl=2)[1]
    return all_reduce_ms(operators) / float(sum(milliseconds for _, milliseconds, *_ in operators))


def _assumptions(gpu: GpuKind, model: ModelConfig, gpus: int, all_reduce_share: float) -> dict[str, str]:
    """Return the numbers of the profile that are assumed rather than measured, each with the reason."""
    collectives = {
        "all_reduce": f"{all_reduce_share:.0%} of an iteration of {MAX_BATCH} responses of 512 tokens is all-reduce, with "
        f"the times of the measured machine's {gpu.link}; another wiring of the GPUs changes this share most"
    }
    return (collectives if gpus > 1 else {}) | {
        "prefill.mixed": f"assumed: iterations feed at most {FED_TOKENS[-1]} tokens (a default of vLLM); the table's mixed "
        f"iterations decode {MAX_BATCH} responses and feed prompts of {MIXED_PROMPT_TOKENS} tokens; one with fewer responses "
        "is read where the table has as many fed and KV tokens",
        "step_s": "sum of measured operators, interpolated between measured sizes and extrapolated above 1,048,576 KV "
        "tokens; the host's work between iterations, and once per response (prefill.per_join_s, per_end_s), is not in it",
        "start_s": f"an actor that was prewarmed within the step: process, kernels and CUDA graphs exist, and each GPU "
        f"loads its share of {model.parameters * BYTES_PER_NUMBER / 1e9:.2f} GB of weights from host memory over {gpu.pcie} "
        f"at {gpu.pcie_bytes_per_s / 1e9:.0f} GB/s (nominal); a start from nothing takes tens of seconds and is not in it",
        "sync_s": f"each GPU receives its share of the weights over {gpu.link} at {gpu.link_bytes_per_s / 1e9:.0f} GB/s "
        "(nominal) from a learner in the same node",
        "transfer_base_s": "assumed: about one decode iteration for the hand-over",
        "transfer_per_kv_token_s": f"all KV bytes over one {gpu.link} link at {gpu.link_bytes_per_s / 1e9:.0f} GB/s "
        "(nominal), although the actor's GPUs could send their shares side by side",
        "max_batch": "assumed: the number of sequences an engine is started with",
        "kv_capacity.usable_fraction": "assumed: the share of GPU memory that an inference engine takes by default",
        "kv_capacity.reserve_bytes_per_gpu": "assumed: activations, CUDA graphs and communication buffers",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate the named profiles, or all if none is named, and print their fits."""
    parser = argparse.ArgumentParser(prog="python -m rlhfless.latency.generate", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"profile to generate: {', '.join(TARGETS)} (default: all)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("data/profiles"),
        help="folder to write the profiles into (default: data/profiles)",
    )
    options = parser.parse_args(arguments)
    for name in options.names or TARGETS:
        try:
            profile = generate_profile(name, datetime.date.today().isoformat())
            path = save_profile(options.output / f"{name}.json", profile)
        except ProfileError as error:
            parser.exit(2, f"{error}\n")
        print(f"{path}: {load_profile(path)!r}, fit error {profile['fit']['mean_relative_error']:.1%}")


if __name__ == "__main__":
    main()
