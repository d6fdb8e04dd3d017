"""What commands that read anyone's log ask about it: the tokenizer, the columns, the format.

Knows options and how to open a log with them; nothing of what is done with it.
"""

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
    """How a log is to be read, as the options say it."""

    framework: str = "auto"
    tokenizer: str | None = None
    maps: tuple[str, ...] = ()
    run: str | None = None
    max_line_mib: float | None = None
    max_rows: int | None = None
    max_unpacked_gib: float | None = None

    @property
    def limits(self) -> Limits:
        """The most that is read.

        Raises:
            InputError: a limit is no number above 0.
        """
        from rlhfless.trace import Limits

        return Limits.of_options(self.max_line_mib, self.max_rows, self.max_unpacked_gib)

    @property
    def without_limits(self) -> LogOptions:
        """The same, as if no limit had been stated."""
        return replace(self, max_line_mib=None, max_rows=None, max_unpacked_gib=None)

    def imported(self, max_response_tokens: int | None = None, keep: Iterable[str] = ()) -> ImportOptions:
        """The same for an import.

        Raises:
            InputError: a mapping is not of the form OURS=THEIRS.
        """
        from rlhfless.trace import ImportOptions

        return ImportOptions(
            self.tokenizer, column_mapping(self.maps), max_response_tokens, frozenset(keep), progress=True, limits=self.limits
        )

    def open(self, path: Path, max_response_tokens: int | None = None, keep: Iterable[str] = ()) -> OpenedLog:
        """The log at a path, of one run where --run names it.

        Args:
            max_response_tokens: the longest response that the run allowed, where the user said so.
            keep: further columns of a table that are needed.

        Raises:
            InputError: a mapping is not of the form OURS=THEIRS.
            TraceError: it is no log that is known, it is wrong, or it has no such run.
        """
        from rlhfless.trace import open_log

        return open_log(path, self.imported(max_response_tokens, keep), self.framework).of_run(self.run)


def limits_of_import(command: Command) -> Command:
    """The limits of what is read, as the argument ``limits``."""

    def made() -> Callable[..., Any]:
        from rlhfless.trace import Limits

        return lambda max_line_mib, max_rows, max_unpacked_gib: Limits.of_options(max_line_mib, max_rows, max_unpacked_gib)

    return together("limits", made, limit_options())(command)


def column_mapping(pairs: tuple[str, ...]) -> dict[str, str]:
    """``OURS=THEIRS`` pairs as a mapping.

    Raises:
        InputError: a pair is of another form.
    """
    mapping = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours or not theirs:
            raise InputError(f"--map {pair}: is not of the form OURS=THEIRS, prompt_id=prompt_index for example")
        mapping[ours] = theirs
    return mapping


def limit_options() -> list[Decorator]:
    """--max-line-mib, --max-rows and --max-unpacked-gib."""
    return [
        click.option("--max-line-mib", type=float, help="Longest line or csv row that is read, in MiB.  [default: 64]"),
        click.option("--max-rows", type=click.IntRange(1), help="Most rows that are read.  [default: 10,000,000]"),
        click.option("--max-unpacked-gib", type=float, help="Most that packed files may unpack to, in GiB.  [default: 16]"),
    ]


def log_options(command: Command) -> Command:
    """--from, --tokenizer, --map, --run and the limits of what is read, as the argument ``log``."""

    def made() -> Callable[..., Any]:
        return LogOptions

    options: list[Decorator] = [
        click.option("--from", "framework", default="auto", show_default=True, metavar="FORMAT", help="Whose log it is."),
        click.option("--tokenizer", help="Of the run's model, where only texts are logged: a local folder or a hub name."),
        click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Their column for one of ours; repeat."),
        click.option("--run", help="The run to look at, where the log holds several."),
        *limit_options(),
    ]
    return together("log", made, options)(command)
