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

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.latency.fit import AffineFit, fit_changes, fit_prompt_tokens, fit_table, residuals
from rlhfless.latency.shipped import ProfileError, check_schema, read_object, shipped_files, write_object
from rlhfless.latency.timing import TimedChange
from solver.model.errors import PlanningError, as_given
from solver.model.iteration_table import IterationTable
from solver.model.latency import PREFILLS, LatencyModel

FOLDER = "profiles"
SCHEMA = "rlhfless-latency-profile"
DEFAULT_PROFILE = "l40s-qwen2.5-3b-tp2"
"""Stands in for a run's model and GPUs if no profile is stated."""
ONE_GPU_PROFILE = "h100-qwen2.5-3b-tp1"
"""The same where the GPUs are no multiple of the default profile's 2 per replica."""
SCHEMA_VERSION = 1
TABLE = ("batch", "context_tokens", "step_s")
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
KV_CAPACITY_FORMULA = (
    "gpus * (usable_fraction * memory_bytes_per_gpu - weight_bytes / gpus - reserve_bytes_per_gpu) / kv_bytes_per_token"
)


def list_profiles() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    return sorted(shipped_files(FOLDER))


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
    if own.name not in shipped_files(FOLDER) or str(name_or_path) != own.name:
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
    return _model_of(read_object(path, "a profile"), path, prefill)


def read_profile(name_or_path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a profile as a checked dict with all fields: origin, command, licence, assumptions, prefill samples and times."""
    path = _locate(name_or_path)
    profile = read_object(path, "a profile")
    _model_of(profile, path)
    return profile


def save_profile(path: str | os.PathLike[str], profile: Mapping[str, Any]) -> Path:
    """Check a profile (of ``compose_profile``) and write it atomically, one table row per line."""
    path = Path(path)
    _model_of(profile, path)
    return write_object(path, profile, indent=2, comma=", ")


def table_of(profile: Mapping[str, Any]) -> IterationTable:
    """Return the seconds of iterations of a checked profile by batch and context."""
    return IterationTable(*(np.array(profile["table"][name], dtype=float) for name in TABLE))


def compose_profile(
    *,
    name: str,
    model: str,
    kind: str,
    gpus_per_actor: int,
    precision: str,
    max_batch: int,
    capacity: Mapping[str, Any],
    table: IterationTable,
    changes: Sequence[TimedChange],
    start_s: float,
    sync_s: float,
    link: str,
    link_bytes_per_s: float,
    transfer_base_s: float = 0.0,
    token_budget: int | None = None,
    origin: str,
    command: str,
    date: str,
    licence: str,
    assumptions: Mapping[str, str],
) -> dict[str, Any]:
    """Return a profile of measured numbers with their fits and the transfer time per KV token, ready for ``save_profile``.

    Arguments without a description here are a profile's fields of the same name; see above.

    Args:
        capacity: the KV memory of an actor, as ``kv_capacity`` returns it.
        table: of iterations. changes: of responses that join (prefill) and end.
        link: that KV caches are sent over, in words; link_bytes_per_s: its bandwidth.
        transfer_base_s: that every transfer takes at least.
        token_budget: the most tokens that an iteration feeds if the table has mixed iterations, beyond ``max_batch``.
        date: ISO. assumptions: every number that is assumed rather than measured, with the reason.
    """
    per_token_bytes, kv_tokens = capacity["kv_bytes_per_token"], capacity["tokens"]
    table = IterationTable(table.batch, table.context_tokens, np.round(table.iteration_s, 9))
    samples = [TimedChange(*map(int, row[:3]), *(round(float(seconds), 9) for seconds in row[3:])) for row in changes]
    fit, prefill = fit_table(table, max_batch, kv_tokens), fit_changes(samples)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "model": model,
        "kind": kind,
        "gpus_per_actor": gpus_per_actor,
        "precision": precision,
        "origin": origin,
        "command": command,
        "date": date,
        "licence": licence,
        "assumptions": dict(assumptions),
        "fit": {**asdict(fit), "over": "the table's points with batch <= max_batch and KV tokens <= kv_capacity_tokens"},
        "prefill": {
            "base_s": prefill.base_s,
            "per_token_s": prefill.per_token_s,
            "per_join_s": prefill.per_join_s,
            "per_end_s": prefill.per_end_s,
            **residuals(prefill.errors),
            **mixed_prefill(table, fit, max_batch, token_budget, kv_tokens),
            "samples": dict(zip(TimedChange._fields, map(list, zip(*samples, strict=True)), strict=True)),
        },
        "start_s": float(start_s),
        "sync_s": float(sync_s),
        "transfer_base_s": float(transfer_base_s),
        "transfer_per_kv_token_s": float(per_token_bytes / link_bytes_per_s),
        "link": {"what": link, "bytes_per_s": float(link_bytes_per_s), "kv_bytes_per_token": per_token_bytes},
        "max_batch": int(max_batch),
        "kv_capacity_tokens": kv_tokens,
        "kv_capacity": dict(capacity),
        "table": {
            "batch": [int(value) for value in table.batch],
            "context_tokens": [int(value) for value in table.context_tokens],
            "step_s": table.iteration_s.tolist(),
        },
    }


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
    shipped = shipped_files(FOLDER)
    if text in shipped:
        return shipped[text]
    names = ", ".join(sorted(shipped)) or "none"
    if isinstance(name_or_path, Path) or text.endswith(".json") or os.sep in text:
        path = Path(text)
        if path.is_file():
            return path
        raise ProfileError(f"{text}: there is no such profile file; give an existing .json file or one of these names: {names}")
    raise ProfileError(f"latency profile {text!r} is unknown; choose from {names}")


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
        return {
            "prefill_base_s": _seconds(profile, path, "prefill.base_s"),
            "prefill_per_token_s": _seconds(profile, path, "prefill.per_token_s"),
        }
    return {
        "prefill": "mixed",
        "token_budget": _count(profile, path, "prefill.mixed.token_budget"),
        "prefill_per_token_s": _seconds(profile, path, "prefill.mixed.per_token_s"),
    }


def _model_of(profile: Mapping[str, Any], path: Path, prefill: str | None = None) -> LatencyModel:
    """Return the latency model that a profile describes; every field is checked."""
    _text(profile, path, "schema")
    check_schema(profile, path, SCHEMA, SCHEMA_VERSION, "a latency profile")
    for name in ("model", "precision", "origin", "command", "date", "licence"):
        _text(profile, path, name)
    if not isinstance(_field(profile, path, "prefill"), Mapping):
        raise ProfileError(f"{path}: the field prefill must map the names of its seconds to numbers")
    if not isinstance(_field(profile, path, "assumptions"), Mapping):
        raise ProfileError(f"{path}: the field assumptions must map the name of each assumed number to its reason")
    try:
        table = IterationTable(*(_numbers(profile, path, f"table.{name}") for name in TABLE))
    except PlanningError as error:
        raise ProfileError(f"{path}: the field table is wrong: {error}") from None
    once = [f"prefill.{name}" for name in ("per_join_s", "per_end_s") if name in profile["prefill"]]  # older profiles: none
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
            join_s=sum(_seconds(profile, path, name) for name in once),
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
