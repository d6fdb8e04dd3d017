"""``rlhfless what-if``: other ways to generate and to learn, on the lengths of a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import format_option, hardware_options
from rlhfless.cli.report import HEADINGS as OF_REPORTS
from rlhfless.cli.report import stated_assumptions

if TYPE_CHECKING:
    from rlhfless.run.hardware import Hardware

HEADINGS = {
    "The GPUs": ("gpus", "gpus_per_node", "gpus_per_actor", "profile", "usd_per_gpu_hour"),
    **{name: OF_REPORTS[name] for name in ("The run that was logged", "How to read the log")},
    "What is shown": ("out", "form"),
}


@main.command("what-if", cls=WithHeadings, headings=HEADINGS)
@click.argument("path", type=click.Path(path_type=Path))
@hardware_options(
    required=False,
    gpus="The run had this many GPUs.  [default: the trace's, or 16]",
    profile="Use this latency profile: a shipped name or a JSON file.  [default: the trace's, or l40s-qwen2.5-3b-tp2]",
)
@click.option(
    "--dispatch", help="The run dispatched prompts in equal chunks (static) or least-loaded.  [default: its framework's]"
)
@click.option("--learner-gpus", type=int, help="The learner had this many GPUs of its own.  [default: as its framework does]")
@click.option("--prepare-s", type=float, help="Each step prepared for this many seconds.  [default: the log's]")
@click.option("--learn-s", type=float, help="Each step learned for this many seconds.  [default: the log's]")
@click.option("--calibrate/--no-calibrate", default=True, show_default=True, help="Scale the profile to the times in the log.")
@log_options
@click.option("--max-response-tokens", type=click.IntRange(1), help="The run truncated responses at this many tokens.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write the figure to this file (.html, .png, .svg or .pdf).")
@format_option
def what_if(
    path: Path,
    hardware: Hardware,
    log: LogOptions,
    max_response_tokens: int | None,
    dispatch: str | None,
    learner_gpus: int | None,
    prepare_s: float | None,
    learn_s: float | None,
    calibrate: bool,
    out: Path | None,
    form: str,
) -> None:
    """Simulate other ways to generate and to learn on the last steps of the log PATH: time, cost and changes of the data.

    Among them are partial rollout, over-sampling, asynchronous learning, deferred dispatch, dynamic sampling and drafts.
    """
    from rlhfless.analysis.log_texts import texts_of
    from rlhfless.plots import plot_what_ifs, save
    from rlhfless.run import load

    opened = log.open(path, max_response_tokens, texts_of(path))
    assumptions = stated_assumptions((), dispatch, learner_gpus, prepare_s, learn_s, calibrate)
    options = log.import_options(max_response_tokens)
    run = load(opened, hardware=hardware, assumptions=assumptions, options=options, verbose=False)
    compared = run.what_ifs()
    if out is not None:
        save(plot_what_ifs(compared), out)
    if form == "json":
        table = compared.to_frame()
        click.echo(json.dumps({"ways": table.to_dict("records"), "left_out": dict(compared.left_out)}))
        return
    for assumed in compared.assumed:
        click.echo(f"Assumed: {assumed}.")
    click.echo(compared)
    for way in (compared.base, *compared.ways):
        click.echo(f"  {way.name}: {way.change}")
    if out is not None:
        click.echo(f"wrote {out.resolve()}")
