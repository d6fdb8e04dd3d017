"""Generates the shipped GPU profiles from measured operator times: ``python -m rlhfless.latency.generate [NAME ...]``.

Inputs are the public configurations of models, the data sheets of GPUs, and the operator database of ``aiconfigurator-core``
(Apache-2.0). The database has kernel and collective times measured on each GPU kind, and adds them up to an iteration of vLLM.
Generating runs offline and needs the extra ``rlhfless[profiles]``; reading profiles does not.

The database omits the host's work between iterations (scheduling, sampling, detokenising). Its own sample of end-to-end runs is
Llama-3.1-8B on one H100 with TensorRT-LLM, 8 to 64 concurrent requests and 512 generated tokens. Against these, its decode
times are 0.62 to 0.92 (median 0.83) of the times per token. Those include prefills between iterations.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import io
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.errors import missing_extra
from rlhfless.latency.batch_changes import TimedChange
from rlhfless.latency.compose import KvLink, ProfiledActor, ProfiledTimes, ProfileOrigin, compose_profile
from rlhfless.latency.profile import ProfileError, kv_capacity, load_profile, save_profile
from solver.model.iteration_table import IterationTable
from solver.model.plurals import counted

SOURCE = "aiconfigurator-core"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
FED_TOKENS = (320, 384, 512, 640, 768, 1024, 1280, 1536, 1792, 2048)  # of mixed iterations with a full batch
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # KV tokens per fed token
MIXED_PROMPT_TOKENS = 256  # of the prompts that mixed iterations feed
PREFILL_PROMPTS = (1, 2, 4, 8, 16, 32)
PREFILL_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PREFILL_CALL_TOKENS = 8192
MAX_BATCH = 256
BYTES_PER_NUMBER = 2
USABLE_FRACTION = 0.9
RESERVE_BYTES = 4 << 30
TRANSFER_BASE_S = 0.005


@dataclass(frozen=True)
class ModelConfig:
    """The part of a model's public configuration that determines its speed and memory. ``family`` is ``qwen2`` or ``llama``."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied_embeddings: bool
    family: str = "qwen2"

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Return the number of weights: embeddings, attention (in Qwen2 with q, k, v biases), gated MLP, norms."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = q + 2 * kv if self.family == "qwen2" else 0
        attention = self.hidden * (2 * q + 2 * kv) + biases
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of KV cache per token in bf16: key and value of every layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_NUMBER

    def huggingface(self) -> dict[str, Any]:
        """Return the configuration in the form of a Hugging Face ``config.json``."""
        return {
            "architectures": [f"{self.family.capitalize()}ForCausalLM"],
            "model_type": self.family,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied_embeddings,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000.0,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
        }


@dataclass(frozen=True)
class GpuKind:
    """A GPU kind: memory as the driver reports it, and nominal bandwidths in one direction from the data sheet."""

    kind: str
    system: str
    memory_bytes: int
    pcie: str
    pcie_bytes_per_s: float
    link: str
    link_bytes_per_s: float


QWEN_3B = ModelConfig("Qwen2.5-3B", 2048, 11008, 36, 16, 2, 151936, True)
QWEN_7B = ModelConfig("Qwen2.5-7B", 3584, 18944, 28, 28, 4, 152064, False)
LLAMA_70B = ModelConfig("Llama-2-70B", 8192, 28672, 80, 64, 8, 32000, False, family="llama")
L40S = GpuKind("l40s", "l40s", 46068 << 20, "PCIe gen4 x16", 32e9, "PCIe gen4 x16", 32e9)
H100 = GpuKind("h100", "h100_sxm", 81559 << 20, "PCIe gen5 x16", 64e9, "NVLink 4", 450e9)

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
    times = ProfiledTimes(
        IterationTable(np.array(BATCHES + FED_TOKENS), np.array(CONTEXTS), np.array(iteration_s)),
        prefills,
        start_s=round(weight_bytes / gpus / gpu.pcie_bytes_per_s, 4),
        sync_s=round(weight_bytes / gpus / gpu.link_bytes_per_s, 4),
        token_budget=FED_TOKENS[-1],
    )
    origin = ProfileOrigin(
        f"modelled from operator times measured on {gpu.system} ({database}), tensor parallel over {counted(gpus, 'GPU')}",
        f"python -m rlhfless.latency.generate {name}",
        date,
        f"Apache-2.0 (computed with {SOURCE}, Copyright NVIDIA Corporation and affiliates, Apache-2.0)",
        _assumptions(gpu, model, gpus, _all_reduce_share(engine)),
    )
    link = KvLink(f"{gpu.link}, one link per actor", gpu.link_bytes_per_s, TRANSFER_BASE_S)
    return compose_profile(
        name, model.name, ProfiledActor(gpu.kind, gpus, "bfloat16", MAX_BATCH, capacity), times, link, origin
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
    times = {name: milliseconds for name, milliseconds, *_ in operators}
    return float(sum(value for name, value in times.items() if "_ar" in name) / sum(times.values()))


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


def compile_engine(model: ModelConfig, gpu: GpuKind, gpus: int) -> tuple[Any, str]:
    """Return the database's engine for a model on ``gpus`` GPUs, and the name and version of the database."""
    try:
        engines = importlib.import_module("aiconfigurator_core.sdk.engine")
        versions = importlib.import_module("aiconfigurator_core.sdk.perf_database")
    except ImportError:
        raise missing_extra("generating profiles", SOURCE, "profiles") from None
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        Path(folder, "config.json").write_text(json.dumps(model.huggingface()), encoding="utf-8")
        engine = engines.EngineHandle.compile(folder, gpu.system, "vllm", tp_size=gpus)
    version = versions.resolve_query_version(gpu.system, "vllm", "current")
    return engine, f"{SOURCE} {importlib.metadata.version(SOURCE)}, vLLM {version}"


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
