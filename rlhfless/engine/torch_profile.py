"""What an iteration and a prefill of the torch engine take: the timers behind ``rlhfless profile``.

Knows the engine; nothing of profiles. What is timed is what an actor runs: one committed iteration, bookkeeping and sampling
included, of a batch whose responses hold ``context`` KV tokens each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch_clock import MEASURED
from rlhfless.engine.torch_engine import TorchEngine
from rlhfless.engine.torch_forward import RowModel, Segment, one_thread
from solver.admission import Admission

Timed = Callable[[int, int], None]
LEFT_TOKENS = 64  # iterations an engine can go on before it is set up again


class EngineTimer:
    """Runs single iterations and prefills of given sizes; an engine is kept until another size is asked for."""

    def __init__(self, model: Any, max_tokens: int) -> None:
        self._rows = RowModel(model, max_tokens + LEFT_TOKENS)
        self._size: tuple[int, int] | None = None
        self._engine: TorchEngine | None = None
        self._left = 0
        self._cache = self._rows.new_cache()

    def decode_iteration(self, batch: int, context: int) -> None:
        """One iteration of ``batch`` responses that hold about ``context`` KV tokens each (up to 64 more)."""
        if self._engine is None or self._size != (batch, context) or self._left == 0:
            self._engine = self._ready_engine(batch, context)
            self._size, self._left = (batch, context), LEFT_TOKENS - 1
        self._left -= 1
        self._engine.commit_next()

    def prefill_call(self, prompts: int, tokens: int) -> None:
        """The KV caches of ``prompts`` prompts of ``tokens`` tokens each."""
        self._cache.reserve_rows(prompts)  # once: an actor's cache is there when its responses come
        ids = torch.zeros(tokens, dtype=torch.long, device=self._rows.device)
        with torch.inference_mode(), one_thread(self._rows.device):
            self._rows.prefill(self._cache, [Segment(row, 0, ids) for row in range(prompts)])
        if self._rows.device.type == "cuda":
            torch.cuda.synchronize(self._rows.device)

    def _ready_engine(self, batch: int, context: int) -> TorchEngine:
        """An engine whose responses arrive with their KV caches, so that no prefill is timed."""
        rows = self._rows
        shape = (2, rows.layer_count, rows.kv_heads, context - 1, rows.head_dim)
        kv = torch.zeros(shape, dtype=rows.dtype, device=rows.device)
        admission = Admission(batch, batch * (context + LEFT_TOKENS))
        engine = TorchEngine(rows, admission, MEASURED, eos_id=0)
        ids = np.zeros(context, dtype=np.int64)
        engine.add(
            [Request(i, context, LEFT_TOKENS, target_tokens=LEFT_TOKENS, prompt_ids=ids, seed=i, kv=kv) for i in range(batch)]
        )
        return engine


def engine_timers(model: Any, max_tokens: int) -> tuple[Timed, Timed]:
    """Timers of a decode iteration and of a prefill call, for ``rlhfless.latency.measure_profile``."""
    timer = EngineTimer(model, max_tokens)
    return timer.decode_iteration, timer.prefill_call
