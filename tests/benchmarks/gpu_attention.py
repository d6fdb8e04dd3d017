"""The part `attention` of `gpu_engine.py`: attention over the batch's longest width, or what each row holds.

The torch engine attends with a mask over the first cells of all rows, as many as the longest context has, rounded up
(``masked``). With ``attention="blocks"`` it attends over the blocks in use, by FlexAttention (``blocks``). torch's
variable-length attention (``torch.nn.attention.varlen``) takes the tokens of each row, and a table of pages (``varlen``; its
table needs FlashAttention 3). Here a page is a whole row of the engine's cache. All run as CUDA graphs, one layer at a time.
What is made once for all layers, masks and tables, is left out. Where ``times_faster`` says that blocks pay on a GPU, they can
become the default there; until that was measured it is ``masked``.

Without CUDA only agreement with attention row by row is checked, as varlen attention has no CPU kernel and blocks are not fused
there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from gpu_workload import attempted
from torch import Tensor

from rlhfless.engine.torch.attention import PLAIN, Masks, attention
from rlhfless.engine.torch.block_attention import block_attention
from rlhfless.engine.torch.block_cache import BlockCache
from rlhfless.engine.torch.decode_step import GRAPH_WIDTH
from rlhfless.engine.torch.kv_cache import KVCache, blocks

ROUNDS, CALLS = 15, 20


class Shape(NamedTuple):
    """A layer: query heads, KV heads, head dimension; ``rows`` of at most ``cells`` tokens."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    rows: int
    cells: int


SHAPES = (Shape("0.5B", 14, 2, 64, 128, 4096), Shape("8B", 32, 8, 128, 64, 8192))
TINY = (Shape("tiny", 4, 2, 16, 6, 256),)
LENGTHS = {
    "equal": lambda rng, shape: np.full(shape.rows, shape.cells // 4),
    "one straggler": lambda rng, shape: np.array([shape.cells - 2] + [shape.cells // 16] * (shape.rows - 1)),
    "log-normal": lambda rng, shape: np.clip(rng.lognormal(np.log(shape.cells / 10), 1.0, shape.rows), 16, shape.cells - 2),
}


def by_rows(q: Tensor, cache: KVCache, positions: Tensor) -> Tensor:
    """Attend one row after the other: what both have to give."""
    outs = []
    for row, position in enumerate(positions.tolist()):
        keys, values = cache.read(0, slice(row, row + 1), position + 1)
        outs.append(F.scaled_dot_product_attention(q[row : row + 1].float(), keys.float(), values.float()))
    return torch.cat(outs)


def masked(q: Tensor, cache: KVCache, positions: Tensor) -> Callable[[], Tensor]:
    """The engine's call: the masks of all layers are made once, so they are left out."""
    width = min(-(-(int(positions.max()) + 1) // GRAPH_WIDTH) * GRAPH_WIDTH, cache.cells)
    mask = Masks(cache, positions, width).of(None)
    keys, values = cache.read(0, slice(0, len(q)), width)
    return lambda: attention(q, keys, values, mask, PLAIN)


def varlen(q: Tensor, cache: KVCache, positions: Tensor) -> Callable[[], Tensor]:
    """torch's variable-length attention with one page per row of the cache."""
    from torch.nn.attention.varlen import varlen_attn

    rows, kv_heads, shared, dim = q.shape
    pool = cache.data[:, 0].transpose(2, 3)  # (2, rows, cells, kv_heads, dim)
    table = torch.arange(rows, dtype=torch.int32, device=q.device)[:, None]
    used, starts = (positions + 1).to(torch.int32), torch.arange(rows + 1, dtype=torch.int32, device=q.device)
    flat = q.reshape(rows, kv_heads * shared, dim)

    def call() -> Tensor:
        out = varlen_attn(
            flat, pool[0], pool[1], starts, None, 1, cache.cells, seqused_k=used, block_table=table, enable_gqa=True
        )
        assert isinstance(out, Tensor)
        return out.view(q.shape)

    return call


def in_blocks(q: Tensor, cache: KVCache, positions: Tensor) -> tuple[Callable[[], Tensor], int]:
    """The engine's call over the blocks in use, and the bytes that they take."""
    held = BlockCache(1, q.shape[1], q.shape[3], cache.cells, cache.data.dtype, q.device)
    held.reserve_rows(len(q))
    for row, position in enumerate(positions.tolist()):
        held.put(row, cache.take(row, position + 1))
    width = min(-(-(int(positions.max()) + 1) // GRAPH_WIDTH) * GRAPH_WIDTH, cache.cells)
    attend = block_attention(held, positions[:, None], width)
    return lambda: attend(0, q, PLAIN), held.used_blocks * held.block_tokens * cache.data[:, :, :1, :, :1].nbytes


def seconds_of(calls: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Median seconds of one call of each, as CUDA graphs, side by side in rounds."""
    graphs = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(CALLS):
                call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            found[name].append(begin.elapsed_time(end) / 1e3 / CALLS)
    return {name: statistics.median(values) for name, values in found.items()}


@torch.inference_mode()
def measured(shape: Shape, lengths: np.ndarray, device: torch.device) -> dict[str, Any]:
    """Seconds and largest difference to attention row by row, of every way, or why it fails; and the bytes of the cache."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    cache = KVCache(1, shape.kv_heads, shape.head_dim, blocks(shape.cells), dtype, device)
    cache.reserve_rows(shape.rows)
    cache.data.copy_(torch.randn(cache.data.shape[-2:], generator=generator).to(device, dtype))
    q = torch.randn(shape.rows, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim, generator=generator)
    q, positions = q.to(device, dtype), torch.from_numpy(lengths.astype(np.int64)).to(device) - 1
    expected = by_rows(q, cache, positions)
    blocks_call, block_bytes = in_blocks(q, cache, positions)
    ways = {"masked": masked(q, cache, positions), "blocks": blocks_call}
    result: dict[str, Any] = {"tokens": int(lengths.astype(np.int64).sum())}
    result |= {"masked_bytes": cache.data.nbytes, "blocks_bytes": block_bytes}
    if device.type == "cuda":
        ways["varlen"] = varlen(q, cache, positions)
    works = {}
    for name, call in ways.items():
        agrees = attempted(lambda call=call: {"difference": float((call().float() - expected).abs().max())})
        works |= {} if "failed" in agrees else {name: call}
        result |= {f"{name}_{what}": value for what, value in agrees.items()}
    if device.type == "cuda":
        seconds = seconds_of(works)
        result |= {f"{name}_us": round(s * 1e6, 2) for name, s in seconds.items()}
        result["times_faster"] = {name: round(seconds["masked"] / s, 2) for name, s in seconds.items() if name != "masked"}
    return result


def attention_ways(device: str, tiny: bool) -> dict[str, Any]:
    """All ways over all shapes and lengths; prints a row for each."""
    rng, layers = np.random.default_rng(0), {}
    for shape in TINY if tiny else SHAPES:
        for name, lengths in LENGTHS.items():
            found = attempted(lambda shape=shape, lengths=lengths: measured(shape, lengths(rng, shape), torch.device(device)))
            layers[f"{shape.name}, {name}"] = found
            print(f"{shape.name:6} {name:14} {found}")
    return {"layers": layers}
