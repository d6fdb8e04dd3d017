"""Makes the argument parser of a command from the model of its options, with pydantic-settings.

What pydantic-settings leaves to its caller stands here: headings over the options of each class, the short name first, what a
value is called in the help text, and messages in our words.
"""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from rlhfless.cli.options import Options, Printed, flag, is_positional, members, nearest
from rlhfless.errors import InputError

WIDTH = 118
LABEL = 40
"""Widest option that has its help text on the same line."""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps options such as ``--time-weight`` on one line."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ``InputError`` instead of exiting.

    Args:
        kind: the model of the options.
        program: how the command is called.
    """

    def __init__(self, kind: type[Options], program: str) -> None:
        super().__init__(
            prog=program, description=_paragraphs(kind.__doc__ or ""), allow_abbrev=False, add_help=False, exit_on_error=False,
            formatter_class=partial(Formatter, width=WIDTH, max_help_position=LABEL),
        )  # fmt: skip
        self.kind = kind
        self.usage = f"{program} {' '.join([*_arguments(kind), '[OPTIONS]'])}"
        self._positionals.title = "Arguments"
        self._optionals.title = "Options"

    def add_option(self, *flags: str, **how: Any) -> None:
        """Add an option as pydantic-settings describes it, under the heading of its class."""
        dest = how.get("dest") or flags[0]
        name, field = next((n, f) for n, f in self.kind.model_fields.items() if dest in (n, *_aliases(f)))
        how["help"] = _help(field, flags).replace("%", "%%")
        if how.get("nargs") is None and "dest" not in how:
            how["nargs"] = "?"  # whether it is missing is said by the model
        if "metavar" in how:
            how["metavar"] = _metavar(field) if flags[0].startswith("-") else how["metavar"]
        how.pop("required", None)
        group = self._group(name) if flags[0].startswith("-") else self._positionals
        group.add_argument(*sorted(flags, key=len), **how)

    def _group(self, name: str) -> argparse._ArgumentGroup:
        kinds = [kind for kind in reversed(self.kind.__mro__) if issubclass(kind, Options)]
        owner = next(kind for kind in kinds if name in vars(kind).get("__annotations__", {}))
        title = "Options" if owner is self.kind else owner.heading or "Options"
        return next((one for one in self._action_groups if one.title == title), None) or self.add_argument_group(title)

    def typed(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that were typed, by name.

        Raises:
            InputError: an option is unknown or lacks its value, or there is a word too many.
        """
        try:
            namespace, rest = self.parse_known_intermixed_args(list(words))
        except argparse.ArgumentError as error:
            self.error(str(error))
        if rest:
            unknown = next((word.split("=")[0] for word in rest if word.startswith("-")), None)
            if unknown is None:
                raise InputError(f"{rest[0]} is one word too many; {self.usage} is how it is typed")
            raise InputError(f"{self.prog.removeprefix('rlhfless ')} has no option {unknown}{self._instead(unknown, words)}")
        unset = (argparse.SUPPRESS, PydanticUndefined, None)
        return {
            name: value for name, value in vars(namespace).items() if not any(value is one for one in unset) and value != []
        }

    def _instead(self, unknown: str, words: Sequence[str]) -> str:
        """Return what is typed instead of an option that the command does not have, as the end of a sentence."""
        from rlhfless.cli.earlier_options import CONVERTED, now
        from rlhfless.cli.log_options import PLACEHOLDERS, conversion

        command = self.prog.replace("%rlhfless", "rlhfless report").removeprefix("rlhfless ")
        if (found := now(command, unknown)) is None:
            if (of_kind := self.kind.instead_of(unknown)) is not None:
                return f"; {of_kind}"
            flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
            return nearest(unknown, flags) or f"; {self.prog} --help lists them"
        if command not in CONVERTED or unknown not in PLACEHOLDERS:
            return f" any more; {found}"
        rest, reading = list(words), []
        while (at := next((at for at, word in enumerate(rest) if word.split("=")[0] in PLACEHOLDERS), None)) is not None:
            end = at + 1 if "=" in rest[at] else at + 2
            reading += [shlex.quote(word) for word in rest[at:end]]
            del rest[at:end]
        typed = vars(self.parse_known_intermixed_args(rest)[0])
        log = typed.get("from_log") or typed.get("log") or "LOG"
        return f": it reads a trace, or a log that is recognised; {conversion(str(log), reading)}"

    def error(self, message: str) -> NoReturn:
        """Raise the refusal of the base class in our words."""
        found = re.match(r"argument (?:-\w/)?([\w/-]+?): expected (?:one|at least one) argument", message)
        if found is None:
            raise InputError(f"{self.prog}: {message.removeprefix('argument ')}; {self.prog} --help shows what is needed")
        action = self._option_string_actions[found[1].split("/")[-1]]
        text = str(action.help).replace("%%", "%").split("  [")[0].rstrip(".")
        raise InputError(f"{found[1]} needs a value ({text[:1].lower()}{text[1:]})")


def parser_of(kind: type[Options], program: str) -> Parser:
    """Return the parser of a command."""
    config = SettingsConfigDict(populate_by_name=False, case_sensitive=True)
    settings = type(kind.__name__, (BaseSettings, kind), {"model_config": config, "__module__": kind.__module__})
    parser = Parser(kind, program)
    CliSettingsSource(
        settings, root_parser=parser, parse_args_method=lambda *a, **k: argparse.Namespace(), cli_kebab_case=True,
        cli_implicit_flags="toggle", cli_hide_none_type=True, cli_avoid_json=True, add_argument_method=Parser.add_option,
    )  # fmt: skip
    parser._optionals._group_actions.sort(key=lambda action: action.dest in Printed.model_fields)
    return parser


def _arguments(kind: type[Options]) -> list[str]:
    shown = []
    for name, field in kind.model_fields.items():
        if is_positional(field):
            extra = field.json_schema_extra
            word = flag(name, field) + " ..." * (get_origin(field.annotation) is tuple)
            optional = str(extra["metavar"]) if isinstance(extra, dict) else f"[{word}]"
            shown.append(word if field.is_required() else optional)
    return shown


def _aliases(field: FieldInfo) -> list[str]:
    alias = field.validation_alias
    return [] if alias is None else [str(one) for one in getattr(alias, "choices", [alias])]


def _help(field: FieldInfo, flags: Sequence[str]) -> str:
    """Return the help text, with the default where it says something."""
    text = field.description or ""
    if field.is_required() and flags[0].startswith("-"):
        return f"{text}  [required]"
    said = field.default in (None, "", (), PydanticUndefined) or isinstance(field.default, bool) or "[default" in text
    default = ", ".join(field.default) if isinstance(field.default, tuple) else field.default
    return text if said or not flags[0].startswith("-") else f"{text}  [default: {default}]"


def _metavar(field: FieldInfo) -> str:
    """Return what a value is called in the help text."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "metavar" in extra:
        return str(extra["metavar"])
    kind = next(one for one in members(field.annotation) if one is not type(None))
    while hasattr(kind, "__metadata__"):
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return "NAME,..."
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _paragraphs(text: str) -> str:
    """Return a docstring as paragraphs of the width of a help text."""
    parts = textwrap.dedent("    " + text).strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(part.split()), WIDTH) for part in parts)
