"""How vLLM is started: the settings of a replica, vLLM's arguments for them, and the environment that it reads."""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from rlhfless.engine.vllm.proposer import CLASS
from rlhfless.system.model_folders import NO_CODE
from solver.model.drafting import Drafting

CPU_BLOCK_TOKENS = 32  # the CPU build prefers multiples of it; with its default of 128 short prompts would never be shared
GPU_BLOCK_TOKENS = 16  # vLLM's default
TOKEN_BUDGET = 2048  # a default of vLLM
CONNECTOR = "kv_transfer_config"
OURS = {"method": "custom_class", "model": CLASS}  # vLLM's speculative method that loads our proposer
NGRAM_TOKENS = 5  # longest run of tokens that vLLM's ngram looks for, its default
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
        max_draft_tokens: longest draft of speculative decoding; 0: none, and vLLM decodes one token per response and iteration.
        draft_method: vLLM's speculative method with arguments of its own (``draft_method``).
        kept_responses: responses that hold KV memory at the same time, where several actors share the replica; None: ``slots``.
    """

    gpus: int
    slots: int
    kv_tokens: int
    max_tokens: int
    token_budget: int = TOKEN_BUDGET
    dtype: str = "auto"
    eager: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    max_draft_tokens: int = 0
    draft_method: Mapping[str, Any] = field(default_factory=lambda: dict(OURS))
    kept_responses: int | None = None


def engine_arguments(settings: VllmSettings, folder: Path, *, on_cpu: bool, eager: bool, hands_over: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's ``EngineArgs``.

    Args:
        folder: of the weights to start with. hands_over: KV states are exported and imported.
    """
    s = settings
    block_tokens = s.options.get("block_size", CPU_BLOCK_TOKENS if on_cpu else GPU_BLOCK_TOKENS)
    # The last block of every response is partly empty, and vLLM keeps one block for itself. Drafts have room of their own.
    kept = s.kept_responses or s.slots
    cells = min(s.kv_tokens, kept * s.max_tokens) + s.slots * s.max_draft_tokens
    blocks = math.ceil(cells / block_tokens) + kept + 1
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
        **({"speculative_config": _speculation(s)} if s.max_draft_tokens else {}),
        "enable_chunked_prefill": True,
        "block_size": block_tokens,
        "num_gpu_blocks_override": blocks,
        "enable_prefix_caching": True,
        "enforce_eager": eager,
        "async_scheduling": False,  # else an iteration's tokens come with the next one
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
        "seed": 0,
        "logprobs_mode": "processed_logprobs",  # of what is drawn from, as the protocol has them
        **(_CPU_ARGUMENTS if on_cpu else {"enable_sleep_mode": True}),
        **({CONNECTOR: _connector()} if hands_over else {}),
        **s.options,
    }


def draft_method(drafting: Drafting) -> dict[str, Any]:
    """Return vLLM's speculative method for a drafter, with arguments of its own: part of its ``speculative_config``."""
    if drafting.vllm_method is None:
        return dict(OURS)
    runs = {"prompt_lookup_min": drafting.min_match, "prompt_lookup_max": max(drafting.min_match, NGRAM_TOKENS)}
    return {"method": drafting.vllm_method, **(runs if drafting.vllm_method == "ngram" else {})}


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Context manager: what vLLM says of too little memory with a ValueError is a MemoryError."""
    try:
        yield
    except ValueError as error:
        if any(phrase in str(error) for phrase in NO_MEMORY):
            raise MemoryError(str(error)) from error
        raise


def _speculation(settings: VllmSettings) -> dict[str, Any]:
    """Return vLLM's configuration of drafts.

    The table has one length for all batches: our proposer chooses lengths itself, and without a table vLLM would feed responses
    that join with one missing token as if they had a draft.
    """
    most = settings.max_draft_tokens
    table = [(1, settings.slots, most)]
    return {**settings.draft_method, "num_speculative_tokens": most, "num_speculative_tokens_per_batch_size": table}


def _connector() -> Any:
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="HandOver", kv_role="kv_both", kv_connector_module_path="rlhfless.engine.vllm.kv_connector"
    )


def prepare_environment(eager: bool, devices: Sequence[str], files: Path) -> None:
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
