"""Seeds the global random streams (Python, numpy, torch) from the run's seed and the step.

So dropout, or a reward function that draws, gives the same numbers in a resumed run, and no stream state has to be stored.
Every learner process has its own streams, seeded again for every batch.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None


@contextlib.contextmanager
def streams_of(seed: int, *numbers: int) -> Iterator[None]:
    """Seed the global streams by ``seed`` and ``numbers``, and restore them afterwards.

    Args:
        numbers: a step, or a step and a part of it counted from 1, or a process within a step.
    """
    kept, kept_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the stream that others draw from)
    words = [int(word) for word in np.random.SeedSequence([seed, *numbers]).generate_state(3, np.uint32)]
    try:
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []):  # asking other GPUs would start them
            random.seed(words[0])
            np.random.seed(words[1])  # noqa: NPY002
            torch.manual_seed(words[2])
            yield
    finally:
        random.setstate(kept)
        np.random.set_state(kept_numpy)  # noqa: NPY002
