"""The IPython magic: ``%load_ext rlhfless``, then ``%rlhfless PATH`` shows the report of a trace or a log in the notebook.

Its options are those of ``rlhfless report``, without the file.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.report import HEADINGS, page_options, read_run
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.report.magic import ReportFrame

WRITTEN = "What is written"
SHOWN = HEADINGS | {WRITTEN: tuple(name for name in HEADINGS[WRITTEN] if name not in ("out", "output", "redacted"))}


@click.command("%rlhfless", cls=WithHeadings, headings=SHOWN, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", type=click.Path(path_type=Path))
@page_options
def show(path: Path, max_steps: int, **stated: Any) -> ReportFrame:
    """Show the interactive page about PATH: what limits the run, and what other schedules would have saved."""
    from rlhfless.report.magic import ReportFrame
    from rlhfless.report.write import make_report

    read = read_run(path.expanduser(), page=True, **stated)
    said = read.run.diagnosis()
    made = make_report(read.simulated, read.setting, read.assumptions, said=said, draws=read.drawn, max_steps=max_steps)
    return ReportFrame(made.html, f"Report of {path}")


def report_of(line: str) -> ReportFrame | None:
    """Return the report of the path in a line of magic; None where the line asks for help.

    Raises:
        InputError: the line is not one path with options of ``rlhfless report``, or an option makes no sense.
        TraceError: there is no trace or log at the path, or it is larger than the limits.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        raise InputError(f'%rlhfless {line}: a quote is not closed; write a path with quotes in it as "it\'s.csv"') from None
    try:
        frame: ReportFrame | None = show.main(words, prog_name="%rlhfless", standalone_mode=False) or None
    except click.ClickException as error:
        raise InputError(f"%rlhfless {line}: {' '.join(error.format_message().split())}") from None
    return frame


def register(ipython: Any) -> None:
    """Register the magic ``%rlhfless`` with an IPython shell."""
    ipython.register_magic_function(report_of, magic_kind="line", magic_name="rlhfless")
