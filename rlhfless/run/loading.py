"""``load``: opens any log or trace, and prints what its GPUs did, what to do, and what this would have saved."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.analysis.log_texts import texts_of
from rlhfless.errors import InputError
from rlhfless.report.not_stated import GPUS, PROFILE, PROMPTS, PROMPTS_ASSUMED
from rlhfless.report.study import Assumptions
from rlhfless.run.hardware import Hardware
from rlhfless.run.run import Run
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import ImportOptions, OpenedLog, Trace, open_log
from solver.model.objective import Objective


def load(
    source: str | Path | OpenedLog | Trace | pd.DataFrame,
    gpus: int | None = None,
    profile: str | Path | None = None,
    *,
    hardware: Hardware | None = None,
    assumptions: Assumptions | None = None,
    options: ImportOptions | None = None,
    time_weight: float = 0.7,
    verbose: bool = True,
    **reading: Any,
) -> Run:
    """Return a log or a trace with the GPUs that it is studied on, and print its verdict.

    Args:
        source: the path of a trace folder, or of a log of any supported framework or table, whose format is recognised. Or what
            ``rlhfless.trace.open_log`` returns (``open_log(path).of_run(name)`` where it holds several runs), a trace, or a
            frame of rollouts.
        gpus, profile: number of GPUs, and the latency profile: a shipped name or a JSON file. The trace's when None; else 16
            GPUs and a profile that the verdict names as assumed.
        hardware: further facts of the GPUs, such as their price and the GPUs per node; ``gpus`` and ``profile`` come first.
        assumptions: about the run that was logged, such as its dispatch and its learner's GPUs; of an executed trace only
            whether it is calibrated.
        options: how to read a log: columns of a table, the tokenizer of texts, the longest response that the run allowed.
        time_weight: 1 is time only, 0 is cost only.
        verbose: print the verdict, and a line before it is computed.
        reading: single options of reading, such as ``max_response_tokens``, the longest response that the run allowed: the
            trace's own, or the longest of the log, when it is not given.

    Raises:
        TraceError: the source is no trace or log, has no responses, or is wrong.
        InputError: GPUs, profile and assumptions do not fit together, or one makes no sense.
        ProfileError: there is no such profile, or its file is broken.
        PlanningError: the responses fit on no actor.

    Example:
        >>> import rlhfless as rl
        >>> run = rl.load(rl.example(), verbose=False)
        >>> len(run.steps)
        8
    """
    options = options or ImportOptions()
    known = [field.name for field in fields(ImportOptions)]
    if unknown := sorted(set(reading) - set(known)):
        raise InputError(f"{unknown[0]} is no argument of load and no option of reading; those are {', '.join(known)}")
    options = replace(options, **reading)
    opened = _opened(source, options)
    trace = opened.trace
    given = assumptions or Assumptions()
    if len(trace.allocations) and replace(given, calibrate=True) != Assumptions():
        raise InputError(
            f"{trace.source or 'the trace'}: is the trace of an executed run, which holds GPUs and times; leave out the "
            "assumptions about logged runs"
        )
    base = hardware or Hardware()
    stated = replace(base, gpus=base.gpus if gpus is None else gpus, profile=base.profile if profile is None else profile)
    completed, assumed = stated.completed(trace)
    tokenizer = None if options.tokenizer is None else str(options.tokenizer)
    given = replace(given, tokenizer=given.tokenizer or tokenizer)
    if not opened.prompts_known:
        assumed[PROMPTS] = PROMPTS_ASSUMED
    if len(trace.allocations):  # what it cost is in the trace; GPUs and profile are those of other schedules
        assumed = {name: sentence for name, sentence in assumed.items() if name in (GPUS, PROFILE)}
    given = replace(given, not_stated={**assumed, **given.not_stated})
    cluster, latency = completed.cluster()
    limit = options.max_response_tokens or (trace.meta.get("config") or {}).get("max_response_tokens")
    assert completed.profile is not None
    setting = SimulationConfig(cluster, latency, Objective(time_weight), max_response_tokens=limit)
    run = Run(opened, setting, str(completed.profile), given)
    if verbose:
        print("simulating a few steps for the verdict (some seconds) ...", flush=True)
        print(run.verdict)
    return run


def _opened(source: str | Path | OpenedLog | Trace | pd.DataFrame, options: ImportOptions) -> OpenedLog:
    if isinstance(source, pd.DataFrame):
        source = Trace(source)
    if isinstance(source, Trace):
        return OpenedLog(source, pd.DataFrame({"step": []}), str(source.meta.get("framework") or ""))
    if isinstance(source, OpenedLog):
        return source
    if not isinstance(source, str | Path):
        raise InputError(f"source is a {type(source).__name__}; the path of a log or trace, a trace or a DataFrame is needed")
    return open_log(source, replace(options, keep=options.keep | texts_of(source)))
