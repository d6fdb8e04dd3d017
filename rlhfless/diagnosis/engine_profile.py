"""What an engine's own lines say: time per token against running requests, the tail, the memory bound, preemptions, drafts.

A line is an average over an interval of about ten seconds, and its requests are those of one moment. So seconds are counted in
whole intervals, and what begins or ends within one is a range.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    BOUND,
    COUNTED,
    DERIVED,
    GENERATION_TIME,
    LOGGED,
    TIME,
    Collected,
    Finding,
    Number,
    Part,
    counted,
    digits,
    number,
)
from rlhfless.diagnosis.phases import ordinary_share
from rlhfless.latency.engine_statistics import EngineFit, fit_engine, intervals
from rlhfless.latency.shipped import ProfileError

FULL_CACHE = 0.95  # in use; less is full, too, where what is left is less than a running request takes (mean)
TAIL = 0.2  # of the largest batch, below which a line is of the tail
FULL_BATCH = 0.97  # of the largest batch, from which on a line is of a full batch


def engine_lines(run: LoggedRun, found: Collected) -> Part:
    """Return what the engine's lines say; an empty part for a log without them.

    Numbers of several replicas are the mean over them (seconds) or their sum (tokens, preemptions).
    """
    if run.engine.empty:
        return Part()
    lines = intervals(run.engine)
    lines = lines[~((lines["running"] == 0) & (lines["generated_tokens_per_s"] == 0))]
    numbers = [*_drafts(run.engine), *_preemptions(run.engine)]
    said = beside = _said(numbers)
    numbers += _of_the_step(numbers, found)
    if lines.empty:
        missing = (
            "what the engine took: no line has running requests with tokens per second; whole lines of the engine would tell"
        )
        return Part(tuple(numbers), tuple(said), cannot_say=(missing,))
    engines = float(lines.groupby("engine", sort=False)["engines"].first().sum())
    peak = float((lines["running"] / lines["engines"]).max())
    numbers += [
        number("engine_replicas", engines, COUNTED, "names of engines in the engine's lines"),
        number("engine_lines", len(lines), COUNTED, "lines of engines that work"),
        number("engine_peak_requests", peak, LOGGED, "the most running requests of an engine's line"),
        *_token_times(lines, peak),
    ]
    said = [*beside, *_pace(lines)]
    notes: list[str] = []
    cannot_say: list[str] = []
    fit: EngineFit | None = None
    try:
        fit = fit_engine(run.engine, run.source)
    except ProfileError as error:
        notes.append(f"no profile from the engine's lines: {error}")
    if fit is not None:
        numbers += _profile(fit)
        each = f"{1e3 * fit.base_s:,.1f} ms per token and {1e3 * fit.per_running_s:,.3g} ms for each running request"
        notes.append(f"The engine takes {each}, by its lines; rlhfless profile --from-log makes a latency profile of them.")
    timed = lines[lines["seconds"].notna()]
    if len(timed) < len(lines):
        cannot_say.append(
            f"how long the engine took: {_without_time(len(lines) - len(timed), len(lines))} no time of day, or no other line "
            "of its engine; whole lines, as the engine prints them, would tell"
        )
        return Part(tuple(numbers), tuple(said), cannot_say=tuple(cannot_say), notes=tuple(notes))
    seconds = float((timed["seconds"] * timed["engines"]).sum()) / engines
    low, high = (float((timed["generated_tokens_per_s"] * timed[column]).sum()) for column in ("seconds", "most_seconds"))
    observed = number("engine_s", seconds, DERIVED, "intervals of the engine's lines, mean over replicas")
    numbers += [observed, Number("engine_tokens", low, high, DERIVED, "tokens per second times the interval of each line")]
    of_the_step = found.numbers.value("generate_share")
    if of_the_step is not None:
        of_the_step *= ordinary_share(found)
    tail_numbers, tail = _tail(timed, seconds, engines, peak, of_the_step)
    bound_numbers, bound = _memory_bound(timed, seconds, engines, fit, of_the_step)
    if timed["cache_share"].isna().all():
        cannot_say.append("whether the KV cache bound the engine: its lines have no use of the cache; a newer engine prints it")
    if tail or bound or any(one.at_stake > 0 for one in found.findings):  # drafts and preemptions have no time of their own
        notes = [*(one.sentence for one in beside), *notes]
        said = [one for one in said if one not in beside]
    return Part((*numbers, *tail_numbers, *bound_numbers), (*tail, *bound, *said), (), tuple(cannot_say), tuple(notes))


def _without_time(some: int, of: int) -> str:
    """Return so many of the lines, with a verb."""
    return "its one line has" if of == 1 else f"{some} of its {of} lines {'has' if some == 1 else 'have'}"


def time_per_token(engine: pd.DataFrame) -> pd.DataFrame:
    """Return ``requests`` (running on one engine), ``ms_per_token`` of a request and ``lines``: one row per number of requests.

    The first line of a rollout is left out, because it also covers the time before it, but where it is the only one.

    Args:
        engine: of ``LoggedRun``.

    Example:
        >>> from rlhfless.diagnosis.engine_profile import time_per_token
        >>> from rlhfless.trace.importers.engine_lines import engine_frame
        >>> rows = [{"engine": "0", "running": b, "generated_tokens_per_s": g} for b, g in ((9, 10.0), (8, 200.0), (2, 100.0))]
        >>> time_per_token(engine_frame(rows)).to_dict("list")
        {'requests': [2.0, 8.0], 'ms_per_token': [20.0, 40.0], 'lines': [1, 1]}
    """
    lines = _inner(intervals(engine))
    batch, ms = lines["running"] / lines["engines"], 1e3 * lines["running"] / lines["generated_tokens_per_s"]
    grouped = ms.groupby(batch.rename("requests"))
    return pd.DataFrame({"ms_per_token": grouped.median(), "lines": grouped.size()}).reset_index()


def pace_without_queue(engine: pd.DataFrame) -> tuple[float, float] | None:
    """Return the smallest batch of the lines at which no request waits, and the milliseconds per token of a request then.

    Where requests wait, prompts are fed at the same time, and nobody can say what decoding takes. None without such lines.
    """
    lines = _inner(intervals(engine)) if len(engine) else engine
    lines = lines[lines["waiting"].fillna(0) == 0] if len(lines) else lines
    if lines.empty:
        return None
    batch, ms = lines["running"] / lines["engines"], 1e3 * lines["running"] / lines["generated_tokens_per_s"]
    return float(batch.min()), float(ms[batch == batch.min()].median())


def _inner(lines: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that tell the time per token: those that generate, without the first of a rollout of several."""
    lines = lines[(lines["running"] > 0) & (lines["generated_tokens_per_s"] > 0)]
    alone = lines.groupby("rollout")["running"].transform("size") == 1
    return lines[lines["before"].notna() | alone]


def _token_times(lines: pd.DataFrame, peak: float) -> Iterator[Number]:
    """Yield the time per token of a full batch and of the smallest one."""
    inner = _inner(lines)
    if inner.empty:
        return
    batch, ms = inner["running"] / inner["engines"], 1e3 * inner["running"] / inner["generated_tokens_per_s"]
    how = "running requests over generated tokens per second, of lines"
    for key, at, requests in (
        ("engine_full_batch_ms", ms[batch >= FULL_BATCH * peak], f"{peak:g} requests"),
        ("engine_smallest_batch_ms", ms[batch == batch.min()], f"{batch.min():g} requests"),
    ):
        if len(at):
            yield Number(key, float(at.min()), float(at.max()), DERIVED, f"{how} at {requests}")


def _pace(lines: pd.DataFrame) -> Iterator[Finding]:
    """Say how fast the engine is with the most requests; nothing is at stake in it, so it is said where no more is known."""
    inner = _inner(lines)
    if inner.empty:
        return
    batch = inner["running"] / inner["engines"]
    full = inner[batch >= FULL_BATCH * batch.max()]
    ms, rate = 1e3 * full["running"] / full["generated_tokens_per_s"], full["generated_tokens_per_s"] / full["engines"]
    sentence = (
        f"An engine with {counted(batch.max(), 'running request')} takes {digits(float(ms.median()))} ms per token of "
        f"each ({digits(1000 / float(ms.median()))} tokens/s), {float(rate.median()):,.4g} tokens/s in all"
    )
    waiting, cache = float(full["waiting"].max()), float(full["cache_share"].max())
    if not np.isnan(waiting):
        sentence += (
            f"; {counted(waiting, 'request')} {'waits' if waiting == 1 else 'wait'}" if waiting else "; no request waits"
        )
    if not np.isnan(cache):
        sentence += (
            f", and {cache:.0%} of its KV cache is in use" if not np.isnan(waiting) else f"; {cache:.0%} of its KV cache"
        )
    yield Finding("pace", 0.0, f"{sentence}.", ("engine_peak_requests", "engine_full_batch_ms"))


def _said(numbers: list[Number]) -> list[Finding]:
    """Say what drafts and preemptions were, where no more is known of the engine."""
    known = {one.key: one for one in numbers}
    said = []
    if "engine_preempted" in known:
        count = known["engine_preempted"].value
        sentence = (
            f"The KV cache was too small for the requests that ran: the engine names {counted(count, 'preemption')}; "
            "each makes its request begin again or wait."
        )
        said.append(Finding("memory", 0.0, sentence, ("engine_preempted",)))
    if "draft_tokens_per_pass" in known:
        per_pass = known["draft_tokens_per_pass"].value
        share = known.get("draft_accepted_share")
        at = [one.value for key, one in known.items() if key.startswith("draft_accepted_at_")]
        accepted = "" if share is None else f", as {share.value:.0%} of drafts are accepted"
        by_position = f" ({', '.join(f'{value:.0%}' for value in at)} by position)" if at else ""
        sentence = (
            f"Drafts give {per_pass:.2f} tokens per pass{accepted}{by_position}: decoding is at most {per_pass:.2f} times as "
            "fast as without them, at the logged batch."
        )
        said.append(Finding("pace", 0.0, sentence, ("draft_tokens_per_pass",)))
    return said


def _of_the_step(numbers: list[Number], found: Collected) -> Iterator[Number]:
    """Yield what drafts save of a step at most, where the share of generation is known (Amdahl's law)."""
    per_pass = next((one.value for one in numbers if one.key == "draft_tokens_per_pass"), None)
    share = found.numbers.value("generate_share")
    if per_pass is None or share is None:
        return
    without = 1 - share + share * per_pass  # of this step, if each pass took as long and gave one token
    how = "share of generation times tokens per pass, as if a pass with drafts took no longer than one without"
    yield number("draft_step_speedup_at_most", without, BOUND, how)


def _profile(fit: EngineFit) -> Iterator[Number]:
    how = f"least squares over {len(fit.batch)} lines of the engine, with {fit.read_as}"
    yield number("engine_base_ms", 1e3 * fit.base_s, DERIVED, how)
    yield number("engine_per_request_ms", 1e3 * fit.per_running_s, DERIVED, how)
    error = float(np.median(fit.checked.errors))
    yield number("engine_profile_error_share", error, DERIVED, f"median relative error, {fit.held_out}")
    if fit.prefill_per_token_s is not None:
        yield number("engine_prefill_token_ms", 1e3 * fit.prefill_per_token_s, DERIVED, how)


def _tail(
    timed: pd.DataFrame, seconds: float, engines: float, peak: float, of_the_step: float | None
) -> tuple[tuple[Number, ...], tuple[Finding, ...]]:
    """Return the seconds at the end of rollouts below a fifth of the peak batch, and what packing them could win.

    Lines below it that a rollout begins with are of requests that still arrive, and no tail.
    """
    each = timed["running"] / timed["engines"]
    in_tail = each[::-1].groupby(timed["rollout"]).cummax()[::-1] < TAIL * peak
    tail_s = float((timed["seconds"] * timed["engines"])[in_tail].sum()) / engines
    share = tail_s / seconds if seconds else 0.0
    numbers = (
        number(
            "engine_tail_s",
            tail_s,
            DERIVED,
            f"last lines of rollouts, below {TAIL:.0%} of the peak batch, times their intervals",
        ),
        number("engine_tail_share", share, DERIVED, "engine_tail_s over engine_s"),
    )
    full = timed[each >= FULL_BATCH * peak]
    full_rate = float((full["generated_tokens_per_s"] / full["engines"]).max()) if len(full) else 0.0
    if not tail_s or not full_rate:
        return numbers, ()
    tokens = float((timed["generated_tokens_per_s"] * timed["seconds"])[in_tail].sum()) / engines
    at_stake, of = _of_run(max(tail_s - tokens / full_rate, 0.0) / seconds, of_the_step)
    sentence = (
        f"The long tail: for {tail_s:,.0f} of {seconds:,.0f} s an engine ran less than a fifth of its peak batch of "
        f"{counted(peak, 'request')} ({share:.0%} of its time)."
    )
    return numbers, (Finding("tail", at_stake, sentence, ("engine_tail_s", "engine_tail_share"), of),)


def _memory_bound(
    timed: pd.DataFrame, seconds: float, engines: float, fit: EngineFit | None, of_the_step: float | None
) -> tuple[tuple[Number, ...], tuple[Finding, ...]]:
    """Return the seconds in which requests waited while the KV cache was full, to one interval more for each stretch."""
    if timed["cache_share"].isna().all() or timed["waiting"].isna().all():
        return (), ()
    low = high = 0.0
    for _, part in timed.groupby("engine", sort=False):
        full = _bound_by_cache(part).to_numpy()
        took = (part["seconds"] * part["engines"]).to_numpy(dtype=float)
        begins = full & ~np.concatenate([[False], full[:-1]])
        low += float(took[full].sum())
        high += float(took[full].sum() + took[begins].sum())
    low, high = low / engines, min(high / engines, seconds)
    how = (
        f"lines with waiting requests and over {FULL_CACHE:.0%} of the KV cache in use, or less left than a running request "
        "takes; to one interval more for each stretch"
    )
    bound_s = Number("engine_memory_bound_s", low, high, DERIVED, how)
    if not high:
        return (bound_s,), ()
    full_lines = timed[_bound_by_cache(timed)]
    running = float((full_lines["running"] / full_lines["engines"]).mean())
    waiting = float((full_lines["waiting"] / full_lines["engines"]).mean())
    gained = waiting / (running + waiting)
    if fit is not None and fit.token_seconds(running) > 0:
        all_s = fit.token_seconds(running + waiting) / (running + waiting)
        gained = max(1 - all_s / (fit.token_seconds(running) / running), 0.0)
    share = number("engine_memory_bound_share", bound_s.value / seconds, DERIVED, "engine_memory_bound_s over engine_s")
    gain = number(
        "engine_memory_gain_share", gained, BOUND,
        "time of the bound tokens that is saved if all waiting requests fit into memory, at the measured time per token",
    )  # fmt: skip
    between = f"{low:,.0f} to {high:,.0f}" if round(high) > round(low) else f"{low:,.0f}"
    sentence = (
        f"The KV cache bound the engine for {between} of {seconds:,.0f} s: {counted(running, 'request')} ran while "
        f"{waiting:,.0f} waited (mean)."
    )
    at_stake, of = _of_run(bound_s.value / seconds * gained, of_the_step)
    finding = Finding("memory", at_stake, sentence, (bound_s.key, share.key), of)
    return (bound_s, share, gain), (finding,)


def _of_run(share: float, of_the_step: float | None) -> tuple[float, str]:
    """Return a share of the engine's time as one of the run's, where the share of generation is known, and what it is of."""
    return (share, GENERATION_TIME) if of_the_step is None else (share * of_the_step, TIME)


def _bound_by_cache(lines: pd.DataFrame) -> pd.Series:
    """Whether requests wait at a line while the KV cache has no room for one more."""
    one = lines["cache_share"] / (lines["running"] / lines["engines"]).where(lines["running"] > 0)
    return (lines["waiting"] > 0) & ((lines["cache_share"] > FULL_CACHE) | (1 - lines["cache_share"] < one))


def _preemptions(engine: pd.DataFrame) -> Iterator[Number]:
    if engine["preempted"].notna().any():
        how = "preemptions and retractions that the engine's lines name; old versions of vLLM warn of one in 50"
        yield number("engine_preempted", float(engine["preempted"].sum()), LOGGED, how)


def _drafts(engine: pd.DataFrame) -> Iterator[Number]:
    """Yield tokens per verification and the share of drafts that are accepted at each position, weighted by verifications."""
    lines = engine[engine["tokens_per_pass"].notna()]
    if lines.empty:
        return
    accepted, per_pass = (lines[name].to_numpy(dtype=float) for name in ("accepted_tokens_per_s", "tokens_per_pass"))
    weighed = (accepted > 0) & (per_pass > 1)
    passes = np.where(weighed, accepted / np.where(per_pass > 1, per_pass - 1, 1.0), 0.0)
    how = "the engine's lines of drafts, weighted by verifications; valid at the logged batch only"
    mean = 1 + accepted[weighed].sum() / passes.sum() if weighed.any() else per_pass[-1]
    yield number("draft_tokens_per_pass", mean, DERIVED, how)
    drafted = lines["drafted_tokens_per_s"].to_numpy(dtype=float)
    both = weighed & (drafted > 0)
    if both.any():
        yield number("draft_accepted_share", min(accepted[both].sum() / drafted[both].sum(), 1.0), DERIVED, how)
    at = [(shares, weight) for shares, weight in zip(lines["accepted_at"], passes, strict=True) if isinstance(shares, tuple)]
    for position in range(max((len(shares) for shares, _ in at), default=0)):
        known = [(shares[position], weight) for shares, weight in at if len(shares) > position]
        weights = [weight for _, weight in known]
        share = np.average([s for s, _ in known], weights=weights if sum(weights) else None)
        yield number(f"draft_accepted_at_{position + 1}_share", float(share), DERIVED, how)
