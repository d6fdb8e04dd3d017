"""The random streams that code draws from without being given one: Python's, numpy's and torch's.

Knows streams; nothing of who draws. Within a step they are a function of the run's seed and the step, so that dropout, or a
reward function that draws, does the same in a run that was stopped in between: no state has to be kept. Processes of the
learner each have their own, seeded anew with every batch.
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
def streams_of(seed: int, number: int) -> Iterator[None]:
    """The streams of a step, or of a process within it, by its number; afterwards they are as they were before."""
    kept, kept_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the stream that others draw from)
    words = [int(word) for word in np.random.SeedSequence([seed, number]).generate_state(3, np.uint32)]
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
