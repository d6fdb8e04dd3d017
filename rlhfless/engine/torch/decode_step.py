"""One decode iteration on the device: forward pass and sampling.

Inputs and outputs are tensors. On a GPU the iteration of every (rows, columns, width) is captured once as a CUDA graph and
replayed; on the CPU it runs directly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache as cached
from typing import NamedTuple

import torch
from torch import Tensor

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.torch.fed_places import FedPlaces
from rlhfless.engine.torch.kv_cache import KVCache
from rlhfless.engine.torch.row_model import RowModel
from rlhfless.engine.torch.sampling import draw, penalise, race_numbers
from rlhfless.engine.torch.verify import Inputs, verify, verify_rectangle

GRAPH_WIDTH = 256  # contexts are rounded up to this many cells, so that few graphs are needed
WARM_UP_CALLS = 3


class SampledTokens(NamedTuple):
    """(R,) ids and log-probabilities that an iteration sampled, padding included."""

    ids: Tensor
    logprobs: Tensor


class DecodeStep:
    """Computes iterations of one actor."""

    def __init__(self, model: RowModel, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        self.model, self.sampling, self.stop_ids = model, sampling, tuple(stop_ids)

    def prepare(self, cache: KVCache, rows: int, width: int, columns: int = 1) -> float:
        """Prepare the first iteration of this shape; returns the seconds that it took. On the CPU there is nothing to
        prepare.
        """
        return 0.0

    def release(self) -> None:
        """Free the prepared shapes. On the CPU there are none."""

    def __call__(self, cache: KVCache, inputs: Inputs, width: int, padding: int, columns: int = 1) -> SampledTokens:
        """Sample the next token of every row, or of each of ``columns`` places of every row; ``width`` cells are attended over,
        the last ``padding`` rows belong to no response.
        """
        if columns == 1:
            states = self.model.decode(cache, inputs.tokens, inputs.positions, width, padding)
        else:
            states = verify_rectangle(self.model, cache, inputs, width, columns)
        if not self.sampling.penalises:
            return self.sample(states, inputs)
        rows = torch.arange(len(inputs.tokens), device=inputs.tokens.device) // columns
        return self.sample(states, inputs, cache.seen(rows, inputs.positions, inputs.tokens, width))

    def verify(self, cache: KVCache, inputs: Inputs, places: FedPlaces) -> SampledTokens:
        """Sample the token that follows each place; see ``verify.verify``."""
        positions = inputs.positions.numpy()
        states = verify(self.model, cache, inputs.tokens, positions, places)
        if not self.sampling.penalises:
            return self.sample(states, inputs)
        rows, width = torch.from_numpy(places.rows), int(positions.max()) + 1
        return self.sample(states, inputs, cache.seen(rows, inputs.positions, inputs.tokens, width))

    def sample(self, states: Tensor, inputs: Inputs, seen: Tensor | None = None) -> SampledTokens:
        """Sample one token from each of the model's last states.

        Args:
            seen: (N, width) tokens that each place sees, where sampling depends on them.
        """
        logits = self.model.logits(states)
        if seen is not None:
            logits = penalise(logits, seen, self.sampling.repetition_penalty)
        return SampledTokens(*draw(logits, inputs.noise, self.sampling, self.stop_ids, inputs.forced))


class GraphedStep(DecodeStep):
    """``DecodeStep`` as CUDA graphs, one for each number of rows, columns and rounded width, all in one memory pool.

    Capturing takes some tens of milliseconds and is done in ``prepare``, which returns the seconds, so that no iteration is
    charged for it. A graph contains the addresses of the cache and of the weights. So graphs are kept for one cache tensor and
    one copy of the weights only.
    """

    def __init__(self, model: RowModel, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        super().__init__(model, sampling, stop_ids)
        self._graphs: dict[tuple[int, int, int], tuple[torch.cuda.CUDAGraph, Inputs, SampledTokens]] = {}
        self._captured: tuple[object, ...] = ()  # kept, so that nothing else can come to stand at these addresses
        self._pool: tuple[int, int] | None = None

    def prepare(self, cache: KVCache, rows: int, width: int, columns: int = 1) -> float:
        """Capture the iteration of this shape, unless it is captured already; returns the seconds that it took."""
        weights = self.model.weights
        now = (*cache.storage, weights)
        if len(now) != len(self._captured) or any(one is not other for one, other in zip(now, self._captured, strict=True)):
            self.release()
            self._captured = now
        key = self._key(cache, rows, width, columns)
        if key in self._graphs:
            return 0.0
        device, places = self.model.device, rows * columns
        begin = time.perf_counter()
        inputs = Inputs(
            torch.zeros(places, dtype=torch.int64, device=device),
            torch.full((places,), cache.spare, dtype=torch.int64, device=device),
            torch.ones(places, race_numbers(self.model.vocabulary), device=device) if self.sampling.temperature > 0 else None,
            torch.zeros(places, dtype=torch.bool, device=device),
        )
        hooks, self.model.hooks = self.model.hooks, []
        side = _capture_stream(device)
        try:
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(WARM_UP_CALLS):
                    super().__call__(cache, inputs, key[2], 0, columns)
            torch.cuda.current_stream(device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=side):  # type: ignore[arg-type]
                drawn = super().__call__(cache, inputs, key[2], 0, columns)
        finally:
            self.model.hooks = hooks
        self._pool = graph.pool()
        self._graphs[key] = graph, inputs, drawn
        return time.perf_counter() - begin

    def release(self) -> None:
        """Drop all graphs and their memory pool: torch refuses captures into a pool whose graphs are all gone."""
        self._graphs.clear()
        self._captured, self._pool = (), None

    def __call__(self, cache: KVCache, inputs: Inputs, width: int, padding: int, columns: int = 1) -> SampledTokens:
        rows = len(inputs.tokens) // columns
        self.prepare(cache, rows, width, columns)
        for hook in self.model.hooks:
            hook("decode", inputs.tokens[: rows - padding] if inputs.fed is None else inputs.fed)
        graph, fixed, drawn = self._graphs[self._key(cache, rows, width, columns)]
        assert fixed.forced is not None
        fixed.tokens.copy_(inputs.tokens)
        fixed.positions.copy_(inputs.positions)
        if fixed.noise is not None and inputs.noise is not None:
            fixed.noise.copy_(inputs.noise)
        if inputs.forced is None:
            fixed.forced.zero_()
        else:
            fixed.forced.copy_(inputs.forced)
        graph.replay()
        return SampledTokens(drawn.ids.clone(), drawn.logprobs.clone())

    def _key(self, cache: KVCache, rows: int, width: int, columns: int) -> tuple[int, int, int]:
        return rows, columns, min(-(-width // GRAPH_WIDTH) * GRAPH_WIDTH, cache.cells)


@cached
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which graphs are warmed up and captured.

    There is only one, because cuBLAS keeps some memory for every stream that it was used on, and in the warm-up that memory
    comes from outside the graphs' pool.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def decode_step(model: RowModel, sampling: Sampling, stop_ids: Sequence[int]) -> DecodeStep:
    """Return the step for the model's device."""
    return (GraphedStep if model.device.type == "cuda" and model.captured else DecodeStep)(model, sampling, stop_ids)
