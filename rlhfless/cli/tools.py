"""``rlhfless run-notebook`` and ``doctor``: commands about this machine."""

from __future__ import annotations

from pathlib import Path

import click

from rlhfless.cli.group import main


@main.command(name="run-notebook")
@click.argument("notebook", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="Write the notebook's page to this HTML file."
)
def run_notebook(notebook: Path, out: Path) -> None:
    """Execute NOTEBOOK without a browser and print the path of its page."""
    from rlhfless.plots.export.notebook_page import write_notebook_page
    from rlhfless.system.run_notebook import run_notebook as execute

    executed = execute(notebook, out)
    write_notebook_page(executed, out)
    click.echo(f"executed notebook: {executed}")
    click.echo(f"interactive page:  {out.resolve()}")


@main.command()
def doctor() -> None:
    """Check the installation: packages, device, memory, browser, and what does not work without a missing package."""
    from rlhfless.cli.doctor import format_report

    click.echo(format_report())
