"""``rlhfless what-if``: other ways to generate and to learn, on the lengths of a log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.assumption_options import HEADINGS as RUN_HEADINGS
from rlhfless.cli.assumption_options import assumption_options, logged_hardware_options, refuse_without_gpus
from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.log_options import HEADING as READING_HEADING
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import format_option

if TYPE_CHECKING:
    from rlhfless.report.study import Assumptions
    from rlhfless.run.hardware import Hardware

HEADINGS = {
    **RUN_HEADINGS,
    **READING_HEADING,
    "What is shown": ("out", "form"),
}


@main.command("what-if", cls=WithHeadings, headings=HEADINGS)
@click.argument("path", type=click.Path(path_type=Path))
@logged_hardware_options
@assumption_options()
@log_options
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write the figure to this file (.html, .png, .svg or .pdf).")
@format_option()
def what_if(
    path: Path,
    hardware: Hardware,
    assumptions: Assumptions,
    log: LogOptions,
    out: Path | None,
    form: str,
) -> None:
    """Simulate other ways to generate and to learn on the last steps of the log PATH: time, cost and changes of the data.

    Among them are partial rollout, over-sampling, asynchronous learning, deferred dispatch, dynamic sampling and drafts.
    """
    from rlhfless.analysis.log_texts import texts_of
    from rlhfless.plots import plot_what_ifs, save
    from rlhfless.run import load

    read = log.read(path, texts_of(path))
    stated = replace(assumptions, not_stated=read.not_stated)
    run = load(read.opened, hardware=hardware, assumptions=stated, options=log.import_options(), verbose=False)
    refuse_without_gpus(run, path)
    compared = run.what_ifs()
    if out is not None:
        save(plot_what_ifs(compared), out)
    if form == "json":
        ways, knobs = (json.loads(table.to_json(orient="records")) for table in (compared.to_frame(), compared.knobs()))
        told = {"times": run.times.scale.to_dict(), "ways": ways, "knobs": knobs, "left_out": dict(compared.left_out)}
        click.echo(json.dumps(told))
        return
    for sentence in read.drawn_sentences:
        click.echo(sentence)
    for assumed in compared.assumed:
        click.echo(f"Assumed: {assumed}.")
    click.echo(f"times: {run.times.scale.words()}")
    click.echo(compared)
    for way in (compared.base, *compared.ways):
        click.echo(f"  {way.name}: {way.change}")
    if out is not None:
        click.echo(f"wrote {out.resolve()}")
