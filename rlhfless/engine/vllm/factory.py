"""The engine factory for vLLM: a small value that names a weight folder, so that it can be sent to processes.

It does not import vLLM, which is only needed where actors run, or where one process emulates them (``emulation.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rlhfless.errors import InputError, missing_extra
from rlhfless.system.child import HEARTBEAT_TIMEOUT_S
from rlhfless.system.cleanup import cleaning_up
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.errors import as_given
from solver.model.latency import LatencyModel

try:
    from rlhfless.engine.common.journal import EngineJournal, Replayed
    from rlhfless.engine.common.pool_engines import Capabilities, PoolEngines
    from rlhfless.engine.common.sampling import Sampling
    from rlhfless.engine.common.stop_ids import stop_ids
    from rlhfless.engine.vllm import emulation
    from rlhfless.engine.vllm.adapter import check_draft_method, check_version
    from rlhfless.engine.vllm.engine import VllmEngine
    from rlhfless.engine.vllm.replay import replay
    from rlhfless.engine.vllm.start_up import TOKEN_BUDGET, VllmSettings, draft_method
    from rlhfless.engine.vllm.weight_folders import check_weights
    from rlhfless.engine.vllm.weight_shipping import ShippedWeights
except ImportError as error:
    if error.name != "torch":
        raise
    raise missing_extra("the vLLM engine", error.name, "vllm") from None


@dataclass(frozen=True)
class VllmEngineFactory(PoolEngines):
    """Makes the vLLM engines of a step's actors, all with the same weights; each in its own process, or emulated.

    Attributes:
        weights: folder with the step's weights (see ``weight_folders``); every process can read it.
        weights_version: version that the folder must contain; an actor never decodes with other weights.
        eos_id: the token that ends a response, or several.
        max_tokens: maximum number of tokens of a response with its prompt.
        dtype, eager, options: see ``VllmSettings``.
        heartbeat_timeout_s: on the virtual clock, where the process in which vLLM decodes counts as lost after so many seconds
            without a heartbeat.
        drafting: settings of speculative decoding; None: one token per response and iteration. Drafts do not change greedy
            tokens; at temperatures above 0 they do not change the distribution of tokens (see ``engine.py``).

    Raises:
        InputError: vLLM cannot draft with the other settings.

    Example:
        >>> from solver.model.drafting import Drafting
        >>> engines = VllmEngineFactory("weights-3", 3, eos_id=2, max_tokens=4096, drafting=Drafting(max_draft_tokens=4))
    """

    weights: str
    weights_version: int
    eos_id: int | Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    dtype: str = "auto"
    eager: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    drafting: Drafting | None = None
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S

    capabilities: ClassVar[Capabilities] = Capabilities(
        "the vLLM engine", "rlhfless.engine.vllm.worker_backend", starts_server=True,
        min_start_timeout_s=900.0,  # it compiles, captures graphs, and reads weights that may be large
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.drafting is not None:
            check_drafting(self.drafting, self.sampling, self.options)

    def to_remote(self) -> ShippedWeights:
        """Return the factory with its weights, for machines that cannot read their folder.

        The backend there reads it as this factory with another folder.
        """
        return ShippedWeights.of(self)

    def measured(self, devices: Sequence[str] = ()) -> VllmEngineFactory:
        """Return this factory after checking that vLLM can be started.

        Raises:
            MissingExtra, InputError: vLLM is missing or of another version, or the weights are, or what its drafter needs.
        """
        check_version()
        if self.drafting is not None and self.drafting.vllm_method is not None:
            check_draft_method(draft_method(self.drafting))
        check_weights(Path(self.weights), self.weights_version)
        return self

    @property
    def version(self) -> int:
        """Return the version of the weights in the folder."""
        return self.weights_version

    @property
    def weight_bytes(self) -> int:
        """Return the bytes that every actor reads as the step's weights."""
        return sum(file.stat().st_size for file in Path(self.weights).glob("*.safetensors"))

    def compatibility_key(self, latency: LatencyModel) -> VllmSettings:
        """Return the compatibility key of a process for actors of this latency model: as many slots and KV tokens as any plan
        may use.
        """
        return VllmSettings(
            latency.gpus_per_actor, latency.max_batch, latency.kv_capacity_tokens, self.max_tokens,
            latency.token_budget or TOKEN_BUDGET, self.dtype, self.eager, self.options,
            *_drafts(self.drafting),
        )  # fmt: skip

    def emulate(self, models: Sequence[LatencyModel], responses: int) -> None:
        """Start the process in which all emulated actors of a step decode, on the virtual clock (see ``emulation.py``).

        Raises:
            MissingExtra, InputError: vLLM is missing or of another version, or drafts are asked for.
            VllmError: it could not be started.
        """
        if self.drafting is not None:
            raise InputError(
                "vLLM is asked to draft on the virtual clock, where one replica serves all actors; run it in a ProcessPool or "
                "a RayPool, or leave drafting out"
            )
        settings = [self.compatibility_key(m) for m in models]
        emulation.emulate(settings, responses, self.weights, self.weights_version, self.heartbeat_timeout_s)

    def replay(self, journal: EngineJournal) -> Replayed:
        """Return how long the passes of an emulated actor take when nothing else runs: see ``replay.py``."""
        return replay(journal, self.sampling, stop_ids(self.eos_id), self.max_tokens)

    def close(self) -> None:
        """End the process of emulated actors, if any. Idempotent; the next step on the virtual clock starts it again."""
        emulation.close()

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> VllmEngine:
        if (emulated := emulation.replica_of_actor(self.max_tokens)) is not None:
            emulated.load(self.weights, self.weights_version)
            return VllmEngine(
                emulated, admission, eos_id=self.eos_id, sampling=self.sampling, start_s=start_s, latency=latency, charged=True
            )
        from rlhfless.engine.vllm import worker_backend as vllm_backend  # which holds the process's replica

        with cleaning_up(vllm_backend.weights_are_read):
            replica = vllm_backend.replica_for(self.compatibility_key(latency), Path(self.weights), self.weights_version)
            replica.load(Path(self.weights), self.weights_version)
        return VllmEngine(
            replica, admission, eos_id=self.eos_id, sampling=self.sampling, start_s=start_s, drafting=self.drafting,
            latency=latency,
        )  # fmt: skip


def check_drafting(drafting: Drafting, sampling: Sampling, options: Mapping[str, Any]) -> None:
    """Refuse drafts with settings that vLLM does not honour beside them.

    Raises:
        InputError: naming the setting, and what would be right.
    """
    if drafting.length == "critical":
        raise InputError(
            "the draft length is critical, which needs predicted lengths; the vLLM engine drafts adaptive or a fixed number"
        )
    if sampling.min_p:
        raise InputError(
            f"min_p is {sampling.min_p:g}, but vLLM refuses it together with drafts; min_p=0 is needed, or no drafts"
        )
    if options.get("data_parallel_size", 1) != 1:
        given = as_given(options["data_parallel_size"])
        raise InputError(
            f"data_parallel_size is {given}, but an actor that drafts is one replica; 1 is needed, and more actors instead"
        )
    if "speculative_config" in options:
        raise InputError("options have a speculative_config beside drafting; only one of them can say how vLLM drafts")


def _drafts(drafting: Drafting | None) -> tuple[int, dict[str, Any]] | tuple[()]:
    """Return the settings of drafts that vLLM is started with: the longest draft, and the method; nothing without drafts."""
    if drafting is None:
        return ()
    return drafting.max_draft_tokens if drafting.vllm_method is None else int(drafting.length), draft_method(drafting)
