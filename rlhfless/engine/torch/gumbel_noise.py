"""Noise for Gumbel-max (exponential-race) sampling (``sampling.py``): exponential numbers from seed, token index and place.

Numbers come from hashes of counters. So those of any token can be computed anywhere, on any device, for all rows and many
iterations in one call.

Sources: splitmix64 (Steele, Lea, Flood, OOPSLA 2014) makes a key of 64 bits from seed and index. Its two halves choose a
permutation of 32 bits: xor, odd factor, xor with a shift, factor of lowbias32 (Wellons,
https://github.com/skeeto/hash-prospector). The permutation turns the bits of every place into 31 random ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhfless.engine.torch.kv_cache import free_storage
from rlhfless.engine.torch.sampling import race_numbers

MAX_BLOCK_ITERATIONS = 32  # iterations whose noise is made at once; those beyond a change of the batch are made in vain
MAX_BLOCK_NUMBERS = {"cpu": 1 << 18, "cuda": 1 << 22}  # that are made at once: what a cache holds, few waits for the host
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 / golden ratio, odd
LARGEST = (1 << 31) - 128  # the largest float32 below 2 ** 31
UNMADE = -(1 << 40)  # the first token of a row whose noise is not made
Words = NDArray[np.uint64]


def mixed(x: Words) -> Words:
    """Apply the finaliser of splitmix64: a permutation of 64 bits in which flipping one input bit flips about half of the
    output bits.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    last: Words = x ^ (x >> np.uint64(31))
    return last


def streams(seeds: Sequence[int]) -> Words:
    """Return (R,) starts of the streams of these seeds."""
    return mixed(np.array([seed % (1 << 64) for seed in seeds], np.uint64))


def token_keys(streams: Words, first: NDArray[np.int64], count: int) -> Words:
    """Return (count, R) keys of the tokens ``first``, ``first + 1``, ... of responses with these (R,) streams."""
    index = first + np.arange(1, count + 1)[:, None]
    return mixed(streams + index.astype(np.uint64) * GOLDEN)


def places(numbers: int, device: torch.device) -> Tensor:
    """Return (numbers,) int32: random bits of every place in a race."""
    bits = mixed(np.arange(1, numbers + 1, dtype=np.uint64) * GOLDEN)
    return torch.from_numpy((bits >> np.uint64(32)).astype(np.uint32).view(np.int32)).to(device)


def exponentials(keys: Tensor, places: Tensor) -> Tensor:
    """Return (..., P) float32 of the exponential distribution of mean 1, for (..., 2) int32 halves of keys and (P,) places."""
    x = places ^ keys[..., :1]
    part = torch.empty_like(x)

    def shifted(bits: int) -> Tensor:  # with zeros from the left: torch has no unsigned numbers of 32 bits
        return torch.bitwise_right_shift(x, bits, out=part).bitwise_and_((1 << 32 - bits) - 1)

    x.mul_(keys[..., 1:] | 1)  # another permutation for every key
    x.bitwise_xor_(shifted(15)).mul_(0x846CA68B - (1 << 32))
    # Small numbers win races: as (k + 1/2) / 2 ** 31 they keep their relative precision, and none is 0. Those that would round
    # to 2 ** 31 are held below it: an infinite number loses even where the filters leave no other token.
    return shifted(1).float().clamp_max_(LARGEST).add_(0.5).mul_(-(2.0**-31)).log1p_().neg_()


class GumbelNoise:
    """Noise of an actor's rows, made for some tokens ahead of each row; what is made stays with a row that moves.

    Args:
        slots: maximum number of rows. vocabulary: number of tokens of the model.
    """

    def __init__(self, slots: int, vocabulary: int, device: torch.device) -> None:
        self._numbers, self._device, self._slots = race_numbers(vocabulary), device, slots
        self._places = places(self._numbers, device)
        self._ahead = max(1, min(MAX_BLOCK_ITERATIONS, MAX_BLOCK_NUMBERS[device.type] // (slots * self._numbers)))
        self._block = torch.empty(0)  # (tokens ahead, slots, numbers), of each row from token ``_first`` on
        self._stream, self._first = np.zeros(slots, np.uint64), np.full(slots, UNMADE)

    def join(self, begin: int, seeds: Sequence[int]) -> None:
        """Assign the rows from ``begin`` on to responses with these seeds."""
        end = begin + len(seeds)
        self._stream[begin:end], self._first[begin:end] = streams(seeds), UNMADE

    def move(self, row: int, to_row: int) -> None:
        """Move the noise of ``row`` to ``to_row``."""
        self._stream[to_row], self._first[to_row] = self._stream[row], self._first[row]
        if len(self._block):
            self._block[:, to_row] = self._block[:, row]

    def swap(self, row: int, other: int) -> None:
        """Exchange two rows."""
        self._stream[[row, other]] = self._stream[[other, row]]
        self._first[[row, other]] = UNMADE

    def even(self, counts: NDArray[np.int64], count: int, rows: int) -> tuple[Tensor, ...]:
        """Return (rows, numbers) of noise for each of the next iterations, one to ``count`` of them, in which each row advances
        by one token. Noise that is made already is brought to the same place in all rows, so that nothing is copied as long as
        they advance together.

        Args:
            counts: (R,) tokens of the response of each of the first rows; the others, up to ``rows``, are padding.
        """
        at = self._at(counts, 1)
        lacking = at >= self._ahead
        begin = 0 if lacking.all() else int(at[~lacking].max())
        self._make(np.flatnonzero(lacking), counts, begin)
        for row in np.flatnonzero(~lacking & (at < begin)).tolist():
            first = int(at[row])
            self._block[begin:, row] = self._block[first : first + self._ahead - begin, row].clone()
            self._first[row] = counts[row] - begin
        return self._block[begin : begin + count, :rows].unbind()

    def draw(self, counts: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Tensor:
        """Return (n, numbers) of noise for places in (n,) rows, of the tokens ``counts[row] + column``.

        Args:
            counts: (R,) tokens of the response of each of the first rows. columns: (n,).
        """
        reach = int(columns.max()) + 1
        at = self._at(counts, reach)
        if int(at.max()) + reach > self._ahead:
            used = np.flatnonzero(at + reach > self._ahead // 2)  # and those that would be next: few calls cost less
            self._make(used, counts, 0)
            at[used] = 0
        places = torch.from_numpy((at[rows] + columns) * self._slots + rows)
        return self._block.view(-1, self._numbers).index_select(0, places.to(self._device))

    def free(self) -> None:
        """Free the memory; nothing can be sampled afterwards. Idempotent."""
        free_storage(self._block)
        self._block = self._places = torch.empty(0)

    def _at(self, counts: NDArray[np.int64], reach: int) -> NDArray[np.int64]:
        """Return (R,) the place of each row's next token in the block, which has room for ``reach`` of them; beyond its end
        where the token is not made.
        """
        if not len(self._block) or reach > self._ahead:
            self._ahead = max(self._ahead, reach)
            self._block = torch.ones(self._ahead, self._slots, self._numbers, device=self._device)
            self._first[:] = UNMADE
        at: NDArray[np.int64] = counts - self._first[: len(counts)]
        return at

    def _make(self, rows: NDArray[np.int64], counts: NDArray[np.int64], begin: int) -> None:
        """Make the noise of the next tokens of rows, which begins at this place of the block."""
        if not len(rows):
            return
        keys = token_keys(self._stream[rows], counts[rows], self._ahead - begin)
        halves = torch.from_numpy(keys.view(np.int32).reshape(*keys.shape, 2)).to(self._device)
        first, last = int(rows[0]), int(rows[-1])
        one = slice(first, last + 1) if last - first + 1 == len(rows) else torch.from_numpy(rows).to(self._device)
        self._block[begin:, one] = exponentials(halves, self._places)
        self._first[rows] = counts[rows] - begin
