"""How fast the engine is for one response, against what reading the weights takes: said before anything of schedules."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.diagnosis.engine_profile import pace_without_queue
from rlhfless.diagnosis.gpus import generating_gpus
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.memory import model_memory
from rlhfless.diagnosis.numbers import (
    BOUND,
    COUNTED,
    DERIVED,
    GENERATION_TIME,
    STAND_IN,
    TIME,
    Collected,
    Finding,
    Number,
    Part,
    counted,
    digits,
    number,
)
from rlhfless.diagnosis.phases import FITS, ordinary_share, step_seconds, synchronous
from rlhfless.diagnosis.slots import slots_of
from rlhfless.latency import list_profiles, load_profile, read_profile, weights_floor_ms

SLOW = 3.5  # times the least iteration of a known model
SLOW_FOR_ANY = 1.5  # times the slowest shipped profile, where the model is unknown
PROMPTS_HIGH = 0.8  # of all tokens: above it, prefill is what generation takes
BATCH = 256  # responses at once, at most, where nobody knows how many an engine has: as many as shipped profiles decode
LARGEST_REPLICA = 8  # GPUs that one replica has at most, if their number is unknown
SLOW_ENGINE = "shipped_profiles_ms_per_token"  # a number that proves it
ROUNDS = "train/num_gen_batches"  # verl's DAPO; their seconds of generation are one sum
SLOWEST = "timing_s/agent_loop/slowest"  # verl: what its slowest request took
TOOLS = re.compile(r"(?:^|[^a-z])tools?(?:[^a-z]|$)")  # in the framework's own names, such as verl's agent_loop/tool_calls
CAUSES = "eager mode, no serving engine, preemption and offloading are the usual causes"


def engine_speed(run: LoggedRun, found: Collected) -> Part:
    """Return milliseconds per token of one response, and whether the engine is slow.

    It is slow where it takes ``SLOW`` times what a decode iteration of the stated model takes at least, and what its batch
    adds; of an unknown model, where it takes ``SLOW_FOR_ANY`` times the slowest shipped profile with that batch. Where requests
    queue for slots, nobody can say. Without times of steps it is the pace by the engine's own lines, at their smallest batch
    without a queue; contexts are unknown there, so an engine of an unknown model is slow only at ``SLOW`` times the slowest
    profile with such a batch.
    """
    each, batch = _ms_per_token(run), responses_at_once(run, found)
    by_lines = pace_without_queue(run.engine) if each is None else None
    if by_lines is not None:
        running, ms = by_lines
        batch = (running, running)
        how = f"running requests over tokens per second of the engine's lines, with {running:,.0f} running and none waiting"
        each = number("ms_per_token", ms, DERIVED, how)
    if each is None:
        return Part()
    most, slowest = batch[1], shipped_ms(batch[1])[1]
    floor = _floor(run)
    numbers = (each,) if floor is None else (each, floor)
    healthy = healthy_ms(run, most) if by_lines is None or floor is not None else SLOW * slowest  # contexts are unknown there
    if each.value <= (healthy_ms(run, batch[0]) if by_lines is None else healthy):
        tells = "whether this pace of the engine is slow: --model and --gpu would tell what reading the weights takes"
        alone = by_lines is not None and floor is None and "engine_base_ms" not in found.numbers
        return Part(numbers, cannot_say=(tells,) if alone else ())
    if each.evidence == BOUND and (why := _may_be_less(run, found, each.value, healthy)):
        return Part(numbers, cannot_say=(f"whether the engine is slow; it takes at most {each.value:.1f} ms per token, {why}",))
    if each.value <= healthy:
        tell = "--responses-per-step, --gpus and --gpus-per-actor tell"
        may_be = f"{each.value:,.1f} ms per token may be its batch of up to {most:,.0f} responses ({tell})"
        return Part(numbers, cannot_say=(f"whether the engine is slow; {may_be}",))
    than = (
        f"where the slowest profile that we ship takes {slowest:.0f} ms with a batch of {most:,.0f}"
        if floor is None
        else f"{each.value / floor.value:.0f} times what an iteration of this model takes at least on this GPU"
    )
    sentence = (
        f"The engine is slow: {each.value:,.1f} ms per token of one response ({digits(1000 / each.value)} tokens/s), {than}; "
        f"{CAUSES}. A schedule does not mend that."
    )
    share = generation_of_run(run, found)
    least = shipped_ms(batch[0])[1] if floor is None else floor.value + _added_ms(run, batch[0])
    at_stake = (1.0 if share is None else share) * (1.0 - least / each.value)
    of = GENERATION_TIME if share is None else TIME
    at_once = f"a batch of {most:,.0f}" if batch[0] == most else f"batches of {batch[0]:,.0f} to {most:,.0f}"
    shipped = Number(SLOW_ENGINE, shipped_ms(batch[0])[0], slowest, STAND_IN, f"{at_once} in the shipped profiles")
    return Part((*numbers, shipped), (Finding("engine", at_stake, sentence, ("ms_per_token", SLOW_ENGINE), of),))


def healthy_ms(run: LoggedRun, batch: float) -> float:
    """Return the milliseconds per token above which an engine is slow with such a batch: of the stated model, else of any."""
    floor = _floor(run)
    return SLOW_FOR_ANY * shipped_ms(batch)[1] if floor is None else SLOW * floor.value + _added_ms(run, batch)


def responses_at_once(run: LoggedRun, found: Collected) -> tuple[float, float]:
    """Return the least and the most responses that a replica may decode at once, as far as the run tells.

    They are those of a step per replica where GPUs and GPUs per replica are known. Else a replica may have all of a step, up to
    ``BATCH`` or the fewer slots of its framework.
    """
    per_gpu, replica = responses_per_gpu(run, found), run.stated.tensor_parallel
    if per_gpu is not None and replica:
        return (max(1.0, per_gpu * replica),) * 2
    of_step = found.numbers.value("responses_per_step")
    most = min(BATCH, slots_of(run).most)
    return 1.0, max(1.0, min(most, of_step or most), per_gpu or 0.0)


def least_ms(run: LoggedRun) -> float:
    """Return the milliseconds that a token of one response takes at least: of the stated model, else of any."""
    floor = _floor(run)
    return shipped_ms(1.0)[0] if floor is None else floor.value


def responses_per_engine(run: LoggedRun, found: Collected) -> float | None:
    """Return the responses of a step that share an engine, of one GPU where nobody states more; None if unknown."""
    per_gpu = responses_per_gpu(run, found)
    return None if per_gpu is None else per_gpu * (run.stated.tensor_parallel or 1)


def responses_per_gpu(run: LoggedRun, found: Collected) -> float | None:
    """Return the responses of a step that share a GPU; None if their number is unknown GPUs generate."""
    if (logged := found.numbers.value("responses_per_gpu")) is not None:
        return logged
    responses = found.numbers.value("responses_per_step")
    generate = generating_gpus(run, found.numbers.get("gpus_generate")) or found.numbers.value("gpus")
    return responses / generate if responses and generate else None


def _may_be_less(run: LoggedRun, found: Collected, ms: float, healthy: float) -> str:
    """Why seconds of generation over the longest response may be more than the engine's pace; empty where they are not.

    Args:
        ms: per token of one response. healthy: ms of an engine that is not slow.
    """
    per_gpu, replica = responses_per_gpu(run, found), run.stated.tensor_parallel
    if per_gpu is None:
        return "and less where responses wait for a slot (--responses-per-step and --gpus would tell)"
    slots = slots_of(run)
    if (each := per_gpu * (replica or 1)) > slots.least:
        of = f"an engine of {counted(replica or 1, 'GPU')}"
        return f"and less where the {each:,.0f} responses of {of} wait for its slots ({slots.default})"
    waves = math.ceil(per_gpu * LARGEST_REPLICA / slots.least)
    if not replica and waves > 1 and ms <= waves * healthy:
        return f"and less where {per_gpu:,.0f} responses per GPU of a replica wait for its slots (--gpus-per-actor would tell)"
    if any(TOOLS.search(str(name)) and (run.mean(str(name)) or 0.0) > 0 for name in run.steps.columns):
        return "and less, as calls of tools are in it"
    if (found.numbers.value("prompt_token_share") or 0.0) > PROMPTS_HIGH:
        return "and less, as most tokens are of prompts, whose prefill is in it"
    return ""


def _floor(run: LoggedRun) -> Number | None:
    """The least milliseconds of a decode iteration: reading the weights once, and no less than the fastest one measured."""
    stated = run.stated
    if stated.model is None or stated.gpu is None:
        return None
    read_bytes = model_memory(stated.model).read_bytes
    if read_bytes is None:
        return None
    floor = weights_floor_ms(read_bytes / (stated.tensor_parallel or 1), stated.gpu)
    how = "the bytes of the weights over the GPU's memory bandwidth, and no less than the fastest iteration that was measured"
    return number("engine_floor_ms", max(floor, shipped_ms(1.0)[0]), BOUND, how)


def generation_rounds(run: LoggedRun) -> np.ndarray:
    """Return (s,) how often a step of verl's DAPO generated until it had enough prompts with a signal; NaN where not logged."""
    return run.column(ROUNDS)


def generation_share(run: LoggedRun, found: Collected) -> float | None:
    """Return the share of a step that is generation which nothing else overlaps; None where the log does not say it.

    Where learning goes on at the same time, this is the part that it waits for.
    """
    return found.numbers.value("wait_share" if synchronous(run) is False else "generate_share")


def generation_in_words(run: LoggedRun, found: Collected) -> str:
    """Return a clause on that share; empty where the log does not say it."""
    share = generation_share(run, found)
    if share is None:
        return ""
    return f"{'waiting for generation' if synchronous(run) is False else 'generation'} takes {share:.0%} of a step"


def generation_of_run(run: LoggedRun, found: Collected) -> float | None:
    """Return the share of the run's time that is generation of ordinary steps; None where the log does not say it."""
    share = generation_share(run, found)
    return None if share is None else share * ordinary_share(found)


def _ms_per_token(run: LoggedRun) -> Number | None:
    """One response's milliseconds per token: of single responses, else of the longest one, by the surest way."""
    if run.responses is not None and {"start_s", "end_s"} <= set(run.responses.columns):
        rows = run.responses.dropna(subset=["start_s", "end_s"])
        tokens = rows["response_tokens"].to_numpy(dtype=float)
        took = (rows["end_s"] - rows["start_s"]).to_numpy(dtype=float) - waits_for_tools(rows)
        several = (tokens > 1) & (took > 0)
        if several.any():
            each = 1000 * took[several] / tokens[several]
            return number(
                "ms_per_token",
                float(np.median(each)),
                COUNTED,
                "median over responses, from start to end, without waits for tools",
            )
    if (speed := run.mean("perf/longest_sample_tokens_per_sec")) is not None and speed > 0:
        return number("ms_per_token", 1000 / speed, DERIVED, "1 over perf/longest_sample_tokens_per_sec, the longest response")
    bounds = [one for one in (_of_the_longest(run), _of_the_slowest(run), _of_mean_request(run)) if one is not None]
    return min(bounds, key=lambda one: one.value) if bounds else None


def waits_for_tools(responses: pd.DataFrame) -> np.ndarray:
    """Return (r,) the seconds that each response waits for tools between its turns; 0 where it has one, or none is logged."""
    if "turns" not in responses.columns:
        return np.zeros(len(responses))
    return np.array([_between(text) if isinstance(text, str) else 0.0 for text in responses["turns"]], dtype=float)


def _between(text: str) -> float:
    """Seconds between the turns of a cell, ``[[tokens, seconds], ...]``; 0 where it is of another form."""
    turns = json.loads(text)
    try:
        waits = [float(wait_s) for _, wait_s in turns[:-1]]
    except (TypeError, ValueError):
        return 0.0
    return sum(wait_s for wait_s in waits if wait_s > 0)


def _of_the_longest(run: LoggedRun) -> Number | None:
    """The seconds of generation over the longest response, which takes no longer than them."""
    of_step = step_seconds(run)
    seconds = of_step.phases.get("generate_s", np.full(len(run.steps), np.nan))
    if synchronous(run):
        seconds = np.where(seconds > (1 + FITS) * of_step.step_s, np.nan, seconds)  # of what, nobody knows
    seconds = np.where(run.column("request_s_max") < seconds, run.column("request_s_max"), seconds)  # the rest is no decoding
    rounds = generation_rounds(run)
    seconds = seconds / np.where(rounds > 1, rounds, 1.0)
    longest = run.column("response_tokens_max")
    if np.isnan(longest).all() and run.responses is not None and len(run.steps):
        by_step = run.responses.groupby("step")["response_tokens"].max()
        longest = by_step.reindex(run.steps["step"]).to_numpy(dtype=float)
    each = 1000 * seconds / np.where(longest > 0, longest, np.nan)
    each = each[~np.isnan(each)]
    if not len(each):
        return None
    one = "one of equal rounds of generation" if (rounds > 1).any() else "generation"
    how = f"seconds of {one} over the longest response; less where requests wait for each other"
    return number("ms_per_token", float(np.median(each)), BOUND, how)


def _of_the_slowest(run: LoggedRun) -> Number | None:
    """verl's slowest request over its own response; not where it called tools, whose answers are among its tokens."""
    took, tokens, tools_s = (
        run.column(f"{SLOWEST}/{name}") for name in ("generate_sequences", "response_length", "tool_calls")
    )
    each = 1000 * took / np.where((tokens > 0) & ~(tools_s > 0), tokens, np.nan)
    each = each[each > 0]
    how = "seconds of the slowest request over its response; less where requests wait for each other"
    return number("ms_per_token", float(np.median(each)), BOUND, how) if len(each) else None


def _of_mean_request(run: LoggedRun) -> Number | None:
    """The mean seconds of a request over the mean length of a response: less where requests wait, or call tools."""
    took, tokens = run.column("request_s_mean"), run.column("response_tokens_mean")
    each = 1000 * took / np.where(tokens > 0, tokens, np.nan)
    each = each[each > 0]
    how = "mean seconds of a request over the mean length of a response; less where requests wait or call tools"
    return number("ms_per_token", float(np.median(each)), BOUND, how) if len(each) else None


@cache
def shipped_ms(batch: float) -> tuple[float, float]:
    """Return the least and the most milliseconds of a decode iteration of so many responses in the shipped profiles of GPUs."""
    each = [one.alone_ms + one.further_ms * (batch - 1) for one in _shipped()]
    return min(each), max(each)


class _Shipped(NamedTuple):
    """A shipped profile: its model, GPU, GPUs per replica, ms of an iteration of one, and what each further response adds."""

    model: str
    kind: str
    replica: int
    alone_ms: float
    further_ms: float


@cache
def _shipped() -> tuple[_Shipped, ...]:
    """The shipped profiles of GPUs."""
    every = ((load_profile(name), read_profile(name)) for name in list_profiles())
    return tuple(
        _Shipped(
            fields["model"].lower(),
            profile.kind,
            fields["gpus_per_actor"],
            1000 * profile.base_s,
            1000 * profile.per_response_s,
        )
        for profile, fields in every
        if profile.kind != "cpu"
    )


def _added_ms(run: LoggedRun, batch: float) -> float:
    """Return what so many responses at once add to an iteration of one, by shipped profiles.

    By that of the stated model, GPU and replica; else the most of those of the GPU, or of all where none is of it.
    """
    stated = run.stated
    of_gpu = [one for one in _shipped() if one.kind == stated.gpu]
    known = (str(stated.model).lower(), stated.tensor_parallel or 1)
    same = [one for one in of_gpu if (one.model, one.replica) == known]
    return max(one.further_ms for one in same or of_gpu or _shipped()) * (batch - 1)
