"""Makes an engine of measured operator times, from the configuration of a model and a kind of GPU.

Inputs are the public configurations of models, the data sheets of GPUs, and the operator database of ``aiconfigurator-core``
(Apache-2.0). The database has kernel and collective times measured on each GPU kind, and adds them up to an iteration of vLLM.
It runs offline and needs the extra ``rlhfless[profiles]``; reading shipped files does not.

The database omits the host's work between iterations (scheduling, sampling, detokenising). Its own sample of end-to-end runs is
Llama-3.1-8B on one H100 with TensorRT-LLM, 8 to 64 concurrent requests and 512 generated tokens. Against these, its decode
times are 0.62 to 0.92 (median 0.83) of the times per token. Those include prefills between iterations.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhfless.errors import missing_extra

SOURCE = "aiconfigurator-core"
LICENCE = f"Apache-2.0 (computed with {SOURCE}, Copyright NVIDIA Corporation and affiliates, Apache-2.0)"
BYTES_PER_NUMBER = 2


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
    """A GPU kind: memory as the driver reports it, and nominal bandwidths in one direction from the data sheet.

    Attributes:
        kind: as in the table of GPUs (``rlhfless.latency.gpus``), which has the bandwidth of its memory.
        system: name in the database.
        pcie, pcie_bytes_per_s: from host memory. link, link_bytes_per_s: between GPUs of a node, of one GPU's link.
        node_bytes_per_s: between GPUs of a node, as the costs of model calls take it.
    """

    kind: str
    system: str
    memory_bytes: int
    pcie: str
    pcie_bytes_per_s: float
    link: str
    link_bytes_per_s: float
    node_bytes_per_s: float


QWEN_3B = ModelConfig("Qwen2.5-3B", 2048, 11008, 36, 16, 2, 151936, True)
QWEN_7B = ModelConfig("Qwen2.5-7B", 3584, 18944, 28, 28, 4, 152064, False)
QWEN_32B = ModelConfig("Qwen2.5-32B", 5120, 27648, 64, 40, 8, 152064, False)
LLAMA_7B = ModelConfig("Llama-2-7B", 4096, 11008, 32, 32, 32, 32000, False, family="llama")
LLAMA_13B = ModelConfig("Llama-2-13B", 5120, 13824, 40, 40, 40, 32000, False, family="llama")
LLAMA_34B = ModelConfig("CodeLlama-34B", 8192, 22016, 48, 64, 8, 32000, False, family="llama")
LLAMA_70B = ModelConfig("Llama-2-70B", 8192, 28672, 80, 64, 8, 32000, False, family="llama")

A100 = GpuKind("a100", "a100_sxm", 81920 << 20, "PCIe gen4 x16", 32e9, "NVLink 3", 300e9, 170e9)
H100 = GpuKind("h100", "h100_sxm", 81559 << 20, "PCIe gen5 x16", 64e9, "NVLink 4", 450e9, 170e9)
L40S = GpuKind("l40s", "l40s", 46068 << 20, "PCIe gen4 x16", 32e9, "PCIe gen4 x16", 32e9, 32e9)


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


def all_reduce_ms(operators: Any) -> float:
    """Return the milliseconds of all-reduce among the operators of a pass, as the engine's ``run_static_per_op`` names them."""
    return float(sum(milliseconds for name, milliseconds, *_ in operators if "_ar" in name))
