"""Generates the shipped tables of model calls from measured operator times: ``python -m rlhfless.latency.generate_calls``.

The operator times are those of ``rlhfless.latency.operators``. A model on 1, 2, 4 or 8 GPUs has a table of seconds: of
prefills, of the all-reduces in them, and of decode iterations. ``rlhfless.latency.call_tables`` reads them. It runs offline and
needs the extra ``rlhfless[profiles]``.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhfless.errors import MissingExtra
from rlhfless.latency.call_tables import SCHEMA, SCHEMA_VERSION, SHAPE
from rlhfless.latency.gpus import gpu as gpu_of
from rlhfless.latency.operators import (
    A100,
    H100,
    L40S,
    LICENCE,
    LLAMA_7B,
    LLAMA_13B,
    LLAMA_34B,
    LLAMA_70B,
    QWEN_3B,
    QWEN_7B,
    QWEN_32B,
    GpuKind,
    ModelConfig,
    all_reduce_ms,
    compile_engine,
)
from rlhfless.latency.shipped import ProfileError, write_object

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
SEQUENCE_TOKENS = (128, 512, 2048, 8192, 16384)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 1024, 8192, 32768)
PARTS = (1, 2, 4, 8)
DIGITS = 5  # of a time: an interpolated one is less exact

NETWORK_BYTES_PER_S = 20e9  # of a GPU to other nodes, as ReaL (arXiv:2406.14088) assumes

MODELS: dict[str, ModelConfig] = {
    "llama2-7b": LLAMA_7B,
    "llama2-13b": LLAMA_13B,
    "codellama-34b": LLAMA_34B,
    "llama2-70b": LLAMA_70B,
    "qwen2.5-3b": QWEN_3B,
    "qwen2.5-7b": QWEN_7B,
    "qwen2.5-32b": QWEN_32B,
}

CALL_KINDS: dict[str, GpuKind] = {gpu.kind: gpu for gpu in (A100, H100, L40S)}


def generate_call_tables(kind: str, date: str) -> dict[str, Any]:
    """Return the tables of all ``MODELS`` on a GPU kind of ``CALL_KINDS``, ready for ``save_call_tables``.

    Raises:
        ProfileError: the kind is unknown. MissingExtra: the package with the database is not installed.
    """
    if kind not in CALL_KINDS:
        raise ProfileError(f"GPU kind {kind!r} is unknown; choose from {', '.join(sorted(CALL_KINDS))}")
    gpu = CALL_KINDS[kind]
    models, databases = {}, set()
    for name, model in MODELS.items():
        tables = {}
        for tp in PARTS:
            if model.heads % tp:
                continue
            engine, database = compile_engine(model, gpu, tp)
            databases.add(database)
            tables[str(tp)] = _table(engine, tp)
        models[name] = {"name": model.name, **{size: getattr(model, size) for size in SHAPE}, "tables": tables}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "precision": "bfloat16",
        "origin": f"modelled from operator times measured on {gpu.system} ({', '.join(sorted(databases))})",
        "command": f"python -m rlhfless.latency.generate_calls {kind}",
        "date": date,
        "licence": LICENCE,
        "assumptions": _assumptions(gpu),
        "memory_bytes_per_gpu": gpu.memory_bytes,
        "memory_bytes_per_s": gpu_of(kind).bytes_per_s,
        "node_bytes_per_s": gpu.node_bytes_per_s,
        "network_bytes_per_s": NETWORK_BYTES_PER_S,
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
        table["all_reduce_s"] = [
            [_rounded(all_reduce_ms(engine.run_static_per_op(batch_size=b, isl=s, osl=2)[0])) for s in SEQUENCE_TOKENS]
            for b in SEQUENCES
        ]
    return table


def _rounded(milliseconds: float) -> float:
    return float(f"{milliseconds / 1e3:.{DIGITS - 1}e}")


def _assumptions(gpu: GpuKind) -> dict[str, str]:
    """Return the numbers that are assumed rather than measured, each with the reason."""
    last, longest = SEQUENCES[-1], SEQUENCE_TOKENS[-1]
    return {
        "prefill_s": f"sum of measured operators; with more than {last} sequences or {longest} tokens each the time is "
        "proportional; logits of the last position only are in it, although training and inference compute all",
        "decode_s": f"sum of measured operators; with more than {BATCHES[-1]} responses or {CONTEXTS[-1]} KV tokens each the "
        "time is proportional, which is an upper estimate; the host's work between iterations is not in it",
        "backward": "assumed: twice the forward pass, all-reduce included",
        "optimizer": f"assumed: reads and writes its state once at {gpu_of(gpu.kind).bytes_per_s / 1e9:.0f} GB/s, the nominal "
        "memory bandwidth",
        "node_bytes_per_s": f"assumed: {gpu.node_bytes_per_s / 1e9:.0f} GB/s between GPUs of a node, "
        + ("as ReaL (arXiv:2406.14088) assumes" if gpu.node_bytes_per_s == 170e9 else f"nominal of {gpu.link}"),
        "network_bytes_per_s": f"assumed: {NETWORK_BYTES_PER_S / 1e9:.0f} GB/s between nodes per GPU, as ReaL assumes",
        "pipeline": "assumed: equal split of layers, embeddings and logits over stages; stages are modelled, not measured",
        "memory_bytes_per_gpu": "as the driver reports it; what CUDA, NCCL and the engine reserve is not subtracted",
    }


def save_call_tables(path: Path, tables: dict[str, Any]) -> Path:
    """Write the tables atomically, one table row per line."""
    return write_object(path, tables, indent=1, comma=",")


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
