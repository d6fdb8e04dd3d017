"""The KV cache of one actor: one row of fixed length per response, with the used rows first.

Every row has cells for all positions of a context and spare cells at its end, to which padding writes. Attention reads a prefix
of all rows at once, rounded up to ``BLOCK`` cells. Whole vectors of masked zeros leave the sums of a row unchanged bit by bit.
So a row's result does not depend on the lengths of its neighbours.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhfless.system.device_memory import SPARE, free_bytes

BLOCK = 32


class KVCache:
    """Keys and values, (2, layers, rows, kv_heads, cells, head_dim); rows are added when needed.

    Args:
        cells: cells of a row, a multiple of ``BLOCK``; the last one is for padding.
        keeps_ids: also keep the token of every cell, for sampling that depends on a response's tokens.

    Attributes:
        ids: (rows, cells) tokens; of no rows unless they are kept.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        cells: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        keeps_ids: bool = False,
    ) -> None:
        assert cells % BLOCK == 0
        self.cells = cells
        self.spare = cells - 1
        self._positions = torch.arange(cells, device=device)
        # Never-written cells are masked, but 0 times a stray NaN would still be NaN: hence zeros.
        self.data = torch.zeros(2, layers, 0, kv_heads, cells, head_dim, dtype=dtype, device=device)
        self._keeps_ids = keeps_ids
        self.ids = torch.zeros(0, cells, dtype=torch.int64, device=device)

    @property
    def rows(self) -> int:
        """Return how many rows there are."""
        return len(self.data[0, 0])

    @property
    def storage(self) -> tuple[Tensor, ...]:
        """Return the tensors that passes read and write; others once they are at other addresses."""
        return self.data, self.ids

    def reserve_rows(self, rows: int, max_rows: int = 1 << 30) -> None:
        """Grow to at least ``rows`` rows, doubling (to at most ``max_rows``) so that growing stays rare, if memory suffices.

        Raises:
            MemoryError: the device has no room for ``rows``; the message states the free memory and how many would fit, where
                the device reports it. Old and new rows are both in memory while the old ones are copied.
        """
        two, layers, have, *row = self.data.shape
        if rows <= have:
            return
        a_row = self.data.element_size() * two * layers * math.prod(row)
        free = free_bytes(self.data.device)
        wanted = max(rows, min(2 * have, max_rows))
        if free is not None and wanted * a_row > free:
            wanted = rows
        if free is not None and wanted * a_row > free:  # a CPU may grant it all the same, and end the process when it is used
            raise self._full(wanted, a_row, free)
        try:
            grown = self.data.new_zeros(two, layers, wanted, *row)
        except (MemoryError, RuntimeError) as error:  # torch says either, by device
            raise self._full(wanted, a_row, free) from error
        before, self.data = self.data, grown
        grown[:, :, :have] = before
        free_storage(before)
        if self._keeps_ids:
            ids, self.ids = self.ids, self.ids.new_zeros(wanted, self.cells)
            self.ids[: len(ids)] = ids

    def _full(self, wanted: int, a_row: int, free: int | None) -> MemoryError:
        fits = "" if free is None else f"{free / 2**30:.2f} GiB are free, enough for a cache of {free // a_row} slots beside it"
        return MemoryError(
            f"the KV cache cannot grow to {wanted} slots of {self.cells} tokens, {wanted * a_row / 2**30:.2f} GiB; it has "
            f"{self.data.shape[2]} slots{fits and '; '}{fits}: {SPARE}"
        )

    def free(self) -> None:
        """Free all rows, even if other objects refer to them: views of them cannot be read any more. Idempotent."""
        data, self.data = self.data, self.data.new_zeros(*self.data.shape[:2], 0, *self.data.shape[3:])
        ids, self.ids = self.ids, self.ids.new_zeros(0, self.cells)
        free_storage(data, ids)

    def read(self, layer: int, rows: slice, width: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first ``width`` cells, (rows, kv_heads, width, head_dim) each; views."""
        block = self.data[:, layer, rows, :, :width]
        return block[0], block[1]

    def write(self, layer: int, rows: Tensor, positions: Tensor, kv: Tensor) -> None:
        """Write ``kv`` (R, 2, kv_heads, head_dim) to the cells ``positions[r]`` of ``rows[r]``."""
        self.data[:, layer][:, rows, :, positions] = kv

    def mask(self, positions: Tensor, width: int, window: int | None = None) -> Tensor:
        """Return the (R, 1, 1, width) float mask: r sees its cells up to ``positions[r]``, or the last ``window`` of them."""
        mask = torch.zeros(len(positions), width, dtype=self.data.dtype, device=self.data.device)
        cells, last = self._positions[:width], positions[:, None]
        mask.masked_fill_(cells > last, -torch.inf)
        if window is not None:
            mask.masked_fill_(cells <= last - window, -torch.inf)
        return mask[:, None, None]

    def move(self, row: int, to_row: int, tokens: int) -> None:
        """Copy the first ``tokens`` cells of ``row`` over those of ``to_row``."""
        self.data[:, :, to_row, :, :tokens] = self.data[:, :, row, :, :tokens]
        if self._keeps_ids:
            self.ids[to_row] = self.ids[row]

    def swap(self, row: int, other: int) -> None:
        """Exchange two rows."""
        self.data[:, :, [row, other]] = self.data[:, :, [other, row]]
        if self._keeps_ids:
            self.ids[[row, other]] = self.ids[[other, row]]

    def put_ids(self, row: int, tokens: NDArray[np.int64]) -> None:
        """Set the tokens of the first cells of a row, if tokens are kept."""
        if self._keeps_ids:
            self.ids[row, : len(tokens)] = torch.from_numpy(tokens).to(self.ids.device)

    def seen(self, rows: Tensor, positions: Tensor, tokens: Tensor, width: int) -> Tensor:
        """Note (R,) tokens at ``positions[r]`` of ``rows[r]``; returns (R, width) those that r sees, its own in later cells."""
        self.ids[rows, positions] = tokens
        return torch.where(self._positions[:width] <= positions[:, None], self.ids[rows, :width], tokens[:, None])

    def take(self, row: int, end: int, start: int = 0) -> Tensor:
        """Return a copy of the cells of ``row`` from ``start`` to ``end``, (2, layers, kv_heads, tokens, head_dim)."""
        return self.data[:, :, row, :, start:end].clone()

    def put(self, row: int, kv: Tensor, start: int = 0, tokens: int | None = None) -> None:
        """Fill cells of ``row`` from ``start`` on with the result of ``take``, of this or another cache; ``tokens`` of it, or
        all.
        """
        count = kv.shape[3] if tokens is None else tokens
        self.data[:, :, row, :, start : start + count] = kv[:, :, :, :count]


def free_storage(*tensors: Tensor) -> None:
    """Free the memory of tensors now.

    An error that is kept, as a notebook keeps its last one, refers to them through the frames of its traceback. Reading such a
    tensor later raises torch's error that its data is gone.
    """
    for storage in [tensor.untyped_storage() for tensor in tensors]:
        if storage.resizable():  # else it is numpy's or shared: not ours to give back
            storage.resize_(0)


def blocks(tokens: int) -> int:
    """Return ``tokens`` rounded up to whole blocks of cells."""
    return -(-tokens // BLOCK) * BLOCK
