"""Matrix products whose rows have the same bits in every batch: rows are computed in tiles of one size.

A row of ``x @ weight.T`` is the same sum whatever other rows there are, but kernel libraries add it up in an order that depends
on how many rows a call has. With AVX-512, MKL has one order for few rows and another for many. With AVX2 the order changes with
the number of rows modulo 6, and again in large calls. No library documents this. What does hold is that a call with one fixed
number of rows gives a row the same bits wherever it stands in the call and whatever stands beside it.

So the bits of a row are by definition those of a tile: a call with ``TILE`` rows, the row among them, zeros where there are too
few. ``RowTiles`` checks for each shape of weights that tiles keep that promise here: the same rows in another order and beside
other rows. Where they do not, a row is computed alone, which needs no promise.

Tiles of 16 rows are slow for large batches, and for one row. So any other number of rows goes in one call as well, but only
after that number was tried and every row of it had the bits of its tile. ``RowTiles`` tries a number of rows when it is needed
for the first time, and remembers the result for this process: kernels depend on the processor, the library and its settings, so
the result is not sent to other machines. A larger batch is split into the fewest equal parts that may go in one call.

``TILE`` is 16: of 1 to 64 rows, 1, 12, 16, 24, 48 and 64 keep the promise with MKL's kernels for AVX-512, AVX2, SSE4.2 and with
``MKL_CBWR=COMPATIBLE``. 16 rows of float32 also begin at a multiple of 64 bytes, whatever their length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.system.cpu_threads import computing_with

TILE = 16
TRIED_ONE_BY_ONE = 64  # rows up to which every number is tried; above, multiples of ``STRIDE``
STRIDE = 8
NEXT = 3  # further rows that are tried beside a number above ``TILE``; kernels have orders of their own for a few last rows
SHUFFLES = 3  # of the rows of a tile, in a check

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(n, inputs) rows, (outputs, inputs) weight and (outputs,) bias or None to (n, outputs)."""


class RowTiles:
    """Computes matrix products on the CPU in float32, with one thread: a row has the same bits in every batch.

    Args:
        product: computes a product in one call.
    """

    def __init__(self, product: Product = F.linear) -> None:
        self._product = product
        self._tile: dict[tuple[int, int, bool], int] = {}
        self._tried: dict[tuple[int, int, bool, int], bool] = {}
        self._calls: dict[tuple[int, int, bool, int], tuple[int, int]] = {}

    def __reduce__(self) -> tuple[type[RowTiles], tuple[Product]]:
        """Send the product alone to other processes, which may run other kernels."""
        return RowTiles, (self._product,)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return (n, outputs) products of (n, inputs) rows."""
        count, x = len(x), x.contiguous()
        part, rows = self.call_rows(count, weight, bias)
        if part == count:
            return self._padded(x, rows, weight, bias)
        out = x.new_empty(count, len(weight))
        for begin in range(0, count, part):
            out[begin : begin + part] = self._padded(x[begin : begin + part], rows, weight, bias)
        return out

    def tile(self, weight: Tensor, bias: Tensor | None) -> int:
        """Return the rows of a tile for weights of this shape: ``TILE``, or 1 where ``TILE`` rows depend on each other."""
        shape = (*weight.shape, bias is None)
        if shape not in self._tile:
            with torch.inference_mode(), computing_with(1, weight.device):
                self._tile[shape] = TILE if self._holds(weight, bias) else 1
        return self._tile[shape]

    def call_rows(self, count: int, weight: Tensor, bias: Tensor | None) -> tuple[int, int]:
        """Return into parts of how many rows ``count`` rows are split, and with how many rows each part is computed."""
        key = (*weight.shape, bias is None, count)
        if key not in self._calls:
            with torch.inference_mode(), computing_with(1, weight.device):
                self._calls[key] = self._fewest_calls(count, weight, bias)
        return self._calls[key]

    def _fewest_calls(self, count: int, weight: Tensor, bias: Tensor | None) -> tuple[int, int]:
        if count == 0 or self.tile(weight, bias) == 1:
            return 1, 1
        for calls in range(1, count + 1):
            part = -(-count // calls)
            for rows in _candidates(part):
                if self._has_bits_of_tiles(rows, weight, bias):
                    return part, rows
        raise AssertionError("a tile has its own bits")

    def _has_bits_of_tiles(self, rows: int, weight: Tensor, bias: Tensor | None) -> bool:
        """Return whether each of so many rows in one call has the bits that it has in a tile."""
        if rows == TILE:
            return True
        key = (*weight.shape, bias is None, rows)
        if key not in self._tried:
            x = _rows(rows + -rows % TILE, weight)
            once = self._product(x[:rows], weight, bias)
            tiles = [slice(begin, begin + TILE) for begin in range(0, rows, TILE)]
            self._tried[key] = all(torch.equal(once[at], self._product(x[at], weight, bias)[: rows - at.start]) for at in tiles)
        return self._tried[key]

    def _holds(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Return whether rows of a tile have the same bits at other places of it, and beside others."""
        x = _rows(2 * TILE, weight)
        before = torch.cat([self._product(x[:TILE], weight, bias), self._product(x[TILE:], weight, bias)])
        orders = torch.Generator().manual_seed(1)
        for _ in range(SHUFFLES):
            order = torch.randperm(2 * TILE, generator=orders)
            for some in (order[:TILE], order[TILE:]):
                if not torch.equal(self._product(x[some], weight, bias), before[some]):
                    return False
        return True

    def _padded(self, x: Tensor, rows: int, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the products of rows that are computed as the first of ``rows``, with zeros for the rest."""
        lacking = rows - len(x)
        return (
            self._product(F.pad(x, (0, 0, 0, lacking)), weight, bias)[: len(x)] if lacking else self._product(x, weight, bias)
        )


def _candidates(part: int) -> range:
    """Return with how many rows a part may be computed, fewest first."""
    if part <= TILE:
        return range(part, TILE + 1)
    if part <= TRIED_ONE_BY_ONE:
        return range(part, part + NEXT + 1)
    rounded = -(-part // STRIDE) * STRIDE
    return range(rounded, rounded + 1)


def _rows(count: int, weight: Tensor) -> Tensor:
    """Return (count, inputs) rows to try, the same in every call."""
    return torch.randn(count, weight.shape[1], generator=torch.Generator().manual_seed(0))
