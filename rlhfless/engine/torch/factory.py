"""Makes torch engines: what an executor is given to decode with.

Knows models and engines; nothing of plans, actors or processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.common.request_validation import TokenRoom
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch import engine as torch_engine  # first, as it says what is missing where torch is
from rlhfless.engine.torch.bit_stability import measure_stable_rows
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import DecoderModel, one_thread
from rlhfless.engine.torch.prefixes import PrefixKV, compute_prefixes
from rlhfless.engine.torch.replay import replay, replay_prefixes
from rlhfless.engine.torch.sampling import Sampling
from rlhfless.engine.torch.validation import check
from rlhfless.errors import InputError
from solver.model.admission import Admission
from solver.model.errors import is_whole
from solver.model.latency import LatencyModel


@dataclass(frozen=True)
class TorchEngineFactory:
    """Makes the engines of one device, all with the weights of one ``DecoderModel``: one call per actor.

    Attributes:
        signals: see ``TorchEngine``.
        real_time: charge what an iteration takes where it runs, for actors in processes of their own.

    Raises:
        InputError: ``eos_id`` is no token of the model, or contexts can be longer than the model was made for.
    """

    model: DecoderModel
    eos_id: int
    sampling: Sampling = field(default_factory=Sampling)
    signals: tuple[str, ...] = ()
    real_time: bool = False

    side: ClassVar[str] = "rlhfless.engine.torch.worker_backend"
    several_gpus: ClassVar[bool] = False
    start_floor_s: ClassVar[float] = 0.0
    brings_up: ClassVar[bool] = False
    takes_prefixes: ClassVar[bool] = True
    weights_version: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not (is_whole(self.eos_id, 0) and self.eos_id < self.model.vocabulary):
            raise InputError(f"eos_id is {self.eos_id!r}; the model knows ids from 0 to {self.model.vocabulary - 1}")

        if self.model.max_tokens > self.model.known_tokens:
            raise InputError(
                f"max_tokens is {self.model.max_tokens}, prompt and response together; the model was made for contexts of "
                f"{self.model.known_tokens} at most"
            )

    def in_real_time(self) -> TorchEngineFactory:
        """The same engines charged with what they take; what is measured of the model's kernels is measured here, once for
        all."""
        measure_stable_rows(self.model)
        return replace(self, real_time=True)

    def binding(self, latency: LatencyModel) -> None:
        """What a process for these engines is bound to: nothing, it can make any."""

    def carried(self) -> TorchEngineFactory:
        """What other machines need to make these engines: itself, with its weights."""
        return self

    def close(self) -> None:
        """Give the weights' memory back; engines can be made again once ``model.load`` was given weights."""
        self.model.free()

    def check(self, requests: Sequence[Request], admission: Admission) -> None:
        """Refuse what an engine with this admission would refuse.

        Raises:
            ValueError: naming the response, what is wrong with it, and what would be right.
        """
        room = TokenRoom.of(self.model, admission)
        for request in requests:
            check(request, room)

    def compute_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Mapping[int, PrefixKV]:
        """KV state of prefixes (token ids by prompt), what they share computed once, for ``Request.prefix_kv``."""
        with one_thread(self.model.device):
            return compute_prefixes(self.model, prefixes)

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> torch_engine.TorchEngine:
        charge = MEASURED if self.real_time else latency
        return torch_engine.TorchEngine(
            self.model, admission, charge, eos_id=self.eos_id, sampling=self.sampling, start_s=start_s, signals=self.signals
        )

    def replay(self, journal: EngineJournal) -> Replayed:
        """What an engine's iterations take when nothing else runs: see ``replay.py``."""
        return replay(self.model, journal, self.sampling, self.signals)

    def replay_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Replayed:
        """What computing prefixes takes when nothing else runs: see ``replay.py``."""
        with one_thread(self.model.device):
            return replay_prefixes(self.model, prefixes)
