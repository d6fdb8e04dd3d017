"""Compressed prefix tree of a batch of prompts: one node for each run of tokens that the same prompts share.

Input: token ids, or only lengths if prompts share nothing.

A node is the run of tokens (its edge) by which it continues its parent. So P prompts have at most 2 P nodes in addition to the
root. Nodes are numbered in preorder, children by their token ids. So the tree does not depend on the order of the prompts,
parents come before children, and a subtree is a range of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError
from solver.model.workload import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """A compressed prefix tree of P prompts with V nodes, node 0 being the empty prefix.

    Attributes:
        parent: (V,) parent of each node, -1 for the root.
        start_tokens, end_tokens: (V,) tokens from the root to the beginning and to the end of the node's edge.
        last: (V,) one past the last node of its subtree: the subtree of v is ``v .. last[v] - 1``.
        node_of: (P,) node at which each prompt ends; the root for an empty prompt, a shared node for identical prompts.
    """

    parent: IntArray
    start_tokens: IntArray
    end_tokens: IntArray
    last: IntArray
    node_of: IntArray

    @classmethod
    def of_token_ids(cls, token_ids: Sequence[ArrayLike]) -> PrefixTree:
        """Return the tree of prompts given as token ids: a (P, tokens) array or P sequences of any lengths, empty
        ones included.

        Sorts the prompts as byte strings and compares neighbours: O(tokens) and one sort.

        Raises:
            PlanningError: there are no prompts, or a prompt is not a row of whole numbers from 0 to 2^32 - 1.
        """
        rows = [_row(i, ids) for i, ids in enumerate(token_ids)]
        if not rows:
            raise PlanningError("there are no prompts; at least one is needed")
        keys = [row.astype(">u4").tobytes() for row in rows]  # big-endian: bytes sort as the tokens do, prefixes first
        order = sorted(range(len(rows)), key=keys.__getitem__)
        shared = [0] * len(rows)  # tokens that a row shares with the one before it in the order
        for r in range(1, len(order)):
            a, b = rows[order[r - 1]], rows[order[r]]
            n = min(len(a), len(b))
            differ = a[:n] != b[:n]
            first = int(differ.argmax()) if n else 0
            shared[r] = first if n and differ[first] else n
        return cls._grow(np.array(order), [len(rows[i]) for i in order], shared)

    @classmethod
    def of_lengths(cls, prompt_tokens: ArrayLike) -> PrefixTree:
        """Return the tree of prompts of which only the (P,) lengths are known: each is a separate leaf.

        Raises:
            PlanningError: there are no prompts, or a length is negative.
        """
        tokens = np.asarray(prompt_tokens, dtype=np.int64)
        if tokens.ndim != 1 or len(tokens) == 0 or tokens.min() < 0:
            raise PlanningError("prompt_tokens must be a row of at least one length of 0 tokens or more")
        return cls._grow(np.arange(len(tokens)), tokens.tolist(), [0] * len(tokens))

    @classmethod
    def _grow(cls, order: IntArray, lengths: list[int], shared: list[int]) -> PrefixTree:
        """Build the tree from the prompts' lengths in sorted order and the tokens shared with the prompt before; the
        rightmost path is a stack."""
        parent, depth, first = [-1], [0], [0]
        stack, ends = [0], []
        for row, (length, common) in enumerate(zip(lengths, shared, strict=True)):
            child = 0
            while depth[stack[-1]] > common:
                child = stack.pop()
            if depth[stack[-1]] < common:  # the two prompts diverge within an edge: split it
                parent.append(stack[-1])
                depth.append(common)
                first.append(first[child])
                parent[child] = len(parent) - 1
                stack.append(len(parent) - 1)
            if length > common:
                parent.append(stack[-1])
                depth.append(length)
                first.append(row)
                stack.append(len(parent) - 1)
            ends.append(stack[-1])
        preorder = np.lexsort((depth, first))
        number = np.empty(len(preorder), np.int64)
        number[preorder] = np.arange(len(preorder))
        parents = np.array(parent)[preorder]
        parents = np.where(parents >= 0, number[parents], -1)
        end = np.array(depth, dtype=np.int64)[preorder]
        last = list(range(1, len(parent) + 1))
        for v in range(len(last) - 1, 0, -1):
            last[parents[v]] = max(last[parents[v]], last[v])
        node_of = np.empty(len(order), np.int64)
        node_of[order] = number[np.array(ends, dtype=np.int64)]
        return cls(parents, np.where(parents >= 0, end[parents], 0), end, np.array(last), node_of)

    def __len__(self) -> int:
        """Number of nodes V, the root included."""
        return len(self.parent)

    @property
    def edge_tokens(self) -> IntArray:
        """Return the (V,) tokens of each node's edge; 0 for the root, at least 1 for every other node."""
        return np.asarray(self.end_tokens - self.start_tokens)

    @property
    def prompt_tokens(self) -> IntArray:
        """Return the (P,) tokens of each prompt."""
        return np.asarray(self.end_tokens[self.node_of])

    @property
    def tokens(self) -> int:
        """Return the tokens of the union of all prompts: the tokens computed if every prefix is computed once."""
        return int(self.edge_tokens.sum())

    def below(self, values: ArrayLike) -> FloatArray:
        """Return (..., V) sums of (..., P) values over the prompts that pass through each node or end there."""
        per_prompt = np.asarray(values, dtype=float)
        per_node = np.zeros((len(self), *per_prompt.shape[:-1]))
        np.add.at(per_node, self.node_of, np.moveaxis(per_prompt, -1, 0))  # prompts that end at the node
        ending = np.moveaxis(per_node, 0, -1)
        total = np.concatenate([np.zeros((*ending.shape[:-1], 1)), np.cumsum(ending, axis=-1)], axis=-1)
        return np.asarray(total[..., self.last] - total[..., np.arange(len(self))])

    def down(self, values: ArrayLike) -> FloatArray:
        """Return (..., V) sums of (..., V) values over the path from the root to each node."""
        total = np.array(values, dtype=float)
        for v, parent in enumerate(self.parent.tolist()):
            if v:
                total[..., v] += total[..., parent]
        return total

    def covered(self, prompts: ArrayLike, prefix_tokens: ArrayLike) -> IntArray:
        """Return the (V,) tokens of each node's edge, from its start, that are part of the given prefixes of prompts
        (indices)."""
        reach = np.zeros(len(self), np.int64)  # the longest of the prefixes that pass through a node
        ends = self.node_of[np.asarray(prompts, dtype=np.int64)]
        np.maximum.at(reach, ends, np.asarray(prefix_tokens, dtype=np.int64))
        for v in range(len(self) - 1, 0, -1):
            if reach[v] > reach[self.parent[v]]:
                reach[self.parent[v]] = reach[v]
        return np.asarray(np.clip(reach - self.start_tokens, 0, self.edge_tokens))

    def __repr__(self) -> str:
        total = int(self.prompt_tokens.sum())
        return f"PrefixTree({len(self.node_of)} prompts of {total:,} tokens in {len(self)} nodes of {self.tokens:,} tokens)"


def _row(prompt: int, token_ids: ArrayLike) -> NDArray[np.int64]:
    """Return one prompt's token ids as int64; refuse anything that is not a row of them."""
    row = np.asarray(token_ids)
    if row.ndim != 1:
        raise PlanningError(f"token_ids[{prompt}] has {row.ndim} dimensions; a row of token ids is needed")
    if row.size == 0:
        return np.zeros(0, np.int64)
    if not np.issubdtype(row.dtype, np.integer):
        raise PlanningError(f"token_ids[{prompt}] holds {row.dtype} values; whole numbers are needed")
    if row.min() < 0 or row.max() >= 1 << 32:
        raise PlanningError(f"token_ids[{prompt}] holds {row.min() if row.min() < 0 else row.max()}; ids lie in 0 to 2^32 - 1")
    return row.astype(np.int64)
