"""``rlhfless report``: says what limits a run, by arithmetic on its log, and writes one interactive page about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rlhfless.cli.assumption_options import HEADINGS as RUN_HEADINGS
from rlhfless.cli.assumption_options import assumption_options, logged_hardware_options
from rlhfless.cli.draft_options import DraftOptions, drafts_option
from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.log_options import HEADING as READING_HEADING
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import added, time_weight_option
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.report.progress import Begin
    from rlhfless.report.study import Assumptions, ReportData
    from rlhfless.run import Run
    from rlhfless.run.hardware import Hardware
    from rlhfless.simulate import SimulationConfig
    from rlhfless.trace import OpenedLog

HEADINGS = {
    **RUN_HEADINGS,
    "The GPUs": (*RUN_HEADINGS["The GPUs"], "prices"),
    **READING_HEADING,
    "What is written": ("out", "output", "redacted", "time_weight", "max_steps", "drafts"),
}


class ReadRun(NamedTuple):
    """The run that a report is about.

    Attributes:
        run: as it was read. setting: the run's, with what drafts accept. drawn: draws of the lengths of a log of scalars alone.
    """

    run: Run
    setting: SimulationConfig
    drawn: Sequence[OpenedLog]

    def study_of_draws(self, max_steps: int, begin: Begin) -> ReportData | None:
        """Return what is found of all draws; None where lengths were logged, whose study the report makes."""
        from rlhfless.report.drawn_study import study_drawn

        if not self.drawn:
            return None
        return study_drawn(self.drawn, self.setting, self.run.assumptions, max_steps, begin)


def read_run(
    path: Path, hardware: Hardware, assumptions: Assumptions, log: LogOptions, time_weight: float, drafts: str | None
) -> ReadRun:
    """Return the run of a log or trace with what a user states about it: the arguments of ``page_options``.

    Raises:
        InputError: options contradict each other, or one makes no sense.
        TraceError: the log cannot be read.
    """
    from rlhfless.analysis.log_texts import texts_of
    from rlhfless.report.not_stated import DEFAULT_GPUS, GPUS, GPUS_ASSUMED
    from rlhfless.run import load

    opened, drawn, not_stated = log.read(path, texts_of(path))
    if hardware.completed(opened.trace.meta, str(path))[0].gpus is None:  # the page assumes some, and says so
        hardware, not_stated = replace(hardware, gpus=DEFAULT_GPUS), {GPUS: GPUS_ASSUMED, **not_stated}
    run = load(
        opened,
        hardware=hardware,
        assumptions=replace(assumptions, not_stated=not_stated),
        options=log.import_options(),
        time_weight=time_weight,
        verbose=False,
    )
    accepted = DraftOptions(drafts).accepted(log, path, opened.trace.rollouts, run.setting.seed)
    return ReadRun(run, replace(run.setting, drafts=accepted), drawn)


page_options = added(
    logged_hardware_options,
    assumption_options(
        click.option(
            "--price",
            "prices",
            multiple=True,
            metavar="NAME=USD",
            help="Show cost at a further price in USD per GPU-hour, such as spot=1.90; repeatable.",
        )
    ),
    log_options,
    time_weight_option(),
    click.option(
        "--steps", "max_steps", type=click.IntRange(1), default=8, show_default=True, help="Simulate at most this many steps."
    ),
    drafts_option("Show what speculation adds to the best schedule: accept", of_log=True),
)
"""Adds the options of a report, on the command line and in a notebook."""


@main.command(cls=WithHeadings, headings=HEADINGS)
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Write a page (.html) or a notebook (.ipynb), with other schedules simulated, to this file.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print the diagnosis as text or as JSON.",
)
@click.option(
    "--redact",
    "redacted",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a copy of the log without texts (lengths, hashes, times) to this new folder.",
)
@page_options
def report(
    path: Path,
    out: Path | None,
    output: str,
    redacted: Path | None,
    max_steps: int,
    log: LogOptions,
    drafts: str | None,
    hardware: Hardware,
    **stated: Any,
) -> None:
    """Say what limits the run of PATH, and write one interactive page about it with -o.

    PATH is a trace or a log of another framework (see `rlhfless import`), whose format is recognised. The diagnosis is
    arithmetic on what was logged. The page also simulates other schedules; of a log of scalars alone (verl, TRL, OpenRLHF),
    lengths are drawn from each step's mean, longest and clipped share, and ranges are rough.
    """
    from rlhfless.diagnosis import Stated, diagnose

    opened = log.open_any(path)
    said = diagnose(
        opened,
        Stated(
            gpus=hardware.gpus,
            usd_per_gpu_hour=hardware.usd_per_gpu_hour,
            max_response_tokens=log.max_response_tokens,
            responses_per_step=log.responses_per_step,
            samples_per_prompt=log.samples_per_prompt,
        ),
    )
    if out is not None:  # first: what the page refuses leaves no output
        _write_page(path, out, max_steps, log, drafts, hardware=hardware, **stated)
    if redacted is not None:
        from rlhfless.trace.importers.redact import write_redacted

        click.echo(f"wrote {write_redacted(opened, redacted).resolve()}", err=True)
    click.echo(said.to_json() if output == "json" else str(said))


def _write_page(path: Path, out: Path, max_steps: int, log: LogOptions, drafts: str | None, **stated: Any) -> None:
    from rlhfless.report.notebook import LogSource, write_report_notebook
    from rlhfless.report.progress import progress_bar
    from rlhfless.report.write import write_report

    as_notebook = out.suffix == ".ipynb"
    if drafts is not None and as_notebook:
        raise InputError("--drafts is for pages, and -o names a notebook; let -o end with .html, or leave out --drafts")
    read = read_run(path, log=log, drafts=drafts, **stated)
    run = read.run
    if as_notebook and read.drawn:
        raise InputError(f"{path}: has scalars alone, whose report is a page; let -o end with .html")
    if as_notebook and len(run.trace.allocations):
        raise InputError(f"{path}: is the trace of an executed run, whose report is a page; let -o end with .html")
    if as_notebook:
        source = LogSource(path, log.import_options(), log.framework, log.run)
        write_report_notebook(source, out, run.profile, run.setting, run.assumptions, max_steps=max_steps)
    else:
        with progress_bar() as begin:
            study = read.study_of_draws(max_steps, begin)
            write_report(run.opened, out, read.setting, run.assumptions, max_steps=max_steps, study=study, begin=begin)
    click.echo(f"wrote {out.resolve()}", err=True)
