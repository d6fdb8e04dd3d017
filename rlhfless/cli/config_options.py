"""Makes the options of ``rlhfless train`` from the configuration classes: names, types, help texts and headings.

An option has no default for click, so that only options that were typed reach ``TrainConfig.from_options``.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

import click

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.learning import UpdateConfig
from rlhfless.training.config.options import Allowed, Options, allowed_values
from rlhfless.training.config.train import ALGORITHMS, OWN, SECTIONS, TrainConfig, option_names


class OptionValue(click.ParamType[Any]):
    """A typed value that the annotation of a configuration's field allows."""

    def __init__(self, allowed: Allowed) -> None:
        self.allowed = allowed
        self.name = {int: "integer", float: "float"}.get(allowed.kinds[0], "text")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or refuse it in the words of ``TrainError``."""
        if value in self.allowed.choices:
            return value
        try:
            return self.allowed.plain(self.allowed.kinds[0](value))
        except ValueError:
            self.fail(f"{value}; {self.allowed.needed} is needed", param, ctx)


def config_options() -> dict[str, list[click.Option]]:
    """Return the options of a run by heading: ``Run``, and each section of the configuration."""
    options = {"Run": list(_options(TrainConfig, {name: name for name in OWN}))}
    for section in ("task", "rollout"):
        options[section.title()] = list(_options(SECTIONS[section], option_names(section, SECTIONS[section])))
    help_text = "Train with GRPO, or with PPO and a critic.  [default: grpo]"
    algorithm = click.Option(["--algorithm"], type=click.Choice(list(ALGORITHMS)), help=help_text)
    options["Algorithm"] = [algorithm, *_options(UpdateConfig, common := option_names("algorithm", UpdateConfig))]
    for name, kind in ALGORITHMS.items():
        own = {field: option for field, option in option_names("algorithm", kind).items() if field not in common}
        options["Algorithm"] += _options(kind, own, prefix=f"{name.upper()}: ")
    for section in ("optimizer", "planner", "cluster"):
        options[section.title()] = list(_options(SECTIONS[section], option_names(section, SECTIONS[section])))
    return options


def config_of(options: dict[str, Any]) -> TrainConfig:
    """Return the configuration with the options of a command line; None and an empty tuple were not typed.

    Raises:
        TrainError: see ``TrainConfig.from_options``; the message names options as they are typed.
    """
    typed = {name: value for name, value in options.items() if value not in (None, ())}
    try:
        return TrainConfig.from_options(**typed)
    except TrainError as error:
        names = "|".join(name for name in options if "_" in name)
        flags = re.sub(rf"\b({names})\b|^[a-z]+(?= is an option)", lambda name: f"--{name[0].replace('_', '-')}", str(error))
        raise TrainError(flags) from None


def _options(kind: Any, names: dict[str, str], prefix: str = "") -> Iterator[click.Option]:
    """Make the options of a class; ``names``: option by field."""
    texts = _descriptions(kind)
    for field in fields(kind):
        if field.name in names:
            allowed, text = allowed_values(kind)[field.name], texts[field.name]
            sentence = text.split(". ")[0].rstrip(".") + "."
            help_text = prefix + sentence[0].lower() + sentence[1:] if prefix else sentence
            if default := _default(field, text):
                help_text += f"  [default: {default}]"
            yield _option(names[field.name], field.default, allowed, help_text)


def _option(name: str, default: Any, allowed: Allowed, help_text: str) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    if allowed.kinds == (bool,):
        return click.Option([f"{flag}/--no-{flag[2:]}" if default else flag], is_flag=True, default=None, help=help_text)
    if allowed.kinds == (tuple,):
        return click.Option([flag.removesuffix("s"), name], multiple=True, help=help_text)
    of_type = click.Choice(allowed.choices) if allowed.kinds == (str,) and allowed.choices else OptionValue(allowed)
    return click.Option([flag], type=of_type, help=help_text)


def _default(field: Field[Any], text: str) -> str:
    """Return what the help text says of the default, if anything."""
    if field.default is None or field.default is MISSING:
        said = re.search(r"Default: (.+)\.$", text)
        return said[1] if said else ""
    if isinstance(field.default, bool):
        return "on" if field.default else ""
    return ", ".join(field.default) if isinstance(field.default, tuple) else str(field.default)


def _descriptions(kind: type) -> dict[str, str]:
    """Return the text under every field of a class and its bases, as one line."""
    owners = [each for each in kind.__mro__ if issubclass(each, Options)]
    return {field: text for each in owners for field, text in _texts(each.__module__).get(each.__name__, {}).items()}


@functools.cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """Return the texts under the fields of a module's classes, by class and field."""
    return {
        owner.name: {
            field.target.id: " ".join(str(text.value.value).split())
            for field, text in itertools.pairwise(owner.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }
        for owner in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(owner, ast.ClassDef)
    }
