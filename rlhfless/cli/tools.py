"""``rlhfless run-notebook`` and ``doctor``: commands about this machine."""

from __future__ import annotations

from pathlib import Path

import click

from rlhfless.cli.group import main


@main.command(name="run-notebook")
@click.argument("notebook", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The page that the notebook writes.")
def run_notebook(notebook: Path, out: Path) -> None:
    """Execute NOTEBOOK without a browser and say where its page is."""
    from rlhfless.system.run_notebook import run_notebook as execute

    executed = execute(notebook, out)
    click.echo(f"executed notebook: {executed}")
    click.echo(f"interactive page:  {out.resolve()}")


@main.command()
def doctor() -> None:
    """What is installed, which device, and what will not work."""
    from rlhfless.cli.doctor import format_report

    click.echo(format_report())
