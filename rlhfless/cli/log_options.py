"""Options of commands that read a log: format, tokenizer, columns, run and limits, and opening the log with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.options import Command, Decorator, together
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.trace import ImportOptions, Limits, OpenedLog


@dataclass(frozen=True)
class LogOptions:
    """Options that say how to read a log."""

    framework: str = "auto"
    tokenizer: str | None = None
    maps: tuple[str, ...] = ()
    run: str | None = None
    max_line_mib: float | None = None
    max_rows: int | None = None
    max_unpacked_gib: float | None = None
    where: str | None = None

    @property
    def limits(self) -> Limits:
        """Return the limits of reading.

        Raises:
            InputError: a limit is not a number above 0.
        """
        from rlhfless.trace import Limits

        return Limits.of_options(self.max_line_mib, self.max_rows, self.max_unpacked_gib)

    @property
    def with_default_limits(self) -> LogOptions:
        """Return the same options with the default limits."""
        return replace(self, max_line_mib=None, max_rows=None, max_unpacked_gib=None)

    def import_options(self, max_response_tokens: int | None = None, keep: Iterable[str] = ()) -> ImportOptions:
        """Return the options of an import.

        Raises:
            InputError: a mapping is not of the form OURS=THEIRS.
        """
        from rlhfless.trace import ImportOptions

        return ImportOptions(
            self.tokenizer,
            column_mapping(self.maps),
            max_response_tokens,
            frozenset(keep),
            progress=True,
            limits=self.limits,
            where=self.where,
        )

    def open(self, path: Path, max_response_tokens: int | None = None, keep: Iterable[str] = ()) -> OpenedLog:
        """Return the log at a path, reduced to the run that --run names.

        Args:
            max_response_tokens: the longest response that the run allowed, in tokens; None if not given.
            keep: further columns to read from a table.

        Raises:
            InputError: a mapping is not of the form OURS=THEIRS.
            TraceError: the format is unknown, the log is damaged, or it has no such run.
        """
        from rlhfless.trace import open_log

        return open_log(path, self.import_options(max_response_tokens, keep), self.framework).of_run(self.run)


def limits_of_import(command: Command) -> Command:
    """Add the limits of reading, as the argument ``limits``."""

    def made() -> Callable[..., Any]:
        from rlhfless.trace import Limits

        return lambda max_line_mib, max_rows, max_unpacked_gib: Limits.of_options(max_line_mib, max_rows, max_unpacked_gib)

    return together("limits", made, _limit_options())(command)


def column_mapping(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return ``OURS=THEIRS`` pairs as a mapping.

    Raises:
        InputError: a pair is of another form.
    """
    mapping = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours or not theirs:
            raise InputError(f"--map {pair}: is not of the form OURS=THEIRS; prompt_id=prompt_index is an example")
        mapping[ours] = theirs
    return mapping


def _limit_options() -> list[Decorator]:
    return [
        click.option("--max-line-mib", type=float, help="Refuse a line or csv row longer than this many MiB.  [default: 64]"),
        click.option(
            "--max-rows", type=click.IntRange(1), help="Refuse a log of more than this many rows.  [default: 10,000,000]"
        ),
        click.option("--max-unpacked-gib", type=float, help="Refuse packed files above this many GiB unpacked.  [default: 16]"),
    ]


def source_options(command: Command) -> Command:
    """Add --from, --tokenizer, --map and --where."""
    for option in reversed(_source_options()):
        command = option(command)
    return command


def _source_options() -> list[Decorator]:
    return [
        click.option(
            "--from",
            "framework",
            default="auto",
            show_default=True,
            metavar="FORMAT",
            help="Read the log as this format, such as verl; auto recognises it.",
        ),
        click.option("--tokenizer", help="Count tokens with this tokenizer (folder or hub name) where only texts are logged."),
        click.option(
            "--map",
            "maps",
            multiple=True,
            metavar="OURS=THEIRS",
            help="Read column THEIRS of a table as OURS: prompt_id=uid, prompt_id=split+uid (joined), step=0 (constant), or "
            "step=row/128 (batches of rows); repeatable.",
        ),
        click.option("--where", metavar="CONDITION", help="Read only a table's rows with, for example, \"split == 'train'\"."),
    ]


def log_options(command: Command) -> Command:
    """Add --from, --tokenizer, --map, --where, --run and the limits of reading, as the argument ``log``."""

    def made() -> Callable[..., Any]:
        return LogOptions

    options: list[Decorator] = [
        *_source_options(),
        click.option("--run", help="Read the run with this name, where the log holds several."),
        *_limit_options(),
    ]
    return together("log", made, options)(command)
