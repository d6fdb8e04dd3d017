"""Base of the configuration classes: pydantic models whose refusals are one sentence that names the key as it is typed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from rlhfless.errors import likely_meant
from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.their_names import NAMES, ON_COMMAND_LINE, in_python_only, of_others, value_of_others
from solver.model.errors import as_given

Whole = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, ge=1)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
ShareAboveZero = Annotated[float, Field(strict=True, gt=0, le=1)]
PositiveOrInfinite = Annotated[float, Field(strict=True, gt=0)]
NotNegativeOrInfinite = Annotated[float, Field(strict=True, ge=0)]


NEEDED = {
    "int_type": "a whole number", "float_type": "a number", "finite_number": "a finite number", "bool_type": "True or False",
    "string_type": "a text", "tuple_type": "a list of texts", "literal_error": "{expected}",
    "greater_than_equal": "a number of at least {ge:g}", "greater_than": "a number above {gt:g}",
    "less_than_equal": "a number of at most {le:g}", "less_than": "a number below {lt:g}",
}  # fmt: skip
"""pydantic's type of an error -> what is needed."""


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""Several texts; one alone needs no list."""


_SECTIONS: dict[str, type[Section]] = {}
"""Class of each section; of ``algorithm`` that with the keys that all algorithms have."""
ALGORITHMS: dict[str, type[Section]] = {}
"""Classes of the section ``algorithm`` by its name; ``config.algorithm.register`` adds one."""


class Section(BaseModel):
    """One section of a configuration. It is immutable; wrong keys and values are refused in one sentence.

    Raises:
        TrainError: a key is unknown, or a value has the wrong type, is outside its range, or does not fit the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    section: ClassVar[str | None] = None
    """What stands before the dot of its keys: empty for the whole configuration, None for what is no part of one."""

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        super().__pydantic_init_subclass__(**given)
        if cls.section is not None:
            _SECTIONS[cls.section] = cls

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _refusal(error, self.section) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # a section inside a configuration is validated with it

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        """Take numbers of numpy as those of Python, which JSON and YAML can write."""
        return {key: _of_python(value) for key, value in given.items()} if isinstance(given, Mapping) else given

    def to_dict(self) -> dict[str, Any]:
        """Return all keys with their values, ready for JSON and YAML."""
        values: dict[str, Any] = self.model_dump(mode="json")
        return values

    def given(self) -> dict[str, Any]:
        """Return the keys that were given, with their values; those that are left out have their defaults."""
        values: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True)
        sections = {name: value for name in values if isinstance(value := getattr(self, name), Section)}
        return {**values, **{name: value.given() for name, value in sections.items()}}


def _of_python(value: Any) -> Any:
    is_number = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    return value.item() if is_number else value


def _refusal(error: ValidationError, section: str | None) -> TrainError:
    """Return the sentence for the first key that is wrong. Checks between several keys raise sentences of their own."""
    details = error.errors()
    first = details[0]
    if isinstance(own := first.get("ctx", {}).get("error"), TrainError):
        return own
    key = _key(first["loc"], section)
    if first["type"] == "extra_forbidden":
        return TrainError(unknown_key(key))
    value = first["input"]
    if first["type"] == "invalid_key":
        return TrainError(f"{key} has the key {as_given(value)}; a key is a text, such as {key}.{_a_key(key)}")
    if first["type"] == "model_type":
        return TrainError(f"{key} is {as_given(value)}, but it is a section; give its keys, such as {key}.{_a_key(key)}")
    if (theirs := value_of_others(key, value)) is not None:
        return TrainError(f"{key} is {as_given(value)}, {theirs}")
    needed = dict.fromkeys(_needed(each) for each in details if _key(each["loc"], section) == key)
    verb = "has" if isinstance(first["loc"][-1], int) else "is"  # an item of a list
    return TrainError(f"{key} {verb} {as_given(value)}; {' or '.join(needed)} is needed")


def _key(place: tuple[int | str, ...], section: str | None) -> str:
    """Return the dotted key at a place of pydantic's, which also has members of unions, and indices of lists."""
    names = [name for name in place if isinstance(name, str)]
    if section:
        return f"{section}.{names[0]}" if names else section
    if not names:
        return "the configuration"
    if section is None or names[0] not in _SECTIONS:
        return names[0]
    return ".".join(names[:2])


def _a_key(section: str) -> str:
    return next(iter(_SECTIONS[section].model_fields))


def _needed(detail: ErrorDetails) -> str:
    """Return what pydantic asks for in our words, or in its own where we have none."""
    words = NEEDED.get(detail["type"])
    return detail["msg"].removeprefix("Input should be ") if words is None else words.format(**detail.get("ctx", {}))


def all_keys() -> list[str]:
    """Return the dotted keys of a configuration; those of the algorithm are of every algorithm."""
    kinds = {name: [kind] for name, kind in _SECTIONS.items()}
    kinds["algorithm"] = [*kinds["algorithm"], *ALGORITHMS.values()]
    keys = [f"{section}.{name}".lstrip(".") for section, of in kinds.items() for kind in of for name in kind.model_fields]
    return [key for key in dict.fromkeys(keys) if key not in _SECTIONS]


def unknown_key(key: str) -> str:
    """Return what is wrong with a key that a configuration does not have."""
    section, _, name = key.rpartition(".")
    known = all_keys()
    if key in known:
        others = " and ".join(repr(other) for other, kind in sorted(ALGORITHMS.items()) if name in kind.model_fields)
        return f"{key} is a key of {section}.name {others} only; choose that {section}, or leave the key out"
    if name in ON_COMMAND_LINE and not section:
        return f"{name} is no key of the configuration; give {in_python_only(name)}"
    elsewhere = [each for each in known if each.rpartition(".")[2] == name]
    theirs = of_others(key, python=False) or (None if elsewhere else of_others(name, python=False))
    if theirs is not None:
        return theirs
    if len(elsewhere) > 1:  # of several sections, as name is: that of another one would mislead
        hint = f"rlhfless train --dry-run prints {f'those of {section}' if section in _SECTIONS else 'all of them'}"
    else:
        hint = f"{elsewhere[0]} is the closest" if elsewhere else likely(key, known, python=False)
    return f"{key} is no key of the configuration; {hint}"


def likely(name: str, known: Collection[str], *, python: bool) -> str:
    """Return which of the known names, or what in place of another framework's, is likely meant by a misspelt one, as a clause.

    Args:
        name: as it is typed: alone, or with a section.
        python: see ``of_others``.
    """
    by_part = {each.rpartition(".")[2]: each for each in known}
    word = name.rpartition(".")[2]
    for typed, names in ((name, known), (word, [*by_part, *NAMES])):
        if (closest := likely_meant(typed, names)) is not None:
            ours = closest if closest in known else by_part.get(closest)
            return of_others(closest, python=python) or f"{ours} is the closest"
    return "rlhfless train --dry-run prints all of them"
