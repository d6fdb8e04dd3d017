"""What an executed run paid for: GPU-hours, dollars, and GPUs that were held and did nothing, as its trace recorded them."""

from __future__ import annotations

import math

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import COUNTED, GPU_HOURS, Collected, Finding, Part, counted, digits, number
from rlhfless.trace import idle_share_if_held

GENERATES = ("decode", "prefill")  # roles
SHORT_GPU_S = 360.0  # so few GPU-seconds are hard to read in GPU-hours
WORTH_SAYING = 0.05  # of the GPU-hours


def held_gpus(run: LoggedRun, found: Collected) -> Part:
    """Return GPU-hours, cost and idle share of the trace of an executed run; nothing of a log without allocations."""
    held = run.allocations
    if held.empty:
        return Part()
    gpu_s, idle_s = float(held["gpu_seconds"].sum()), float(held["idle_gpu_seconds"].sum())
    usd = float(held["cost_usd"].sum(skipna=False))
    own = run.facts.get("gpus", math.nan)
    other = run.stated.gpus is not None and not math.isnan(own) and own != run.stated.gpus  # GPUs than those that ran
    how = "allocations of the trace" + (f", which ran on {counted(own, 'GPU')}" if other else "")
    priced = not math.isnan(usd) and usd > 0
    short = f"{digits(gpu_s)} GPU-seconds in the " if 0 < gpu_s < SHORT_GPU_S else ""
    no_price = "" if priced else "; no GPU has a price, --usd-per-gpu-hour states it"
    numbers = [number("gpu_hours", gpu_s / 3600, COUNTED, f"{short}{how}{no_price}")]
    if priced:
        numbers.append(number("usd", usd, COUNTED, run.price or how))
    if gpu_s <= 0:
        return Part(tuple(numbers))
    share = idle_s / gpu_s
    numbers.append(number("idle_gpu_share", share, COUNTED, "allocations without a span of work"))
    if_held = idle_share_if_held(gpu_s, idle_s, run.facts.get("gpu_s_if_held", math.nan))
    if not math.isnan(if_held) and not other:
        how = f"if all {counted(run.facts['gpus_if_held'], 'GPU')} were held from the start to the end of every step"
        numbers.append(number("all_held_idle_gpu_share", if_held, COUNTED, how))
    generate_gpu_s = float(held.loc[held["role"].isin(GENERATES), "gpu_seconds"].sum())
    numbers.append(number("generate_gpu_share", generate_gpu_s / gpu_s, COUNTED, "allocations of replicas"))
    if share < WORTH_SAYING:
        return Part(tuple(numbers))
    decode = held[held["role"] == "decode"]
    of_decode = float(decode["idle_gpu_seconds"].sum()) / idle_s if idle_s else 0.0
    sentence = (
        f"GPUs that wait: {share:.0%} of {gpu_s / 3600:,.3g} GPU-hours were idle, {of_decode:.0%} of that on GPUs of "
        "actors that had nothing to generate."
    )
    kind = "tail" if of_decode > 0.5 else "waiting"
    return Part(tuple(numbers), (Finding(kind, share, sentence, ("idle_gpu_share", "gpu_hours"), GPU_HOURS),))
