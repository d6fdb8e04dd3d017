"""Measures a latency profile of a transformers causal LM on this machine; run it while nothing else runs.

The caller passes two callables to time: ``decode_iteration(batch, context)``, and one that runs a trial of joining and ending
responses. They are those of the engine that will run (``rlhfless.engine.torch.benchmark``). How they are timed stands in
``rlhfless.latency.timing``. A point at which a bigger batch or a longer context was faster stays as measured. Batches too large
for the device are left out, and the profile says so. Torch and transformers are imported inside functions only.
"""

from __future__ import annotations

import datetime
import importlib
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.errors import InputError, missing_extra
from rlhfless.latency.profile import compose_profile, kv_capacity
from rlhfless.latency.shipped import ProfileError
from rlhfless.latency.timing import BatchChangeTrial, RunTrial, measure_changes, median_seconds, stopwatch
from rlhfless.system.hub_names import may_be_on_hub
from rlhfless.system.model_folders import NO_CODE, code_refused, from_folder, local_folder
from solver.model.iteration_table import IterationTable

TINY = "tiny-qwen2"
TINY_CONFIG = {  # the model of rlhfless.training.models.tiny_model
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 37,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
BUILDS = 3  # replicas made to time a start; of a large model each takes long
KV_MEMORY_BYTES = 1 << 30  # on the CPU, beside the weights

DecodeIteration = Callable[[int, int], None]
Timers = Callable[[Any, int], tuple[DecodeIteration, RunTrial]]


class CausalLM:
    """One replica of a transformers causal LM: its sizes, and the times to start it and to sync weights.

    Args:
        model: a local folder with a model's ``config.json``, a model of the hub, or ``tiny-qwen2`` (the shipped one). The
            weights are random: times do not depend on them.
        device: torch device, ``cpu`` or ``cuda``. On the CPU this process computes with one thread from then on. It is the one
            that the stopwatch sees, and the engine's iterations have no other.

    Raises:
        MissingExtra, ProfileError: torch or transformers is not installed, or model or device cannot be used.
        InputError: the model contains its own code, which would have to be run.
        MemoryError: the model does not fit on the device; methods that make another copy raise it too.
    """

    def __init__(self, model: str, device: str = "cpu") -> None:
        self._torch = torch = _require("torch")
        self._transformers = transformers = _require("transformers")
        if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
            raise ProfileError(f"device {device!r} cannot be used here; give cpu, or cuda where torch finds a GPU")
        named, known = model, model == TINY or Path(model).exists() or may_be_on_hub(model, owned=True)
        if known and model != TINY:
            model = str(local_folder(model, weights=False))
        if not known or (model != TINY and not Path(model, "config.json").is_file()):
            raise ProfileError(f"{model!r} is not a model; give a local folder with a config.json, or the name {TINY}")
        if device == "cpu":
            torch.set_num_threads(1)
        self.device = torch.device(device)
        self.name = model if model == TINY else Path(named).resolve().name
        self._dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.precision = str(self._dtype).removeprefix("torch.")
        try:
            config = transformers.Qwen2Config(**TINY_CONFIG) if model == TINY else None
            self._config = config or from_folder(transformers.AutoConfig, model)
            with code_refused(model):
                self.model = self.replica()
        except InputError:
            raise
        except (OSError, ValueError, KeyError) as error:
            reason = (str(error).strip() or "it is not complete").splitlines()[0].rstrip(".")
            raise ProfileError(f"{model}: holds no causal language model of transformers: {reason}") from None
        self.weight_bytes = sum(weight.numel() * weight.element_size() for weight in self.model.parameters())
        heads = getattr(self._config, "num_key_value_heads", None) or self._config.num_attention_heads
        width = getattr(self._config, "head_dim", None) or self._config.hidden_size // self._config.num_attention_heads
        self.kv_bytes_per_token = 2 * self._config.num_hidden_layers * heads * width * self._dtype.itemsize

    @property
    def max_context(self) -> int:
        """Longest context of the model."""
        return int(self._config.max_position_embeddings)

    @property
    def kind(self) -> str:
        """The device kind: ``cpu``, or the GPU's name in a profile."""
        return str(self._torch.cuda.get_device_name(self.device)).lower().replace(" ", "-") if self._on_gpu else "cpu"

    def replica(self) -> Any:
        """Return another model of the same configuration and precision on the device."""
        with self._room("a replica"), self.device:
            return self._transformers.AutoModelForCausalLM.from_config(self._config, dtype=self._dtype, **NO_CODE).eval()

    def build(self) -> None:
        """Build a second replica: the part of a start-up without weight sync."""
        self.replica()
        self._wait()

    def sync(self) -> None:
        """Copy a full set of weights from memory into the replica."""
        with self._room("a second set of the weights"):
            weights = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.model.load_state_dict(weights)
            self._wait()

    def copy_s_per_byte(self, rounds: int) -> float:
        """Return the seconds per byte to copy 64 MiB of KV cache into new memory of the same device."""
        state = self._torch.zeros(64 << 20, dtype=self._torch.uint8, device=self.device)

        def copy() -> None:
            state.clone()
            self._wait()

        return self.median_s(copy, rounds) / int(state.numel())

    def median_s(self, timed: Callable[[], None], rounds: int) -> float:
        """Return the median seconds of a call on its device."""
        return float(median_seconds(timed, [()], rounds, self.device.type)[0])

    def build_s(self) -> float:
        """Return the median seconds of ``BUILDS`` builds. No warm-up is needed, because the first replica was one."""
        now_s, seconds = stopwatch(self.device.type), []
        for _ in range(BUILDS):
            start = now_s()
            self.build()
            seconds.append(now_s() - start)
        return float(np.median(seconds))

    def capacity(self, memory_bytes: int | None = None) -> tuple[dict[str, Any], str]:
        """Return the KV tokens that fit next to the weights (as ``kv_capacity``), and the memory in words.

        Args:
            memory_bytes: of an actor, weights included; by default all of a GPU, on the CPU 1 GiB plus the weights.
        """
        sizes = {"gpus": 1, "weight_bytes": self.weight_bytes, "kv_bytes_per_token": self.kv_bytes_per_token}
        if memory_bytes is not None:
            return kv_capacity(memory_bytes_per_gpu=memory_bytes, **sizes), "assumed: given to the measurement"
        if self._on_gpu:
            memory_bytes = int(self._torch.cuda.get_device_properties(self.device).total_memory)
            return kv_capacity(memory_bytes_per_gpu=memory_bytes, **sizes), "all that the GPU has"
        assumption = f"assumed: {KV_MEMORY_BYTES / 2**30:g} GiB for KV caches beside the weights"
        return kv_capacity(memory_bytes_per_gpu=KV_MEMORY_BYTES + self.weight_bytes, usable_fraction=1.0, **sizes), assumption

    @property
    def _on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    def _room(self, what: str) -> AbstractContextManager[None]:
        from rlhfless.system.device_memory import explain_out_of_memory

        instead = "measure a smaller model, or use a device with more memory"
        return explain_out_of_memory(self.device, f"{what} of {self.name}", instead)

    def _wait(self) -> None:
        if self._on_gpu:
            self._torch.cuda.synchronize()


@dataclass(frozen=True)
class MeasurementGrid:
    """The sizes that a measurement times, and how often.

    Attributes:
        batches, contexts: the grid, KV tokens per response; both increasing. The model's longest context takes the place of
            longer ones.
        joins: (responses, prompt tokens of each) of the trials to time; no more responses than slots, nor than the largest
            batch that fits the device. Trials longer than the model's context are left out.
        rounds: number of passes over the grid; the median is kept.

    Raises:
        ProfileError: there are no rounds, or fewer than two batches or contexts.
    """

    batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts: Sequence[int] = (16, 64, 128, 256, 512, 1024)
    joins: Sequence[tuple[int, int]] = (
        (1, 16), (1, 64), (1, 256), (4, 16), (4, 64), (16, 16), (16, 64), (64, 16), (64, 32),
    )  # fmt: skip
    rounds: int = 15

    def __post_init__(self) -> None:
        batches, contexts = self.batches, self.contexts
        if self.rounds < 1 or len(batches) < 2 or len(contexts) < 2 or min(*batches, *contexts) < 1:
            raise ProfileError("rounds must be 1 or more, and batches and contexts 2 or more numbers of 1 or more")


FAST = MeasurementGrid((1, 4, 16, 64), (16, 128, 1024), ((1, 16), (1, 128), (4, 64), (16, 32)), 5)


def measure_profile(
    timers: Timers,
    model: str = TINY,
    name: str = "cpu-tiny-qwen2",
    grid: MeasurementGrid = MeasurementGrid(),
    *,
    device: str = "cpu",
    max_batch: int | None = None,
    memory_bytes: int | None = None,
    command: str = "rlhfless.latency.measure.measure_profile(...)",
) -> dict[str, Any]:
    """Measure a profile of a model on one device of this machine; ``save_profile`` writes it.

    Args:
        timers: makes (decode_iteration, run_trial) from the loaded model and the longest context.
        model: a local folder with a model's ``config.json``, or ``tiny-qwen2``.
        grid: the sizes to time, and how often.
        max_batch: slots of an actor; the largest measured batch by default.
        memory_bytes: of an actor, weights included; by default all of a GPU, on the CPU 1 GiB plus the weights. The affine
            fit is over the points whose KV tokens fit in it.

    Raises:
        MissingExtra: torch or transformers is not installed.
        ProfileError: the model or device cannot be used, or the grid does not fit model or memory.
        MemoryError: what is measured does not fit on the device.
    """
    batches, rounds = grid.batches, grid.rounds
    lm = CausalLM(model, device)
    contexts, too_long = _held_contexts(grid.contexts, lm)
    slots = max_batch or max(batches)
    trials = _trials(grid.joins, slots, lm.max_context)
    longest = max(max(contexts), *(trial.tokens + trial.iterations for trial in trials))
    capacity, whose_memory = lm.capacity(memory_bytes)
    if capacity["tokens"] < (needed := min(batches) * min(contexts)):
        raise ProfileError(
            f"{capacity['memory_bytes_per_gpu'] / 2**30:.3f} GiB of memory hold {capacity['tokens']} KV tokens besides the "
            f"weights of {lm.name}; the smallest batch and context to measure need {needed}"
        )
    try:
        decode, run_trial = timers(lm.model, longest)
    except ValueError as error:
        raise ProfileError(f"{lm.name}: {error}") from None
    batches, left_out = _held_batches(decode, batches, max(contexts), f"{lm.name} on {device}")
    if left_out:
        slots = max_batch or max(batches)
        trials = _trials(grid.joins, min(slots, max(batches)), lm.max_context)
    iteration_s = median_seconds(decode, [(batch, context) for batch in batches for context in contexts], rounds, device)
    table = IterationTable(np.array(batches), np.array(contexts), iteration_s.reshape(len(batches), len(contexts)))
    changes = measure_changes(run_trial, trials, rounds)
    sync_s = lm.median_s(lm.sync, rounds)
    start_s = lm.build_s() + sync_s
    torch, transformers = _require("torch"), _require("transformers")
    device_name = f"{platform.machine()} CPU, one thread," if device == "cpu" else lm.kind
    return compose_profile(
        name=name,
        model=lm.name,
        kind=lm.kind,
        gpus_per_actor=1,
        precision=lm.precision,
        max_batch=slots,
        capacity=capacity,
        table=table,
        changes=changes,
        start_s=round(start_s, 6),
        sync_s=round(sync_s, 6),
        link="a copy in the device's memory",
        link_bytes_per_s=round(1 / lm.copy_s_per_byte(rounds)),
        origin=f"measured on {device_name} with torch {torch.__version__}, transformers {transformers.__version__}: "
        f"median of {rounds} rounds, sampling and bookkeeping included{too_long}{left_out}",
        command=command,
        date=datetime.date.today().isoformat(),
        licence="Apache-2.0 (measured by this project)",
        assumptions={
            "transfer_base_s": "assumed: 0, emulated actors share one memory",
            "prefill": "separate: the torch engine computes prompts in calls of their own, not beside decoding",
            "kv_capacity.memory_bytes_per_gpu": whose_memory,
            "max_batch": "the largest measured batch" if max_batch is None else "assumed: given to the measurement",
        },
    )


def _trials(joins: Sequence[tuple[int, int]], max_responses: int, max_context: int) -> list[BatchChangeTrial]:
    """Return the trials to time, none with more than ``max_responses`` responses or longer than the model's context."""
    sizes = sorted({(min(responses, max_responses), tokens) for responses, tokens in joins})
    trials = [trial for trial in (BatchChangeTrial(*size) for size in sizes) if trial.tokens + trial.iterations < max_context]
    if not trials:
        raise ProfileError(f"the model has a context of at most {max_context} tokens, in which nothing can be measured")
    return trials


def _held_contexts(contexts: Sequence[int], lm: CausalLM) -> tuple[Sequence[int], str]:
    """Return the contexts that the model takes, its longest in place of longer ones, and in words which were left out.

    Raises:
        ProfileError: fewer than two are left.
    """
    if max(contexts) <= lm.max_context:
        return contexts, ""
    held = (*(context for context in contexts if context < lm.max_context), lm.max_context)
    if len(held) < 2:
        raise ProfileError(
            f"{lm.name} has a context of at most {lm.max_context} tokens, and 2 or more are measured; give shorter contexts"
        )
    left_out = ", ".join(str(context) for context in contexts if context > lm.max_context)
    return held, f"; contexts of {left_out} are longer than the model's and are left out"


def _held_batches(decode: DecodeIteration, batches: Sequence[int], context: int, device_name: str) -> tuple[Sequence[int], str]:
    """Return the batches that fit the device at the longest context, and in words which were left out.

    Raises:
        ProfileError: fewer than two fit.
    """
    reason = ""
    for fitting in range(len(batches), 0, -1):
        try:
            decode(batches[fitting - 1], context)
        except MemoryError as error:
            reason = str(error)
        else:
            break
    else:
        fitting = 0
    if fitting < 2:
        raise ProfileError(
            f"{device_name}: 2 or more batch sizes are needed, but of {', '.join(map(str, batches))} the device holds "
            f"{fitting} with {context} tokens of context; measure smaller batches or shorter contexts ({reason})"
        )
    left_out = ", ".join(map(str, batches[fitting:]))
    return batches[:fitting], f"; batches of {left_out} do not fit and are left out" if left_out else ""


def _require(package: str) -> Any:
    """Return torch or transformers, or raise an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise missing_extra("measuring a profile", package, "torch") from None
