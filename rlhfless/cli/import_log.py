"""``rlhfless import``: anyone's log as a trace."""

from __future__ import annotations

from pathlib import Path

import click

from rlhfless.cli.group import main
from rlhfless.errors import InputError


@main.command(name="import")
@click.argument("framework", type=click.Choice(["csv"]))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of the trace to write.")
@click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Their column for one of ours; may be repeated.")
@click.option("--response-limit", type=int, help="Longest response that the run allowed.")
def import_(framework: str, path: Path, out: Path, maps: tuple[str, ...], response_limit: int | None) -> None:
    """Turn a log of FRAMEWORK into a trace. `csv` reads any csv, jsonl or parquet table with one row per response."""
    from rlhfless.trace import Trace, import_table

    mapping = {}
    for pair in maps:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours or not theirs:
            raise InputError(f"--map {pair}: is not of the form OURS=THEIRS, prompt_id=prompt_index for example")
        mapping[ours] = theirs
    rollouts, summary = import_table(path, mapping, response_limit)
    Trace(rollouts, meta={"imported_from": path.name, "framework": framework}).save(out)
    click.echo(str(summary))
    click.echo(f"wrote {out}")
