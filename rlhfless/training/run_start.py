"""How a training run begins: with a given, loaded or warmed-up model, or as the resumed run of a folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.model import one_thread
from rlhfless.engine.torch.pretrained import checkpoint_dtype, load_model, to_train
from rlhfless.gone_options import in_sections
from rlhfless.system.model_folders import local_folder
from rlhfless.trace import TraceWriter
from rlhfless.trace.storage import absolute
from rlhfless.training.checkpoint import saved_steps
from rlhfless.training.config import ReproducibilityWarning, TrainConfig, TrainError
from rlhfless.training.models.tiny_model import tiny_qwen2
from rlhfless.training.models.warmup import warm_up
from rlhfless.training.tasks.arithmetic import ArithmeticTask
from solver.model.plurals import counted


def make_model(seed: int, progress: bool = True) -> tuple[Any, CharTokenizer]:
    """Return the tiny model after its supervised warm-up on worked solutions (about a minute), and its tokenizer.

    It computes with one thread, because the model is too small for a second one to help. Threads that wait for each other on a
    busy machine cost more than they bring. One thread also makes the weights a function of the seed alone.
    """
    tokenizer, task = CharTokenizer(), ArithmeticTask(seed)
    model = tiny_qwen2(tokenizer, seed)
    with one_thread(model.device):
        warm_up(model, tokenizer, task.worked_solutions(seed), seed=seed, progress=progress)
    return model, tokenizer


@dataclass(frozen=True, eq=False)
class RunStart:
    """Model, tokenizer and metadata of a run that starts, before it writes any file, or of one that is resumed.

    Attributes:
        meta: what ``meta.json`` records of the run, with a unique ``run_id``, what the run chose at its start
            (``choices``), and of the first weights ``base_model`` (folder, name on the hub, or None) and ``checkpoint_dtype``.
            writer: of the trace, if the run is resumed.
        is_cold: the model is a new one, which ``warm_up`` has to train.
    """

    model: Any
    tokenizer: Any
    meta: Mapping[str, Any]
    writer: TraceWriter | None = None
    is_cold: bool = False

    def warm_up(self, seed: int, progress: bool) -> None:
        """Give a new model the weights of its warm-up, which is not begun before all options of the run are checked."""
        if self.is_cold:
            self.model.load_state_dict(make_model(seed, progress)[0].state_dict())

    @property
    def checkpoint_dtype(self) -> str:
        """The number format of the weights that the run began with, before they were read as float32."""
        return str(self.meta.get("checkpoint_dtype", "float32"))

    @property
    def earlier_cluster(self) -> Mapping[str, Any] | None:
        """The cluster before the run was resumed, if it had another size; else None."""
        was = None if self.writer is None else self.writer.meta.get("cluster")
        sizes = ("nodes", "gpus_per_node")
        return was if was and any(was.get(size) != self.meta["cluster"][size] for size in sizes) else None

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        folder: Path | None,
        model: str | Path | tuple[Any, Any] | None,
        meta: Mapping[str, Any],
        *,
        device: torch.device | str = "cpu",
        resume: bool | int = False,
    ) -> RunStart:
        """Load, take over or make the first model, or load that of the run in ``folder``.

        A run that ended before its trace began, for example during warm-up, is started again instead of resumed.

        Args:
            model: a folder, a name on the hub, or a model with its tokenizer; None makes a new one, which is cold. A resumed
                run has its own weights: a passed model takes them over, and a name is not read.
            device: of the model, unless it is passed with its tokenizer.
            resume: continue the run in ``folder``, after its last checkpoint or after so many steps.

        Raises:
            TrainError: the folder holds a run already, or one with other options.
        """
        after = None if isinstance(resume, bool) else resume
        resumes = resume is not False
        if resumes and folder is not None and not _never_began(folder):
            start = cls._resumed(config, folder, model, meta, device)
            if after is not None:
                start._go_back_to(after)
            return start
        if folder is not None and holds_run(folder):
            raise TrainError(
                f"{folder}: holds a run already; name another folder, or go on with it by resume='auto' (--resume auto)"
            )
        if isinstance(model, tuple):
            given = {**meta, "checkpoint_dtype": str(model[0].dtype).removeprefix("torch.")}
            return cls(to_train(model[0]), model[1], given)
        if model is not None:
            found = local_folder(model)
            first = {"base_model": absolute(str(model)), "checkpoint_dtype": checkpoint_dtype(found)}
            return cls(*load_model(found, device), {**meta, **first})
        if config.task.name != "arithmetic" or "task" in meta["given"]:
            raise TrainError(f"task {meta['run']!r} needs a model whose tokenizer covers its text; give one, model=FOLDER")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        tokenizer = CharTokenizer()
        return cls(tiny_qwen2(tokenizer, config.seed).to(device), tokenizer, meta, is_cold=True)

    @classmethod
    def _resumed(
        cls, config: TrainConfig, folder: Path, model: Any, meta: Mapping[str, Any], device: torch.device | str
    ) -> RunStart:
        writer = TraceWriter.resume(folder)
        config.check_resume(writer.meta.get("config", {}))
        _check_given(folder, writer.meta, meta)
        was, now = writer.meta.get("learner_device"), meta["learner_device"]
        bits_were, bits_are = writer.meta.get("kernel_bits"), meta["kernel_bits"]
        if was is not None and was != now:
            warning = f"{folder}: the run was started on {was} and continues on {now}; results agree within rounding"
            warnings.warn(warning, ReproducibilityWarning, stacklevel=2)
        elif None not in (bits_were, bits_are) and bits_were != bits_are:
            warning = (
                f"{folder}: the run was started with other kernels of torch or MKL ({bits_were}) than this machine has "
                f"({bits_are}); results agree within rounding"
            )
            warnings.warn(warning, ReproducibilityWarning, stacklevel=2)
        weights, tokenizer = load_model(folder / "warm", device)
        if isinstance(model, tuple):
            to_train(model[0]).load_state_dict(weights.state_dict())
            weights, tokenizer = model
        run_id = writer.meta.get("run_id", folder.resolve().name)  # those without one were known by their folder's name
        first = {
            "base_model": writer.meta.get("base_model"),
            "checkpoint_dtype": writer.meta.get("checkpoint_dtype", "float32"),
            "choices": writer.meta.get("choices", []),
        }
        return cls(weights, tokenizer, {**meta, "run_id": run_id, **first}, writer)

    def _go_back_to(self, steps: int) -> None:
        """Remove all steps after so many from the trace."""
        assert self.writer is not None
        folder = self.writer.folder
        known = [one for one in saved_steps(folder / "checkpoints") if one <= self.writer.next_step]
        if steps not in known:
            raise TrainError(f"{folder}: has no checkpoint after {counted(steps, 'step')}; resume after one of {known}")
        TraceWriter.resume(folder, steps)


def _check_given(folder: Path, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a resumed run is given the objects that it was started with.

    Args:
        earlier, now: what ``meta.json`` records of the run, and of the one that goes on. Older runs record neither weights of
            rewards nor a data set.

    Raises:
        TrainError: it is not.
    """
    objects, were = now["given"], earlier.get("given") or {}
    lost = {name: what for name, what in (("rewards", "functions"), ("dataset", "a data set")) if _was_lost(name, earlier, now)}
    if lost:
        again = " and ".join(f"{name}=" for name in lost)
        what = " and ".join(lost.values())
        named = f" ({_weighted(earlier['rewards'])})" if "rewards" in lost and "rewards" in earlier else ""
        raise TrainError(
            f"{folder}: give {again} again: it was started with {what} given in Python{named}, which no folder keeps"
        )
    for name in sorted({*objects, *were}):
        if objects.get(name) != were.get(name):
            was, is_now = (names.get(name, "the configuration's own") for names in (were, objects))
            raise TrainError(f"{folder}: the run was started with {was} as {name}, not {is_now}; resume it with {was}")
    if "rewards" in earlier and earlier["rewards"] != now["rewards"]:
        was, is_now = _weighted(earlier["rewards"]), _weighted(now["rewards"])
        raise TrainError(f"{folder}: the run was started with the rewards {was}, not {is_now}; resume it with {was}")


def _was_lost(name: str, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a run was started with such an object and goes on without one."""
    return (name in earlier or name in (earlier.get("given") or {})) and name not in now and name not in now["given"]


def _weighted(rewards: Mapping[str, float]) -> str:
    """Return rewards as they are named in a configuration: ``digits + 0.5*short``."""
    return " + ".join(name if weight == 1 else f"{weight:g}*{name}" for name, weight in rewards.items())


def what_resumes(resume: bool | int | str, folder: Path | None) -> bool | int:
    """Return what to resume: ``auto`` is the last checkpoint of a run that the folder holds, and nothing where it holds none.

    Raises:
        TrainError: it is something else than True, False, ``auto`` or a number of steps, or there is nothing to resume.
    """
    if resume == "auto":
        return folder is not None and holds_run(folder)
    if not isinstance(resume, int):
        raise TrainError(f"resume is {resume!r}; give True, False, 'auto', or the number of steps to continue after")
    if resume is False:
        return False
    if folder is None:
        raise TrainError("there is nothing to resume without a folder; give the folder of the run")
    if not _never_began(folder) and not holds_run(folder):
        raise TrainError(
            f"{folder}: holds no run to resume; name the folder of one, or begin one there with resume 'auto' (--resume auto)"
        )
    return resume


def stored_config(folder: Path) -> Mapping[str, Any] | None:
    """Return the configuration that the run in a folder was started with; None where none can be read."""
    found = _stored_meta(folder).get("config")
    return in_sections(found) if isinstance(found, dict) else None


def check_first_model(folder: Path, model: str | Path | tuple[Any, Any] | None, stored: Mapping[str, Any]) -> None:
    """Check that a run is resumed with the model that it began with, or with none: its weights are its own.

    Args:
        model: that is given; a model with its tokenizer takes over the run's weights, so any may be passed.
        stored: the configuration that the run was started with.

    Raises:
        TrainError: it is the name of another model.
    """
    if model is None or isinstance(model, tuple):
        return
    base = _stored_meta(folder).get("base_model")
    first = stored.get("model") or base  # as it was typed, which also fits where the run's folder was moved to
    if str(model).rstrip("/") == str(first).rstrip("/") or absolute(str(model)) in (base, absolute(first)):
        return
    began = f"model {first}" if first else "a model that has no name: one that was passed, or the task's own"
    or_that = " or give that" if first else ""
    raise TrainError(f"{folder}: the run began with {began}, not {model}; leave model out{or_that}")


def _stored_meta(folder: Path) -> Mapping[str, Any]:
    """Return what ``meta.json`` records of the run in a folder; nothing where it cannot be read."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds a run whose trace has begun, so that it can be resumed."""
    return (folder / "meta.json").exists()


def _never_began(folder: Path) -> bool:
    """Return whether a run in the folder ended before its trace began: only files that are written before the trace exist."""
    before = {"config.yaml", "checkpoints", "warm", "warm.tmp", "plans.jsonl"}
    return folder.is_dir() and all(path.name in before or path.name.startswith(".") for path in folder.iterdir())
