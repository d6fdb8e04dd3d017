"""``rlhfless import``: writes the log of another framework as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.group import main
from rlhfless.cli.log_options import column_mapping, limits_of_import, source_options
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.trace import Limits


@main.command(name="import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Write the trace into this folder; not needed with --preview."
)
@source_options
@click.option("--max-response-tokens", type=click.IntRange(1), help="The run truncated responses at this many tokens.")
@click.option(
    "--unsafe-pickle",
    is_flag=True,
    help="Load dumps of slime from trusted sources only: loading can run code in them.",
)
@limits_of_import
@click.option("--preview", is_flag=True, help="Print how the log was understood and write nothing.")
def import_(
    path: Path,
    out: Path | None,
    framework: str,
    tokenizer: str | None,
    maps: tuple[str, ...],
    where: str | None,
    max_response_tokens: int | None,
    unsafe_pickle: bool,
    limits: Limits,
    preview: bool,
) -> None:
    """Write the log PATH as a trace.

    FORMAT is recognised, or is one of verl, verl-scalars, trl, trl-scalars, openrlhf, nemo-rl, areal, slime, prime-rl,
    tensorboard, wandb and table. A table is any csv, jsonl or parquet file with one row per response. Scalars of steps, such
    as those of tensorboard and wandb, go into the folder of the same run's responses.
    """
    from rlhfless.trace import ImportOptions, import_log

    if out is None and not preview:
        raise InputError("-o is missing; name the folder to write the trace into, or give --preview")
    if unsafe_pickle:
        click.echo("rlhfless: warning: --unsafe-pickle runs any code in the files", err=True)
    log = import_log(
        path,
        ImportOptions(
            tokenizer,
            column_mapping(maps),
            max_response_tokens,
            unsafe_pickle=unsafe_pickle,
            progress=True,
            limits=limits,
            where=where,
        ),
        framework,
    )
    written = "" if out is None or preview else f"wrote {log.save(out)}"
    for text in (f"{path} is read as {log.format.title}", str(log.summary), written):
        if text:
            click.echo(text)
