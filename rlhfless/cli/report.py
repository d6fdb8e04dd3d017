"""``rlhfless report``: one interactive page about a trace or a log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from rlhfless.cli.group import main
from rlhfless.cli.options import Hardware, hardware_options, time_weight_option


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The HTML page.")
@hardware_options(
    required=False,
    gpus="GPUs of the simulated schedules.  [default: the trace's own, or 16]",
    profile="Latency profile.  [default: the trace's own, or l40s-qwen2.5-3b-tp2]",
)
@time_weight_option
@click.option("--steps", "max_steps", type=click.IntRange(1), default=8, show_default=True, help="Most steps to simulate.")
def report(
    path: Path,
    out: Path,
    hardware: Hardware,
    time_weight: float,
    max_steps: int,
) -> None:
    """Write one interactive page about PATH (a trace, or a table of response lengths)."""
    from rlhfless.report import read_source, write_report
    from rlhfless.simulate import Setting
    from solver.objective import Objective

    trace = read_source(path)
    own = trace.meta.get("cluster") or {}
    if hardware.gpus is None and "nodes" in own:
        per_node = hardware.gpus_per_node or own["gpus_per_node"]
        hardware = replace(hardware, gpus=own["nodes"] * own["gpus_per_node"], gpus_per_node=per_node)
    profile = hardware.profile or trace.meta.get("profile") or "l40s-qwen2.5-3b-tp2"
    cluster, latency = replace(hardware, gpus=hardware.gpus or 16, profile=profile).cluster()
    limit = (trace.meta.get("config") or {}).get("response_limit")
    write_report(trace, out, Setting(cluster, latency, Objective(time_weight), response_limit=limit), max_steps=max_steps)
    click.echo(f"wrote {out.resolve()}")
