"""Runs iterations of the torch engine that ``rlhfless profile`` times.

Two things are timed as an actor runs them. The first is one committed iteration, bookkeeping and sampling included, of a batch
whose responses have ``context`` KV tokens each. The second is all iterations of a trial in which responses join and end, timed
as ``replay.py`` times an actor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.row_models import row_model
from rlhfless.latency.timing import BatchChangeTrial, RunTrial, stopwatch
from rlhfless.system.cleanup import cleaning_up
from rlhfless.system.device_memory import explain_out_of_memory
from solver.model.admission import Admission
from solver.model.workload import FloatArray

Timed = Callable[[int, int], None]
LEFT_TOKENS = 64  # iterations an engine can go on before it is set up again
VISIT_TOKENS = 16  # at least so many iterations: what is timed together is of one engine


class EngineTimer:
    """Runs single iterations of given sizes, which the caller times, and times batch-change trials itself.

    It keeps the engine of a size until another size is asked for. ``forward`` is that of ``row_model``.
    """

    def __init__(self, model: Any, max_tokens: int, forward: str = "own") -> None:
        self._rows = row_model(forward, model, max_tokens + LEFT_TOKENS)
        self._size: tuple[int, int] | None = None
        self._engine: TorchEngine | None = None
        self._left = 0

    def decode_iteration(self, batch: int, context: int) -> None:
        """Run one iteration of ``batch`` responses that have about ``context`` KV tokens each.

        There are up to 64 more, but none beyond the model's longest context: near it they begin with up to 16 fewer.

        Raises:
            MemoryError: the device has no room for them.
        """
        if self._engine is None or self._size != (batch, context) or self._left == 0:
            self._close()
            most = self._rows.supported_tokens
            begin = max(1, min(context, most - VISIT_TOKENS))
            self._engine = self._ready_engine(batch, begin)
            self._size, self._left = (batch, context), min(LEFT_TOKENS, most - begin) - 1
        self._left -= 1
        self._engine.commit_next()

    def run_trial(self, trial: BatchChangeTrial) -> FloatArray:
        """Return the (iterations,) seconds of a trial on a new engine, without the time of preparing shapes.

        Raises:
            MemoryError: the device has no room for it.
        """
        self._close()
        longest = trial.tokens + trial.iterations + 1
        engine = TorchEngine(self._rows, Admission(trial.batch, trial.batch * longest), MEASURED, eos_id=0)
        ids, now_s = np.zeros(trial.tokens, dtype=np.int64), stopwatch(self._rows.device.type)
        requests = [
            Request(i, trial.tokens, trial.iterations + 1, target_tokens=tokens, prompt_ids=ids, seed=i)
            for i, tokens in enumerate(trial.lengths)
        ]
        seconds = np.zeros(trial.iterations)
        with cleaning_up(engine.close):
            for k in range(trial.iterations):
                prepared_s, begin = engine.journal.prepare_s, now_s()
                if k == 0:
                    engine.add(requests)
                engine.commit_next()
                seconds[k] = now_s() - begin - (engine.journal.prepare_s - prepared_s)
        return seconds

    def _close(self) -> None:
        """Free the kept engine's KV cache: a device with room for one of the largest may have no room for two."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _ready_engine(self, batch: int, context: int) -> TorchEngine:
        """Return an engine whose responses arrive with their KV caches, so that no prefill is timed."""
        rows = self._rows
        shape = (2, rows.layer_count, rows.kv_heads, context - 1, rows.head_dim)
        with explain_out_of_memory(rows.device, f"the KV cache of a response of {context} tokens"):
            kv = torch.zeros(shape, dtype=rows.dtype, device=rows.device)
        admission = Admission(batch, batch * (context + LEFT_TOKENS))
        engine = TorchEngine(rows, admission, MEASURED, eos_id=0)
        ids = np.zeros(context, dtype=np.int64)
        requests = [
            Request(i, context, LEFT_TOKENS, target_tokens=LEFT_TOKENS, prompt_ids=ids, seed=i, kv=kv) for i in range(batch)
        ]
        try:
            engine.add(requests)
        except MemoryError:
            engine.close()
            raise
        return engine


def engine_timers(model: Any, max_tokens: int, forward: str = "own") -> tuple[Timed, RunTrial]:
    """Return timers of a decode iteration and of a batch-change trial, for ``rlhfless.latency.measure_profile``.

    ``forward`` is that of ``row_model``.
    """
    timer = EngineTimer(model, max_tokens, forward)
    return timer.decode_iteration, timer.run_trial
