"""How many responses and tokens a step has, by every way that the log allows, compared with each other.

A count that one number of the log gives is derived; where several ways disagree by more than ``SAME`` the count is a range, and
a note names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import DERIVED, LOGGED, Collected, Number, Part, number

SAME = 0.02  # relative difference of two ways to one count
ROUNDED = 4  # decimals at which frameworks round shares in text
LARGEST_DENOMINATOR = 4096  # of a share of responses that is written in full, such as 119/256


def counts(run: LoggedRun, found: Collected) -> Part:
    """Return responses and tokens of a step, tokens per second, and the GPUs that follow where they were not stated."""
    ways = list(_responses(run, found))
    gpus, numbers, notes = _gpus(run), [], []
    known = found.numbers.value("responses_per_step")
    if known is None and ways:
        numbers.append(_agreed("responses_per_step", ways, notes))
        known = numbers[0].value
    per_gpu = _responses_per_gpu(run)
    if per_gpu is not None:
        numbers.append(number("responses_per_gpu", per_gpu, DERIVED, "global_seqlen/mean over the mean length of a sequence"))
        if known is None and gpus:
            known = per_gpu * gpus
            numbers.append(number("responses_per_step", known, DERIVED, f"responses per GPU on {gpus:,} GPUs"))
        elif known is not None and not gpus:
            gpus_ = known / per_gpu
            numbers.append(number("gpus", gpus_, DERIVED, "responses of the step over responses per GPU"))
    mean = found.numbers.value("response_tokens_mean")
    tokens = list(_response_tokens(run, known, mean))
    if "response_tokens_per_step" not in found.numbers and tokens:
        numbers.append(_agreed("response_tokens_per_step", tokens, notes))
    seconds = run.mean("generate_s")
    of_step = numbers[-1] if tokens and "response_tokens_per_step" not in found.numbers else None
    if of_step is not None and seconds:
        how = f"{of_step.how}, over generation"
        numbers.append(Number("tokens_per_s", of_step.low / seconds, of_step.high / seconds, DERIVED, how))
        if gpus:
            ends = [value / seconds / gpus for value in (of_step.low, of_step.high)]
            numbers.append(Number("tokens_per_gpu_s", ends[0], ends[1], DERIVED, how))
        elif (stated := run.mean("tokens_per_gpu_s")) is not None and stated > 0:
            derived = [value / seconds / stated for value in (of_step.low, of_step.high)]
            how = "tokens per second over logged tokens per GPU-second"
            numbers.append(Number("gpus", derived[0], derived[1], DERIVED, how))
    elif seconds and per_gpu is not None and mean is not None:
        each_s = per_gpu * mean / seconds
        how = "responses per GPU times their mean length, over generation"
        numbers.append(number("tokens_per_gpu_s", each_s, DERIVED, how))
    taken = {one.key for one in numbers}
    if "tokens_per_gpu_s" not in taken and (stated := run.mean("tokens_per_gpu_s")) is not None:
        numbers.append(number("tokens_per_gpu_s", stated, LOGGED, "as the framework states it"))
    if (stated := run.mean("tokens_per_s")) is not None:
        numbers.append(number("framework_tokens_per_s", stated, LOGGED, "as the framework states it"))
    numbers += _generations(run)
    cannot = () if known is not None or run.steps.empty else ("how many responses a step has (--responses-per-step tells)",)
    return Part(tuple(numbers), (), (), cannot, tuple(notes))


def _generations(run: LoggedRun) -> list[Number]:
    """Return how many steps generated, and the seconds of all their generation; TRL logs other steps, too."""
    generated = run.column("generate_s")
    known = generated[~np.isnan(generated)]
    if not len(known):
        return []
    return [
        number("generations", float(len(known)), LOGGED, "steps with seconds of generation"),
        number("generation_total_s", float(known.sum()), DERIVED, "the sum of their seconds"),
    ]


def _gpus(run: LoggedRun) -> float | None:
    stated = run.stated
    sides = [stated.gpus_generate, stated.gpus_train]
    both = sum(one for one in sides if one) if all(sides) else None
    return stated.gpus or both or run.facts.get("gpus")


def _responses(run: LoggedRun, found: Collected) -> Iterator[tuple[float, str]]:
    """Ways to the number of responses of a step, each with how."""
    if run.stated.responses_per_step:
        yield float(run.stated.responses_per_step), "as stated"
    if (logged := run.mean("responses")) is not None:
        yield logged, "as logged"
    if (fact := run.facts.get("responses_per_step")) is not None:
        yield fact, "the framework's batch"
    samples, steps = run.facts.get("samples_per_s"), run.facts.get("steps_per_s")
    if samples and steps:
        yield float(round(samples / steps)), "responses per second over steps per second"
    mean, prompt, total = (run.mean(key) for key in ("response_tokens_mean", "prompt_tokens_mean", "tokens_total"))
    sequence = run.mean("sequence_tokens_mean") or (mean + prompt if mean is not None and prompt is not None else None)
    if total and sequence:
        yield total / sequence, "tokens of the step over the mean length of a sequence"
    if mean is not None and (multiple := _whole_shares(run)) is not None:
        yield float(multiple), "shares of the log are whole numbers of so many responses, or of a multiple of it"


def _whole_shares(run: LoggedRun) -> int | None:
    """Return the number of responses of which the shares and means of each step are whole parts; None where they are rounded.

    A share that is written in full, such as 0.46484375 = 119/256, tells its denominator; so does a mean of whole lengths.
    """
    denominators = []
    for share, mean in zip(run.column("truncation_rate"), run.column("response_tokens_mean"), strict=True):
        if np.isnan(share) or np.isnan(mean) or not 0 < share < 1:
            continue
        if round(share, ROUNDED) == share:  # 0.004 is 1/250 as well as many shares that were rounded
            return None
        part = Fraction(float(share)).limit_denominator(LARGEST_DENOMINATOR)
        if float(part) != share or not float(mean * part.denominator).is_integer():
            return None
        denominators.append(part.denominator)
    whole = int(np.lcm.reduce(denominators)) if denominators else 0
    return whole if 16 <= whole <= LARGEST_DENOMINATOR else None


def _responses_per_gpu(run: LoggedRun) -> float | None:
    """Return the responses of one GPU by verl's tokens of its ranks, which are means over the GPUs."""
    rank, mean, prompt = (run.mean(key) for key in ("global_seqlen/mean", "response_tokens_mean", "prompt_tokens_mean"))
    return rank / (mean + prompt) if rank and mean is not None and prompt is not None and mean + prompt > 0 else None


def _response_tokens(run: LoggedRun, responses: float | None, mean: float | None) -> Iterator[tuple[float, str]]:
    """Ways to the response tokens of a step."""
    if responses is not None and mean is not None:
        yield responses * mean, "responses times their mean length"
    per_token, seconds = run.mean("timing_per_token_ms/gen"), run.mean("generate_s")
    if per_token and seconds:
        yield 1000.0 * seconds / per_token, "seconds of generation over timing_per_token_ms/gen"


def _agreed(key: str, ways: list[tuple[float, str]], notes: list[str]) -> Number:
    """Return the first way where all agree with it, else the range of all of them, and note that."""
    value, how = ways[0]
    apart = [(other, by) for other, by in ways[1:] if abs(other - value) > SAME * abs(value) and "multiple" not in by]
    if "multiple" in how or not apart:
        return number(key, value, LOGGED if how in ("as logged", "as stated") else DERIVED, how)
    every = [(value, how), *apart]
    said = "; ".join(f"{one:,.0f} ({by})" for one, by in every)
    notes.append(f"The log contradicts itself in {key.replace('_', ' ')}: {said}.")
    ends = [one for one, _ in every]
    return Number(key, min(ends), max(ends), DERIVED, "the range of the ways that contradict each other")
