"""A learner whose gradient is a number, for kills while it learns: each response is to be learned from exactly once.

A prompt's responses are a work item in a thread of this program, as ``rlhfless/training/streaming.py`` has them. The gradient
of a response is a checksum of its number and tokens, so a sum tells whether all were added with their own tokens.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Completion
from rlhfless.executor import Gpus, WorkItem
from solver import Cluster


class CountingLearner:
    """Learns from the responses of one step.

    Args:
        seconds: that a response takes.

    Attributes:
        learned: how often each response was. gradient: sum over all. finished: updates that the optimizer took.
    """

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds, self.learned, self.gradient, self.finished = seconds, Counter[int](), 0, 0

    def work(self, cluster: Cluster, responses: int, samples: int) -> list[WorkItem]:
        """An item for each prompt's responses, and the optimizer's step after all of them."""
        here: dict[str, Any] = {"gpus": Gpus.beside(cluster, "learner"), "in_process": True}
        groups = [tuple(range(first, first + samples)) for first in range(0, responses, samples)]
        items = [WorkItem("learn", run=self.add, responses=group, **here) for group in groups]
        every = tuple(range(len(items)))
        return [*items, WorkItem("learn", run=self.finish, items=every, call="optimizer", **here)]

    def add(self, completions: Sequence[Completion], results: Sequence[Any]) -> None:
        """Add the gradient of a prompt's responses."""
        for completion in completions:
            time.sleep(self.seconds)
            tokens = np.asarray(completion.token_ids, dtype=np.int64).tobytes()
            self.learned[completion.response] += 1
            self.gradient += zlib.crc32(tokens, completion.response)

    def finish(self, completions: Sequence[Completion], results: Sequence[Any]) -> None:
        """Take the optimizer's step."""
        self.finished += 1
