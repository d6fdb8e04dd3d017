"""Writes the references of the command line and of the configuration of training, from the models that both are made of."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from staged import write

from rlhfless.cli.command_line import COMMANDS, command
from rlhfless.cli.parser import parser_of
from rlhfless.training import TrainConfig
from rlhfless.training.config.presets import PRESETS
from rlhfless.training.config.section import ALGORITHMS, Section
from rlhfless.training.config.train import MAY_CHANGE, SECTIONS

TEXT = re.compile(r"(`+[^`]+`+)")


def write_command_reference(folder: Path) -> None:
    """Write the pages ``command_line.md`` and ``configuration.md`` into a folder."""
    write(folder / "command_line.md", "\n".join(_commands()))
    write(folder / "configuration.md", "\n".join(_configuration()))


def plain(text: str) -> str:
    """Return a text as one line of Markdown, whose signs are signs; code in backticks stays code."""
    parts = TEXT.split(" ".join(text.split()))
    return "".join(part if i % 2 else re.sub(r"([\\*_<>\[\]$|~#])", r"\\\1", part) for i, part in enumerate(parts))


def _commands() -> Iterator[str]:
    yield from ("# Options of every command", "")
    yield "`rlhfless COMMAND --help` prints the same. What each command is for stands in [Command line](../command_line.md)."
    for name, sentence in COMMANDS.items():
        parser = parser_of(command(name).options, f"rlhfless {name}")
        yield from ("", f"({name}-command)=", f"## {name}", "", plain(sentence), "", "```", str(parser.usage), "```")
        for paragraph in (parser.description or "").split("\n\n"):
            yield from ("", plain(paragraph))
        for group in parser._action_groups:
            actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
            if not actions:
                continue
            yield from ("", f"{{.options-title}}\n**{plain(str(group.title))}**")
            for action in actions:
                typed = ", ".join(action.option_strings) or str(action.metavar or action.dest).upper()
                value = f" {action.metavar}" if action.option_strings and action.metavar and action.nargs != 0 else ""
                yield from ("", f"`{typed}{value}`", f": {plain((action.help or '').replace('%%', '%'))}")
    yield ""


def _configuration() -> Iterator[str]:
    yield from ("# Configuration of training", "")
    yield (
        "What `rlhfless train` and `rl.Trainer` take. A key is typed as `section.key=value`, or stands in a YAML file. A key "
        "whose name one section alone has may be typed without it. `rlhfless train --dry-run` prints all keys of a run."
    )
    yield from ("", "A preset has values over the defaults: " + ", ".join(f"`preset={one}`" for one in PRESETS) + ".")
    yield from ("", "## The run", "")
    yield from _keys(TrainConfig, "", lambda key: key not in SECTIONS)
    for name, kind in SECTIONS.items():
        yield from ("", f"## {name}", "")
        if name != "algorithm":
            yield from (*_about(kind), *_keys(kind, f"{name}.", lambda key: True))
            continue
        kinds = list(ALGORITHMS.values())
        common = set(kinds[0].model_fields).intersection(*(one.model_fields for one in kinds[1:]))
        yield from _keys(kinds[0], "algorithm.", common.__contains__)
        for title, one in ALGORITHMS.items():
            usual, fields = kinds[0].model_fields, one.model_fields
            others = {key for key in common - {"name"} if fields[key].default != usual[key].default}
            if own := set(fields) - common | others:
                yield from ("", f"### algorithm.name={title}", "", *_about(one), *_keys(one, "algorithm.", own.__contains__))
    yield ""


def _about(kind: type[Section]) -> Iterator[str]:
    """Yield the paragraphs of a class that say what it is, each followed by an empty line."""
    for paragraph in (kind.__doc__ or "").split("\n\n"):
        if re.match(r"\s*(Args|Raises|Example|Attributes):", paragraph):
            return
        yield from (plain(paragraph.replace("``", "`")), "")


def _keys(kind: type[Section], prefix: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    values = kind().to_dict()
    for name, field in kind.model_fields.items():
        if not wanted(name):
            continue
        key, default = prefix + name, values[name]
        takes = " or ".join(f"`{one}`" for one in ALGORITHMS) if key == "algorithm.name" else _value(field.annotation)
        shown = str(default).lower() if isinstance(default, bool) else default
        yield f"`{key}`: {takes}" + ("" if default is None else f", by default `{shown}`")
        resumed = " *May differ on resume.*" if key in MAY_CHANGE else ""
        yield f": {plain((field.description or '').replace('``', '`'))}{resumed}"
        yield ""


def _value(annotation: Any) -> str:
    """Return what a key takes, in words."""
    if hasattr(annotation, "__metadata__"):
        return _value(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{str(one).lower() if isinstance(one, bool) else one}`" for one in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "list of texts"
    if members := [one for one in get_args(annotation) if one is not type(None)]:
        return " or ".join(dict.fromkeys(map(_value, members)))
    return {int: "whole number", float: "number", bool: "`true` or `false`", str: "text"}.get(annotation, str(annotation))
