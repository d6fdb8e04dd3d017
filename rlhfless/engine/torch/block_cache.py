"""The KV cache of one actor in blocks: a row has as many as its response needs, wherever they are free.

A table says which blocks of the pool a row has, in order. So a response reserves no row of the longest context, and rows change
places without copies. Block 0 belongs to no row and takes what padding writes. Freed blocks are used again. The pool grows
by half when it is full, to the size of whole rows at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlhfless.engine.torch.kv_cache import KVCache, give_back
from rlhfless.system.device_memory import SPARE, free_bytes

CPU_BLOCK_TOKENS, GPU_BLOCK_TOKENS = 32, 128  # FlexAttention's kernels on GPUs skip blocks of 128


class BlockCache(KVCache):
    """Keys and values, (2, layers, kv_heads, cells of the pool, head_dim). Arguments are those of ``KVCache``.

    Attributes:
        block_tokens: cells of a block.
        table: (rows, blocks of the longest row) the block at each place of a row; 0 where it has none.
        owner, place: (blocks of the pool,) the row of each block, -1 if free, and its place there.
    """

    def _begin(self) -> None:
        """See ``KVCache``."""
        two, layers, _, kv_heads, _, head_dim = self.data.shape
        self.block_tokens = GPU_BLOCK_TOKENS if self.data.device.type == "cuda" else CPU_BLOCK_TOKENS
        self._per_row = -(-self.cells // self.block_tokens)
        self._most_rows = 0
        self._shape = two, layers, kv_heads, self.block_tokens, head_dim
        self._empty()

    def _empty(self) -> None:
        """Have no rows, and no block but the one for padding, which is made with the first rows."""
        device = self.data.device
        self.data = torch.zeros(*self._shape[:3], 0, self._shape[4], dtype=self.data.dtype, device=device)
        self.table = torch.zeros(0, self._per_row, dtype=torch.int64, device=device)
        self.owner = torch.zeros(0, dtype=torch.int64, device=device)
        self.place = torch.zeros(0, dtype=torch.int64, device=device)
        self._held: list[list[int]] = []
        self._free: list[int] = []

    @property
    def rows(self) -> int:
        """See ``KVCache``."""
        return len(self._held)

    @property
    def storage(self) -> tuple[Tensor, ...]:
        """See ``KVCache``."""
        return self.data, self.table, self.owner, self.place, self.ids

    @property
    def used_blocks(self) -> int:
        """Return how many blocks rows have."""
        return sum(map(len, self._held))

    def reserve_rows(self, rows: int, max_rows: int = 1 << 30) -> None:
        """Grow to at least ``rows`` rows, none of which has blocks; see ``KVCache``."""
        self._most_rows = max(self._most_rows, min(max_rows, 1 << 20), rows)
        if rows <= self.rows:
            return
        wanted = max(rows, min(2 * self.rows, max_rows))
        table, self.table = self.table, self.table.new_zeros(wanted, self._per_row)
        self.table[: len(table)] = table
        self._held += [[] for _ in range(wanted - self.rows)]
        self._grow_ids(wanted)
        self._grow_pool(wanted)

    def hold(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Give rows the blocks that they lack for their first ``tokens[i]`` cells.

        Raises:
            MemoryError: the device has no room for them.
        """
        lacking = [
            (row, place)
            for row, count in zip(rows, tokens, strict=True)
            for place in range(len(self._held[row]), -(-count // self.block_tokens))
        ]
        if not lacking:
            return
        if len(self._free) < len(lacking):
            self._grow_pool(len(lacking) - len(self._free))
        taken = [(*at, self._free.pop()) for at in lacking]
        for row, _, block in taken:
            self._held[row].append(block)
        rows_at, places, blocks = torch.tensor(taken, device=self.data.device).unbind(1)
        self.table[rows_at, places], self.owner[blocks], self.place[blocks] = blocks, rows_at, places

    def release(self, row: int) -> None:
        """See ``KVCache``."""
        if blocks := self._held[row]:
            self._free += blocks
            self.owner[torch.tensor(blocks, device=self.data.device)] = -1
            self.table[row] = 0
            self._held[row] = []

    def free(self) -> None:
        """See ``KVCache``."""
        old, ids = self.storage[:-1], self.ids
        self._empty()
        self.ids = ids.new_zeros(0, self.cells)
        give_back(*old, ids)

    def read(self, layer: int, rows: slice, width: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first ``width`` cells, (rows, kv_heads, width, head_dim) each; copies."""
        found = self.data[:, layer][:, :, self.at(rows, self._positions[:width])].transpose(1, 2)
        return found[0], found[1]

    def pool(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of all blocks, (1, kv_heads, cells of the pool, head_dim) each; views."""
        return self.data[0, layer][None], self.data[1, layer][None]

    def at(self, rows: Tensor | slice | int, positions: Tensor) -> Tensor:
        """See ``KVCache``: cells of the pool; those of rows without a block there are in block 0."""
        return self.table[rows, positions // self.block_tokens] * self.block_tokens + positions % self.block_tokens

    def write(self, layer: int, at: Any, kv: Tensor) -> None:
        """See ``KVCache``."""
        self.data[:, layer].index_copy_(2, at, kv.permute(1, 2, 0, 3))

    def move(self, row: int, to_row: int, tokens: int) -> None:
        """Give the blocks of ``row`` to ``to_row``, whose own are freed."""
        self.release(to_row)
        self.swap(row, to_row)

    def swap(self, row: int, other: int) -> None:
        """Exchange two rows."""
        held, at = self._held, torch.tensor([row, other], device=self.data.device)
        held[row], held[other] = held[other], held[row]
        self.table[at] = self.table[at.flip(0)]
        for one in (row, other):
            self.owner[torch.tensor(held[one], dtype=torch.int64, device=self.data.device)] = one
        if self._keeps_ids:
            self.ids[at] = self.ids[at.flip(0)]

    def take(self, row: int, end: int, start: int = 0) -> Tensor:
        """See ``KVCache``."""
        return self.data[:, :, :, self._cells(row, start, end)]

    def put(self, row: int, kv: Tensor, start: int = 0, tokens: int | None = None) -> None:
        """See ``KVCache``."""
        count = kv.shape[3] if tokens is None else tokens
        self.hold([row], [start + count])
        self.data[:, :, :, self._cells(row, start, start + count)] = kv[:, :, :, :count]

    def _cells(self, row: int, start: int, end: int) -> Tensor:
        return self.at(row, self._positions[start:end])

    def _grow_pool(self, more: int) -> None:
        """Add at least ``more`` blocks to the pool, and half of what it has where memory suffices.

        Raises:
            MemoryError: the device has no room for them beside the old ones, which are copied.
        """
        have = len(self.owner)
        least = max(have, 1) + more  # block 0 is for padding
        wanted = max(least, min(have + have // 2, 1 + self._most_rows * self._per_row))
        two, layers, kv_heads, cells, dim = self._shape
        a_block = self.data.element_size() * two * layers * kv_heads * cells * dim
        free = free_bytes(self.data.device)
        if free is not None and wanted * a_block > free:
            wanted = least
        if free is not None and wanted * a_block > free:
            raise self._no_room(wanted, a_block, have, free)
        try:
            grown = self.data.new_zeros(two, layers, kv_heads, wanted * cells, dim)
        except (MemoryError, RuntimeError) as error:  # torch says either, by device
            raise self._no_room(wanted, a_block, have, free) from error
        before, self.data = self.data, grown
        grown[:, :, :, : before.shape[3]] = before
        give_back(before)
        owner, place = self.owner, self.place
        self.owner, self.place = owner.new_full((wanted,), -1), place.new_zeros(wanted)
        self.owner[:have], self.place[:have] = owner, place
        self._free += range(wanted - 1, max(have, 1) - 1, -1)

    def _no_room(self, wanted: int, a_block: int, have: int, free: int | None) -> MemoryError:
        said = "" if free is None else f"; {free / 2**30:.2f} GiB are free"
        return MemoryError(
            f"the KV cache cannot grow to {wanted} blocks of {self.block_tokens} tokens, {wanted * a_block / 2**30:.2f} GiB; "
            f"it has {have}{said}: {SPARE}"
        )
