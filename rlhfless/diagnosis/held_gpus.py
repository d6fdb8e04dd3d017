"""What an executed run paid for: GPU-hours, dollars, and GPUs that were held and did nothing, as its trace recorded them."""

from __future__ import annotations

import math

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import COUNTED, GPU_HOURS, Collected, Finding, Part, number

GENERATES = ("decode", "prefill")  # roles
WORTH_SAYING = 0.05  # of the GPU-hours


def held_gpus(run: LoggedRun, found: Collected) -> Part:
    """Return GPU-hours, cost and idle share of the trace of an executed run; nothing of a log without allocations."""
    held = run.allocations
    if held.empty:
        return Part()
    gpu_s, idle_s = float(held["gpu_seconds"].sum()), float(held["idle_gpu_seconds"].sum())
    usd = float(held["cost_usd"].sum(skipna=False))
    how = "allocations of the trace"
    numbers = [number("gpu_hours", gpu_s / 3600, COUNTED, how)]
    if not math.isnan(usd) and usd > 0:
        numbers.append(number("usd", usd, COUNTED, how))
    if gpu_s <= 0:
        return Part(tuple(numbers))
    share = idle_s / gpu_s
    numbers.append(number("idle_gpu_share", share, COUNTED, "allocations without a span of work"))
    generate_gpu_s = float(held.loc[held["role"].isin(GENERATES), "gpu_seconds"].sum())
    numbers.append(number("generate_gpu_share", generate_gpu_s / gpu_s, COUNTED, "allocations of replicas"))
    if share < WORTH_SAYING:
        return Part(tuple(numbers))
    decode = held[held["role"] == "decode"]
    of_decode = float(decode["idle_gpu_seconds"].sum()) / idle_s if idle_s else 0.0
    waits = "for the last responses of a step" if of_decode > 0.5 else "for other phases"
    sentence = (
        f"GPUs that wait: {share:.0%} of {gpu_s / 3600:,.3g} GPU-hours were idle, {of_decode:.0%} of it on GPUs that generate "
        f"and wait {waits}."
    )
    kind = "tail" if of_decode > 0.5 else "waiting"
    return Part(tuple(numbers), (Finding(kind, share, sentence, ("idle_gpu_share", "gpu_hours"), GPU_HOURS),))
