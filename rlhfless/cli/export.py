"""``rlhfless export``: writes a trace or log for another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.group import main
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import hardware_options
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.run.hardware import Hardware


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--perfetto", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the timeline of the trace or log PATH to FILE (.json or .json.gz) for ui.perfetto.dev or chrome://tracing.",
)  # fmt: skip
@click.option(
    "--max-requests", type=click.IntRange(1), metavar="N",
    help="Draw only the first N requests in the timeline; the counters cover all of them.  [default: 500,000]",
)  # fmt: skip
@click.option(
    "--verl-router", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Write a verl router into FOLDER that plans with lengths of the log PATH (with --tokenizer, --gpus, --profile).",
)  # fmt: skip
@log_options
@hardware_options(
    gpus="Plan for this many GPUs in total.",
    profile="Use this latency profile: a shipped name such as l40s-qwen2.5-3b-tp2, or a JSON file.",
)
def export(
    path: Path,
    perfetto: Path | None,
    max_requests: int | None,
    verl_router: Path | None,
    log: LogOptions,
    hardware: Hardware,
) -> None:
    """Write the trace or log PATH for another tool: its timeline for Perfetto, or a router for verl.

    A timeline has a slice per response with start_s and end_s, its arrows are moves between actors.
    """
    if (perfetto is None) == (verl_router is None):
        raise InputError("one output is needed; give either --perfetto FILE or --verl-router FOLDER")
    if perfetto is not None:
        if any(value is not None for value in vars(hardware).values()):
            raise InputError("--perfetto draws what was logged; leave out the options of GPUs, which are for --verl-router")
        if log.max_response_tokens is not None:
            raise InputError("--perfetto draws what was logged; leave out --max-response-tokens, which is for --verl-router")
        from rlhfless.trace.perfetto import MAX_REQUESTS, write_perfetto

        click.echo(str(write_perfetto(log.open_responses(path).trace, perfetto, max_requests or MAX_REQUESTS)))
        return
    if max_requests is not None:
        raise InputError("--max-requests is of timelines; leave it out, or give --perfetto FILE instead of --verl-router")
    assert verl_router is not None
    missing = [name for name, value in (("--gpus", hardware.gpus), ("--profile", hardware.profile)) if value is None]
    if log.tokenizer is None:
        missing.append("--tokenizer")
    if missing:
        raise InputError(f"--verl-router needs the cluster, its profile and the run's tokenizer; give {', '.join(missing)}")
    assert log.tokenizer is not None
    from rlhfless.analysis.verl_router import router_effect, write_router
    from rlhfless.run import load

    run = load(log.open_responses(path), hardware=hardware, options=log.import_options(), verbose=False)
    effect = router_effect(run.rollouts, run.calibrated)
    written = write_router(verl_router, run.rollouts, run.calibrated, log.tokenizer)
    click.echo(f"wrote {', '.join(map(str, written))}")
    click.echo(f"times: {run.times.scale.words()}")
    click.echo(str(effect))
    click.echo(
        f"use: PYTHONPATH={written[0].parent} ... actor_rollout_ref.rollout.router_config_path={written[-1]}; "
        f"prompts that are not in the log go to the least loaded replica"
    )
