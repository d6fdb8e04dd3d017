"""``rlhfless report``: writes one interactive page about a trace or a log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.assumption_options import assumption_options, logged_hardware_options
from rlhfless.cli.draft_options import DraftOptions
from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import time_weight_option
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.report.study import Assumptions
    from rlhfless.run.hardware import Hardware

LIMITS = ("max_line_mib", "max_rows", "max_unpacked_gib")
HEADINGS = {
    "The GPUs": ("gpus", "gpus_per_node", "gpus_per_actor", "profile", "usd_per_gpu_hour", "prices"),
    "The run that was logged": ("dispatch", "learner_gpus", "prepare_s", "learn_s", "calibrate"),
    "How to read the log": (
        "framework",
        "tokenizer",
        "maps",
        "where",
        "run",
        "max_response_tokens",
        "responses_per_step",
        "samples_per_prompt",
        *LIMITS,
    ),
    "The page": ("out", "time_weight", "max_steps", "drafts"),
}


@main.command(cls=WithHeadings, headings=HEADINGS)
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Write a page (.html) or a notebook (.ipynb) to this file.",
)
@logged_hardware_options
@assumption_options(
    click.option(
        "--price",
        "prices",
        multiple=True,
        metavar="NAME=USD",
        help="Show cost at a further price in USD per GPU-hour, such as spot=1.90; repeatable.",
    )
)
@log_options
@click.option(
    "--max-response-tokens",
    type=click.IntRange(1),
    help="The run truncated responses at this many tokens; needed for scalars without the longest response (OpenRLHF).",
)
@click.option(
    "--responses-per-step",
    type=click.IntRange(1),
    help="Draw this many lengths per step of a log of scalars.  [default: from its tokens]",
)
@click.option("--samples-per-prompt", type=click.IntRange(1), help="So many responses of each prompt, for a log of scalars.")
@time_weight_option
@click.option(
    "--steps", "max_steps", type=click.IntRange(1), default=8, show_default=True, help="Simulate at most this many steps."
)
@click.option(
    "--drafts",
    metavar="LOG|A0.7|weak|strong",
    help="Show what speculation adds to the best schedule, with what `simulate --drafts` accepts.  [default: no drafts]",
)
def report(
    path: Path,
    out: Path,
    hardware: Hardware,
    assumptions: Assumptions,
    log: LogOptions,
    max_response_tokens: int | None,
    responses_per_step: int | None,
    samples_per_prompt: int | None,
    time_weight: float,
    max_steps: int,
    drafts: str | None,
) -> None:
    """Write one interactive page about PATH: where GPU time went, and what other schedules would have saved.

    PATH is a trace or a log of another framework (see `rlhfless import`), whose format is recognised. Of a log of scalars alone
    (verl, TRL, OpenRLHF), lengths are drawn from each step's mean, longest and clipped share, and ranges are rough.
    """
    from rlhfless.analysis.drawn_lengths import StepSizes, drawn_logs
    from rlhfless.analysis.log_texts import texts_of
    from rlhfless.report.drawn_study import study_drawn
    from rlhfless.report.not_stated import RESPONSES, RESPONSES_ASSUMED
    from rlhfless.report.notebook import LogSource, write_report_notebook
    from rlhfless.report.progress import progress_bar
    from rlhfless.report.write import write_report
    from rlhfless.run import load
    from rlhfless.trace import LogWithoutResponses, open_log

    if drafts is not None and out.suffix == ".ipynb":
        raise InputError("--drafts is for pages, and -o names a notebook; let -o end with .html, or leave out --drafts")
    options = log.import_options(max_response_tokens)
    with_texts = log.import_options(max_response_tokens, texts_of(path))
    drawn = []
    try:
        opened = open_log(path, with_texts, log.framework).of_run(log.run)
    except LogWithoutResponses as error:
        if out.suffix == ".ipynb":
            raise InputError(f"{path}: has scalars alone, whose report is a page; let -o end with .html") from error
        drawn = drawn_logs(error.log, StepSizes(responses_per_step, samples_per_prompt, max_response_tokens))
        opened = drawn[0]
        if responses_per_step is None and "responses" not in error.log.scalars:
            assumptions = replace(assumptions, not_stated={RESPONSES: RESPONSES_ASSUMED})
    if not drawn and (responses_per_step or samples_per_prompt):
        raise InputError(
            "--responses-per-step and --samples-per-prompt are for logs of scalars alone, and this log has responses; leave "
            "them out"
        )
    run = load(
        opened,
        hardware=hardware,
        assumptions=assumptions,
        options=options,
        time_weight=time_weight,
        verbose=False,
    )
    setting = replace(run.setting, drafts=DraftOptions(drafts).accepted(log, path, opened.trace.rollouts, run.setting.seed))
    if out.suffix == ".ipynb":
        if len(opened.trace.allocations):
            raise InputError(f"{path}: is the trace of an executed run, whose report is a page; let -o end with .html")
        source = LogSource(path, options, log.framework, log.run)
        write_report_notebook(source, out, run.profile, run.setting, run.assumptions, max_steps=max_steps)
    else:
        with progress_bar() as begin:
            study = study_drawn(drawn, setting, run.assumptions, max_steps, begin) if drawn else None
            write_report(opened, out, setting, run.assumptions, max_steps=max_steps, study=study, begin=begin)
    click.echo(f"wrote {out.resolve()}")
