"""``rlhfless figures``: the paper's figures, made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.group import main
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.paper import PaperFigure


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option("-o", "--out", type=click.Path(), required=True, help="The folder to write into.")
@click.option("--fast", is_flag=True, help="Smaller settings than the paper's: all figures in under a minute.")
@click.option(
    "--logs", type=click.Path(),
    help="Folder with the public logs (grpo-gsm8k-lengths, ...).  [default: ../shared/data of the checkout, if there]",
)  # fmt: skip
@click.option(
    "--png/--no-png", default=None,
    help="A picture of each figure too.  [default: where kaleido, of the extra 'export', and a browser are]",
)  # fmt: skip
@click.option("--pdf", is_flag=True, help="A PDF of each figure too, for a paper: 170 mm wide, no title, no background.")
def figures(names: tuple[str, ...], out: str, fast: bool, logs: str | None, png: bool | None, pdf: bool) -> None:
    """Make the figures of RLHFless (arXiv 2602.22718) again, all of them or those NAMEd as in the paper (2b, 3c, ...).

    Writes a page and a table of each, pictures where they can be drawn, and index.html with all captions. Says first which
    public logs lengths come from.
    """
    from rlhfless.paper import Sources, chosen, write_figures
    from rlhfless.plots.export.render import why_no_pictures

    chosen(names)  # what cannot be done is refused before anything is computed
    if not out:
        raise InputError("-o is empty; name the folder to write figures into")
    sources = Sources.of(logs)
    why_not = "" if png is False and not pdf else why_no_pictures()
    if why_not and (png or pdf):
        raise InputError(why_not)
    pictures = [kind for kind, wanted in (("png", not why_not if png is None else png), ("pdf", pdf)) if wanted]

    def say(figure: PaperFigure[Any]) -> None:
        click.echo(f"{figure.title}")

    def say_why_not(reason: str) -> None:
        click.echo(f"no pictures: {reason}")

    click.echo(f"lengths: {sources.about}")
    index = write_figures(
        out, names, fast=fast, sources=sources, on_figure=say, pictures=pictures,
        on_no_pictures=None if png or pdf else say_why_not,
    )  # fmt: skip
    if why_not:
        say_why_not(why_not)
    click.echo(f"wrote {index.resolve()}")
