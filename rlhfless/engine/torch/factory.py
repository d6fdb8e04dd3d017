"""The engine factory for torch: makes one ``TorchEngine`` per actor from one copy of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from rlhfless.engine.common.engine_drafts import EngineDrafts, check_settings
from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.common.pool_engines import Capabilities, PoolEngines
from rlhfless.engine.common.request_validation import TokenRoom, check
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.common.stop_ids import stop_ids
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch import engine as torch_engine  # first, as it says what is missing where torch is
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.prefixes import PrefixKV, compute_prefixes
from rlhfless.engine.torch.replay import replay, replay_prefixes
from rlhfless.engine.torch.row_model import RowModel
from rlhfless.engine.torch.validation import kv_wrong
from rlhfless.errors import InputError
from rlhfless.system.cpu_threads import computing_with
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.errors import is_whole
from solver.model.latency import LatencyModel


@dataclass(frozen=True)
class TorchEngineFactory(PoolEngines):
    """Makes engines on one device that share the weights of one model; one engine per actor.

    Attributes:
        model: a ``DecoderModel`` or a ``TransformersModel``. eos_id: the token that ends a response, or several.
        drafting: see ``TorchEngine``.
        real_time: charge the measured time of iterations, for actors in separate processes.
        tokenizer: the model's tokenizer, which encodes the texts of ``rlhfless.requests``; None if the caller encodes them.

    Raises:
        InputError: ``eos_id`` is no token of the model, or contexts can be longer than the model supports.
        PlanningError: only simulations or vLLM draft with these settings.
    """

    model: RowModel
    eos_id: int | Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    real_time: bool = False
    tokenizer: Any = field(default=None, repr=False, compare=False)
    drafting: Drafting | None = None

    capabilities: ClassVar[Capabilities] = Capabilities(
        "the torch engine", "rlhfless.engine.torch.worker_backend", one_gpu=True, takes_prefixes=True
    )

    def __post_init__(self) -> None:
        if self.drafting is not None:
            check_settings(self.drafting)
        ids = stop_ids(self.eos_id)
        if not ids or not all(is_whole(token, 0) and token < self.model.vocabulary for token in ids):
            raise InputError(f"eos_id is {self.eos_id!r}; the model's vocabulary has the ids 0 to {self.model.vocabulary - 1}")

        if self.model.max_tokens > self.model.supported_tokens:
            raise InputError(
                f"max_tokens (prompt and response) is {self.model.max_tokens}; the model's context has at most "
                f"{self.model.supported_tokens} tokens"
            )

    def measured(self, devices: Sequence[str] = ()) -> TorchEngineFactory:
        """Return the same engines, charged with measured time."""
        return replace(self, real_time=True, tokenizer=None)  # actors get token ids

    @property
    def weight_bytes(self) -> int:
        """Return the bytes that every actor receives as the step's weights."""
        return self.model.weight_bytes

    def close(self) -> None:
        """Free the weights' memory; engines can be made again once ``model.load`` was given weights."""
        self.model.free()

    def check(self, requests: Sequence[Request], admission: Admission) -> None:
        """See ``PoolEngines``."""
        room = TokenRoom.of(self.model, admission)
        for request in requests:
            check(request, room, kv_wrong)

    def compute_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Mapping[int, PrefixKV]:
        """Return KV state of prefixes (token ids by prompt), shared tokens computed once, for ``Request.prefix_kv``."""
        with computing_with(self.model.threads, self.model.device):
            return compute_prefixes(self.model, prefixes)

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> torch_engine.TorchEngine:
        drafts = None
        if self.drafting is not None:
            drafts = EngineDrafts(self.drafting, latency, admission, self.model.vocabulary, self.eos_id)
        return torch_engine.TorchEngine(
            self.model, admission, MEASURED if self.real_time else latency, eos_id=self.eos_id, sampling=self.sampling,
            start_s=start_s, drafting=drafts,
        )  # fmt: skip

    def replay(self, journal: EngineJournal) -> Replayed:
        """Return how long an engine's iterations take when nothing else runs: see ``replay.py``."""
        return replay(self.model, journal, self.sampling)

    def replay_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Replayed:
        """Return how long computing prefixes takes when nothing else runs: see ``replay.py``."""
        with computing_with(self.model.threads, self.model.device):
            return replay_prefixes(self.model, prefixes)
