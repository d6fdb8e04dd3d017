"""Reads and writes latency profiles: JSON files with the speed of one actor, the origin of the numbers, and all assumptions.

Needs json and numpy only. Shipped profiles are in the source checkout's ``data/profiles``, or in ``rlhfless/_data/profiles`` of
an installed package.

A profile has (times in seconds): ``name, model, kind, gpus_per_actor, precision``; ``table`` (``batch``, ``context_tokens``,
``step_s``); ``fit`` of it and ``prefill``, both with residuals. ``prefill`` has ``samples``, ``base_s``, ``per_token_s``, and
one-time costs of a response, ``per_join_s`` and ``per_end_s``, which are 0 if they are missing. ``prefill.mixed`` is there
where prompts are fed in iterations that decode (``token_budget``, ``per_token_s``, residuals). Then ``table.batch`` counts fed
tokens, and beyond ``max_batch`` the batch is full and the rest are prompts. Profiles without it prefill in calls of their own.
Further fields are ``start_s, sync_s, transfer_base_s, transfer_per_kv_token_s`` (= ``link.kv_bytes_per_token /
link.bytes_per_s``); ``max_batch, kv_capacity_tokens`` (``kv_capacity`` has formula and inputs); and in words ``origin, command,
date, licence`` and ``assumptions``, which names every number that is assumed rather than measured.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.errors import UserError, other_version
from rlhfless.latency.fit import AffineFit, fit_prompt_tokens, residuals
from rlhfless.system.installation import data_folders
from solver.model.errors import PlanningError, as_given
from solver.model.iteration_table import IterationTable
from solver.model.latency import PREFILLS, LatencyModel

SCHEMA = "rlhfless-latency-profile"
DEFAULT_PROFILE = "l40s-qwen2.5-3b-tp2"
"""Stands in for a run's model and GPUs if no profile is stated."""
ONE_GPU_PROFILE = "h100-qwen2.5-3b-tp1"
"""The same where the GPUs are no multiple of the default profile's 2 per replica."""
SCHEMA_VERSION = 1
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
KV_CAPACITY_FORMULA = (
    "gpus * (usable_fraction * memory_bytes_per_gpu - weight_bytes / gpus - reserve_bytes_per_gpu) / kv_bytes_per_token"
)


class ProfileError(UserError, ValueError):
    """A latency profile does not exist or cannot be used; the message names the file and the field, and says what is needed."""


def _shipped() -> dict[str, Path]:
    """Return the file of every shipped profile by name; the source checkout goes first."""
    files = [file for folder in reversed(data_folders()) for file in sorted((folder / "profiles").glob("*.json"))]
    return {file.stem: file for file in files}


def list_profiles() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    return sorted(_shipped())


def profiles_of_the_same_model(name_or_path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the other shipped profiles of the same language model, sorted.

    Raises:
        ProfileError: no such profile, or an invalid file.
    """
    own = read_profile(name_or_path)
    others = [name for name in list_profiles() if name not in (str(name_or_path), own["name"])]
    return [name for name in others if read_profile(name)["model"] == own["model"]]


def weights_of_profile(profile: Mapping[str, Any]) -> float:
    """Return the number of weights of the model that a profile was measured with."""
    return float(profile["kv_capacity"]["weight_bytes"] / ITEM_BYTES[profile["precision"]])


def nearest_profile(weights: float, sizes: Collection[int], kind: str | None = None) -> str:
    """Return the name of the shipped profile whose model is nearest in size; of several the one of the GPU kind, then the one
    with the fewest GPUs per actor.

    Args:
        weights: number of weights of the model.
        sizes: numbers of GPUs that an actor may have.
        kind: of the GPUs, such as ``h100``; None for GPUs that are emulated.

    Raises:
        ProfileError: no shipped profile has actors of one of the sizes.

    Example:
        >>> nearest_profile(500_000, [1]), nearest_profile(1.5e9, [1, 2]), nearest_profile(7e9, [1, 2, 4], "l40s")
        ('cpu-tiny-qwen2', 'h100-qwen2.5-3b-tp1', 'l40s-qwen2.5-7b-tp4')
    """
    near: list[tuple[float, bool, int, str]] = []
    for name in list_profiles():
        profile = read_profile(name)
        own = weights_of_profile(profile)
        if profile["gpus_per_actor"] in sizes:
            near.append((abs(math.log(weights / own)), kind != profile["kind"], profile["gpus_per_actor"], name))
    if not near:
        raise ProfileError(
            f"no shipped profile has actors of {' or '.join(map(str, sorted(sizes)))} GPUs; give a profile by name or file"
        )
    return min(near)[-1]


def other_sizes(name_or_path: str | os.PathLike[str]) -> list[LatencyModel]:
    """Return latency models of other actor sizes, from shipped profiles of the same language model and GPU kind.

    A profile of your own has none: it was measured in another way than the shipped ones.

    Raises:
        ProfileError: no such profile, or an invalid file.

    Example:
        >>> [model.name for model in other_sizes("h100-qwen2.5-3b-tp1")]
        ['h100-qwen2.5-3b-tp2']
    """
    own = load_profile(name_or_path)
    if own.name not in _shipped() or str(name_or_path) != own.name:
        return []
    others = [load_profile(name) for name in profiles_of_the_same_model(own.name)]
    sizes = {model.gpus_per_actor: model for model in others if model.kind == own.kind}
    return [model for gpus, model in sorted(sizes.items()) if gpus != own.gpus_per_actor]


def load_profile(name_or_path: str | os.PathLike[str], *, prefill: str | None = None) -> LatencyModel:
    """Return the latency model of a shipped profile (by name) or of a profile file (a path, or anything ending in .json).

    Args:
        prefill: ``mixed`` or ``separate``; by default mixed where the profile knows it.

    Raises:
        ProfileError: no such profile, an invalid file, or a profile that does not know that prefill; one sentence.
    """
    path = _locate(name_or_path)
    return _model_of(_read(path), path, prefill)


def read_profile(name_or_path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a profile as a checked dict with all fields: origin, command, licence, assumptions, prefill samples and times."""
    path = _locate(name_or_path)
    profile = _read(path)
    _model_of(profile, path)
    return profile


def save_profile(path: str | os.PathLike[str], profile: Mapping[str, Any]) -> Path:
    """Check a profile (of ``compose_profile``) and write it atomically, one table row per line."""
    path = Path(path)
    _model_of(profile, path)
    text = json.dumps(profile, indent=2, ensure_ascii=False)
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda match: re.sub(r"\s+", " ", match.group()).replace("[ ", "["), text)
    text = text.replace(" ]", "]") + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    return path


def kv_capacity(
    *,
    gpus: int,
    memory_bytes_per_gpu: float,
    weight_bytes: float,
    kv_bytes_per_token: float,
    usable_fraction: float = 0.9,
    reserve_bytes_per_gpu: float = 0.0,
) -> dict[str, Any]:
    """Return the KV tokens that fit into an actor's memory, with formula and inputs as in a profile's ``kv_capacity``."""
    per_gpu = usable_fraction * memory_bytes_per_gpu - weight_bytes / gpus - reserve_bytes_per_gpu
    return {
        "formula": KV_CAPACITY_FORMULA,
        "gpus": gpus,
        "usable_fraction": usable_fraction,
        "memory_bytes_per_gpu": memory_bytes_per_gpu,
        "weight_bytes": weight_bytes,
        "reserve_bytes_per_gpu": reserve_bytes_per_gpu,
        "kv_bytes_per_token": kv_bytes_per_token,
        "tokens": max(int(gpus * per_gpu / kv_bytes_per_token), 0),
    }


def mixed_prefill(
    table: IterationTable, fit: AffineFit, max_batch: int, token_budget: int | None, kv_capacity_tokens: int
) -> dict[str, Any]:
    """Return the entry ``mixed`` of a profile's ``prefill``; nothing without a budget."""
    if token_budget is None:
        return {}
    per_token_s, errors = fit_prompt_tokens(table, fit, max_batch, token_budget, kv_capacity_tokens)
    return {"mixed": {"token_budget": int(token_budget), "per_token_s": per_token_s, **residuals(errors)}}


def _locate(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the file of a profile given by name or path."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise ProfileError(
            f"profile is {as_given(name_or_path)}; the name of a latency profile or the path of its file is needed"
        )
    text = os.fspath(name_or_path)
    shipped = _shipped()
    if text in shipped:
        return shipped[text]
    names = ", ".join(sorted(shipped)) or "none"
    if isinstance(name_or_path, Path) or text.endswith(".json") or os.sep in text:
        path = Path(text)
        if path.is_file():
            return path
        raise ProfileError(f"{text}: there is no such profile file; give an existing .json file or one of these names: {names}")
    raise ProfileError(f"latency profile {text!r} is unknown; choose from {names}")


def _read(path: Path) -> dict[str, Any]:
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ProfileError(f"{path}: line {error.lineno} is not JSON ({error.msg}); a profile is one JSON object") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read ({error}); a profile is a JSON text file") from None
    if not isinstance(profile, dict):
        raise ProfileError(f"{path}: holds a {type(profile).__name__}; a profile is one JSON object")
    return profile


def _field(profile: Mapping[str, Any], path: Path, name: str) -> Any:
    """Return the value at a dotted name."""
    value: Any = profile
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ProfileError(f"{path}: the field {name} is missing; every profile has it")
        value = value[key]
    return value


def _text(profile: Mapping[str, Any], path: Path, name: str) -> str:
    value = _field(profile, path, name)
    if not isinstance(value, str) or not value.strip():
        raise ProfileError(f"{path}: the field {name} is {value!r}; a text is needed")
    return value


def _seconds(profile: Mapping[str, Any], path: Path, name: str) -> float:
    value = _field(profile, path, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value) or value < 0:
        raise ProfileError(f"{path}: the field {name} is {value!r}; a number of 0 or more is needed")
    return float(value)


def _once(profile: Mapping[str, Any]) -> list[str]:
    """Return the names of a response's one-time costs; older profiles have none of them."""
    return [f"prefill.{name}" for name in ("per_join_s", "per_end_s") if name in profile["prefill"]]


def _count(profile: Mapping[str, Any], path: Path, name: str) -> int:
    value = _field(profile, path, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ProfileError(f"{path}: the field {name} is {value!r}; a whole number of 1 or more is needed")
    return value


def _numbers(profile: Mapping[str, Any], path: Path, name: str) -> np.ndarray:
    value = _field(profile, path, name)
    try:
        array = np.array(value, dtype=float)
    except (TypeError, ValueError):
        raise ProfileError(
            f"{path}: the field {name} is not a rectangular table; lists of numbers of equal length are needed"
        ) from None
    if not np.all(np.isfinite(array)):
        raise ProfileError(f"{path}: the field {name} holds a value that is not finite; numbers are needed")
    return array


def _prefill(profile: Mapping[str, Any], path: Path, wanted: str | None) -> dict[str, Any]:
    """Return what a profile says of prefill, in the form that is wanted, as arguments of a ``LatencyModel``."""
    if wanted not in (None, *PREFILLS):
        raise ProfileError(f"prefill is {wanted!r}; choose one of {', '.join(PREFILLS)}")
    known = "mixed" in profile["prefill"]
    if wanted == "mixed" and not known:
        raise ProfileError(
            f"{path}: has no field prefill.mixed, so its prefill is separate; a profile with mixed steps is needed"
        )
    if wanted == "separate" or not known:
        times = ("prefill.base_s", "prefill.per_token_s")
        return dict(zip(("prefill_base_s", "prefill_per_token_s"), (_seconds(profile, path, t) for t in times), strict=True))
    return {
        "prefill": "mixed",
        "token_budget": _count(profile, path, "prefill.mixed.token_budget"),
        "prefill_per_token_s": _seconds(profile, path, "prefill.mixed.per_token_s"),
    }


def _model_of(profile: Mapping[str, Any], path: Path, prefill: str | None = None) -> LatencyModel:
    """Return the latency model that a profile describes; every field is checked."""
    if _text(profile, path, "schema") != SCHEMA:
        raise ProfileError(f"{path}: the field schema is {profile['schema']!r}; {SCHEMA!r} is needed")
    if _count(profile, path, "schema_version") != SCHEMA_VERSION:
        found = other_version("a latency profile", profile["schema_version"], SCHEMA_VERSION)
        raise ProfileError(f"{path}: {found} (field schema_version)")
    for name in ("model", "precision", "origin", "command", "date", "licence"):
        _text(profile, path, name)
    if not isinstance(_field(profile, path, "assumptions"), Mapping):
        raise ProfileError(f"{path}: the field assumptions must map the name of each assumed number to its reason")
    try:
        table = IterationTable(*(_numbers(profile, path, f"table.{name}") for name in ("batch", "context_tokens", "step_s")))
    except PlanningError as error:
        raise ProfileError(f"{path}: the field table is wrong: {error}") from None
    try:
        return LatencyModel(
            name=_text(profile, path, "name"),
            kind=_text(profile, path, "kind"),
            gpus_per_actor=_count(profile, path, "gpus_per_actor"),
            base_s=_seconds(profile, path, "fit.base_s"),
            per_response_s=_seconds(profile, path, "fit.per_response_s"),
            per_kv_token_s=_seconds(profile, path, "fit.per_kv_token_s"),
            fit_mean_error=_seconds(profile, path, "fit.mean_relative_error"),
            fit_max_error=_seconds(profile, path, "fit.max_relative_error"),
            table=table,
            **_prefill(profile, path, prefill),
            join_s=sum(_seconds(profile, path, name) for name in _once(profile)),
            start_s=_seconds(profile, path, "start_s"),
            sync_s=_seconds(profile, path, "sync_s"),
            transfer_base_s=_seconds(profile, path, "transfer_base_s"),
            transfer_per_kv_token_s=_seconds(profile, path, "transfer_per_kv_token_s"),
            max_batch=_count(profile, path, "max_batch"),
            kv_capacity_tokens=_count(profile, path, "kv_capacity_tokens"),
            kv_bytes_per_token=_seconds(profile, path, "link.kv_bytes_per_token"),
        )
    except PlanningError as error:
        raise ProfileError(f"{path}: {error}") from None
