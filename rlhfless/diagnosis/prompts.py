"""Prompts: whether generation is mostly their prefill, which no schedule of responses shortens.

An engine's own lines tell how long prefill takes, if not exactly. Lengths alone tell that most tokens are of prompts, and that
decoding the longest response takes at least so many seconds; prefill takes at most the rest of generation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.diagnosis.engine_speed import (
    PROMPTS_HIGH,
    generation_in_words,
    generation_of_run,
    generation_share,
    healthy_ms,
    least_ms,
    responses_at_once,
)
from rlhfless.diagnosis.levers import PREFIX_CACHING
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    BOUND,
    DERIVED,
    GENERATION_TIME,
    TIME,
    Collected,
    Finding,
    Lever,
    Number,
    Part,
    number,
)
from rlhfless.latency.engine_statistics import intervals

WORTH_SAYING = 0.05  # of the time
WOULD_TELL = "the engine's own lines (prompt throughput) would tell"


class Prefill(NamedTuple):
    """What prompts take of generation.

    Attributes:
        share: of generation. limit: "at most " where it is a bound, else empty. would_tell: what would tell more, a clause.
        said: the two numbers, a clause.
        numbers: all of them. proof: keys of two.
    """

    share: float
    said: str
    numbers: tuple[Number, ...]
    proof: tuple[str, str]
    limit: str = "at most "
    would_tell: str = ""


def prompts(run: LoggedRun, found: Collected) -> Part:
    """Return what prefill takes of generation, by the engine's lines, else by lengths, and what sharing prompts wins."""
    prefill, unknown = _by_lines(run, found), ""
    if prefill is None:
        prefill, unknown = _by_lengths(run, found)
    if prefill is None:
        return Part(cannot_say=(unknown,) if unknown else ())
    of_run = generation_of_run(run, found)
    at_stake, of = (prefill.share, GENERATION_TIME) if of_run is None else (of_run * prefill.share, TIME)
    if at_stake < WORTH_SAYING:
        return Part(prefill.numbers)
    which = "generation" if of_run is None else "the run's time"
    sentence = f"Prompts: {prefill.said}. Their prefill takes {prefill.limit}{at_stake:.0%} of {which}{prefill.would_tell}."
    finding = Finding("prompts", at_stake, sentence, prefill.proof, of)
    return Part(prefill.numbers, (finding,), (_lever(run, at_stake, of),))


def _by_lines(run: LoggedRun, found: Collected) -> Prefill | None:
    """By the engine's lines: their prompt tokens at the fitted time of one, else the seconds in which prompts prevail."""
    if run.engine.empty or "engine_s" not in found.numbers:
        return None
    lines = intervals(run.engine)
    fed = lines["prompt_tokens_per_s"]
    if fed.isna().all():
        return None
    fed, decoded = fed.fillna(0.0), lines["generated_tokens_per_s"].fillna(0.0)
    read, wrote = (float((rate * lines["seconds"]).sum()) for rate in (fed, decoded))
    if read + wrote <= 0:
        return None
    token_share = number(
        "engine_prompt_token_share", read / (read + wrote), DERIVED, "prompt tokens of all in the engine's lines"
    )
    said = f"they are {_nearly(token_share.value)} of the tokens that the engine worked on"
    engine_s, replicas = found.numbers["engine_s"].value, found.numbers["engine_replicas"].value
    token_ms = found.numbers.value("engine_prefill_token_ms")
    if token_ms is not None:
        prefill_s = min(read * token_ms / 1000 / replicas, engine_s)
        took = number("engine_prefill_s", prefill_s, DERIVED, "prompt tokens at the time that one adds, mean over replicas")
        said += f", and add {prefill_s:,.0f} of {engine_s:,.0f} s"
        return Prefill(prefill_s / engine_s, said, (token_share, took), (token_share.key, took.key), "")
    high = fed > PROMPTS_HIGH * (fed + decoded)
    most_s = min(float((lines["seconds"] * lines["engines"])[high].sum()) / replicas, engine_s)
    at_most = number(
        "engine_prefill_s", most_s, BOUND, f"lines in which more than {PROMPTS_HIGH:.0%} of the tokens are of prompts"
    )
    said += f", and prevail in {most_s:,.0f} of {engine_s:,.0f} s"
    return Prefill(most_s / engine_s, said, (token_share, at_most), (token_share.key, at_most.key))


def _by_lengths(run: LoggedRun, found: Collected) -> tuple[Prefill | None, str]:
    """By lengths: what decoding the longest response leaves of generation. Also what cannot be said."""
    numbers = found.numbers
    share, generate_s, of_step = numbers.value("prompt_token_share"), numbers.value("generate_s"), generation_share(run, found)
    if share is None or share <= PROMPTS_HIGH or (of_step is not None and of_step < WORTH_SAYING):
        return None, ""
    each, many = numbers.value("ms_per_token"), f"{_nearly(share)} of all tokens"
    if generate_s is None and of_step is None:
        return None, f"how much of generation is prefill, as prompts are {many}; {WOULD_TELL}"
    if each is not None and each <= healthy_ms(run, responses_at_once(run, found)[1]):
        return None, f"how much of generation is prefill, as prompts are {many}, and decoding may take all of it; {WOULD_TELL}"
    left = 1.0 if each is None else 1.0 - least_ms(run) / each
    how = "generation without what decoding the longest response takes at least"
    at_most = number("prefill_at_most_share", left, BOUND, how)
    mean = {key: numbers.value(f"{key}_tokens_mean") for key in ("prompt", "response")}
    lengths = f" ({mean['prompt']:,.0f} beside {mean['response']:,.0f} of a response, on average)" if all(mean.values()) else ""
    takes = generation_in_words(run, found) or f"generation takes {generate_s:,.1f} s"
    said = f"they are {many}{lengths}, and {takes}"
    return Prefill(left, said, (at_most,), ("prompt_token_share", at_most.key), would_tell=f"; {WOULD_TELL}"), ""


def _nearly(share: float) -> str:
    return "over 99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _lever(run: LoggedRun, at_most: float, of: str) -> Lever:
    """Share the prefix of a prompt's samples, where it is not shared already; else make prompts shorter."""
    samples, hits = _samples(run), _prefix_hits(run)
    if hits:
        name = f"shorter prompts ({hits:.0%} of their tokens are in the prefix cache already)"
        return Lever("prompts", name, at_most, "responses see less", of)
    if samples == 1:
        return Lever("prompts", "shorter prompts, or chunked prefill", at_most, "responses see less; none for chunks", of)
    if samples is not None:
        at_most *= 1.0 - 1.0 / samples
    name = f"prefill a prompt once for its {'samples' if samples is None else f'{samples:,.0f} samples'} (prefix caching)"
    price = "none for the data; nothing is won where it is on, as it is in vLLM 1 and SGLang by default"
    return Lever("prompts", name, at_most, price, of, PREFIX_CACHING.get(run.framework, ""))


def _samples(run: LoggedRun) -> float | None:
    """Responses to one prompt of a step; None if unknown."""
    if run.stated.samples_per_prompt:
        return float(run.stated.samples_per_prompt)
    if run.responses is None or run.responses.empty:
        return None
    return float(run.responses.groupby(["step", "prompt_id"]).size().mean())


def _prefix_hits(run: LoggedRun) -> float | None:
    """Share of prompt tokens that the engine found in its prefix cache; None where its lines do not say."""
    if "prefix_hit_share" not in run.engine.columns:
        return None
    hits = pd.to_numeric(run.engine["prefix_hit_share"], errors="coerce").to_numpy(dtype=float)
    return None if np.isnan(hits).all() else float(np.nanmean(hits))
