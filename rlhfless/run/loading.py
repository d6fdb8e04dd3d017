"""``load``: opens any log or trace, and prints what limits the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.analysis.log_texts import texts_of
from rlhfless.diagnosis import Stated
from rlhfless.errors import InputError
from rlhfless.latency import load_profile
from rlhfless.report.not_stated import PROFILE, PROMPTS, PROMPTS_ASSUMED
from rlhfless.report.study import Assumptions
from rlhfless.run.hardware import Hardware
from rlhfless.run.run import Run
from rlhfless.trace import ImportedLog, ImportOptions, OpenedLog, Trace, read_log
from solver.model.objective import Objective


def load(
    source: str | Path | OpenedLog | ImportedLog | Trace | pd.DataFrame,
    gpus: int | None = None,
    profile: str | Path | None = None,
    *,
    hardware: Hardware | None = None,
    assumptions: Assumptions | None = None,
    options: ImportOptions | None = None,
    known: Stated | None = None,
    time_weight: float = 0.7,
    verbose: bool = True,
    **reading: Any,
) -> Run:
    """Return a log or a trace with the GPUs that it is studied on, and print what limits the run (``Run.diagnosis``).

    Args:
        source: the path of a trace folder, or of a log of any supported framework or table, whose format is recognised. Or what
            ``rlhfless.trace.open_log`` or ``import_log`` returns (``open_log(path).of_run(name)`` where it holds several runs),
            a trace, or a frame of rollouts. A log without responses, such as scalars of steps, has a diagnosis alone.
        gpus, profile: number of GPUs, and the latency profile: a shipped name or a JSON file. The trace's when None. A profile
            that is in neither is assumed and named; a number of GPUs is not: without it nothing is planned or simulated.
        hardware: further facts of the GPUs, such as their price and the GPUs per node; ``gpus`` and ``profile`` come first.
        assumptions: about the run that was logged, such as its dispatch and its learner's GPUs; of an executed trace only
            whether it is calibrated.
        options: how to read a log: columns of a table, the tokenizer of texts, the longest response that the run allowed.
        known: what the diagnosis may use beside that, such as the model, a GPU's memory, or the responses of a step.
        time_weight: 1 is time only, 0 is cost only.
        verbose: print the diagnosis.
        reading: single options of reading, such as ``max_response_tokens``, the longest response that the run allowed: the
            trace's own, or the longest of the log, when it is not given.

    Raises:
        TraceError: the source is no trace or log, or is wrong.
        InputError: GPUs, profile and assumptions do not fit together, or one makes no sense.
        ProfileError: there is no such profile, or its file is broken.

    Example:
        >>> import rlhfless as rl
        >>> run = rl.load(rl.example(), verbose=False)
        >>> len(run.steps)
        8
    """
    options = options or ImportOptions()
    names = [field.name for field in fields(ImportOptions)]
    if unknown := sorted(set(reading) - set(names)):
        raise InputError(f"{unknown[0]} is no argument of load and no option of reading; those are {', '.join(names)}")
    options = replace(options, **reading)
    log = _opened(source, options)
    trace = None if isinstance(log, ImportedLog) else log.trace
    meta: Mapping[str, Any] = {} if trace is None else trace.meta
    executed = trace is not None and len(trace.allocations) > 0
    given = assumptions or Assumptions()
    if trace is not None and executed and replace(given, calibrate=True) != Assumptions():
        raise InputError(
            f"{trace.source or 'the trace'}: is the trace of an executed run, which holds GPUs and times; leave out the "
            "assumptions about logged runs"
        )
    base = hardware or Hardware()
    stated = replace(base, gpus=base.gpus if gpus is None else gpus, profile=base.profile if profile is None else profile)
    completed, assumed = stated.completed(meta, "log" if trace is None else trace.source or "trace")
    tokenizer = None if options.tokenizer is None else str(options.tokenizer)
    given = replace(given, tokenizer=given.tokenizer or tokenizer)
    if isinstance(log, OpenedLog) and not log.prompts_known:
        assumed[PROMPTS] = PROMPTS_ASSUMED
    if executed:  # what it cost is in the trace; the profile is that of other schedules
        assumed = {name: sentence for name, sentence in assumed.items() if name == PROFILE}
    given = replace(given, not_stated={**assumed, **given.not_stated})
    limit = options.max_response_tokens or (meta.get("config") or {}).get("max_response_tokens")
    run = Run(log, completed, Objective(time_weight), given, limit, known=known or Stated())
    load_profile(run.profile)  # what is no profile is refused here; what does not fit together, where something is planned
    if verbose:
        print(run.diagnosis())
    return run


def _opened(
    source: str | Path | OpenedLog | ImportedLog | Trace | pd.DataFrame, options: ImportOptions
) -> OpenedLog | ImportedLog:
    if isinstance(source, pd.DataFrame):
        source = Trace(source)
    if isinstance(source, Trace):
        return OpenedLog(source, pd.DataFrame({"step": []}), str(source.meta.get("framework") or ""))
    if isinstance(source, OpenedLog):
        return source
    if isinstance(source, ImportedLog):
        return source if source.rollouts is None else source.opened()
    if not isinstance(source, str | Path):
        raise InputError(f"source is a {type(source).__name__}; the path of a log or trace, a trace or a DataFrame is needed")
    return read_log(source, replace(options, keep=options.keep | texts_of(source)))
