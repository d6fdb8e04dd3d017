"""``rlhfless report``: says what limits a run, by arithmetic on its log, and writes one interactive page about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rlhfless.cli.assumption_options import HEADINGS as RUN_HEADINGS
from rlhfless.cli.assumption_options import assumption_options, logged_hardware_options, refuse_without_gpus
from rlhfless.cli.draft_options import DraftOptions, drafts_option
from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.log_options import HEADING as READING_HEADING
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import Decorator, added, time_weight_option, together
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.diagnosis import Diagnosis, Stated
    from rlhfless.report.study import Assumptions
    from rlhfless.run import Run
    from rlhfless.run.hardware import Hardware
    from rlhfless.simulate import SimulationConfig
    from rlhfless.trace import ImportedLog, OpenedLog

PAGES = (".html", ".htm", ".ipynb")
HEADINGS = {
    **RUN_HEADINGS,
    "The GPUs": (
        *RUN_HEADINGS["The GPUs"],
        "prices",
        "gpus_generate",
        "gpus_train",
        "gpu",
        "model",
        "tensor_parallel",
        "gpu_memory_gib",
        "memory_share",
    ),
    **READING_HEADING,
    "What is written": ("out", "output", "redacted", "time_weight", "max_steps", "drafts", "simulate"),
}


class ReadRun(NamedTuple):
    """The run that a report is about.

    Attributes:
        run: as it was read. simulated: the log of the simulated sections, with drawn lengths where the log has scalars alone.
        setting: the run's, with what drafts accept; None where nothing is simulated. drawn: draws of the lengths.
    """

    run: Run
    simulated: OpenedLog | ImportedLog
    assumptions: Assumptions
    setting: SimulationConfig | None
    drawn: Sequence[OpenedLog]


def read_run(
    path: Path,
    hardware: Hardware,
    assumptions: Assumptions,
    log: LogOptions,
    time_weight: float,
    drafts: str | None,
    simulate: bool,
    known: Stated,
    *,
    page: bool,
) -> ReadRun:
    """Return the run of a log or trace with what a user states about it: the arguments of ``page_options``.

    Args:
        page: whether a page is made; a diagnosis alone needs no setting.

    Raises:
        InputError: options contradict each other, or one makes no sense.
        TraceError: the log cannot be read.
    """
    from rlhfless.analysis.log_texts import texts_of
    from rlhfless.run import load
    from rlhfless.trace import ImportedLog

    opened = log.open_any(path, texts_of(path))
    run = load(
        opened,
        hardware=hardware,
        assumptions=assumptions,
        options=log.import_options(),
        time_weight=time_weight,
        known=replace(known, responses_per_step=log.responses_per_step, samples_per_prompt=log.samples_per_prompt),
        verbose=False,
    )
    drawn: Sequence[OpenedLog] = ()
    stated = run.assumptions
    if isinstance(opened, ImportedLog) and simulate:
        opened, drawn, not_stated = log.read(path)
        stated = replace(stated, not_stated={**stated.not_stated, **not_stated})
    if not page or (not simulate and (isinstance(opened, ImportedLog) or run.hardware.gpus is None)):
        if drafts is not None:
            raise InputError("--drafts is for simulated schedules, which need responses and --gpus; leave it out, or give them")
        return ReadRun(run, opened, stated, None, ())
    assert not isinstance(opened, ImportedLog)
    accepted = DraftOptions(drafts).accepted(log, path, opened.trace.rollouts, run.setting.seed)
    return ReadRun(run, opened, stated, replace(run.setting, drafts=accepted), drawn)


KNOWN: list[Decorator] = [
    click.option("--gpus-generate", type=click.IntRange(1), help="So many GPUs of the run generate, where others learn."),
    click.option("--gpus-train", type=click.IntRange(1), help="So many GPUs of the run learn, where others generate."),
    click.option("--gpu", help="The kind of GPU, such as h100, for the arithmetic of memory and of the engine's speed."),
    click.option("--model", help="The model's folder or config.json, for the same."),
    click.option("--tensor-parallel", type=click.IntRange(1), help="GPUs of one replica."),
    click.option("--gpu-memory-gib", type=click.FloatRange(0, min_open=True), help="Memory of one GPU.  [default: its kind's]"),
    click.option(
        "--memory-share",
        type=click.FloatRange(0, 1, min_open=True),
        help="The engine may use this share of a GPU's memory (vLLM's gpu_memory_utilization).",
    ),
]
"""What a person knows of a run beside its log, for the diagnosis."""


def known_of_run() -> Callable[..., Stated]:
    """Return what makes a ``Stated`` of ``KNOWN``."""
    from rlhfless.diagnosis import Stated
    from rlhfless.latency import gpu

    def known(**given: Any) -> Stated:
        if given["gpu"] is not None:
            gpu(given["gpu"])  # refuses what is no kind of GPU
        return Stated(**given)

    return known


page_options = added(
    logged_hardware_options,
    together("known", known_of_run, KNOWN),
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
    click.option(
        "--simulate", is_flag=True, help="Simulate schedules of a log of scalars, too: lengths are drawn, and ranges are rough."
    ),
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
def report(path: Path, out: Path | None, output: str, redacted: Path | None, max_steps: int, **stated: Any) -> None:
    """Say what limits the run of PATH, and write one interactive page about it with -o.

    PATH is a trace or a log of another framework (see `rlhfless import`), whose format is recognised. The diagnosis is
    arithmetic on what was logged. The page also simulates other schedules where the log has responses and --gpus is known; of a
    log of scalars alone, with --simulate, lengths are drawn from each step's mean, longest and clipped share.
    """
    if out is not None and out.suffix.lower() not in PAGES:
        raise InputError(f"-o {out}: is no page and no notebook; a name that ends in {', '.join(PAGES)} is needed")
    if out is not None and out.suffix == ".ipynb" and stated["drafts"] is not None:
        raise InputError("--drafts is for pages, and -o names a notebook; let -o end with .html, or leave out --drafts")
    read = read_run(path, page=out is not None, **stated)
    # The page comes first: what it refuses leaves no output, and its levers say what they are expected to save.
    said = read.run.diagnosis() if out is None else _write_page(path, out, max_steps, read, stated["log"])
    if redacted is not None:
        from rlhfless.trace.importers.redact import write_redacted

        click.echo(f"wrote {write_redacted(read.run.log, redacted).resolve()}", err=True)
    click.echo(said.to_json() if output == "json" else str(said))


def _write_page(path: Path, out: Path, max_steps: int, read: ReadRun, log: LogOptions) -> Diagnosis:
    """Write the page or the notebook; return the diagnosis, with what a page simulated of its levers."""
    from rlhfless.plots.export.html_page import page_path, write_page
    from rlhfless.report.notebook import LogSource, write_report_notebook
    from rlhfless.report.progress import progress_bar
    from rlhfless.report.write import make_report
    from rlhfless.trace import ImportedLog, TraceError

    run = read.run
    said = run.diagnosis()
    if out.suffix == ".ipynb":
        if isinstance(run.log, ImportedLog):
            raise InputError(f"{path}: has scalars alone, whose report is a page; let -o end with .html")
        if len(run.trace.allocations):
            raise InputError(f"{path}: is the trace of an executed run, whose report is a page; let -o end with .html")
        refuse_without_gpus(run, path)
        source = LogSource(path, log.import_options(), log.framework, log.run)
        write_report_notebook(source, out, run.profile, run.setting, run.assumptions, max_steps=max_steps)
    else:
        there = page_path(out, TraceError)
        with progress_bar() as begin:
            made = make_report(
                read.simulated, read.setting, read.assumptions, said=said, draws=read.drawn, max_steps=max_steps, begin=begin
            )
        write_page(there, made.html, TraceError)
        said = made.said
    click.echo(f"wrote {out.resolve()}", err=True)
    return said
