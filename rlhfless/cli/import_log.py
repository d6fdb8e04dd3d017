"""``rlhfless import``: writes the log of another framework as a trace."""

from __future__ import annotations

from pathlib import Path

import click

from rlhfless.cli.group import main
from rlhfless.cli.log_options import LogOptions, import_options
from rlhfless.errors import InputError


@main.command(name="import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Write the trace into this folder; not needed with --preview."
)
@import_options
@click.option(
    "--unsafe-pickle",
    is_flag=True,
    help="Load dumps of slime from trusted sources only: loading can run code in them.",
)
@click.option("--preview", is_flag=True, help="Print how the log was understood and write nothing.")
def import_(
    path: Path,
    out: Path | None,
    log: LogOptions,
    unsafe_pickle: bool,
    preview: bool,
) -> None:
    """Write the log PATH as a trace.

    FORMAT is recognised, or is one of console, engine, verl, verl-scalars, trl, trl-scalars, nemo-rl, areal, slime, prime-rl,
    tensorboard, wandb, tracker, scalars, steps and table. A table is any csv, jsonl or parquet file with one row per
    response; one with a row per step or run has the format steps, and rows that a tracker exports have the format tracker.
    Scalars of steps, such as those of tensorboard and wandb, go into the folder of the same run's responses.
    """
    from rlhfless.trace import import_log

    if out is None and not preview:
        raise InputError("-o is missing; name the folder to write the trace into, or give --preview")
    if unsafe_pickle:
        click.echo("rlhfless: warning: --unsafe-pickle runs any code in the files", err=True)
    read = import_log(path, log.import_options(unsafe_pickle=unsafe_pickle), log.framework)
    written = "" if out is None or preview else f"wrote {read.save(out)}"
    for text in (f"{path} is read as {read.format.title}", str(read.summary), written):
        if text:
            click.echo(text)
