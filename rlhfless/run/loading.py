"""``load``: opens any log or trace, and prints what limits the run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.analysis import Assumptions
from rlhfless.analysis.assumptions import PROFILE, PROMPTS
from rlhfless.analysis.log_texts import opened_log
from rlhfless.diagnosis import Stated
from rlhfless.errors import InputError, likely_meant
from rlhfless.gone_options import in_sections
from rlhfless.latency import load_profile
from rlhfless.plots.renderer import running_shell
from rlhfless.report.not_stated import PROMPTS_ASSUMED
from rlhfless.report.notebook import LogSource
from rlhfless.run.hardware import Hardware
from rlhfless.run.run import Run
from rlhfless.trace import ImportedLog, ImportOptions, OpenedLog, Trace, response_limit
from rlhfless.trace.schema.prices import recorded_usd_per_gpu_hour
from solver.model.errors import as_given
from solver.model.objective import TIME_WEIGHT, Objective

OF_LOGS = ("dispatch", "learner_gpus", "prepare_s", "learn_s")
"""Assumptions about a logged run, which the trace of an executed one has recorded."""


def load(
    source: str | Path | OpenedLog | ImportedLog | Trace | pd.DataFrame,
    gpus: int | None = None,
    profile: str | Path | None = None,
    *,
    hardware: Hardware | None = None,
    assumptions: Assumptions | None = None,
    options: ImportOptions | None = None,
    known: Stated | None = None,
    time_weight: float | None = None,
    verbose: bool = True,
    **reading: Any,
) -> Run:
    """Load a log or a trace as a ``Run``, and print what limits it (``Run.diagnosis``).

    Args:
        source: path of a trace folder, or of a log or table of any supported framework; the format is recognised. Or the result
            of ``rlhfless.trace.open_log`` or ``import_log`` (``open_log(path).of_run(name)`` if the log holds several runs), a
            trace, or a pandas frame with one row per response. A log without responses, such as averages per step, can only be
            diagnosed.
        gpus, profile: number of GPUs, and the latency profile (a shipped name or a JSON file); the trace's when None. If the
            profile is unknown, a default is assumed and reported. The number of GPUs is never assumed: without it nothing can
            be planned or simulated.
        hardware: further facts about the GPUs, such as price and GPUs per node; ``gpus`` and ``profile`` override it.
            A price applies to all GPU-seconds of an executed trace, in place of the recorded one.
        assumptions: facts about a logged run, such as how it dispatched prompts and which GPUs learned. An executed trace
            records these, so only prices, tokenizer and ``calibrate`` are used.
        options: how to read a log: column names of a table, tokenizer, limit on response length.
        known: further facts for the diagnosis, such as the model, a GPU's memory, or the responses per step.
        time_weight: w in ``T^w C^(1-w)``, which plans minimise: 1 is time only, 0 is cost only. When None, the one that the
            trace of an executed run has recorded, else 0.7.
        verbose: print the diagnosis; in IPython only its first line, as a cell that ends with the run shows all of it.
        reading: single fields of ``ImportOptions``, such as ``max_response_tokens``, the run's limit on response length.
            Default: the limit recorded in the trace, else the longest response of the log.

    Raises:
        TraceError: the source is not a trace or log, or is damaged.
        InputError: GPUs, profile and assumptions do not fit together, or one makes no sense.
        ProfileError: there is no such profile, or its file is broken.

    Example:
        >>> import rlhfless as rl
        >>> run = rl.load(rl.example(), verbose=False)
        >>> len(run.steps)
        8
    """
    for argument, value, kind in (
        ("hardware", hardware, Hardware), ("assumptions", assumptions, Assumptions), ("options", options, ImportOptions),
        ("known", known, Stated),
    ):  # fmt: skip
        if value is not None and not isinstance(value, kind):
            raise InputError(f"{argument} is {as_given(value)}; {kind.__name__}(...) is needed")
    options = options or ImportOptions()
    names = [field.name for field in fields(ImportOptions)]
    if unknown := sorted(set(reading) - set(names)):
        raise InputError(_elsewhere(unknown[0], reading[unknown[0]], names))
    options = replace(options, **reading)
    log = opened_log(source, options)
    trace = None if isinstance(log, ImportedLog) else log.trace
    meta: Mapping[str, Any] = {} if trace is None else trace.meta
    executed = trace is not None and len(trace.allocations) > 0
    given = assumptions or Assumptions()
    recorded = [name for name in OF_LOGS if getattr(given, name) is not None]
    if trace is not None and executed and recorded:
        given_by = ", ".join(f"{name} (--{name.replace('_', '-')})" for name in recorded)
        raise InputError(
            f"{trace.source or 'the trace'}: is the trace of an executed run, whose GPUs and times are those that it recorded, "
            f"so that {given_by} cannot be stated; leave it out"
        )
    base, known = hardware or Hardware(), known or Stated()
    stated = replace(
        base, gpus=base.gpus if gpus is None else gpus, profile=base.profile if profile is None else profile,
        usd_per_gpu_hour=known.usd_per_gpu_hour if base.usd_per_gpu_hour is None else base.usd_per_gpu_hour,
    )  # fmt: skip
    completed, assumed = stated.completed(meta, "log" if trace is None else trace.source or "trace", known.gpu)
    if isinstance(log, OpenedLog) and executed:
        log, completed = _at_one_price(log, stated, completed)
    tokenizer = None if options.tokenizer is None else str(options.tokenizer)
    given = replace(given, tokenizer=given.tokenizer or tokenizer)
    if isinstance(log, OpenedLog) and not log.prompts_known:
        assumed[PROMPTS] = PROMPTS_ASSUMED
    if executed:  # what it cost is in the trace; the profile is that of other schedules
        assumed = {name: sentence for name, sentence in assumed.items() if name == PROFILE}
    given = replace(given, not_stated={**assumed, **given.not_stated})
    limit = options.max_response_tokens or response_limit(meta)
    read_from = LogSource(source, options) if isinstance(source, str | Path) else None
    if time_weight is None:
        time_weight = _recorded_time_weight(meta)
    run = Run(log, completed, Objective(time_weight), given, limit, known=known, read_from=read_from)
    load_profile(run.profile)  # what is no profile is refused here; what does not fit together, where something is planned
    if verbose:
        said = str(run.diagnosis())
        print(said if running_shell() is None else said.splitlines()[0])
    return run


def _recorded_time_weight(meta: Mapping[str, Any]) -> float:
    """Return the time weight that an executed run's ``meta.json`` has of its plans; ``TIME_WEIGHT`` without one."""
    config = meta.get("config")
    planner = in_sections(config).get("planner") if isinstance(config, Mapping) else None
    for recorded in (meta.get("objective"), planner):
        weight = recorded.get("time_weight") if isinstance(recorded, Mapping) else None
        if isinstance(weight, int | float) and not isinstance(weight, bool) and 0 <= weight <= 1:
            return float(weight)
    return TIME_WEIGHT


def _elsewhere(name: str, value: Any, of_reading: Sequence[str]) -> str:
    """Return the sentence on an argument that ``load`` does not have: where it belongs, or the one that is meant."""
    own = [one for one in inspect.signature(load).parameters if one not in ("source", "reading")]
    for argument, kind in (("hardware", Hardware), ("assumptions", Assumptions), ("known", Stated)):
        types = {field.name: str(field.type) for field in fields(kind)}
        if name in types and (isinstance(value, str) or not types[name].startswith("str")):
            prefix = "rl." if kind is Hardware else ""
            return f"{name} is not an argument of load; give {argument}={prefix}{kind.__name__}({name}={as_given(value)})"
    if (meant := likely_meant(name, [*own, *of_reading])) is not None:
        return f"{name} is not an argument of load; give {meant}={as_given(value)}"
    return f"{name} is neither an argument of load ({', '.join(own)}) nor an option of reading ({', '.join(of_reading)})"


def _at_one_price(log: OpenedLog, stated: Hardware, completed: Hardware) -> tuple[OpenedLog, Hardware]:
    """Return an executed run and the hardware that it is studied on with the same price of a GPU-hour.

    It is the stated one, else the recorded one where the hardware has GPUs of the same kind. Where the allocations have no
    price, or several, what the run cost is as recorded, and that of plans is the list price.
    """
    if stated.usd_per_gpu_hour is not None:
        return replace(log, trace=log.trace.at_price(stated.usd_per_gpu_hour)), completed
    assert completed.profile is not None
    held = log.trace.allocations
    recorded = recorded_usd_per_gpu_hour(held)
    if len(recorded) == 1 and recorded[0] > 0 and set(held["kind"]) == {load_profile(completed.profile).kind}:
        return log, replace(completed, usd_per_gpu_hour=recorded[0])
    return log, completed
