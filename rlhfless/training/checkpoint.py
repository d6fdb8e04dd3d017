"""Checkpoints: weights and optimizer state after a step, as safetensors, found again by step number.

Knows tensors and folders; nothing of traces. A checkpoint is a folder that appears whole (renamed into place).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from rlhfless.training import missing_torch

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.config import TrainError


def folder_of(root: Path, steps: int) -> Path:
    """Where the checkpoint after ``steps`` completed steps lies."""
    return root / f"after-{steps:06d}"


def save_checkpoint(root: Path, steps: int, model: Any, optimizer: Any) -> None:
    """Write the state after ``steps`` completed steps, all of it or nothing."""
    target = folder_of(root, steps)
    draft = target.with_suffix(".tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in _weights(model).items()}, draft / "model.safetensors")
    state = optimizer.state_dict()
    tensors = {f"{p}.{name}": torch.as_tensor(v) for p, values in state["state"].items() for name, v in values.items()}
    save_file(tensors, draft / "optimizer.safetensors")
    groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
    (draft / "state.json").write_text(json.dumps({"steps": steps, "groups": groups}), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)


def load_checkpoint(root: Path, steps: int, model: Any, optimizer: Any) -> None:
    """Restore the state after ``steps`` completed steps.

    Raises:
        TrainError: there is no such checkpoint.
    """
    folder = folder_of(root, steps)
    if not (folder / "state.json").is_file():
        raise TrainError(f"{root}: has no checkpoint after {steps} steps, which the trace has; start the run anew")
    weights = _weights(model)
    for name, value in load_file(folder / "model.safetensors").items():
        weights[name].copy_(value)
    tensors: dict[int, dict[str, Any]] = {}
    for key, value in load_file(folder / "optimizer.safetensors").items():
        parameter, name = key.split(".", 1)
        tensors.setdefault(int(parameter), {})[name] = value
    saved = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    groups = optimizer.state_dict()["param_groups"]
    for group, values in zip(groups, saved["groups"], strict=True):
        group.update({k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    optimizer.load_state_dict({"state": tensors, "param_groups": groups})


def keep_latest(root: Path, steps: int, count: int) -> None:
    """Remove every checkpoint but the ``count`` latest up to the one after ``steps`` steps, which stays."""
    kept = {folder_of(root, steps)} | set(sorted(f for f in root.glob("after-*") if f <= folder_of(root, steps))[-count:])
    for folder in root.glob("after-*"):
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def _weights(model: Any) -> dict[str, Any]:
    """The model's parameters by name, tied ones once; views, not copies."""
    return {name: value.detach() for name, value in model.named_parameters()}
