"""The IPython magic: ``%load_ext rlhfless``, then ``%rlhfless PATH`` shows the report of a trace or a log in the notebook.

Its options are those of ``rlhfless report``, without the file.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rlhfless.cli.command_line import parse
from rlhfless.cli.report import ReportedRun, read_run
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.report.magic import ReportFrame


class ShownOptions(ReportedRun):
    """Show the interactive page about LOG: what limits the run, and what other schedules would have saved."""

    log: CliPositionalArg[Path] = Field(description="A trace, or a log of verl, TRL or another framework.")


def report_of(line: str) -> ReportFrame | None:
    """Return the report of the path in a line of magic; None where the line asks for help.

    Raises:
        InputError: the line is not one path with options of ``rlhfless report``, or an option makes no sense.
        TraceError: there is no trace or log at the path, or it is larger than the limits.
    """
    from rlhfless.report.magic import ReportFrame
    from rlhfless.report.write import make_report

    try:
        words = shlex.split(line)
    except ValueError:
        raise InputError(f'%rlhfless {line}: a quote is not closed; write a path with quotes in it as "it\'s.csv"') from None
    try:
        options = parse(ShownOptions, words, "%rlhfless")
    except InputError as error:
        raise InputError(f"%rlhfless {line}: {error}") from None
    if options is None:
        return None
    read = read_run(options.log.expanduser(), options, page=True)
    said = read.run.diagnosis()
    made = make_report(read.simulated, read.setting, read.assumptions, said=said, draws=read.drawn, max_steps=options.max_steps)
    return ReportFrame(made.html, f"Report of {options.log}")


def register(ipython: Any) -> None:
    """Register the magic ``%rlhfless`` with an IPython shell."""
    ipython.register_magic_function(report_of, magic_kind="line", magic_name="rlhfless")
