"""Sends weights from FSDP2 to (dp, tp) between real processes: directly, by whole weights, and through a checkpoint.

    python tests/benchmarks/reallocation.py [--json FILE] [--processes 4] [--tp 2] [--repeats 5] [--backend gloo|nccl] [--tiny]

Whole weights come from ``full_tensor`` for each, or from one ``all_gather`` of all of them. All ways run in turn in the same
processes, and all results are compared bit for bit. The model is a random Qwen2 of 13.6 MB
(``--hidden``, ``--layers`` and ``--vocabulary`` make larger ones), with placements by transformers' plan. A second case leaves
the embeddings whole, as plans of transformers did before they cut tied ones. With ``--backend nccl`` each process has a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhfless.training.algorithms.ranks import Ranks
from rlhfless.training.reallocation.moves import Moves
from rlhfless.training.reallocation.shards import Shards, tensor_parallel, within
from rlhfless.training.reallocation.tensor_parallel import TensorParallelModel, local_shards, shards_of

WAYS = ("direct", "all_gather", "full_tensor", "checkpoint")
Tensors = dict[str, torch.Tensor]


def qwen2(options: argparse.Namespace) -> Any:
    """A random Qwen2 with tied embeddings and biases, in float32."""
    hidden = 64 if options.tiny else options.hidden
    config = Qwen2Config(
        vocab_size=options.vocabulary, hidden_size=hidden, num_hidden_layers=options.layers, num_attention_heads=8,
        num_key_value_heads=4, intermediate_size=3 * hidden, tie_word_embeddings=True, dtype="float32",
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def rank_main(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Measure in one process; the first one writes the numbers."""
    device, count, tp = "cuda" if options.backend == "nccl" else "cpu", options.processes, options.tp
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(options.backend, init_method=Path(folder, "meeting").as_uri(), rank=rank, world_size=count)
    mesh = init_device_mesh(device, (count // tp, tp), mesh_dim_names=("dp", "tp"))
    model = qwen2(options).to(device)
    planned = TensorParallelModel(model, mesh).shards
    dims = {name: dim for name, dim in planned.dims.items() if "embed" not in name}
    cases = {"cut": planned, "whole": tensor_parallel(planned.weights, dims, count // tp, tp)}
    Ranks(rank, count, init_device_mesh(device, (count,))).shard(model)
    sharded: dict[str, Any] = {name: value.detach() for name, value in model.named_parameters()}
    rows = [{"embeddings": case, **measure(rank, options, mesh, sharded, shards, folder)} for case, shards in cases.items()]
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


def measure(
    rank: int, options: argparse.Namespace, mesh: Any, sharded: dict[str, Any], shards: Shards, folder: str
) -> dict[str, Any]:
    """Numbers of one case: bytes, seconds of all ways, and whether their results are equal."""
    device, count = mesh.device_type, options.processes
    began = time.perf_counter()
    moves = Moves.of(shards_of(sharded, tuple(range(count))), shards)
    planned_s = time.perf_counter() - began

    def direct() -> Tensors:
        return moves.run(local_shards(sharded))

    def full() -> Tensors:
        found = {}
        for name, value in sharded.items():
            whole = value.full_tensor()
            everything = tuple((0, size) for size in whole.shape)
            found[name] = whole[within(shards.box(name, rank), everything)].clone()
        return found

    def all_gather() -> Tensors:
        lengths = {name: -(-value.shape[0] // count) * prod(value.shape[1:]) for name, value in sharded.items()}
        own = torch.zeros(sum(lengths.values()), device=device)
        for place, local in zip(own.split(list(lengths.values())), local_shards(sharded).values(), strict=True):
            place[: local.numel()] = local.flatten()
        every = torch.empty(count * len(own), device=device)
        dist.all_gather_into_tensor(every, own)
        found, start = {}, 0
        for name, value in sharded.items():
            rows = every.view(count, -1)[:, start : start + lengths[name]].reshape(-1, *value.shape[1:])
            whole, start = rows[: value.shape[0]], start + lengths[name]
            found[name] = whole[within(shards.box(name, rank), tuple((0, size) for size in whole.shape))].clone()
        return found

    def checkpoint() -> Tensors:
        path = Path(folder, "checkpoint")
        dcp.save(dict(sharded), storage_writer=dcp.FileSystemWriter(path, sync_files=False, overwrite=True))
        new: dict[str, Any] = {}
        for name, value in sharded.items():
            cut = [Replicate(), Shard(shards.dims[name]) if name in shards.dims else Replicate()]
            new[name] = distribute_tensor(torch.empty(value.shape, device=device), mesh, cut, src_data_rank=None)
        dcp.load(new, checkpoint_id=path)
        return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in new.items()}

    ways: dict[str, Callable[[], Tensors]] = {
        "direct": direct,
        "all_gather": all_gather,
        "full_tensor": full,
        "checkpoint": checkpoint,
    }
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    results: dict[str, Tensors] = {}
    for repeat in range(options.repeats + 1):  # the first one opens connections and is not counted
        for name, way in ways.items():
            dist.barrier()
            began = time.perf_counter()
            results[name] = way()
            dist.barrier()
            if device == "cuda":
                torch.cuda.synchronize()
            if repeat:
                seconds[name].append(time.perf_counter() - began)
    equal = all(torch.equal(results[name][key], results["direct"][key]) for name in WAYS for key in sharded)
    back = Moves.of(shards, moves.source).run(results["direct"])
    equal &= all(torch.equal(back[key], local) for key, local in local_shards(sharded).items())
    every: list[Any] = [None] * count
    dist.all_gather_object(every, equal)
    files = sum(path.stat().st_size for path in Path(folder, "checkpoint").iterdir())
    whole_bytes = sum(weight.total_bytes for weight in shards.weights.values())
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        "bit_equal": all(every), "whole_bytes": whole_bytes, "direct_bytes": sum(moves.received_bytes),
        "full_tensor_bytes": (count - 1) * whole_bytes, "checkpoint_file_bytes": files, "pieces": len(moves.pieces),
        "planned_s": planned_s, "seconds": seconds, "median_s": median,
        "times_direct": {name: median[name] / median["direct"] for name in WAYS},
    }  # fmt: skip


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--tiny", action="store_true", help="two processes, a smaller model, one repeat")
    options = parser.parse_args()
    if options.tiny:
        options.processes, options.repeats, options.layers, options.vocabulary = 2, 1, 1, 64
    folder, load = tempfile.mkdtemp(prefix="rlhfless-reallocation-"), os.getloadavg()[0]
    try:
        mp.spawn(rank_main, (options, folder), options.processes)
        rows = json.loads(Path(folder, "rows.json").read_text(encoding="utf-8"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    layout = f"FSDP2 over {options.processes} to dp {options.processes // options.tp} x tp {options.tp}, {options.backend}"
    for row in rows:
        print(json.dumps(row))
        sizes = {name: f"{row[name] / 1e6:.2f} MB" for name in ("whole_bytes", "direct_bytes", "full_tensor_bytes")}
        print(
            f"{sizes['whole_bytes']}, {layout}, embeddings {row['embeddings']}: direct receives {sizes['direct_bytes']} in "
            f"{row['pieces']} pieces, full_tensor {sizes['full_tensor_bytes']}; "
            + ", ".join(f"{name} takes {row['times_direct'][name]:.2f} times as long" for name in WAYS[1:])
            + ("; all bit-equal" if row["bit_equal"] else "; NOT bit-equal")
        )
    if options.json:
        device = torch.cuda.get_device_name(0) if options.backend == "nccl" else "CPU"
        machine = {
            "python": platform.python_version(), "torch": torch.__version__, "device": device, "cores": os.cpu_count(),
            "load_before": load, "layout": layout,
        }  # fmt: skip
        options.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
