"""Seconds that an actor is charged for each iteration: of a latency model, or measured on the device."""

from __future__ import annotations

import numpy as np
import torch

from rlhfless.errors import InputError
from rlhfless.latency.timing import stopwatch
from solver.model.latency import LatencyModel
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S

MEASURED = "measured"
FEW = 8  # iterations that are looked up one by one in less time than as an array, to the same bits


class IterationClock:
    """Charges iterations by ``charge``, a latency model or ``"measured"``.

    Raises:
        InputError: it is neither.
    """

    def __init__(self, charge: LatencyModel | str, device: torch.device) -> None:
        if isinstance(charge, str) and charge != MEASURED:
            raise InputError(f"charge is {charge!r}; it must be a latency model or {MEASURED!r}")
        self.model = charge if isinstance(charge, LatencyModel) else None
        self.now_s = stopwatch(device.type) if self.model is None else _never_read
        self._device = device
        self._waits = self.model is None and device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has finished this process's own computation, where time is measured."""
        if self._waits:
            torch.cuda.synchronize(self._device)

    def prefill_s(self, tokens: int) -> float:
        """Return the latency model's seconds of a prefill."""
        assert self.model is not None
        return float(self.model.prefill_s(tokens)) if tokens else 0.0

    def steps_s(self, batch: int, kv_tokens: int, count: int) -> list[float]:
        """Return the latency model's seconds of ``count`` iterations of a batch, whose KV grows by ``batch`` tokens in each."""
        model = self.model
        assert model is not None
        if count <= FEW:
            return [model.one_iteration_s(batch, kv_tokens + batch * k) for k in range(count)]
        seconds: list[float] = model.iteration_s(batch, kv_tokens + batch * np.arange(count)).tolist()
        return seconds

    def pass_s(self, batch: int, kv_tokens: int, drafted: int) -> float:
        """Return the latency model's seconds of one iteration that also feeds ``drafted`` drafted tokens, drafting included."""
        assert self.model is not None
        if not drafted:
            return self.model.one_iteration_s(batch, kv_tokens)
        return self.model.one_iteration_s(batch + drafted, kv_tokens) + drafting_s(drafted)

    def joins_s(self, admitted: int) -> float:
        """Return the latency model's seconds of admitting and removing responses, without their prefill."""
        assert self.model is not None
        return self.model.join_s * admitted


def drafting_s(drafted: int) -> float:
    """Return the seconds that drafting this many tokens for a pass is charged, by measurements of suffix tries."""
    return DRAFT_CALL_S + DRAFT_TOKEN_S * drafted if drafted else 0.0


def _never_read() -> float:
    """Replace the clock where a latency model charges: reading a thread's time takes two microseconds."""
    return 0.0
