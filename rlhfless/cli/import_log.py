"""``rlhfless import``: anyone's log as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.group import main
from rlhfless.cli.log_options import column_mapping, limits_of_import
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.trace import Limits


@main.command(name="import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the trace to write; needed unless --preview.")
@click.option("--from", "framework", default="auto", show_default=True, metavar="FORMAT", help="Whose log it is.")
@click.option("--tokenizer", help="Tokenizer of the run's model, where only texts are logged: a local folder or a hub name.")
@click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Their column for one of ours; may be repeated.")
@click.option("--max-response-tokens", type=click.IntRange(1), help="Longest response that the run allowed, in tokens.")
@click.option(
    "--unsafe-pickle", is_flag=True, help="Load slime's dumps even if that runs code in them; for your own files only."
)
@limits_of_import
@click.option("--preview", is_flag=True, help="Say what was understood and write nothing.")
def import_(
    path: Path,
    out: Path | None,
    framework: str,
    tokenizer: str | None,
    maps: tuple[str, ...],
    max_response_tokens: int | None,
    unsafe_pickle: bool,
    limits: Limits,
    preview: bool,
) -> None:
    """Turn the log PATH into a trace. FORMAT is recognised, or one of verl, verl-scalars, trl, trl-scalars, openrlhf, nemo-rl,
    areal, slime, prime-rl, and table: any csv, jsonl or parquet file with one row per response."""
    from rlhfless.trace import ImportOptions, import_log

    if out is None and not preview:
        raise InputError("-o is missing; name the folder of the trace to write, or say --preview")
    if unsafe_pickle:
        click.echo("rlhfless: --unsafe-pickle runs whatever code the files hold", err=True)
    log = import_log(
        path,
        ImportOptions(
            tokenizer, column_mapping(maps), max_response_tokens, unsafe_pickle=unsafe_pickle, progress=True, limits=limits
        ),
        framework,
    )
    written = "" if out is None or preview else f"wrote {log.save(out)}"
    for text in (f"{path} is read as {log.format.title}", str(log.summary), written):
        if text:
            click.echo(text)
