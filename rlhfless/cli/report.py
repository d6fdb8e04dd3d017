"""``rlhfless report``: writes one interactive page about a trace or a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import Hardware, hardware_options, time_weight_option
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.report.study import Assumptions

LIMITS = ("max_line_mib", "max_rows", "max_unpacked_gib")
HEADINGS = {
    "The GPUs": ("gpus", "gpus_per_node", "gpus_per_actor", "profile", "usd_per_gpu_hour", "prices"),
    "The run that was logged": ("dispatch", "learner_gpus", "prepare_s", "learn_s", "calibrate"),
    "How to read the log": ("framework", "tokenizer", "maps", "run", "max_response_tokens", *LIMITS),
    "The page": ("out", "time_weight", "max_steps"),
}


@main.command(cls=WithHeadings, headings=HEADINGS)
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="File to write: a page (.html) or a notebook (.ipynb)."
)
@hardware_options(
    required=False,
    gpus="Number of GPUs of the run.  [default: the trace's, or 16]",
    profile="Latency profile.  [default: the trace's, or l40s-qwen2.5-3b-tp2]",
)
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="NAME=USD",
    help="Further price per GPU-hour, spot=1.90 for example; repeatable.",
)
@click.option(
    "--dispatch", help="Dispatch of the logged run: static (equal chunks) or least-loaded.  [default: its framework's]"
)
@click.option("--learner-gpus", type=int, help="GPUs of the learner alone.  [default: as its framework does]")
@click.option("--prepare-s", type=float, help="Seconds of preparation per step.  [default: the log's]")
@click.option("--learn-s", type=float, help="Seconds of learning per step.  [default: the log's]")
@click.option("--calibrate/--no-calibrate", default=True, show_default=True, help="Scale the profile to the times in the log.")
@log_options
@click.option("--max-response-tokens", type=click.IntRange(1), help="Longest response that the run allowed, in tokens.")
@time_weight_option
@click.option(
    "--steps", "max_steps", type=click.IntRange(1), default=8, show_default=True, help="Largest number of steps to simulate."
)
def report(
    path: Path,
    out: Path,
    hardware: Hardware,
    log: LogOptions,
    max_response_tokens: int | None,
    time_weight: float,
    max_steps: int,
    **stated: Any,
) -> None:
    """Write one interactive page about PATH: where GPU time went, and what other schedules would have saved.

    PATH is a trace or a log of another framework (see `rlhfless import`), whose format is recognised.
    """
    from rlhfless.report.notebook import LogSource, write_report_notebook
    from rlhfless.report.study import Assumptions, assuming
    from rlhfless.report.write import DEFAULT_PROFILE, write_report
    from rlhfless.simulate import SimulationConfig
    from solver.model.objective import Objective

    assumptions = _assumptions(**stated)
    opened = log.open(path, max_response_tokens)
    trace = opened.trace
    if len(trace.allocations) and assumptions != Assumptions():
        raise InputError(
            f"{path}: is the trace of an executed run, which holds GPUs and times; leave out the options of logged runs"
        )
    _refuse_wrong_meta(path, trace.meta)
    own = trace.meta.get("cluster") or {}
    if hardware.gpus is None and "nodes" in own:
        per_node = hardware.gpus_per_node or own["gpus_per_node"]
        hardware = replace(hardware, gpus=own["nodes"] * own["gpus_per_node"], gpus_per_node=per_node)
    if hardware.gpus is None and "nodes" not in own:
        assumptions = assuming(assumptions, "16 GPUs in two nodes, because --gpus was not given")
    if hardware.profile is None and not trace.meta.get("profile"):
        assumptions = assuming(assumptions, f"times of profile {DEFAULT_PROFILE}, because --profile was not given")
    profile = hardware.profile or trace.meta.get("profile") or DEFAULT_PROFILE
    hardware = replace(hardware, gpus=hardware.gpus or 16, profile=profile)
    cluster, latency = hardware.cluster()
    limit = max_response_tokens or (trace.meta.get("config") or {}).get("max_response_tokens")
    setting = SimulationConfig(cluster, latency, Objective(time_weight), max_response_tokens=limit)
    if out.suffix == ".ipynb":
        if len(trace.allocations):
            raise InputError(f"{path}: is the trace of an executed run, whose report is a page; let -o end with .html")
        source = LogSource(path, log.import_options(max_response_tokens), log.framework, log.run)
        write_report_notebook(source, out, profile, setting, assumptions, max_steps=max_steps)
    else:
        write_report(opened, out, setting, assumptions, max_steps=max_steps)
    click.echo(f"wrote {out.resolve()}")


def _refuse_wrong_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Refuse a trace whose meta.json has a cluster, profile or config of another form than runs write.

    Raises:
        InputError: the message names the key, its value and the form that is needed.
    """
    from solver.model.errors import as_given

    def is_count(value: Any) -> bool:
        return isinstance(value, int) and value > 0

    cluster, profile, config = (meta.get(key) for key in ("cluster", "profile", "config"))
    sizes = [cluster[key] for key in ("nodes", "gpus_per_node") if key in cluster] if isinstance(cluster, dict) else []
    if cluster and (not isinstance(cluster, dict) or len(sizes) == 1 or not all(map(is_count, sizes))):
        wrong, needed = "cluster", "an object with whole numbers above 0 as nodes and gpus_per_node, or with neither,"
    elif profile and not isinstance(profile, str):
        wrong, needed = "profile", "a profile's name"
    elif config and not isinstance(config, dict):
        wrong, needed = "config", "an object"
    elif config and config.get("max_response_tokens") is not None and not is_count(config["max_response_tokens"]):
        wrong, needed = "config", "an object with a whole number above 0 as max_response_tokens, or without it,"
    else:
        return
    raise InputError(f"{path / 'meta.json'}: {wrong} is {as_given(meta[wrong])}; {needed} is needed")


def _assumptions(
    prices: tuple[str, ...],
    dispatch: str | None,
    learner_gpus: int | None,
    prepare_s: float | None,
    learn_s: float | None,
    calibrate: bool,
) -> Assumptions:
    from rlhfless.report.study import Assumptions

    for name, seconds in (("--prepare-s", prepare_s), ("--learn-s", learn_s)):
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise InputError(f"{name} is {seconds}; a finite number of seconds of 0 or more is needed")
    by_name = {}
    for pair in prices:
        name, _, usd = pair.partition("=")
        try:
            by_name[name] = float(usd)
        except ValueError:
            by_name[name] = -1.0
        if not name or not 0 <= by_name[name] < float("inf"):
            raise InputError(f"--price {pair}: is not of the form NAME=USD; spot=1.90 is an example")
    return Assumptions(dispatch, learner_gpus, prepare_s, learn_s, calibrate, by_name)
