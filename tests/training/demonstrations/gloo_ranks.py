"""Functions that ranks of a demonstration run in tests: random moves there and back, and a process that kills itself."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from typing import Any

import torch

from rlhfless.training.demonstrations.reallocation import Moves, Shards, Weight

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64)


def cut(shards: Shards, name: str, whole: Any, rank: int) -> Any:
    """A rank's shard of a whole weight, cut by torch."""
    if name not in shards.dims:
        return whole.clone()
    dim, part = shards.dims[name], rank % shards.tp
    parts = torch.chunk(whole, shards.tp, dim)
    return parts[part].clone() if part < len(parts) else whole.narrow(dim, 0, 0).clone()


def there_and_back(rank: int, given: tuple[int, list[int]]) -> list[str]:
    """Move random weights between random layouts and back, one case per seed; return what is not equal.

    Args:
        given: number of ranks, and seeds. Weights have uneven shapes and several number formats.
    """
    ranks, seeds = given
    wrong = []
    for seed in seeds:
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        whole = {
            f"w{i}": torch.randint(0, 256, (rng.randint(1, 7), rng.randint(1, 6), rng.randint(1, 5)), generator=generator)
            .to(rng.choice(DTYPES))
            .squeeze(rng.randint(0, 2))
            for i in range(6)
        }
        weights = {name: Weight(tuple(value.shape), value.element_size()) for name, value in whole.items()}
        dims = {name: rng.randrange(len(value.shape)) for name, value in weights.items() if rng.random() < 0.8}
        sizes = [tp for tp in (1, 2, 4) if tp <= ranks]
        here, there = (Shards(weights, dims if tp > 1 else {}, ranks // tp, tp) for tp in rng.choices(sizes, k=2))
        before = {name: cut(here, name, value, rank) for name, value in whole.items()}
        after, received = Moves.of(here, there).run(before)
        again, _ = Moves.of(there, here).run(after)
        if received != Moves.of(here, there).received_bytes[rank]:
            wrong.append(f"seed {seed}, rank {rank}: {received} bytes")
        for name, value in whole.items():
            for found, layout in ((after[name], there), (again[name], here)):
                if found.dtype != value.dtype or not torch.equal(found, cut(layout, name, value, rank)):
                    wrong.append(f"seed {seed}, rank {rank} of {ranks}, {name}")
    return wrong


CALLS: list[None] = []


def kill_at_the_third_call(module: Any, given: Any) -> None:
    """Forward hook of a module that kills process 1 of a pipeline.

    The critic is a copy of the actor, hook included, and its blocks lie the other way round: process 0 calls it, too.
    """
    CALLS.append(None)
    if multiprocessing.current_process().name == "rlhfless-pipeline-1" and len(CALLS) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
