"""Measures a latency profile of a transformers causal LM on this machine.

Knows torch and transformers (imported inside functions only); what is timed comes from outside as two callables,
``decode_iteration(batch, context)`` and one that runs a course of joining and ending responses (``rlhfless.latency.changes``):
those of the engine that will run (``rlhfless.engine.torch_profile``). The whole grid is gone through in rounds, each in an
order of its own, and the median over the rounds is kept: a slow phase of the machine hits all points alike. A point where a
bigger batch or a longer context came out faster stays as measured. The clock is that of ``rlhfless.latency.stopwatch``.
Measure where nothing else runs.
"""

from __future__ import annotations

import datetime
import importlib
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.errors import missing_extra
from rlhfless.latency.changes import Course, RunCourse, measure_changes
from rlhfless.latency.profile import ProfileError, compose_profile, kv_capacity
from rlhfless.latency.stopwatch import stopwatch
from solver.latency import StepTable

TINY = "tiny-qwen2"
TINY_CONFIG = {  # the model of rlhfless.training.model
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
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (16, 64, 128, 256, 512)
JOINS = ((1, 16), (1, 64), (1, 256), (4, 16), (4, 64), (16, 16), (16, 64), (64, 16), (64, 32))  # responses, prompt tokens
ROUNDS = 15
FAST = {"batches": (1, 4, 16, 64), "contexts": (16, 128, 512), "joins": ((1, 16), (1, 128), (4, 64), (16, 32)), "rounds": 5}
WARM_UP_CALLS = 3
TIMED_CALLS = 5  # of a visit: the first ones after another size are still slower
KV_MEMORY_BYTES = 1 << 30

Timed = Callable[[int, int], None]
Timers = Callable[[Any, int], tuple[Timed, RunCourse]]


class CausalLM:
    """One replica of a transformers causal LM: its sizes, and what starting it and taking over weights take.

    Args:
        model: a local folder with a model's ``config.json``, or ``tiny-qwen2`` (the shipped one). The weights are
            random: times do not depend on them.
        device: torch device, ``cpu`` or ``cuda``.
        threads: CPU threads that torch may use.
    """

    def __init__(self, model: str, device: str = "cpu", threads: int = 1) -> None:
        self._torch = torch = _require("torch")
        self._transformers = transformers = _require("transformers")
        torch.set_num_threads(threads)  # of this process: measure where nothing else runs
        if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
            raise ProfileError(f"the device {device!r} cannot be used here; cpu can, and cuda where torch finds a GPU")
        if model != TINY and not Path(model, "config.json").is_file():
            raise ProfileError(f"{model!r} is no model: give a local folder with a config.json, or the name {TINY}")
        self.device = torch.device(device)
        self.name = model if model == TINY else Path(model).resolve().name
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.precision = str(dtype).removeprefix("torch.")
        try:
            config = transformers.Qwen2Config(**TINY_CONFIG) if model == TINY else None
            self._config = config or transformers.AutoConfig.from_pretrained(model, local_files_only=True)
            self.model = transformers.AutoModelForCausalLM.from_config(self._config, dtype=dtype).to(self.device).eval()
        except (OSError, ValueError, KeyError) as error:
            why = (str(error).strip() or "it is not complete").splitlines()[0].rstrip(".")
            raise ProfileError(f"{model}: holds no causal language model of transformers: {why}") from None
        self.weight_bytes = sum(weight.numel() * weight.element_size() for weight in self.model.parameters())
        heads = getattr(self._config, "num_key_value_heads", None) or self._config.num_attention_heads
        width = getattr(self._config, "head_dim", None) or self._config.hidden_size // self._config.num_attention_heads
        self.kv_bytes_per_token = 2 * self._config.num_hidden_layers * heads * width * dtype.itemsize

    @property
    def max_context(self) -> int:
        """Longest context of the model."""
        return int(self._config.max_position_embeddings)

    def build(self) -> None:
        """A second replica from its configuration: what a start adds to taking over the weights."""
        self._transformers.AutoModelForCausalLM.from_config(self._config).to(self.device)
        self._wait()

    def sync(self) -> None:
        """Takes over a full set of weights from memory."""
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(weights)
        self._wait()

    def copy_s_per_byte(self, rounds: int) -> float:
        """Seconds per byte to copy 64 MiB of KV cache into new memory of the same device."""
        state = self._torch.zeros(64 << 20, dtype=self._torch.uint8, device=self.device)

        def copy() -> None:
            state.clone()
            self._wait()

        return self.median_s(copy, rounds) / int(state.numel())

    def median_s(self, timed: Callable[[], None], rounds: int) -> float:
        """Median seconds of a call on its device."""
        return float(median_seconds(lambda *_: timed(), [(0, 0)], rounds, self.device.type)[0])

    def _wait(self) -> None:
        if self.device.type == "cuda":
            self._torch.cuda.synchronize()


def measure_profile(
    timers: Timers,
    model: str = TINY,
    name: str = "cpu-tiny-qwen2",
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    *,
    device: str = "cpu",
    joins: Sequence[tuple[int, int]] = JOINS,
    rounds: int = ROUNDS,
    threads: int = 1,
    max_batch: int | None = None,
    kv_memory_bytes: int = KV_MEMORY_BYTES,
    command: str = "rlhfless.latency.measure.measure_profile(...)",
) -> dict[str, Any]:
    """Measures a profile of a model on one device of this machine; ``save_profile`` writes it.

    Args:
        timers: makes (decode_iteration, run_course) from the loaded model and the longest context.
        model: a local folder with a model's ``config.json``, or ``tiny-qwen2``.
        batches, contexts: the grid, KV tokens per response; both increasing, contexts up to the model's longest.
        joins: (responses, prompt tokens of each) of the courses to time; no more responses than slots.
        rounds: times the grid is gone through; the median is kept.
        max_batch: slots of an actor; the largest measured batch by default.
        kv_memory_bytes: memory set aside for KV caches.

    Raises:
        ProfileError: torch is missing, the model or device cannot be used, or the grid does not fit the model.
    """
    if rounds < 1 or len(batches) < 2 or len(contexts) < 2 or min(*batches, *contexts) < 1:
        raise ProfileError("a measurement needs 1 round or more and 2 or more batches and contexts, each of 1 or more")
    lm = CausalLM(model, device, threads)
    slots = max_batch or max(batches)
    courses = [Course(*sizes) for sizes in sorted({(min(responses, slots), tokens) for responses, tokens in joins})]
    longest = max(max(contexts), *(course.tokens + course.iterations for course in courses))
    if longest > lm.max_context:
        raise ProfileError(f"{lm.name} holds {lm.max_context} tokens of context; {longest} cannot be measured")
    try:
        decode, run_course = timers(lm.model, longest)
    except ValueError as error:
        raise ProfileError(f"{lm.name}: {error}") from None
    step_s = median_seconds(decode, [(batch, context) for batch in batches for context in contexts], rounds, device)
    changes = measure_changes(run_course, courses, rounds)
    sync_s = lm.median_s(lm.sync, rounds)
    start_s = lm.median_s(lm.build, rounds) + sync_s
    capacity = kv_capacity(
        gpus=1,
        memory_bytes_per_gpu=kv_memory_bytes + lm.weight_bytes,
        weight_bytes=lm.weight_bytes,
        kv_bytes_per_token=lm.kv_bytes_per_token,
        usable_fraction=1.0,
    )
    torch, transformers = _require("torch"), _require("transformers")
    kind = "cpu" if device == "cpu" else torch.cuda.get_device_name(lm.device).lower().replace(" ", "-")
    where = f"{platform.machine()} CPU, {threads} thread(s)" if device == "cpu" else kind
    return compose_profile(
        name=name,
        model=lm.name,
        kind=kind,
        gpus_per_actor=1,
        precision=lm.precision,
        table=StepTable(np.array(batches), np.array(contexts), step_s.reshape(len(batches), len(contexts))),
        changes=changes,
        start_s=round(start_s, 6),
        sync_s=round(sync_s, 6),
        transfer_base_s=0.0,
        link="a copy in the device's memory",
        link_bytes_per_s=round(1 / lm.copy_s_per_byte(rounds)),
        capacity=capacity,
        max_batch=slots,
        origin=f"measured on {where} with torch {torch.__version__}, transformers {transformers.__version__}: "
        f"median of {rounds} rounds, sampling and bookkeeping included",
        command=command,
        date=datetime.date.today().isoformat(),
        licence="Apache-2.0 (measured by this project)",
        assumptions={
            "transfer_base_s": "assumed: 0, emulated actors share one memory",
            "kv_capacity.memory_bytes_per_gpu": f"assumed: {kv_memory_bytes / 2**30:g} GiB for KV caches beside the weights",
            "max_batch": "the largest measured batch" if max_batch is None else "assumed: given to the measurement",
        },
    )


def median_seconds(timed: Timed, sizes: list[tuple[int, int]], rounds: int, device: str) -> np.ndarray:
    """(sizes,) median seconds of ``timed``; each visit of a size begins with calls that are not counted."""
    now_s = stopwatch(device)
    seconds = np.zeros((rounds, len(sizes), TIMED_CALLS))
    for one_round in range(rounds):
        for i in np.random.default_rng(one_round).permutation(len(sizes)):
            size = sizes[i]
            for _ in range(WARM_UP_CALLS):
                timed(*size)
            for call in range(TIMED_CALLS):
                start = now_s()
                timed(*size)
                seconds[one_round, i, call] = now_s() - start
    return np.asarray(np.median(seconds, axis=(0, 2)))


def _require(package: str) -> Any:
    """torch or transformers, or one sentence that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise missing_extra("measuring a profile", package, "torch") from None
