"""``rlhfless figures``: reproduces the figures of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field
from pydantic_settings import CliPositionalArg

from rlhfless.cli.options import Count, Names, Options, OutFolder, shown
from rlhfless.errors import InputError


def _named(value: Any) -> Any:
    if value == "":
        raise InputError("-o is empty; name the folder to write figures into")
    return value


def _kinds(kinds: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the kinds of pictures, without ``none``.

    Raises:
        InputError: they are no such kinds.
    """
    if kinds is not None and kinds != ("none",) and not (kinds and set(kinds) <= {"png", "pdf"}):
        raise InputError(f"--pictures is {','.join(kinds)}; png, pdf, png,pdf or none is needed")
    return () if kinds == ("none",) else kinds


class FiguresOptions(Options):
    """Reproduce the figures of RLHFless (arXiv 2602.22718): all of them, or those with the NAMEs of the paper (2b, 3c, ...).

    The NAME 10_all makes Figure 10's 12 settings as whole steps with all levers, and prints them with bounds. It takes some
    minutes, and less with --seeds 1.

    The NAME real_main makes the main figure of ReaL (arXiv 2406.14088): planned steps against Megatron's rule, in some minutes.
    rlhfuse_cut and rlhfuse_schedules make figures of RLHFuse (arXiv 2409.13221): latency over the share of the batch at which
    responses migrate, in seconds, and the 12 published pipelines, in minutes.

    Writes a page and a table of each figure, pictures where they can be drawn, and index.html with all captions. The first line
    of the output says which public logs the lengths come from.
    """

    names: CliPositionalArg[tuple[str, ...]] = Field(
        (), validation_alias="name", description="Figures, such as 2b, 3c or 10_all.  [default: all]"
    )
    out: Annotated[OutFolder, BeforeValidator(_named)] = Field(
        Path("out/figures"), validation_alias=AliasChoices("out", "o"), json_schema_extra=shown("FOLDER"),
        description="Write the figures into this folder.",
    )  # fmt: skip
    fast: bool = Field(False, description="Use smaller settings than the paper, for all figures in under a minute.")
    seeds: Count | None = Field(None, description="Use this many seeds, in figures that have several (10_all).")
    logs: str | None = Field(
        None, json_schema_extra=shown("FOLDER"),
        description="Read public logs (such as grpo-gsm8k-lengths) from here.  [default: ../shared/data of the checkout, if it "
        "exists]",
    )  # fmt: skip
    pictures: Annotated[Names | None, AfterValidator(_kinds)] = Field(
        None, json_schema_extra=shown("png,pdf|none"),
        description="Also write each figure as PNG, as PDF for print (170 mm wide, without title and background), as both, or "
        "as neither.  [default: png if kaleido (extra 'export') and a browser are installed]",
    )  # fmt: skip


def figures(options: FiguresOptions) -> None:
    """Write the figures, and print what was written.

    Raises:
        InputError: a name is unknown, or pictures are wanted that cannot be drawn.
    """
    from rlhfless.paper import Sources, chosen, write_figures
    from rlhfless.plots.export.render import why_no_pictures

    chosen(options.names)  # raises on unknown names before anything is computed
    sources = Sources.of(options.logs)
    asked = options.pictures
    why_not = why_no_pictures() if asked != () else ""
    if why_not and asked:
        raise InputError(why_not)
    pictures = asked if asked is not None else () if why_not else ("png",)

    def say_why_not(reason: str) -> None:
        print(f"no pictures: {reason}")

    print(f"lengths: {sources.about}")
    index = write_figures(
        options.out, options.names, fast=options.fast, sources=sources, on_line=print, pictures=pictures, seeds=options.seeds,
        on_no_pictures=None if asked else say_why_not,
    )  # fmt: skip
    if why_not:
        say_why_not(why_not)
    print(f"wrote {index.resolve()}")
