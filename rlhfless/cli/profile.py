"""``rlhfless profile``: writes a latency profile, measured here or on a server, or from an engine's lines, or scaled to a log.

``rlhfless.latency.measure`` measures, ``rlhfless.engine.torch.benchmark`` is what it times,
``rlhfless.engine.server.benchmark`` measures a server,
``rlhfless.latency.engine_statistics`` measures from an engine's lines, and ``rlhfless.latency.calibrate_from_log`` scales a
profile to the times of a log.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import AliasChoices, Field, model_validator

from rlhfless.cli.log_options import RECOGNISED, converted_first
from rlhfless.cli.options import Count, Gib, Names, Options, OutFile, shown
from rlhfless.errors import InputError
from solver.model.plurals import counted

if TYPE_CHECKING:
    import pandas as pd

    from rlhfless.latency.measure import MeasurementGrid


class ProfileOptions(Options):
    """Measure the latency of an engine for a model on this machine or on a server, and write it as a latency profile.

    It measures decode iterations by batch size and KV tokens, separate prefill calls, removing finished responses from the
    batch, start-up, and transfers. Run it on an idle machine.

    Measure batches up to the size that actors will have, and no larger: one linear fit covers all measured points. Measure
    contexts up to the prompt plus the response limit: longer contexts than the largest of --contexts cannot be planned. Batches
    that do not fit into memory, and contexts longer than the model's, are left out and listed in the profile.

    With --engine server the model is measured that an OpenAI-compatible server at --server has, such as `vllm serve`, by the
    tokens that it streams. Nothing else may use it meanwhile. What it does not tell, --base supplies.

    With --from-log nothing is measured on this machine. If the log has the lines that vLLM or SGLang print about every ten
    seconds, the profile is fitted to them. Otherwise the profile --base is scaled to the times that the run logged.
    """

    out: OutFile = Field(validation_alias=AliasChoices("out", "o"), description="Write the profile to this JSON file.")
    model: str = Field(
        "tiny-qwen2",
        description="Model to measure: a folder of a transformers model, or tiny-qwen2; with --engine server the name that it "
        "has there, which is not needed if it is the only one.",
    )
    engine: Literal["torch", "transformers", "server"] = Field("torch", description="Engine to measure.")
    server: str | None = Field(
        None, json_schema_extra=shown("URL"),
        description="With --engine server: the server to measure, such as http://localhost:8000.",
    )  # fmt: skip
    device: str = Field("cpu", description="Device to measure on, such as cpu or cuda.")
    max_batch: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="Largest batch to measure, in responses (the engine's slots).  [default: 256, with --fast 64]",
    )
    contexts: Names | None = Field(
        None, json_schema_extra=shown("TOKENS,..."),
        description="KV tokens per response to measure at, such as 16,128,512.  [default: 16 to 1,024]",
    )  # fmt: skip
    memory_gib: Gib | None = Field(
        None,
        description="GiB of memory that an actor may use, weights included.  [default: the whole GPU; on a CPU the weights "
        "and 1 GiB]",
    )
    fast: bool = Field(False, description="Measure 12 points 5 times, instead of 54 points 15 times.")
    from_log: Path | None = Field(
        None, json_schema_extra=shown("LOG"),
        description="Take the profile from this log: from the lines that the engine printed, or else by scaling --base to the "
        "logged times.",
    )  # fmt: skip
    base: str | None = Field(
        None, json_schema_extra=shown("NAME"),
        description="With --from-log: the profile (shipped name or JSON file) to scale, which also supplies what the engine's "
        "lines lack. With --engine server: the profile that supplies what a server does not tell, such as its memory.",
    )  # fmt: skip
    actors: Count | None = Field(
        None, description="With --from-log: the number of actors, if the log does not state it.  [default: 1]"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [name for name in MEASURED if getattr(self, name) != ProfileOptions.model_fields[name].default]
        if self.from_log is not None and given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"--from-log measures nothing; leave out {flags}")
        served = self.engine == "server"
        if self.from_log is None and ((self.base is not None and not served) or self.actors is not None):
            raise InputError("--base and --actors need a log; name it with --from-log, or leave them out")
        if served != (self.server is not None):
            raise InputError("--engine server and --server URL belong together; give both, or leave both out")
        of_device = [f"--{name.replace('_', '-')}" for name in ("device", "memory_gib") if name in self.model_fields_set]
        if served and of_device:
            raise InputError(f"{of_device[0]} is not known of a server; leave it out, or --engine server")
        return self


MEASURED = ("model", "engine", "server", "device", "max_batch", "contexts", "memory_gib", "fast")
"""Options of a measurement."""


def profile(options: ProfileOptions) -> None:
    """Write a profile, and print its summary.

    Raises:
        InputError: options contradict each other, or one makes no sense.
        TraceError: the log cannot be read.
        ProfileError: nothing can be measured.
    """
    out = options.out
    if options.from_log is not None:
        print(_from_log(options.from_log, options.base, options.actors, out))
        return
    from rlhfless.latency import save_profile
    from rlhfless.latency.measure import FAST, MeasurementGrid, measure_profile

    grid = FAST if options.fast else MeasurementGrid()
    named, memory_bytes = " --engine transformers" * (options.engine == "transformers") + " --fast" * options.fast, None
    if options.max_batch is not None:
        smaller = (batch for batch in grid.batches if batch < options.max_batch)
        grid, named = replace(grid, batches=(*smaller, options.max_batch)), f"{named} --max-batch {options.max_batch}"
    if options.contexts is not None:
        typed = ",".join(options.contexts)
        grid, named = replace(grid, contexts=_contexts(typed)), f"{named} --contexts {typed}"
    if options.memory_gib is not None:
        memory_bytes, named = int(options.memory_gib * 2**30), f"{named} --memory-gib {options.memory_gib}"
    if options.engine == "server":
        measured = _of_server(options, grid, named)
        print(f"{measured['origin']}\n{decode_of(measured)}\n{prefill_of(measured)}\nwrote {save_profile(out, measured)}")
        return
    from rlhfless.engine.torch.benchmark import engine_timers

    command = f"rlhfless profile --model {options.model} --device {options.device}{named} -o {out}"
    timers = engine_timers if options.engine == "torch" else partial(engine_timers, forward=options.engine)
    measured = measure_profile(
        timers, options.model, out.stem, grid, device=options.device, memory_bytes=memory_bytes, command=command
    )
    print(describe(measured))
    print(f"wrote {save_profile(out, measured)}")


SERVED_ROUNDS = 3
"""Rounds on a server: in each it decodes a whole batch of every size."""


def _of_server(options: ProfileOptions, grid: MeasurementGrid, named: str) -> dict[str, Any]:
    from rlhfless.engine.server.benchmark import measure_server
    from rlhfless.latency import read_profile

    assert options.server is not None
    base = None if options.base is None else read_profile(options.base)
    model = options.model if "model" in options.model_fields_set else None
    given = f" --model {model}" * (model is not None) + named + f" --base {options.base}" * (base is not None)
    command = f"rlhfless profile --engine server --server {options.server}{given} -o {options.out}"
    grid = replace(grid, rounds=SERVED_ROUNDS)
    return measure_server(options.server, model, options.out.stem, grid, base=base, command=command)


class Logged(NamedTuple):
    """What a log has of one run: responses (None without), scalars of its steps with times from spans, and lines of engines."""

    rollouts: pd.DataFrame | None
    scalars: pd.DataFrame
    engine: pd.DataFrame
    facts: Mapping[str, float]


def _from_log(log: Path, base: str | None, actors: int | None, out: Path) -> str:
    """Write a profile measured from the log's engine lines, or the base profile scaled to its times; return a summary.

    Too few lines of an engine are no error where there is a base profile to scale.
    """
    from rlhfless.latency import ProfileError, list_profiles

    with converted_first(log):
        logged = _logged(log)
    chosen = f" --base {base}" if base else ""
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
    factors = calibration.factors
    lines = [
        f"{len(calibration.checked.errors):,} times of {calibration.what} of {counted(calibration.steps, 'step')}",
        f"fitted: {calibration.what_was_fitted}",
        f"decode x {factors.decode:.3g}, KV cache x {factors.kv:.3g}, {factors.once_s * 1e3:.3g} ms for each of "
        f"the {calibration.what}",
        f"relative error on held-out times ({calibration.checked.how}): {ours}; of a constant: {constant}",
    ]
    if calibration.by_constant:
        lines.append(
            "a constant predicts the times better than any fit, so the log does not show what its times depend on; the "
            "profile is --base scaled by the constant"
        )
    return "\n".join([*lines, f"wrote {save_profile(out, scaled)}"])


def _logged(log: Path) -> Logged:
    """Return what the log has of its run.

    Raises:
        InputError: the log holds responses of several runs.
        TraceError: the format is unknown, the log is damaged, or it has scalars of several runs.
    """
    from rlhfless.trace import LogWithoutResponses, with_step_times
    from rlhfless.trace.importers.scalars import runs_of
    from rlhfless.trace.schema.validation import refuse_several_runs

    try:
        opened = RECOGNISED.open_responses(log)
    except LogWithoutResponses as error:
        scalars = error.log.scalars
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
    prefill = measured["prefill"]
    join_us, end_us = prefill["per_join_s"] * 1e6, prefill["per_end_s"] * 1e6
    return "\n".join(
        [
            f"{measured['model']}, {measured['precision']}: {measured['origin']}",
            decode_of(measured),
            prefill_of(measured),
            f"batch changes     {join_us:.3g} us per response that joins, {end_us:.3g} us per response that ends; "
            f"prefill included, {_residuals(prefill)} over {len(prefill['samples']['seconds'])} changes",
            f"start-up          {measured['start_s'] * 1e3:.3g} ms, of which weights {measured['sync_s'] * 1e3:.3g} ms; "
            f"transfer {measured['transfer_per_kv_token_s'] * 1e6:.3g} us per KV token",
            f"memory            {measured['kv_capacity_tokens']:,} KV tokens plus the weights, {measured['max_batch']} slots",
        ]
    )


def decode_of(measured: Mapping[str, Any]) -> str:
    """Return the fit of a decode iteration, with its errors."""
    fit = measured["fit"]
    return (
        f"decode iteration  {fit['base_s'] * 1e3:.3g} ms + {fit['per_response_s'] * 1e6:.3g} us per response + "
        f"{fit['per_kv_token_s'] * 1e9:.3g} ns per KV token; {_residuals(fit)} over {fit['points']} points"
    )


def prefill_of(measured: Mapping[str, Any]) -> str:
    """Return the fit of a prefill call."""
    prefill = measured["prefill"]
    rate = f"{1 / prefill['per_token_s']:,.0f} tokens/s" if prefill["per_token_s"] else "no time per token"
    return f"prefill call      {prefill['base_s'] * 1e3:.3g} ms + {prefill['per_token_s'] * 1e6:.3g} us per token ({rate})"


def _residuals(fit: Mapping[str, float]) -> str:
    shares = [f"{fit[f'{name}_relative_error']:.1%}" for name in ("median", "p90", "max")]
    return f"relative error median {shares[0]}, 90th percentile {shares[1]}, worst {shares[2]}"
