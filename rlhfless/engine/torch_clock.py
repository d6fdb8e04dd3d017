"""What an actor is charged for: seconds of a latency model, or the device's own.

Knows counts, seconds and devices; nothing of responses or batches.
"""

from __future__ import annotations

import numpy as np
import torch

from rlhfless.latency.stopwatch import stopwatch
from solver.latency import LatencyModel

MEASURED = "measured"
MOST_AHEAD = 64  # iterations that the model is asked for at once


class IterationClock:
    """Charges iterations by ``charge``, a latency model or ``"measured"``.

    Raises:
        ValueError: it is neither.
    """

    def __init__(self, charge: LatencyModel | str, device: torch.device) -> None:
        if isinstance(charge, str) and charge != MEASURED:
            raise ValueError(f"charge is {charge!r}; it must be a latency model or {MEASURED!r}")
        self.model = charge if isinstance(charge, LatencyModel) else None
        self.now_s = stopwatch(device.type) if self.model is None else _never_read
        self._device = device
        self._waits = self.model is None and device.type == "cuda"
        self._batch, self._kv_tokens = 0, 0  # of the first of ``_ahead``
        self._ahead: list[float] = []

    def wait(self) -> None:
        """Until the device is done, where somebody looks at the clock."""
        if self._waits:
            torch.cuda.synchronize(self._device)

    def prefill_s(self, tokens: int) -> float:
        """By the model."""
        assert self.model is not None
        return float(self.model.prefill_s(tokens)) if tokens else 0.0

    def step_s(self, batch: int, kv_tokens: int) -> float:
        """By the model: seconds of an iteration. A batch that stays holds ``batch`` tokens more in each that follows."""
        assert self.model is not None
        place = (kv_tokens - self._kv_tokens) // batch if batch == self._batch else -1
        if not (0 <= place < len(self._ahead) and self._kv_tokens + place * batch == kv_tokens):
            # First for one only: a batch may change at every iteration, and then the others would be in vain.
            count = min(2 * len(self._ahead), MOST_AHEAD) if batch == self._batch else 1
            seconds = self.model.step_s(batch, kv_tokens + batch * np.arange(count))
            self._batch, self._kv_tokens, self._ahead, place = batch, kv_tokens, seconds.tolist(), 0
        return self._ahead[place]


def _never_read() -> float:
    """In place of a clock where a latency model charges: reading a thread's time takes two microseconds."""
    return 0.0
