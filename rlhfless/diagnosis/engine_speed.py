"""How fast the engine is for one response, against what reading the weights takes: said before anything of schedules."""

from __future__ import annotations

from functools import cache

import numpy as np

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import BOUND, COUNTED, DERIVED, LOGGED, Collected, Finding, Number, Part, number
from rlhfless.latency import list_profiles, load_profile

SLOW = 3.5  # times the floor of a known model
SLOW_FOR_ANY = 1.5  # times the slowest shipped profile, where the model is unknown
SEQUENCES = 256  # that vLLM decodes at once unless told otherwise; more requests per GPU wait
CAUSES = "eager mode, no serving engine, preemption and offloading are the usual causes"


def engine_speed(run: LoggedRun, found: Collected) -> Part:
    """Return milliseconds per token of one response, and whether the engine is slow for any model that was measured."""
    each = _ms_per_token(run, found)
    if each is None:
        return Part()
    fastest, slowest = shipped_ms()
    of_step = generation_share(run)
    queued = (found.numbers.value("responses_per_gpu") or 0) > SEQUENCES and each.evidence == BOUND
    shipped = Number("shipped_profiles_ms_per_token", fastest, slowest, DERIVED, "a batch of one in the shipped profiles")
    numbers = (each, shipped)
    if queued:
        note = (
            f"{each.value:.1f} ms per token of the longest response is the most that the engine takes: "
            f"{found.numbers.value('responses_per_gpu'):,.0f} responses per GPU wait for each other."
        )
        return Part(numbers, notes=(note,))
    if each.value <= SLOW_FOR_ANY * slowest:
        return Part(numbers)
    sentence = (
        f"The engine is slow: {each.value:.1f} ms per token of one response ({1000 / each.value:.0f} tokens/s), where the "
        f"slowest profile that we ship, a model of 70B, takes {slowest:.0f} ms; {CAUSES}. No schedule mends that."
    )
    at_stake = of_step * (1.0 - slowest / each.value)
    return Part(numbers, (Finding("engine", at_stake, sentence, ("ms_per_token", "shipped_profiles_ms_per_token")),))


def generation_share(run: LoggedRun) -> float:
    """Return the share of a step that is generation; 1 where the rest of the step is not logged."""
    generate, step = run.column("generate_s"), run.column("step_s")
    share = (generate / np.where(step > 0, step, np.nan))[~np.isnan(generate)]
    share = share[~np.isnan(share) & (share <= 1)]
    return float(share.mean()) if len(share) else 1.0


def _ms_per_token(run: LoggedRun, found: Collected) -> Number | None:
    """One response's milliseconds per token: of single responses, else of the longest one, by the surest way."""
    if run.responses is not None and {"start_s", "end_s"} <= set(run.responses.columns):
        rows = run.responses.dropna(subset=["start_s", "end_s"])
        tokens = rows["response_tokens"].to_numpy(dtype=float)
        took = (rows["end_s"] - rows["start_s"]).to_numpy(dtype=float)
        several = tokens > 1
        if several.any():
            each = 1000 * took[several] / tokens[several]
            return number("ms_per_token", float(np.median(each)), COUNTED, "median over responses, from start to end")
    if (speed := run.mean("perf/longest_sample_tokens_per_sec")) is not None and speed > 0:
        return number("ms_per_token", 1000 / speed, LOGGED, "perf/longest_sample_tokens_per_sec")
    seconds, longest = run.column("generate_s"), run.column("response_tokens_max")
    if np.isnan(longest).all() and run.responses is not None and len(run.steps):
        by_step = run.responses.groupby("step")["response_tokens"].max()
        longest = by_step.reindex(run.steps["step"]).to_numpy(dtype=float)
    each = 1000 * seconds / np.where(longest > 0, longest, np.nan)
    each = each[~np.isnan(each)]
    if not len(each):
        return None
    how = "seconds of generation over the longest response; less where requests wait for each other"
    return Number("ms_per_token", float(np.median(each)), float(np.median(each)), BOUND, how)


@cache
def shipped_ms() -> tuple[float, float]:
    """Return the least and the most milliseconds of a decode iteration of one response in the shipped profiles of GPUs."""
    profiles = [load_profile(name) for name in list_profiles()]
    base = [1000 * profile.base_s for profile in profiles if profile.kind != "cpu"]
    return min(base), max(base)
