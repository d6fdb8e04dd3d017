"""``rlhfless profile``: writes a latency profile, measured on this machine, or from an engine's lines, or scaled to a log.

``rlhfless.latency.measure`` measures, ``rlhfless.engine.torch.benchmark`` is what it times,
``rlhfless.latency.engine_statistics`` measures from an engine's lines, and ``rlhfless.latency.calibrate_from_log`` scales a
profile to the times of a log.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rlhfless.cli.group import main
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.errors import InputError
from solver.model.plurals import counted

if TYPE_CHECKING:
    import pandas as pd


MODEL, DEVICE, ENGINE = "tiny-qwen2", "cpu", "torch"


@main.command()
@click.option(
    "--model", default=MODEL, show_default=True, help="Measure this model: a folder of a transformers model, or tiny-qwen2."
)
@click.option(
    "--engine", type=click.Choice(["torch", "transformers"]), default=ENGINE, show_default=True, help="Measure this engine."
)
@click.option("--device", default=DEVICE, show_default=True, help="Measure on this device, such as cpu or cuda.")
@click.option(
    "--rounds", type=click.IntRange(1), help="Measure this many times and take medians.  [default: 15, with --fast 5]"
)
@click.option(
    "--max-batch",
    type=click.IntRange(2),
    help="Measure batches of up to this many responses (the slots).  [default: 256, with --fast 64]",
)
@click.option(
    "--contexts",
    metavar="TOKENS,...",
    help="Measure at these KV tokens per response, such as 16,128,512.  [default: 16 to 1,024]",
)
@click.option(
    "--memory-gib",
    type=click.FloatRange(0, min_open=True),
    help="Give an actor this many GiB, weights included.  [default: the whole GPU; on a CPU the weights and 1 GiB]",
)
@click.option("--fast", is_flag=True, help="Measure a grid of 12 points instead of 54.")
@click.option(
    "--from-log",
    type=click.Path(path_type=Path),
    help="Measure from the engine's lines in this log, or else scale the profile --base to its times.",
)
@click.option(
    "--base",
    help="With --from-log: scale this shipped profile or JSON file, or take from it what the engine's lines do not tell.",
)
@click.option(
    "--actors",
    type=click.IntRange(1),
    help="With --from-log: the log is of this many actors, where it does not say.  [default: 1]",
)
@log_options
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Write the profile to this JSON file."
)
def profile(
    model: str,
    engine: str,
    device: str,
    rounds: int | None,
    max_batch: int | None,
    contexts: str | None,
    memory_gib: float | None,
    fast: bool,
    from_log: Path | None,
    base: str | None,
    actors: int | None,
    log: LogOptions,
    out: Path,
) -> None:
    """Measure the latency of an engine for a model on this machine, and write it as a profile.

    It measures decode iterations over batch size and KV tokens, prefill in calls of its own, responses that end, start-up and
    transfer. Run it on an idle machine.

    The planner's affine fit covers all measured points, so measure no larger batches than actors will have. A problem with
    longer contexts than the largest of --contexts is refused, so measure contexts as long as prompt and response limit
    together. Batches that do not fit into the device's memory are left out, and the profile lists them.

    With --from-log nothing is measured here. Where the log has the lines that vLLM or SGLang print about every ten seconds, the
    profile is measured from them. Else the profile --base is scaled to the times that the run logged.
    """
    if (taken := next((p for p in out.absolute().parents if p.exists()), out)) and not taken.is_dir():
        raise InputError(f"{out}: {taken} is not a folder; name a file in a folder for -o")
    if from_log is not None:
        if fast or (model, engine, device) != (MODEL, ENGINE, DEVICE) or {rounds, max_batch, contexts, memory_gib} != {None}:
            raise InputError(
                "--from-log measures nothing; leave out --model, --engine, --device, --rounds, --max-batch, --contexts, "
                "--memory-gib and --fast"
            )
        click.echo(_from_log(from_log, log, base, actors, out))
        return
    if base is not None or actors is not None or log != LogOptions():
        raise InputError(
            "--base, --actors and the options of logs need --from-log; name a log with --from-log, or leave them out"
        )
    if memory_gib is not None and not math.isfinite(memory_gib * 2**30):
        raise InputError(f"--memory-gib is {memory_gib}; a finite number of GiB above 0 is needed")
    from rlhfless.engine.torch.benchmark import engine_timers
    from rlhfless.latency import save_profile
    from rlhfless.latency.measure import FAST, MeasurementGrid, measure_profile

    grid = FAST if fast else MeasurementGrid()
    named, memory_bytes = " --engine transformers" * (engine != ENGINE) + " --fast" * fast, None
    if rounds is not None:
        grid, named = replace(grid, rounds=rounds), f"{named} --rounds {rounds}"
    if max_batch is not None:
        smaller = (batch for batch in grid.batches if batch < max_batch)
        grid, named = replace(grid, batches=(*smaller, max_batch)), f"{named} --max-batch {max_batch}"
    if contexts is not None:
        grid, named = replace(grid, contexts=_contexts(contexts)), f"{named} --contexts {contexts}"
    if memory_gib is not None:
        memory_bytes, named = int(memory_gib * 2**30), f"{named} --memory-gib {memory_gib}"
    command = f"rlhfless profile --model {model} --device {device}{named} -o {out}"
    timers = engine_timers if engine == ENGINE else partial(engine_timers, forward=engine)
    measured = measure_profile(timers, model, out.stem, grid, device=device, memory_bytes=memory_bytes, command=command)
    click.echo(describe(measured))
    click.echo(f"wrote {save_profile(out, measured)}")


class Logged(NamedTuple):
    """What a log has of one run: responses (None without), scalars of its steps with times from spans, and lines of engines."""

    rollouts: pd.DataFrame | None
    scalars: pd.DataFrame
    engine: pd.DataFrame
    facts: Mapping[str, float]


def _from_log(log: Path, options: LogOptions, base: str | None, actors: int | None, out: Path) -> str:
    """Write a profile measured from the log's engine lines, or the base profile scaled to its times; return a summary.

    Too few lines of an engine are no error where there is a base profile to scale.
    """
    from rlhfless.latency import ProfileError, list_profiles

    logged = _logged(log, options)
    chosen = f" --base {base}" if base else ""
    chosen += f" --run {options.run}" if options.run else ""
    chosen += f" --actors {actors}" if actors else ""
    command = f"rlhfless profile --from-log {log}{chosen} -o {out}"
    too_few = ""
    if len(logged.engine):
        try:
            return _measured_by_engine(logged, log, base, actors, command, out)
        except ProfileError as error:
            if base is None:
                raise
            too_few = f"{error}; --base is scaled to the log's other times instead\n"
    if base is None:
        raise InputError(
            f"{log}: has no lines of an engine, and --base is missing; name the profile that is scaled to the log's times: "
            f"{', '.join(list_profiles())} or a JSON file"
        )
    return too_few + _scaled(logged, log, base, actors, command, out)


def _measured_by_engine(logged: Logged, log: Path, base: str | None, actors: int | None, command: str, out: Path) -> str:
    from rlhfless.latency import read_profile, save_profile
    from rlhfless.latency.engine_statistics import fit_engine, profile_of_engine
    from rlhfless.latency.held_out_errors import errors_in_words

    fit = fit_engine(logged.engine, str(log))
    if actors is not None:
        raise InputError(f"--actors is {actors}, but the lines of the log name their engines; leave --actors out")
    measured = profile_of_engine(
        fit, read_profile(base) if base else None, logged.facts.get("kv_cache_tokens"), name=out.stem,
        origin=f"measured from the lines of the engine in {log.name}", command=command, date=datetime.date.today().isoformat(),
    )  # fmt: skip
    ours, constant = (errors_in_words(e) for e in (fit.checked.errors, fit.checked.constant_errors))
    assumed = measured["assumptions"]
    return "\n".join(
        [
            f"{counted(len(fit.batch), 'line')} of an engine with {fit.batch.min():,.0f} to {fit.batch.max():,.0f} requests",
            f"time per token of a request  {fit.base_s * 1e3:.3g} ms + {fit.per_running_s * 1e6:.3g} us per running request",
            f"relative error on held-out lines ({fit.held_out}): {ours}; of a constant: {constant}",
            f"prefill                      {measured['prefill']['per_token_s'] * 1e6:.3g} us per token; {assumed['prefill']}",
            f"slots                        {measured['max_batch']:,}; {assumed['max_batch']}",
            f"KV tokens                    {assumed['kv_capacity_tokens']}",
            f"others                       {assumed['others']}",
            *([f"drafts                       {assumed['drafts']}"] if fit.drafted else []),
            f"wrote {save_profile(out, measured)}",
        ]
    )


def _scaled(logged: Logged, log: Path, base: str, actors: int | None, command: str, out: Path) -> str:
    """Write the base profile scaled to the log's times, and return a summary of the fit."""
    from rlhfless.latency import load_profile, read_profile, save_profile
    from rlhfless.latency.calibrate_from_log import calibrate, calibrated_profile, times_of
    from rlhfless.latency.held_out_errors import errors_in_words

    calibration = calibrate(times_of(logged.rollouts, logged.scalars, load_profile(base), actors or 1, str(log)))
    scaled = calibrated_profile(
        read_profile(base), calibration, name=out.stem, origin=f"{base}, scaled to the times of {log.name}",
        command=command, date=datetime.date.today().isoformat(),
    )  # fmt: skip
    ours, constant = (errors_in_words(e) for e in (calibration.checked.errors, calibration.checked.constant_errors))
    lines = [
        f"{len(calibration.checked.errors):,} times of {calibration.what} of {counted(calibration.steps, 'step')}",
        f"fitted: {calibration.what_was_fitted}",
        f"decode x {calibration.decode:.3g}, KV cache x {calibration.kv:.3g}, {calibration.once_s * 1e3:.3g} ms for each of "
        f"the {calibration.what}",
        f"relative error on held-out times ({calibration.checked.how}): {ours}; of a constant: {constant}",
    ]
    if calibration.by_constant:
        lines.append(
            "a constant predicts the times better than any fit, so the log does not show what its times depend on; the "
            "profile is --base scaled by the constant"
        )
    return "\n".join([*lines, f"wrote {save_profile(out, scaled)}"])


def _logged(log: Path, options: LogOptions) -> Logged:
    """Return what the log has of one run.

    Raises:
        InputError: the log holds responses of several runs and none is named.
        TraceError: the format is unknown, the log is damaged, it has no run of the given name, or scalars of several runs.
    """
    from rlhfless.trace import LogWithoutResponses, with_step_times
    from rlhfless.trace.importers.scalars import runs_of
    from rlhfless.trace.schema.validation import refuse_several_runs

    try:
        opened = options.open_responses(log)
    except LogWithoutResponses as error:
        scalars = error.log.of_run(options.run).scalars
        refuse_several_runs(runs_of(scalars), log)
        return Logged(None, scalars, error.log.engine, error.log.facts)
    runs = sorted(map(str, opened.trace.rollouts["run"].unique()))
    if len(runs) > 1:
        raise InputError(f"{log}: holds {len(runs)} runs ({', '.join(runs)}); name one with --run")
    scalars = with_step_times(opened.scalars, opened.trace).scalars
    return Logged(opened.trace.rollouts, scalars, opened.engine, opened.facts)


def _contexts(text: str) -> tuple[int, ...]:
    """Return the context lengths of the option --contexts in ascending order.

    Raises:
        InputError: the text is not two or more different whole numbers above 0.
    """
    try:
        tokens = sorted({int(part) for part in text.split(",")})
    except ValueError:
        tokens = []
    if len(tokens) < 2 or tokens[0] < 1:
        raise InputError(f"--contexts is {text!r}; two or more different numbers of tokens are needed, as in 16,512,4096")
    return tuple(tokens)


def describe(measured: Mapping[str, Any]) -> str:
    """Return a summary of a measured profile in six lines: the fits with their relative errors, start-up and memory."""
    fit, prefill = measured["fit"], measured["prefill"]
    join_us, end_us = prefill["per_join_s"] * 1e6, prefill["per_end_s"] * 1e6
    rate = f"{1 / prefill['per_token_s']:,.0f} tokens/s" if prefill["per_token_s"] else "no time per token"
    return "\n".join(
        [
            f"{measured['model']}, {measured['precision']}: {measured['origin']}",
            f"decode iteration  {fit['base_s'] * 1e3:.3g} ms + {fit['per_response_s'] * 1e6:.3g} us per response + "
            f"{fit['per_kv_token_s'] * 1e9:.3g} ns per KV token; {_residuals(fit)} over {fit['points']} points",
            f"prefill call      {prefill['base_s'] * 1e3:.3g} ms + {prefill['per_token_s'] * 1e6:.3g} us per token ({rate})",
            f"batch changes     {join_us:.3g} us per response that joins, {end_us:.3g} us per response that ends; "
            f"prefill included, {_residuals(prefill)} over {len(prefill['samples']['seconds'])} changes",
            f"start-up          {measured['start_s'] * 1e3:.3g} ms, of which weights {measured['sync_s'] * 1e3:.3g} ms; "
            f"transfer {measured['transfer_per_kv_token_s'] * 1e6:.3g} us per KV token",
            f"memory            {measured['kv_capacity_tokens']:,} KV tokens plus the weights, {measured['max_batch']} slots",
        ]
    )


def _residuals(fit: Mapping[str, float]) -> str:
    shares = [f"{fit[f'{name}_relative_error']:.1%}" for name in ("median", "p90", "max")]
    return f"relative error median {shares[0]}, 90th percentile {shares[1]}, worst {shares[2]}"
