"""Options by their plain names, such as ``learning_rate``, which is ``optimizer.learning_rate``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.section import Section, all_keys, likely
from rlhfless.training.config.their_names import of_others

NAMES_ALONE = {"task": "name", "algorithm": "name", "optimizer": "name", "planner": "policy"}
"""Sections of which a text alone names the most important key: ``algorithm="ppo"``."""


def plain_names() -> dict[str, str]:
    """Return the section of every key whose name is that of one section only."""
    keys = [key.partition(".")[::2] for key in all_keys() if "." in key]
    names = [name for _, name in keys]
    return {name: section for section, name in keys if names.count(name) == 1}


def in_sections(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those of plain names in their sections.

    Example:
        >>> in_sections({"steps": 3, "learning_rate": 1e-6, "algorithm": "ppo", "rollout": {"top_k": 5}})
        {'algorithm': {'name': 'ppo'}, 'rollout': {'top_k': 5}, 'steps': 3, 'optimizer': {'learning_rate': 1e-06}}

    Raises:
        TrainError: an option is given twice.
    """
    section_of = plain_names()
    sectioned: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Section):
            sectioned[name] = value
        elif isinstance(value, Mapping):
            sectioned[name] = {**value}
        elif name in NAMES_ALONE and isinstance(value, str):
            sectioned[name] = {NAMES_ALONE[name]: value}
    for name, value in options.items():
        if name in sectioned:
            continue
        section = section_of.get(name)
        if section is None:
            sectioned[name] = value
            continue
        keys = sectioned.setdefault(section, {})
        if name in (keys.model_fields_set if isinstance(keys, Section) else keys):
            raise TrainError(f"{name} is given twice, alone and in {section}; leave one of them out")
        if isinstance(keys, Section):
            sectioned[section] = keys = keys.given()
        keys[name] = value
    return sectioned


def check_names(options: Mapping[str, Any], others: Collection[str]) -> None:
    """Refuse options that are no key of the configuration, with the name that is likely meant.

    Args:
        others: names that may be meant, too.

    Raises:
        TrainError: naming the first.
    """
    known = {*plain_names(), *NAMES_ALONE, *(key.partition(".")[0] for key in all_keys()), "preset"}
    for name in options:
        if name not in known:
            theirs = of_others(name, python=True)
            raise TrainError(theirs or f"{name} is no option of the trainer; {likely(name, {*known, *others}, python=True)}")
