"""Lengths of responses: the idle slots that they can leave at most, the share that a limit cut, and prompts beside them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.diagnosis.engine_speed import generation_of_run
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    BOUND,
    COUNTED,
    DERIVED,
    LOGGED,
    RESPONSES,
    Collected,
    Finding,
    Number,
    Part,
    counted,
    mean_of,
    number,
)
from rlhfless.trace.importers.names import NAMES

CUT_IN_VERDICT = 0.05  # share of cut responses above which the limit is what is said first
LEAST_AT_LIMIT = 3  # responses with one largest length, below which it is chance
LEAST_SHARE_AT_LIMIT = 0.005
PEAK, PEAK_BELOW = 3.0, 0.8  # times as many as each value above this share of the largest


class Cut(NamedTuple):
    """Which responses a limit cut, and how this is known.

    Attributes:
        rows: (n,) of each response, whether it was cut. limit: in words. evidence, how: as of ``Number``.
    """

    rows: np.ndarray
    limit: str
    evidence: str
    how: str


def cut_responses(responses: pd.DataFrame, max_response_tokens: float | None = None) -> Cut | None:
    """Return which responses were cut: as logged, else those that share the largest length, or the largest sum with its prompt.

    A limit on the whole context cuts responses of different lengths whose sums with their prompts are equal. Frameworks that
    compare lengths with the limit of responses alone log no such cut, so equal sums count beside what was logged.

    Args:
        responses: rollouts. max_response_tokens: limit of the run, where it is known.

    Returns:
        None where no finish reason is logged, no limit is known, and no largest length is shared.
    """
    tokens = responses["response_tokens"].to_numpy(dtype=float)
    reasons = responses["finish_reason"]
    logged = (reasons == "length").to_numpy() if bool(reasons.notna().all()) else None
    prompts = responses["prompt_tokens"].to_numpy(dtype=float, na_value=np.nan)
    sums, named = tokens + prompts, responses["prompt_id"].to_numpy()
    at_sum = _at_largest(sums, named)
    by_context = at_sum if len(np.unique(prompts)) > 1 and len(np.unique(tokens[at_sum])) > 1 else None
    if max_response_tokens is not None:
        by_response = tokens >= max_response_tokens
        how = f"responses of {counted(max_response_tokens, 'token')}, the limit"
    else:
        by_response = _at_largest(tokens, named)
        how = f"{int(by_response.sum()):,} responses have the largest length, {counted(tokens.max(initial=0), 'token')}"
    if by_context is not None and not (logged is not None and bool((logged >= by_context).all())):
        rows = by_context | (logged if logged is not None else by_response)
        how = f"{int(by_context.sum()):,} responses with their prompts have {counted(np.nanmax(sums), 'token')} exactly"
        return Cut(rows, f"the context of {counted(np.nanmax(sums), 'token')}", DERIVED, how)
    if logged is not None:
        return Cut(logged, "the limit", COUNTED, "finish reasons of the log")
    if max_response_tokens is not None or by_response.any():
        return Cut(by_response, f"the limit of {counted(tokens.max(initial=0), 'token')}", DERIVED, how)
    return None


def _at_largest(values: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Which values are the largest one, where so many are that it is no chance; else none.

    A limit makes a peak: of several prompts, and several times as many as the values just below it have each.
    """
    known = values[~np.isnan(values)]
    largest = known.max() if len(known) else np.nan
    at = values == largest
    below = known[(known >= PEAK_BELOW * largest) & (known < largest)]
    each = len(below) / max(len(np.unique(below)), 1)
    few = at.sum() < max(LEAST_AT_LIMIT, LEAST_SHARE_AT_LIMIT * len(values), PEAK * each)
    return np.zeros(len(values), dtype=bool) if few or len(np.unique(prompts[at])) < 2 else at


def lengths(run: LoggedRun, found: Collected) -> Part:
    """Return mean and longest response, the idle slots that they allow, the cut share, and the share of prompts in tokens."""
    numbers: list[Number] = []
    cannot: list[str] = []
    findings: list[Finding] = []
    limit = run.stated.max_response_tokens or run.facts.get("max_response_tokens")
    cut = cut_responses(run.responses, limit) if run.responses is not None and len(run.responses) else None
    if run.responses is not None and len(run.responses):
        numbers += _counted(run.responses)
        if cut is not None:
            share = float(cut.rows.mean())
            numbers.append(number("cut_share", share, cut.evidence, cut.how))
            numbers.append(number("cut_responses", float(cut.rows.sum()), cut.evidence, cut.how))
            numbers += _without_cut(_saved_without(run.responses, cut.rows))
        else:
            numbers += _logged_cut(run)
    else:
        numbers += _logged(run)
    by_key = {one.key: one for one in numbers}
    if "cut_share" not in by_key and not (run.responses is None and run.steps.empty):
        logged = "truncation_rate" in run.steps.columns
        has = "no usable share of them" if logged else "neither finish reasons nor a clipped share"
        cannot.append(f"whether a limit cut responses; the log has {has}; {_telling(run)}{_without_eos(run)}")
    if run.responses is None and "response_tokens_mean" not in by_key and _has_generation(run):
        names = NAMES.get(run.framework)
        metrics = () if names is None else names.first("response_tokens_mean")
        or_metric = f"{metrics[0]} of {names.title}, or " if names and metrics else ""
        cannot.append(
            "what schedules would save: none can be simulated without a mean length of the responses; "
            f"{or_metric}the length of every response would tell"
        )
    if "cut_share" in by_key and by_key["cut_share"].value > CUT_IN_VERDICT:
        findings.append(_limit_finding(run, by_key["cut_share"], cut, by_key, generation_of_run(run, found)))
    return Part(tuple(numbers), tuple(findings), (), tuple(cannot))


def _has_generation(run: LoggedRun) -> bool:
    """Whether the log has seconds of generation, or of waiting for it."""
    return not all(np.isnan(run.column(name)).all() for name in ("generate_s", "wait_s"))


def _without_eos(run: LoggedRun) -> str:
    """Why AReaL's share of sequences without an end is not used as the truncated share."""
    names = [str(name) for name in run.steps.columns if "no_eos_ratios" in str(name)]
    if not names:
        return ""
    why = "releases of AReaL count in it every sequence as long as its padded batch, whether it was cut or not"
    return f"; {names[0]} is not used, because {why}"


def _telling(run: LoggedRun) -> str:
    """What of the run's framework would tell whether a limit cuts responses."""
    names = NAMES.get(run.framework)
    metrics = () if names is None else names.first("truncation_rate")
    return f"{metrics[0]} of {names.title} would tell" if names and metrics else "finish reasons of its responses would tell"


def _counted(responses: pd.DataFrame) -> list[Number]:
    steps = responses.groupby("step")["response_tokens"]
    ratio = (steps.mean() / steps.max().where(steps.max() > 0)).dropna()
    tokens = responses["response_tokens"]
    how = "lengths of the log"
    numbers = [
        number("responses", len(responses), COUNTED, "rows of the log"),
        number("responses_per_step", float(steps.size().mean()), COUNTED, "rows of the log"),
        number("response_tokens", float(tokens.sum()), COUNTED, how),
        number("response_tokens_mean", float(tokens.mean()), COUNTED, how),
        number("response_tokens_max", float(tokens.max()), COUNTED, how),
    ]
    if len(ratio):
        numbers += _idle(float(ratio.mean()), "mean over longest response of each step")
    prompts = responses["prompt_tokens"].to_numpy(dtype=float, na_value=np.nan)
    if not np.isnan(prompts).any() and prompts.sum() + tokens.sum() > 0:
        numbers.append(number("prompt_tokens_mean", float(prompts.mean()), COUNTED, how))
        numbers.append(number("prompt_token_share", float(prompts.sum() / (prompts.sum() + tokens.sum())), COUNTED, how))
    return numbers


def _logged(run: LoggedRun) -> list[Number]:
    numbers = []
    for key in ("response_tokens_mean", "prompt_tokens_mean"):
        if run.mean(key) is not None:
            numbers.append(mean_of(key, run.column(key), "steps", "mean lengths"))
    longest = run.column("response_tokens_max")
    if not np.isnan(longest).all():
        numbers.append(number("response_tokens_max", float(np.nanmax(longest)), LOGGED, "longest responses of the steps"))
    ratio = run.column("response_tokens_mean") / np.where(longest > 0, longest, np.nan)
    ratio = np.minimum(ratio[~np.isnan(ratio)], 1.0)  # a mean may be rounded
    if len(ratio):
        numbers += _idle(float(ratio.mean()), "logged mean over longest response of each step")
    requests, slowest = run.column("request_s_mean"), run.column("request_s_max")
    if not np.isnan(requests).all():
        numbers.append(mean_of("request_s_mean", requests, "steps", "mean seconds of a request"))
    if not np.isnan(slowest).all():
        numbers.append(number("request_s_max", float(np.nanmax(slowest)), LOGGED, "the slowest request of the steps"))
    waited = requests / np.where(slowest > 0, slowest, np.nan)
    waited = waited[~np.isnan(waited) & (waited <= 1)]
    if len(waited) and not len(ratio):
        numbers += _idle(
            float(waited.mean()), "mean over longest seconds of a request, waiting and tools included, of each step"
        )
    numbers += _logged_cut(run)
    mean, prompt = run.mean("response_tokens_mean"), run.mean("prompt_tokens_mean")
    if mean is not None and prompt is not None and mean + prompt > 0:
        numbers.append(number("prompt_token_share", prompt / (mean + prompt), DERIVED, "logged mean lengths"))
    return numbers


def _logged_cut(run: LoggedRun) -> list[Number]:
    """The share of cut responses as the framework logs it.

    What generation saves without them is bounded by means alone, as if all others were as short as their mean; where few are
    cut, that says nothing of the cut.
    """
    cut = run.column("truncation_rate")
    if np.isnan(cut).all():
        return []
    share = mean_of("cut_share", cut, "steps", "shares of cut responses")
    return [share, *_without_cut(_saved_by_means(run))] if share.value > CUT_IN_VERDICT else [share]


def _saved_without(responses: pd.DataFrame, cut: np.ndarray) -> np.ndarray:
    """(s,) Share of each step's generation that its cut responses take at most; see ``_without_cut``."""
    tokens, steps = responses["response_tokens"].to_numpy(dtype=float), responses["step"]
    left = pd.Series(np.where(cut, 0.0, tokens)).groupby(steps.to_numpy())
    whole = pd.Series(tokens).groupby(steps.to_numpy())
    least = np.asarray(np.minimum(left.max() / whole.max(), left.sum() / whole.sum()), dtype=float)
    return np.asarray(1.0 - least[least > 0])  # of a step whose responses are all cut, nothing is known


def _saved_by_means(run: LoggedRun) -> np.ndarray:
    """(s,) The same by the logged share of cut responses, the mean and the longest, which is taken to be the limit."""
    cut, mean, longest = (run.column(name) for name in ("truncation_rate", "response_tokens_mean", "response_tokens_max"))
    possible = (cut > 0) & (cut < 1) & (mean > 0) & (longest >= mean) & (cut * longest <= mean)
    cut, mean, longest = cut[possible], mean[possible], longest[possible]
    others = (mean - cut * longest) / (1 - cut)
    return np.asarray(1.0 - np.minimum(others / longest, 1.0 - cut * longest / mean))


def _without_cut(saved: np.ndarray) -> list[Number]:
    """What generation without the cut responses would save at most.

    At one speed, it takes no less than the longest of the others, or their mean where only that is known. Where responses queue
    for slots, it takes no less than their share of all tokens.
    """
    saved = saved[np.isfinite(saved)]
    if not len(saved):
        return []
    how = "generation of a step without its cut responses, at one speed: by the longest response, or by all tokens"
    return [number("without_cut_saves_at_most_share", float(np.clip(saved, 0.0, 1.0).mean()), BOUND, how)]


def _idle(ratio: float, how: str) -> list[Number]:
    return [
        number("mean_over_longest", ratio, DERIVED, how),
        number("slot_idle_share_at_most", 1 - ratio, BOUND, f"1 - {how}; a slot is room for one response in a batch"),
    ]


def _limit_of(run: LoggedRun) -> str:
    """The limit in tokens, where the longest response of every step that cuts some is the same."""
    longest = np.unique(run.column("response_tokens_max")[run.column("truncation_rate") > 0])
    return f" of {counted(longest[0], 'token')}" if len(longest) == 1 and not np.isnan(longest[0]) else ""


def _limit_finding(
    run: LoggedRun, share: Number, cut: Cut | None, numbers: dict[str, Number], generation: float | None
) -> Finding:
    """What a limit cut; ``generation`` is its share of the run's time."""
    which = cut.limit if cut is not None else f"the length limit{_limit_of(run)}"
    by_rows = "cut_responses" in numbers
    count = f" ({numbers['cut_responses'].value:,.0f} of {numbers['responses'].value:,.0f})" if by_rows else ""
    proof = ("cut_share", "cut_responses") if by_rows else ("cut_share", "response_tokens_max")
    sentence = (
        f"A length limit cuts responses: {share.value:.1%}{count} end at {which}, so their true lengths are unknown, and tails "
        "and forecasts of this log are lower bounds; a higher limit takes more time, not less."
    )
    saved = numbers.get("without_cut_saves_at_most_share")
    time_share = None if saved is None or generation is None else generation * saved.value
    return Finding("limit", share.value, sentence, tuple(key for key in proof if key in numbers), RESPONSES, time_share)
