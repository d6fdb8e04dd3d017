"""``rlhfless figures``: reproduces the figures of the paper."""

from __future__ import annotations

import click

from rlhfless.cli.group import main
from rlhfless.errors import InputError


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option(
    "-o", "--out", type=click.Path(), default="out/figures", show_default=True, help="Write the figures into this folder."
)
@click.option("--fast", is_flag=True, help="Use smaller settings than the paper, for all figures in under a minute.")
@click.option("--seeds", type=int, help="Use this many seeds, in figures that have several (10_all).")
@click.option(
    "--logs", type=click.Path(),
    help="Read public logs (such as grpo-gsm8k-lengths) from here.  [default: ../shared/data of the checkout, if it exists]",
)  # fmt: skip
@click.option(
    "--png/--no-png", default=None,
    help="Also write each figure as PNG.  [default: on if kaleido (extra 'export') and a browser are installed]",
)  # fmt: skip
@click.option("--pdf", is_flag=True, help="Also write each figure as PDF for print: 170 mm wide, without title and background.")
def figures(
    names: tuple[str, ...], out: str, fast: bool, seeds: int | None, logs: str | None, png: bool | None, pdf: bool
) -> None:
    """Reproduce the figures of RLHFless (arXiv 2602.22718): all of them, or those with the NAMEs of the paper (2b, 3c, ...).

    The NAME 10_all makes Figure 10's 12 settings as whole steps with all levers, and prints them with bounds. It takes some
    minutes, and less with --seeds 1.

    The NAME real_main makes the main figure of ReaL (arXiv 2406.14088): planned steps against Megatron's rule, in some minutes.
    rlhfuse_cut and rlhfuse_schedules make figures of RLHFuse (arXiv 2409.13221): latency over the share of the batch at which
    responses migrate, in seconds, and the 12 published pipelines, in minutes.

    Writes a page and a table of each figure, pictures where they can be drawn, and index.html with all captions. The first line
    of the output says which public logs the lengths come from.
    """
    from rlhfless.paper import Sources, chosen, write_figures
    from rlhfless.plots.export.render import why_no_pictures

    chosen(names)  # raises on unknown names before anything is computed
    if not out:
        raise InputError("-o is empty; name the folder to write figures into")
    sources = Sources.of(logs)
    why_not = "" if png is False and not pdf else why_no_pictures()
    if why_not and (png or pdf):
        raise InputError(why_not)
    pictures = [kind for kind, wanted in (("png", not why_not if png is None else png), ("pdf", pdf)) if wanted]

    def say_why_not(reason: str) -> None:
        click.echo(f"no pictures: {reason}")

    click.echo(f"lengths: {sources.about}")
    index = write_figures(
        out, names, fast=fast, sources=sources, on_line=click.echo, pictures=pictures, seeds=seeds,
        on_no_pictures=None if png or pdf else say_why_not,
    )  # fmt: skip
    if why_not:
        say_why_not(why_not)
    click.echo(f"wrote {index.resolve()}")
