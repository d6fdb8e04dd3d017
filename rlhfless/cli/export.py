"""``rlhfless export``: a trace in a format of other tools."""

from __future__ import annotations

from pathlib import Path

import click

from rlhfless.cli.group import main


@main.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--perfetto", type=click.Path(path_type=Path), required=True, metavar="FILE",
    help="Write trace events (.json, packed as .json.gz) for ui.perfetto.dev or chrome://tracing.",
)  # fmt: skip
def export(trace: Path, perfetto: Path) -> None:
    """Write the time line of TRACE (a trace folder) for another tool."""
    from rlhfless.trace import read_trace
    from rlhfless.trace.perfetto import write_perfetto

    click.echo(f"wrote {write_perfetto(read_trace(trace), perfetto)}")
