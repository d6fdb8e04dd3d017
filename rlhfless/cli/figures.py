"""``rlhfless figures``: the paper's figures, made again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.group import main

if TYPE_CHECKING:
    from rlhfless.paper import PaperFigure


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The folder to write into.")
@click.option("--fast", is_flag=True, help="Smaller settings than the paper's: all figures in under a minute.")
@click.option(
    "--logs", type=click.Path(path_type=Path),
    help="Folder with the public logs (grpo-gsm8k-lengths, ...).  [default: ../shared/data of the checkout, if there]",
)  # fmt: skip
def figures(names: tuple[str, ...], out: Path, fast: bool, logs: Path | None) -> None:
    """Make the figures of RLHFless (arXiv 2602.22718) again, all of them or those NAMEd as in the paper (2b, 3c, ...).

    Writes a page and a table of each, a picture where the extra 'export' is installed, and index.html with all captions.
    """
    from rlhfless.paper import Sources, chosen, write_figures

    chosen(names)  # a wrong name is refused before anything is computed

    def say(figure: PaperFigure[Any]) -> None:
        click.echo(f"{figure.title}")

    index = write_figures(out, names, fast=fast, sources=Sources.of(logs), on_figure=say)
    click.echo(f"wrote {index.resolve()}")
