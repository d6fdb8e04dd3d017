"""The options of the commands as frozen pydantic models: what a command takes on the command line and in Python.

A command has one class, whose fields are its options: names, types, limits and help texts stand there and nowhere else. Classes
that several commands share stand here. ``rlhfless.cli.command_line`` makes the command line from them.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from rlhfless.errors import NO_SUCH_LOG, InputError, likely_meant
from rlhfless.system.out_files import why_not_written

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from rlhfless.run.hardware import Hardware
    from solver.model.objective import Objective


def shown(metavar: str) -> dict[str, Any]:
    """Return what a field's ``json_schema_extra`` says of its value in a help text."""
    return {"metavar": metavar}


def _split(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return value
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Names, on the command line separated by commas."""


def check_file(path: Path) -> Path:
    """Return the path of a file to write.

    Raises:
        InputError: it is a folder, or cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file for -o")
    if why := why_not_written(path):
        raise InputError(f"{path}: {why}; name a file in a writable folder for -o")
    return path


def check_folder(path: Path) -> Path:
    """Return the path of a folder to write, new or not.

    Raises:
        InputError: it is a file, or cannot be made.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file; name a folder")
    if why := why_not_written(path):
        raise InputError(f"{path}: {why}; name a folder that can be written")
    return path


def refuse_missing_log(path: Path) -> None:
    """Refuse a path to a log at which nothing is; commands call it before they import and compute anything.

    Raises:
        InputError: nothing is there.
    """
    try:
        missing = not path.exists()
    except (OSError, ValueError):  # the reader says why
        return
    if missing:
        raise InputError(f"{path}: {NO_SUCH_LOG}")


OutFile = Annotated[Path, AfterValidator(check_file)]
"""A file to write. It is refused before anything is computed if it cannot be written."""
OutFolder = Annotated[Path, AfterValidator(check_folder)]
"""A folder to write, likewise."""


class Options(BaseModel):
    """Base of the options of a command.

    Raises:
        InputError: a value is of another type or outside its limits, an option is unknown or missing, or options contradict
            each other; the message names option, value and what is needed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)
    heading: ClassVar[str] = ""
    """Stands over the options of this class in help texts."""
    prefix: ClassVar[str] = "--"
    """Stands before the name of an option in messages."""

    @classmethod
    def instead_of(cls, option: str) -> str | None:
        """Return what is typed in place of an option that the command does not have, as a clause; None if it is not known."""
        return None

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, about: ValidationInfo) -> Any:
        """Refuse True and False where a number is needed: pydantic would take them as 1 and 0."""
        if isinstance(value, bool) and bool not in members(cls.model_fields[str(about.field_name)].annotation):
            raise ValueError("a switch")
        return value

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            # A mistyped name comes first: the option that it means is not missing.
            wrong = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
            raise InputError(sentence(type(self), wrong[0])) from None


def flag(name: str, field: FieldInfo, prefix: str = "--") -> str:
    """Return how an option is typed, such as ``--max-response-tokens``.

    A positional argument is in capitals, and a switch that is on by default has ``no-``.
    """
    alias = field.validation_alias
    names = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
    typed = str(names[0]).replace("_", "-")
    return typed.upper() if is_positional(field) else f"{prefix}{'no-' if field.default is True else ''}{typed}"


def states(value: Any, default: Any) -> bool:
    """Return whether a value that was given says something: nothing, no texts, or a switch as it is by default do not."""
    return value not in (None, ()) and not (isinstance(value, bool) and value == default)


def is_positional(field: FieldInfo) -> bool:
    """Return whether an option is typed without its name."""
    from pydantic_settings.sources.types import _CliPositionalArg

    return _CliPositionalArg in field.metadata


def sentence(kind: type[Options], error: ErrorDetails) -> str:
    """Return the sentence of a value that pydantic refused: the option, the value, and what is needed."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return str(cause)
    by_key = {key: (name, field) for name, field in kind.model_fields.items() for key in _keys(name, field)}
    key = str(error["loc"][0]) if error["loc"] else ""
    if key not in by_key:
        fields, wrong = list(kind.model_fields), key
        if kind.prefix != "--":  # as the names are typed there
            fields, wrong = [one.replace("_", "-") for one in fields], key.replace("_", "-")
        known = nearest(wrong, fields) or f"; {', '.join(fields)} are known"
        return f"{kind.prefix.removesuffix('--')}{wrong} is unknown{known}"
    name, field = by_key[key]
    if error["type"] == "missing":
        text = (field.description or "").split(". ")[0].rstrip(".")
        return f"{flag(name, field, kind.prefix)} is missing ({text[:1].lower()}{text[1:]})"
    value = error["input"]
    given = value if isinstance(value, str) and value and len(value.split()) == 1 else repr(value)
    return f"{flag(name, field, kind.prefix)} is {given}; {needed(field)} is needed"


def _keys(name: str, field: FieldInfo) -> list[str]:
    alias = field.validation_alias
    return [name, *(map(str, alias.choices) if isinstance(alias, AliasChoices) else [str(alias)] if alias else [])]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` with the known name that is nearest to a mistyped one; nothing if none is near."""
    by_word = {one.lstrip("-"): one for one in known}
    meant = likely_meant(name.lstrip("-"), by_word)
    return "" if meant is None else f"; did you mean {by_word[meant]}?"


BOUNDS = {"ge": "at least", "gt": "above", "le": "at most"}


def needed(field: FieldInfo) -> str:
    """Return what a field takes, such as ``a whole number of at least 1``."""
    kinds = [kind for kind in members(field.annotation) if kind is not types.NoneType]
    return either([_needed(kind, field.metadata) for kind in kinds])


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the parts of a union, or the annotation alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _needed(kind: Any, limits: Iterable[Any]) -> str:
    if get_origin(kind) is Annotated:
        kind, *own = get_args(kind)
        limits = [*limits, *own]
    if get_origin(kind) is Literal:
        return either([str(one) for one in get_args(kind)])
    if get_origin(kind) is tuple and get_args(kind)[0] is not str:  # one of its items is wrong
        return _needed(get_args(kind)[0], ())
    if get_origin(kind) is Mapping:
        return "a mapping of names and values"
    nouns = {int: "a whole number", float: "a finite number", bool: "yes or no", Path: "a path"}
    noun = nouns.get(kind, "a text" if kind is str else "a list of texts")
    words = []
    for limit in limits:
        for one in [limit, *getattr(limit, "metadata", [])]:
            words += [f"{word} {getattr(one, name):g}" for name, word in BOUNDS.items() if hasattr(one, name)]
    joined = " and ".join(words)
    return f"{noun}{' of' * joined.startswith('at ')} {joined}".rstrip() if words else noun


def either(parts: list[str]) -> str:
    """Return ``a, b or c``."""
    return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Gib = Annotated[float, Field(gt=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]

WEIGHT = "Weight w of time T against cost C: T^w C^(1-w) is minimised, so 1 is time only and 0 is cost only."
WEIGHT_OF_RUN = f"{WEIGHT}  [default: that of the run, else 0.7]"  # solver.model.objective.TIME_WEIGHT, which loads numpy


class Printed(Options):
    """How the result is printed."""

    format: Literal["text", "json"] = Field("text", description="Print text, or one JSON object.")


GPUS = re.compile(r"(?:([1-9]\d*)x)?([1-9]\d*)")


def _gpus(value: Any) -> Any:
    """Return a number of GPUs, or ``NODESxGPUS`` as it was typed.

    Raises:
        InputError: it is neither.
    """
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool) and GPUS.fullmatch(str(value).strip())):
        text = str(value).strip()
        return value if value is None else text if "x" in text else int(text)
    raise InputError(
        f"--gpus is {value}; a whole number of at least 1 is needed, or the nodes and the GPUs of each, such as 2x4"
    )


Gpus = Annotated[int | str, BeforeValidator(_gpus)]
"""A number of GPUs: ``16``, or ``2x4`` for 2 nodes of 4 GPUs. It is read with ``total_and_node``."""


def total_and_node(gpus: int | str) -> tuple[int, int | None]:
    """Return the number of GPUs, and those of each node; None where they are not stated."""
    nodes, _, each = str(gpus).rpartition("x")
    return (int(nodes) * int(each), int(each)) if nodes else (int(each), None)


class LoggedGpus(Options):
    """The GPUs that a run of a log is studied on."""

    heading: ClassVar[str] = "The GPUs"
    gpus: Gpus | None = Field(
        None, json_schema_extra=shown("N|NODESxN"),
        description="Number of GPUs that generate, in nodes of 8 (one node if fewer); 2x4 is 2 nodes of 4.  [default: the "
        "trace's]",
    )  # fmt: skip
    gpus_per_actor: Count | None = Field(
        None,
        description="GPUs per actor; an actor is a replica of the engine, so this is vLLM's tensor_parallel_size.  [default: "
        "the profile's]",
    )
    profile: str | None = Field(
        None, json_schema_extra=shown("NAME"),
        description="Latency profile, which says how fast the engine is: a shipped name or a JSON file.  [default: the "
        "trace's, or l40s-qwen2.5-3b-tp2]",
    )  # fmt: skip

    def hardware_at(self, usd_per_gpu_hour: float | None) -> Hardware:
        """Return the GPUs and the profile as a study takes them, with the price of a GPU-hour; None is the list price."""
        from rlhfless.run.hardware import Hardware

        gpus, node = (None, None) if self.gpus is None else total_and_node(self.gpus)
        return Hardware(gpus, node, self.gpus_per_actor, self.profile, usd_per_gpu_hour)


class PricedGpus(LoggedGpus):
    """The same with one price."""

    heading: ClassVar[str] = "The GPUs"
    usd_per_gpu_hour: NotNegative | None = Field(
        None, json_schema_extra=shown("USD"),
        description="Price of one GPU for an hour.  [default: list price of its kind, if that is known]",
    )  # fmt: skip

    @property
    def hardware(self) -> Hardware:
        """The GPUs, profile and price as a study takes them."""
        return self.hardware_at(self.usd_per_gpu_hour)


LIMIT = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(s|gpu-s|usd)")
LIMITS = {"s": "deadline_s", "gpu-s": "budget_gpu_s", "usd": "budget_usd"}
"""Unit of ``--limit`` -> what ``Objective`` calls the limit."""


def _limit(value: Any) -> Any:
    """Return a limit as it was typed.

    Raises:
        InputError: it is no number above 0 with a unit.
    """
    found = LIMIT.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if value is not None and (found is None or not 0 < float(found[1]) < float("inf")):
        raise InputError(
            f"--limit is {value}; a number above 0 with its unit is needed: 90s (seconds), 5000gpu-s (GPU-seconds) or 0.5usd"
        )
    return value if found is None else found[0]


class Limits(Options):
    """What is minimised: a weighted product of time and cost, or one of them with a limit on the other."""

    heading: ClassVar[str] = "What is minimised"
    time_weight: Share | None = Field(None, json_schema_extra=shown("W"), description=WEIGHT_OF_RUN)
    limit: Annotated[str | None, BeforeValidator(_limit)] = Field(
        None, json_schema_extra=shown("90s|5000gpu-s|0.5usd"),
        description="Minimise cost with at most this time per step (90s), or time with at most this cost per step (5000gpu-s, "
        "0.5usd), in place of --time-weight.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.time_weight is not None and self.limit is not None:
            raise InputError("--time-weight and --limit are given together; leave out one of the two")
        return self

    @property
    def limits(self) -> dict[str, float]:
        """The limit that is given, as ``Objective`` calls it; empty without one."""
        if self.limit is None:
            return {}
        found = LIMIT.fullmatch(self.limit)
        assert found is not None
        return {LIMITS[found[2]]: float(found[1])}

    def objective(self, time_weight: float) -> Objective:
        """Return the objective.

        Args:
            time_weight: without --time-weight.
        """
        from solver.model.objective import Objective

        weight = time_weight if self.time_weight is None else self.time_weight
        deadline_s, budget_gpu_s, budget_usd = (self.limits.get(name) for name in LIMITS.values())
        return Objective(weight, deadline_s, budget_gpu_s, budget_usd)
