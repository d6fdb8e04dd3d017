"""The engine of a tensor-parallel actor: the engine of its first part, which tells the other parts each call.

It decodes in real time only. A response that leaves is recomputed elsewhere: each part has its own heads of the KV state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhfless.engine.common.journal import EngineJournal
from rlhfless.engine.protocol import Progress, Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.part_group import SOON_S, PartGroup
from rlhfless.engine.torch.tensor_parallel import part_of
from rlhfless.engine.torch.tensor_pickles import pack, unpack
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.runtime_rules import Signals

T = TypeVar("T")


class ParallelEngine:
    """One actor that decodes with the tensor-parallel parts of a model (see ``TorchEngine`` for what it does).

    Args:
        engine: of the first part. group: the other parts, which have engines with the same admission.
    """

    reuses_prefixes = True

    def __init__(self, engine: TorchEngine, group: PartGroup) -> None:
        self._engine, self._group = engine, group
        self.slots = engine.slots

    @classmethod
    def of(cls, engines: Any, group: PartGroup, latency: LatencyModel, admission: Admission, start_s: float) -> ParallelEngine:
        """Return the engine of an actor with the weights of a ``TorchEngineFactory``; the factory's own are freed."""
        count = len(group.devices)
        others = (replace(engines, model=part_of(engines.model, rank, count)) for rank in range(1, count))
        group.make(others, latency, admission, start_s)
        first = unpack(*pack(replace(engines, model=part_of(engines.model, 0, count))), group.devices[0])
        engines.model.free()
        return cls(first.engine(latency, admission, start_s), group)

    @property
    def clock_s(self) -> float:
        """See ``TorchEngine``."""
        return self._engine.clock_s

    @property
    def journal(self) -> EngineJournal:
        """See ``TorchEngine``."""
        return self._engine.journal

    @property
    def drafts_off(self) -> str | None:
        """See ``TorchEngine``."""
        return self._engine.drafts_off

    @property
    def held_bytes(self) -> int:
        """Return the bytes of KV state that the first part holds."""
        return self._engine.held_bytes

    def add(self, requests: Sequence[Request]) -> None:
        """See ``TorchEngine``."""
        self._together(lambda: self._engine.add(requests), "add", self.clock_s, requests)

    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """See ``TorchEngine``."""
        begin_s = max(self.clock_s, from_s)
        return self._together(lambda: self._engine.step(begin_s, clock), "step", begin_s)

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See ``TorchEngine``; requests have no KV state. ``at_s`` is not after the engine's clock: nothing is running."""
        taken, progress = self._together(lambda: self._engine.cut(self.clock_s, responses), "cut", self.clock_s, responses)
        return [replace(request, kv=None) for request in taken], progress

    def generated_tokens(self) -> dict[int, int]:
        """See ``TorchEngine``."""
        return self._engine.generated_tokens()

    def recent_signals(self) -> tuple[NDArray[np.int64], Signals]:
        """See ``TorchEngine``."""
        return self._engine.recent_signals()

    def running(self) -> tuple[int, ...]:
        """See ``TorchEngine``."""
        return self._engine.running()

    def waiting(self) -> tuple[int, ...]:
        """See ``TorchEngine``."""
        return self._engine.waiting()

    def close(self) -> None:
        """Free the memory of weights and KV in all parts; their processes stay. Idempotent."""
        self._group.tell("close")
        self._engine.close()
        self._engine.model.free()

    def _together(self, here: Callable[[], T], call: str, *arguments: Any) -> T:
        """Make a call in all parts; returns what it returns here.

        Raises:
            PartsError: another part failed, which a sum here may have met first.
        """
        self._group.tell(call, *arguments)
        try:
            return here()
        except RuntimeError:
            self._group.check(SOON_S)
            raise
