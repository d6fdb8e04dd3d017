"""How many responses and tokens a step has, by every way that the log allows, compared with each other.

A count that one number of the log gives is derived; where several ways disagree by more than ``SAME`` the count is a range, and
a note names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from rlhfless.diagnosis.gpus import gpus_of, gpus_of_throughput
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    COUNTED,
    DERIVED,
    LOGGED,
    Collected,
    Number,
    Numbers,
    Part,
    counted,
    mean_of,
    number,
    total_of,
)

SAME = 0.02  # relative difference of two ways to one count
EVEN = 0.05  # of the mean: batches that differ by less are even
ROUNDED = 4  # decimals at which frameworks round shares in text
AS_LOGGED, AS_STATED = "as logged", "as stated"
LARGEST_DENOMINATOR = 4096  # of a share of responses that is written in full, such as 119/256
RESPONSES_LINE = {
    "nemo-rl": "the console's line 'Generating responses for batch of size N'",
    "openrlhf": "rollout/num_samples",
    "prime-rl": "the orchestrator's bar 'Generating rollouts'",
    "skyrl": "generate/batch_num_seq",
    "slime": "train/global_batch_size in the console's lines 'step N'",
    "verl": "perf/total_num_tokens beside prompt_length/mean and response_length/mean",
}
"""What tells the responses of a step, by framework; those that are missing log nothing of the kind."""


def counts(run: LoggedRun, found: Collected) -> Part:
    """Return responses and tokens of a step, tokens per second, and the GPUs that follow where they were not stated."""
    numbers = Numbers()
    if (derived := gpus_of_throughput(run)) is not None:
        numbers.add(
            [number("gpus", derived, DERIVED, "tokens of the step over its seconds and perf/throughput, which is per GPU")]
        )
    notes: list[str] = []
    gpus, per_gpu = gpus_of(run).total, _responses_per_gpu(run)
    if per_gpu is not None:
        numbers.add([number("responses_per_gpu", per_gpu, DERIVED, "global_seqlen/mean over the mean length of a sequence")])
    numbers.add(_work_apart(run, notes))
    responses = found.numbers.value("responses_per_step")
    if responses is None and (one := _responses_per_step(run, per_gpu, gpus, notes)) is not None:
        numbers.add([one])
        responses = one.value
    if responses is not None and per_gpu is not None and not gpus:
        numbers.add([number("gpus", responses / per_gpu, DERIVED, "responses of the step over responses per GPU")])
    mean = found.numbers.value("response_tokens_mean")
    ways = list(_response_tokens(run, responses, mean))
    tokens = _agreed("response_tokens_per_step", ways, notes) if ways else None
    if tokens is not None:
        numbers.add([tokens])
    of_gpu = None if per_gpu is None or mean is None else per_gpu * mean
    numbers.add(_speeds(run, found.numbers.value("generate_s"), tokens, gpus, of_gpu, "gpus" in numbers))
    numbers.add(_generations(run))
    if run.facts.get("steps_per_generation", 1.0) > 1 and "generation_total_s" in numbers:
        times, total_s = (numbers.value(key) for key in ("generations", "generation_total_s"))
        notes.append(f"{times:,.0f} generations took {total_s:,.0f} s together; the steps between them generated nothing.")
    telling = f"{RESPONSES_LINE[run.framework]} or " if run.framework in RESPONSES_LINE else ""
    or_gpus = " or --gpus" if per_gpu is not None else ""
    unknown = f"how many responses a step has; {telling}--responses-per-step{or_gpus} would tell"
    cannot = () if responses is not None or run.steps.empty else (unknown,)
    return Part(tuple(numbers.values()), (), (), cannot, tuple(notes))


def _work_apart(run: LoggedRun, notes: list[str]) -> list[Number]:
    """Return by how much the batches of verl's ranks differ in tokens, prompts included; little is noted."""
    mean = run.column("global_seqlen/mean")
    apart = run.column("global_seqlen/minmax_diff") / np.where(mean > 0, mean, np.nan)
    apart = apart[apart >= 0]
    if not len(apart):
        return []
    how = "global_seqlen/minmax_diff over global_seqlen/mean, before batches are balanced"
    share = number("gpu_tokens_apart_share", float(apart.mean()), DERIVED, how)
    if share.value < EVEN:
        even = f"The batches of the GPUs differ by {share.value:.1%} in tokens, so they have nearly equal work"
        notes.append(f"{even}, and moving long prompts to other GPUs would save next to nothing.")
    return [share]


def _responses_per_step(run: LoggedRun, per_gpu: float | None, gpus: float | None, notes: list[str]) -> Number | None:
    ways = list(_responses(run))
    if ways:
        return _agreed("responses_per_step", ways, notes)
    if per_gpu is None or not gpus:
        return None
    return number("responses_per_step", per_gpu * gpus, DERIVED, f"responses per GPU on {counted(gpus, 'GPU')}")


def _speeds(
    run: LoggedRun,
    seconds: float | None,
    tokens: Number | None,
    gpus: float | None,
    tokens_per_gpu: float | None,
    gpus_known: bool,
) -> list[Number]:
    """Return response tokens per second, also of a GPU, and the GPUs that generate by both, unless all GPUs are known."""
    stated = run.mean("tokens_per_gpu_s")
    numbers = []
    of_gpu = None
    if tokens is not None and seconds:
        how = f"{tokens.how}, over generation"
        numbers.append(Number("tokens_per_s", tokens.low / seconds, tokens.high / seconds, DERIVED, how))
        if gpus:
            of_gpu = Number("tokens_per_gpu_s", tokens.low / seconds / gpus, tokens.high / seconds / gpus, DERIVED, how)
        if stated and not gpus_known:
            how = "tokens per second over logged tokens per second and GPU that generates"
            ends = tokens.low / seconds / stated, tokens.high / seconds / stated
            numbers.append(Number("gpus_generate", *ends, DERIVED, how))
    elif seconds and tokens_per_gpu is not None:
        how = "responses per GPU times their mean length, over generation"
        of_gpu = number("tokens_per_gpu_s", tokens_per_gpu / seconds, DERIVED, how)
    if of_gpu is None and stated is not None:
        of_gpu = mean_of("tokens_per_gpu_s", run.column("tokens_per_gpu_s"), "steps", "what the framework states")
    if run.mean("tokens_per_s") is not None:
        stated_s = run.column("tokens_per_s")
        numbers.append(mean_of("framework_tokens_per_s", stated_s, "steps", "what the framework states"))
    return numbers if of_gpu is None else [*numbers, of_gpu]


def _generations(run: LoggedRun) -> list[Number]:
    """Return how many steps generated, and the seconds of all their generation; TRL logs other steps, too."""
    generated = run.column("generate_s")
    known = generated[~np.isnan(generated)]
    if not len(known):
        return []
    return [
        number("generations", len(known), COUNTED, "steps with seconds of generation"),
        total_of("generation_total_s", known, "generations"),
    ]


def _responses(run: LoggedRun) -> Iterator[tuple[float, str]]:
    """Ways to the number of responses of a step, each with how."""
    if run.stated.responses_per_step:
        yield float(run.stated.responses_per_step), AS_STATED
    if (logged := run.mean("responses")) is not None:
        yield logged, AS_LOGGED if np.isfinite(run.column("responses")).sum() == 1 else "mean of the steps"
    if (fact := run.facts.get("responses_per_step")) is not None:
        yield fact, "the framework's batch"
    samples, steps = run.facts.get("samples_per_s"), run.facts.get("steps_per_s")
    if samples and steps and run.framework != "trl":  # of which it is prompts where epochs were planned
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
    """Return the responses of one GPU by verl's tokens of its ranks, which are means over the GPUs.

    None where ``perf/throughput`` tells the GPUs, as newer versions have ranks of several GPUs; and of asynchronous runs, whose
    ranks are those that train.
    """
    if gpus_of_throughput(run) is not None or not np.isnan(run.column("wait_s")).all():
        return None
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
        return number(key, value, LOGGED if how in (AS_LOGGED, AS_STATED) else DERIVED, how)
    every = [(value, how), *apart]
    said = "; ".join(f"{one:,.0f} ({by})" for one, by in every)
    notes.append(f"The log contradicts itself in {key.replace('_', ' ')}: {said}.")
    ends = [one for one, _ in every]
    return Number(key, min(ends), max(ends), DERIVED, "the range of the ways that contradict each other")
