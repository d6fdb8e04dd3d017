"""Computes prefixes once for many responses on a prefill actor, and stores their KV state as it is handed over.

KV state of a prefix is kept in pieces, one per node of the prefix tree. So what many prompts share is in memory once, however
many receive it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlhfless.engine.torch.kv_cache import KVCache, free_storage
from rlhfless.engine.torch.prefill import Segment, prefill
from rlhfless.engine.torch.row_model import RowModel
from rlhfless.system.cleanup import clean_up
from rlhfless.system.device_memory import explain_out_of_memory
from solver.prefix_sharing.prefix_tree import PrefixTree

ROWS = 64  # nodes that are computed side by side


class PrefixKV(NamedTuple):
    """KV state of the first tokens of a prompt: consecutive pieces, each (2, layers, kv_heads, tokens, head_dim)."""

    pieces: tuple[Tensor, ...]

    @property
    def tokens(self) -> int:
        """Return the tokens of all pieces."""
        return sum(int(piece.shape[3]) for piece in self.pieces)

    def put(self, cache: KVCache, row: int, tokens: int) -> None:
        """Fill the first ``tokens`` cells of a row."""
        at = 0
        for piece in self.pieces:
            count = min(int(piece.shape[3]), tokens - at)
            if count > 0:
                cache.put(row, piece, at, count)
            at += count


@torch.inference_mode()
def compute_prefixes(model: RowModel, prefixes: Mapping[int, np.ndarray]) -> dict[int, PrefixKV]:
    """Return KV state of prefixes (token ids by prompt), each node of their tree computed once.

    The nodes of a level of the tree share passes, because they depend only on the level above.

    Raises:
        MemoryError: the device has no room.
    """
    if not prefixes:
        return {}
    tree = PrefixTree.of_token_ids(list(prefixes.values()))
    device = model.device
    tokens = [torch.from_numpy(np.asarray(ids, dtype=np.int64)).to(device) for ids in prefixes.values()]
    through = np.zeros(len(tree), np.int64)  # a prompt that passes through the node
    through[tree.node_of] = np.arange(len(tokens))
    kv_of: list[PrefixKV] = [PrefixKV(())] * len(tree)
    depth = np.zeros(len(tree), np.int64)
    for v in range(1, len(tree)):
        depth[v] = depth[tree.parent[v]] + 1
    ends = set(tree.node_of.tolist())
    for v in range(len(tree) - 1, 0, -1):
        if v not in ends:  # then its subtree, which follows it, holds one
            through[v] = through[v + 1]
    cache = model.new_cache()
    cache.reserve_rows(min(ROWS, len(tree)))
    try:
        with explain_out_of_memory(device, f"{len(tree) - 1} prefixes that are computed once"):
            _compute_levels(model, cache, tree, kv_of, depth, [tokens[i] for i in through])
    except BaseException as error:
        clean_up(lambda: free_storage(*(piece for kv in kv_of for piece in kv.pieces)), cache.free, after=error)
        raise
    cache.free()
    return {prompt: kv_of[v] for prompt, v in zip(prefixes, tree.node_of.tolist(), strict=True)}


def _compute_levels(
    model: RowModel, cache: KVCache, tree: PrefixTree, kv_of: list[PrefixKV], depth: np.ndarray, tokens: list[Tensor]
) -> None:
    """Fill in ``kv_of`` of every node, level by level; ``tokens`` are those of a prompt through each."""
    for level in range(1, int(depth.max()) + 1):
        nodes = np.flatnonzero(depth == level).tolist()
        for begin in range(0, len(nodes), ROWS):
            part = nodes[begin : begin + ROWS]
            segments = []
            for row, v in enumerate(part):
                start, end = int(tree.start_tokens[v]), int(tree.end_tokens[v])
                kv_of[tree.parent[v]].put(cache, row, start)
                segments.append(Segment(row, start, tokens[v][start:end]))
            prefill(model, cache, segments)
            for segment, v in zip(segments, part, strict=True):
                piece = cache.take(segment.row, segment.start + len(segment.tokens), segment.start)
                kv_of[v] = PrefixKV((*kv_of[tree.parent[v]].pieces, piece))
