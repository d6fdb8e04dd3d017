"""Generates the shipped tables of model calls from measured operator times: ``python -m rlhfless.latency.generate_calls``.

Inputs are those of ``rlhfless.latency.generate``: public configurations of models, data sheets of GPUs, and the operator
database of ``aiconfigurator-core`` (Apache-2.0). A model on 1, 2, 4 or 8 GPUs has a table of seconds: of prefills, of the
all-reduces in them, and of decode iterations. ``rlhfless.latency.call_tables`` reads them. It runs offline and needs the extra
``rlhfless[profiles]``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhfless.errors import MissingExtra
from rlhfless.latency.call_tables import SCHEMA, SCHEMA_VERSION
from rlhfless.latency.generate import (
    H100,
    L40S,
    LLAMA_70B,
    QWEN_3B,
    QWEN_7B,
    SOURCE,
    GpuKind,
    ModelConfig,
    compile_engine,
)  # fmt: skip
from rlhfless.latency.profile import ProfileError

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
SEQUENCE_TOKENS = (128, 512, 2048, 8192, 16384)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 1024, 8192, 32768)
PARTS = (1, 2, 4, 8)
DIGITS = 5  # of a time: an interpolated one is less exact

LLAMA_7B = ModelConfig("Llama-2-7B", 4096, 11008, 32, 32, 32, 32000, False, family="llama")
LLAMA_13B = ModelConfig("Llama-2-13B", 5120, 13824, 40, 40, 40, 32000, False, family="llama")
LLAMA_34B = ModelConfig("CodeLlama-34B", 8192, 22016, 48, 64, 8, 32000, False, family="llama")
QWEN_32B = ModelConfig("Qwen2.5-32B", 5120, 27648, 64, 40, 8, 152064, False)
A100 = GpuKind("a100", "a100_sxm", 81920 << 20, "PCIe gen4 x16", 32e9, "NVLink 3", 300e9)

MODELS: dict[str, ModelConfig] = {
    "llama2-7b": LLAMA_7B,
    "llama2-13b": LLAMA_13B,
    "codellama-34b": LLAMA_34B,
    "llama2-70b": LLAMA_70B,
    "qwen2.5-3b": QWEN_3B,
    "qwen2.5-7b": QWEN_7B,
    "qwen2.5-32b": QWEN_32B,
}


@dataclass(frozen=True)
class CallKind:
    """A GPU kind with what training and transfers need: nominal memory bandwidth, and links between GPUs and nodes."""

    gpu: GpuKind
    memory_bytes_per_s: float
    node_bytes_per_s: float
    network_bytes_per_s: float


NETWORK = 20e9
CALL_KINDS: dict[str, CallKind] = {
    "a100": CallKind(A100, 2039e9, 170e9, NETWORK),
    "h100": CallKind(H100, 3350e9, 170e9, NETWORK),
    "l40s": CallKind(L40S, 864e9, 32e9, NETWORK),
}


def generate_call_tables(kind: str, date: str) -> dict[str, Any]:
    """Return the tables of all ``MODELS`` on a GPU kind of ``CALL_KINDS``, ready for ``save_call_tables``.

    Raises:
        ProfileError: the kind is unknown. MissingExtra: the package with the database is not installed.
    """
    if kind not in CALL_KINDS:
        raise ProfileError(f"GPU kind {kind!r} is unknown; choose from {', '.join(sorted(CALL_KINDS))}")
    chosen = CALL_KINDS[kind]
    models, databases = {}, set()
    for name, model in MODELS.items():
        tables = {}
        for tp in PARTS:
            if model.heads % tp:
                continue
            engine, database = compile_engine(model, chosen.gpu, tp)
            databases.add(database)
            tables[str(tp)] = _table(engine, tp)
        models[name] = _shape(model) | {"tables": tables}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "precision": "bfloat16",
        "origin": f"modelled from operator times measured on {chosen.gpu.system} ({', '.join(sorted(databases))})",
        "command": f"python -m rlhfless.latency.generate_calls {kind}",
        "date": date,
        "licence": f"Apache-2.0 (computed with {SOURCE}, Copyright NVIDIA Corporation and affiliates, Apache-2.0)",
        "assumptions": _assumptions(chosen),
        "memory_bytes_per_gpu": chosen.gpu.memory_bytes,
        "memory_bytes_per_s": chosen.memory_bytes_per_s,
        "node_bytes_per_s": chosen.node_bytes_per_s,
        "network_bytes_per_s": chosen.network_bytes_per_s,
        "prefill": {"sequences": SEQUENCES, "tokens": SEQUENCE_TOKENS},
        "decode": {"batch": BATCHES, "context_tokens": CONTEXTS},
        "models": models,
    }


def _table(engine: Any, tp: int) -> dict[str, Any]:
    """Return seconds of prefills (sequences x tokens), of their all-reduces, and of decode iterations (batch x context)."""
    table: dict[str, Any] = {
        "prefill_s": [[_rounded(engine.predict_prefill_latency(b, s)) for s in SEQUENCE_TOKENS] for b in SEQUENCES],
        # predict_decode_latency(batch, n, 2) is the one iteration after the first token: n KV tokens per response
        "decode_s": [[_rounded(engine.predict_decode_latency(b, c, 2)) for c in CONTEXTS] for b in BATCHES],
    }
    if tp > 1:
        table["all_reduce_s"] = [[_rounded(_all_reduce_ms(engine, b, s)) for s in SEQUENCE_TOKENS] for b in SEQUENCES]
    return table


def _all_reduce_ms(engine: Any, sequences: int, tokens: int) -> float:
    """Return the milliseconds of all-reduce operators in a prefill."""
    operators = engine.run_static_per_op(batch_size=sequences, isl=tokens, osl=2)[0]
    return float(sum(milliseconds for name, milliseconds, *_ in operators if "_ar" in name))


def _rounded(milliseconds: float) -> float:
    return float(f"{milliseconds / 1e3:.{DIGITS - 1}e}")


def _shape(model: ModelConfig) -> dict[str, Any]:
    """Return what memory and transfers of a model depend on."""
    return {
        "name": model.name,
        "parameters": model.parameters,
        "layers": model.layers,
        "hidden": model.hidden,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocabulary": model.vocabulary,
    }


def _assumptions(kind: CallKind) -> dict[str, str]:
    """Return the numbers that are assumed rather than measured, each with the reason."""
    last, longest = SEQUENCES[-1], SEQUENCE_TOKENS[-1]
    return {
        "prefill_s": f"sum of measured operators; with more than {last} sequences or {longest} tokens each the time is "
        "proportional; logits of the last position only are in it, although training and inference compute all",
        "decode_s": f"sum of measured operators; with more than {BATCHES[-1]} responses or {CONTEXTS[-1]} KV tokens each the "
        "time is proportional, which is an upper estimate; the host's work between iterations is not in it",
        "backward": "assumed: twice the forward pass, all-reduce included",
        "optimizer": f"assumed: reads and writes its state once at {kind.memory_bytes_per_s / 1e9:.0f} GB/s, the nominal "
        "memory bandwidth",
        "node_bytes_per_s": f"assumed: {kind.node_bytes_per_s / 1e9:.0f} GB/s between GPUs of a node, "
        + ("as ReaL (arXiv:2406.14088) assumes" if kind.node_bytes_per_s == 170e9 else f"nominal of {kind.gpu.link}"),
        "network_bytes_per_s": f"assumed: {kind.network_bytes_per_s / 1e9:.0f} GB/s between nodes per GPU, as ReaL assumes",
        "pipeline": "assumed: equal split of layers, embeddings and logits over stages; stages are modelled, not measured",
        "memory_bytes_per_gpu": "as the driver reports it; what CUDA, NCCL and the engine reserve is not subtracted",
    }


def save_call_tables(path: str | os.PathLike[str], tables: dict[str, Any]) -> Path:
    """Write the tables atomically, one table row per line."""
    path = Path(path)
    text = json.dumps(tables, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda match: re.sub(r"\s+", "", match.group()), text) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate the tables of the named GPU kinds, or of all if none is named."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m rlhfless.latency.generate_calls", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"GPU kind: {', '.join(CALL_KINDS)} (default: all)")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("data/calls"), help="folder to write into (default: data/calls)"
    )
    options = parser.parse_args(arguments)
    for kind in options.kinds or CALL_KINDS:
        try:
            path = save_call_tables(
                options.output / f"{kind}.json", generate_call_tables(kind, datetime.date.today().isoformat())
            )
        except (ProfileError, MissingExtra) as error:
            parser.exit(2, f"{error}\n")
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
