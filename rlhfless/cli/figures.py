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
    """Reproduce the figures of RLHFless (arXiv 2602.22718): all of them, or those that are named (2b, 3c, ...).

    10_all repeats the 12 settings of Figure 10 as whole steps with all optimisations, and prints them with bounds. It takes
    some minutes, and less with --seeds 1.

    real_main repeats the main figure of ReaL (arXiv 2406.14088): planned steps against Megatron's rule, in some minutes.
    rlhfuse_cut and rlhfuse_schedules repeat figures of RLHFuse (arXiv 2409.13221): latency by the share of the batch at which
    responses migrate, in seconds, and the 12 published pipelines, in minutes.

    It writes a page and a table of each figure, pictures where they can be drawn, and index.html with the findings of all
    figures, which is written after each of them: stop with Ctrl-C and read what is there. The same command continues, as
    finished runs are kept in the folder "runs". The first lines say how long the figures take and which public logs the
    lengths come from.
    """

    names: CliPositionalArg[tuple[str, ...]] = Field(
        (), validation_alias="name",
        description="RLHFless: 2b (where a naive step goes), 3c (KV caches computed again), 4a (response lengths), "
        "4b (mean length while training), 7b (grouping by length), 9 (placement of one step), 10 (time and cost of a step), "
        "11 (what each idea adds), 12 (actors of RLHFuse and RLHFless), 13 (scaling, shared prefill), 14 (predictors), "
        "15 (window, tau and lambda), 16 (160 H100), 17 (where a step goes by policy), 10_all (12 settings as whole steps). "
        "ReaL: real_main (layouts against Megatron's rule). RLHFuse: rlhfuse_cut (when responses migrate), rlhfuse_schedules "
        "(12 pipelines).  [default: the 14 of RLHFless, without 10_all]",
    )  # fmt: skip
    out: Annotated[OutFolder, BeforeValidator(_named)] = Field(
        Path("out/figures"), validation_alias=AliasChoices("out", "o"), json_schema_extra=shown("FOLDER"),
        description="Write the figures into this folder.",
    )  # fmt: skip
    fast: bool = Field(False, description="Use smaller settings than the paper, which take less time.")
    seeds: Count | None = Field(None, description="Number of seeds, for figures that average over several (10_all).")
    logs: str | None = Field(
        None, json_schema_extra=shown("FOLDER"),
        description="Folder of the public logs, such as grpo-gsm8k-lengths.  [default: ../shared/data of the checkout, if it "
        "exists]",
    )  # fmt: skip
    pictures: Annotated[Names | None, AfterValidator(_kinds)] = Field(
        None, json_schema_extra=shown("png,pdf|none"),
        description="Also write pictures: PNG, PDF for print (170 mm wide, without title and background), both, or none.  "
        "[default: png if kaleido (extra 'export') and a browser are installed]",
    )  # fmt: skip


def figures(options: FiguresOptions) -> None:
    """Write the figures, and print what was written.

    Raises:
        InputError: a name is unknown, or pictures are wanted that cannot be drawn.
    """
    from rlhfless.paper import Sources, chosen, write_figures
    from rlhfless.paper.catalogue import how_long
    from rlhfless.plots.export.render import why_no_pictures

    figures = chosen(options.names)  # raises on unknown names before anything is computed
    sources = Sources.of(options.logs)
    asked = options.pictures
    why_not = why_no_pictures() if asked != () else ""
    if why_not and asked:
        raise InputError(why_not)
    pictures = asked if asked is not None else () if why_not else ("png",)

    def say_why_not(reason: str) -> None:
        print(f"no pictures: {reason}")

    print(how_long(figures, options.fast))
    print(f"lengths: {sources.about}")
    index = write_figures(
        options.out, options.names, fast=options.fast, sources=sources, on_line=print, pictures=pictures, seeds=options.seeds,
        on_no_pictures=None if asked else say_why_not,
    )  # fmt: skip
    if why_not:
        say_why_not(why_not)
    print(f"wrote {index.resolve()}")
