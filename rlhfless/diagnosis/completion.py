"""The long tail: how much of generation a few responses take, and what carrying them over, or releasing GPUs, wins at most.

Where the log has the times at which responses ended, the curve of completion is counted. Where it has lengths alone, a response
is taken to have the same speed from start to end, which exaggerates the tail: fewer responses in a batch decode faster. Levers
are replayed on the curve at several settings of their knobs (``diagnosis.knobs``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlhfless.diagnosis.engine_speed import SEQUENCES, generation_in_words, generation_of_run, responses_per_gpu
from rlhfless.diagnosis.gpus import gpus_of
from rlhfless.diagnosis.knobs import (
    FACTORS,
    MOST_UNFINISHED,
    SHARES,
    STARTED,
    UNFINISHED,
    StepEnds,
    carried_over,
    over_sampled,
    released,
    smallest_enough,
    unfinished_at,
)
from rlhfless.diagnosis.lengths import CUT_IN_VERDICT
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    BOUND,
    COUNTED,
    DERIVED,
    GENERATION_GPU_HOURS,
    GENERATION_TIME,
    GPU_HOURS,
    SLOTS,
    TIME,
    Collected,
    Finding,
    Knob,
    Lever,
    Number,
    Part,
    counted,
    number,
)
from rlhfless.diagnosis.phases import synchronous
from rlhfless.diagnosis.tool_waits import mostly_tools

WORTH_SAYING = 0.05  # of the run's time
WHOLE_S = 10.0  # generation that takes less is told with its hundredths of a second
ORDER_PRICE = "predicted lengths; a step ends no sooner than its longest response"
RELEASE_PRICE = "others must use the GPUs, and what is left may decode slower on one replica"
PACKING_PRICE = "predicted lengths and several replicas; a step ends no sooner than its longest response"


@dataclass(frozen=True, eq=False)
class Completion:
    """When the responses of a step end.

    Attributes:
        step: its ends, in seconds where they were logged (counted), else in tokens.
        seconds: of the step's generation; NaN where unknown.
    """

    step: StepEnds
    counted: bool
    seconds: float

    def left_after(self, share: float) -> tuple[int, float]:
        """Return how many responses the last ``share`` of them are, at least one, and the share of generation that only they
        take.
        """
        ends = self.step.responses
        last = unfinished_at(share, len(ends))
        before = ends[len(ends) - last - 1] if last < len(ends) else 0.0
        return last, float(1.0 - before / ends[-1])


def completions(run: LoggedRun) -> list[Completion]:
    """Return the curve of each step with at least two responses."""
    if run.responses is None:
        return []
    seconds = dict(zip(run.steps["step"], run.column("generate_s"), strict=True)) if len(run.steps) else {}
    curves = []
    for step, rows in run.responses.groupby("step"):
        ends, by_ends = _ends(rows)
        if len(ends) > 1 and ends.max() > 0:
            took = float(ends.max()) if by_ends else float(seconds.get(step, np.nan))
            curves.append(Completion(_of_prompts(rows, ends), by_ends, took))
    return curves


def _ends(rows: pd.DataFrame) -> tuple[np.ndarray, bool]:
    """Return ends since the step's start, in the order of the rows, and whether they were logged; else they are lengths.

    A log without starts counts ends from the start of the run, which is the start of its first step only.
    """
    tokens = rows["response_tokens"].to_numpy(dtype=float)
    if "end_s" not in rows.columns or rows["end_s"].isna().any():
        return tokens, False
    ends = rows["end_s"].to_numpy(dtype=float)
    starts = rows["start_s"].dropna() if "start_s" in rows.columns else pd.Series(dtype=float)
    if starts.empty and int(rows["step"].iloc[0]) != 0:
        return tokens, False
    ends = ends - (float(starts.min()) if len(starts) else 0.0)
    return (ends, True) if ends.min() >= 0 else (tokens, False)


def _of_prompts(rows: pd.DataFrame, ends: np.ndarray) -> StepEnds:
    """Return the ends of a step's responses and prompts; ``ends`` are in the order of its rows."""
    prompt, names = pd.factorize(rows["prompt_id"])
    last = np.zeros(len(names))
    np.maximum.at(last, prompt, ends)
    tokens = np.bincount(prompt, rows["response_tokens"].to_numpy(dtype=float), len(names))
    return StepEnds(np.sort(ends), last, np.bincount(prompt, minlength=len(names)), tokens)


def in_one_unit(curves: Sequence[Completion]) -> list[StepEnds]:
    """Return the ends of all steps in one unit, so that longer steps count more: in seconds, or in tokens if no step has them.

    Where only some steps have seconds, each step counts as much as another.
    """
    seconds = np.array([curve.seconds for curve in curves])
    if np.isnan(seconds).all():
        return [curve.step for curve in curves]
    if np.isnan(seconds).any() or (seconds <= 0).any():
        seconds = np.ones(len(curves))
    scales = [took / curve.step.last for took, curve in zip(seconds, curves, strict=True)]
    return [
        replace(curve.step, responses=scale * curve.step.responses, prompts=scale * curve.step.prompts)
        for scale, curve in zip(scales, curves, strict=True)
    ]


def completion(run: LoggedRun, found: Collected) -> Part:
    """Return what the last responses of a step take, as a finding, and the levers that win it back."""
    curves = completions(run)
    known = generation_of_run(run, found)
    if not curves:
        return _of_mean_and_longest(run, found, known)
    share = 1.0 if known is None else known  # of generation, where nothing is known of the rest
    by_ends = all(curve.counted for curve in curves)
    evidence = COUNTED if by_ends else BOUND
    how = "ends of the responses" if by_ends else "lengths, if one response has the same speed from start to end"
    steps = in_one_unit(curves)
    taken = _taken(steps, curves)
    tail_share = smallest_enough(taken)
    tail = taken[tail_share]
    last = float(np.mean([curve.left_after(tail_share)[0] for curve in curves]))
    of = float(np.mean([len(curve.step.responses) for curve in curves]))
    numbers = [
        number("tail_share_of_generation", tail, evidence, how),
        number("tail_responses", last, COUNTED, f"{tail_share:.1%} of the responses of a step, at least one"),
    ]
    seconds = np.array([curve.seconds for curve in curves])
    if not np.isnan(seconds).any():
        mean_s = float(seconds.mean())
        numbers.append(number("generation_of_step_s", mean_s, COUNTED if by_ends else DERIVED, how))
        numbers.append(number("tail_s", mean_s * tail, evidence, how))
    findings = []
    if share * tail >= WORTH_SAYING:
        unknown = np.isnan(seconds).any()
        takes = f"{tail:.0%} of generation runs" if unknown else f"{_of_seconds(float(seconds.mean()), tail)} run"
        at_most = "" if by_ends else "at most "
        few = f"at most {last:,.0f} of {counted(of, 'response')} unfinished"
        sentence = f"{_tail_of(found)}: {at_most}{takes} with {few}."
        of_what = GENERATION_TIME if known is None else TIME
        findings.append(Finding("tail", share * tail, sentence, ("tail_share_of_generation", "tail_responses"), of_what))
    levers = [
        one
        for one in _levers(run, found, steps, tail_share, taken[MOST_UNFINISHED], known)
        if one.kind != "assignment" or not mostly_tools(found)
    ]
    return Part(tuple(numbers), tuple(findings), tuple(levers))


def _of_seconds(generation_s: float, tail: float) -> str:
    digits = 0 if generation_s >= WHOLE_S else 2
    return f"{tail * generation_s:,.{digits}f} of {generation_s:,.{digits}f} s"


def _of_mean_and_longest(run: LoggedRun, found: Collected, share: float | None) -> Part:
    """The tail of a log that has the mean and the longest response alone: the empty slots are all that it bounds.

    Where more responses than slots share a GPU, slots are filled again, and nothing is bounded.
    """
    if synchronous(run) is False and np.isnan(run.column("generate_s")).all():
        return Part()  # generation never ends, so slots are filled again, too
    if mostly_tools(found):
        return Part()  # which bound nothing by lengths
    idle, per_gpu = found.numbers.value("slot_idle_share_at_most"), responses_per_gpu(run, found) or 0.0
    if idle is None:
        return _of_unknown_cause(run, found, share)
    if per_gpu > SEQUENCES:
        return _of_a_queue(run, found, share, per_gpu)
    at_stake = idle if share is None else share * idle
    if at_stake < WORTH_SAYING:
        return Part()
    of_step = generation_in_words(run, found)
    of = f"{of_step}, and " if of_step else ""
    what = "request takes" if "seconds" in found.numbers["mean_over_longest"].how else "response is"
    sentence = (
        f"{_tail_of(found)}: {of}the mean {what} {1 - idle:.0%} of the longest, so at most {idle:.0%} of the decode slots are "
        "empty until the longest ones end; how much a schedule wins of it, mean and longest do not tell."
    )
    of = GENERATION_GPU_HOURS if share is None else GPU_HOURS
    finding = Finding("tail", at_stake, sentence, ("mean_over_longest", "slot_idle_share_at_most"), of)
    return Part(_packed(found), (finding,), tuple(_assignment(run, idle, share)))


def _tail_of(found: Collected) -> str:
    """Name the tail, and say where it is one of waits for tools, or of cut lengths."""
    if mostly_tools(found):
        return "The long tail, mostly of waits for tools"
    cut = found.numbers.value("cut_share") or 0.0
    return "The long tail, of lengths as the limit cut them" if cut > CUT_IN_VERDICT else "The long tail"


def _generation(generate_s: float, step_s: float) -> str:
    return f"Generation takes {generate_s / step_s:.0%} of a step, {generate_s:,.1f} of {step_s:,.1f} s"


def _packed(found: Collected) -> tuple[Number, ...]:
    """The seconds of a step whose requests fill all slots to the end, by the mean seconds of a request."""
    step_s, generate_s, request_s = (found.numbers.value(key) for key in ("step_s", "generate_s", "request_s_mean"))
    if step_s is None or generate_s is None or request_s is None or not request_s <= generate_s <= step_s:
        return ()
    how = "the step without generation, and the mean seconds of a request: no packing of the same slots ends it sooner"
    return (number("step_packed_least_s", step_s - generate_s + request_s, BOUND, how),)


def _of_a_queue(run: LoggedRun, found: Collected, share: float | None, per_gpu: float) -> Part:
    """More responses than an engine decodes at once: what a better order of them wins at most, whatever the number of slots.

    With ``s`` slots, no order ends before the work over the slots, ``w = responses * mean / s``, nor before the longest
    response ``L``. Any order that leaves no slot empty while responses wait ends by ``w + (1 - 1/s) L`` (R. L. Graham, Bounds
    for Certain Multiprocessing Anomalies, 1966). So a better one saves at most ``1 - max(w, L) / (w + (1 - 1/s) L)``, which is
    below one half. Where fewer responses decode faster, the last ones take less of the time, and it saves less.
    """
    mean, longest = (found.numbers.value(f"response_tokens_{name}") for name in ("mean", "max"))
    if not mean or not longest:
        return _of_unknown_cause(run, found, share)
    slots = np.arange(1, max(2, int(per_gpu)))
    work = per_gpu * mean / slots
    saved = float(np.max(1.0 - np.maximum(work, longest) / (work + (1.0 - 1.0 / slots) * longest)))
    how = "a better order of a queue, for any number of slots and GPUs with equal work (Graham's bound)"
    numbers = [number("order_saves_at_most_share", saved, BOUND, f"share of generation: {how}")]
    at_most, of = (saved, GENERATION_TIME) if share is None else (share * saved, TIME)
    lever = Lever("assignment", "start long responses first", at_most, ORDER_PRICE, of)
    generate_s, step_s = (found.numbers.value(key) for key in ("generate_s", "step_s"))
    if generate_s is None or step_s is None or share is None or share < WORTH_SAYING or synchronous(run) is False:
        return Part(tuple(numbers), (), (lever,))
    least_s = step_s - saved * generate_s
    numbers.append(number("step_ordered_least_s", least_s, BOUND, f"a step with {how}"))
    sentence = (
        f"{_generation(generate_s, step_s)}. {per_gpu:,.0f} responses share a GPU, "
        f"more than the {SEQUENCES} that vLLM decodes at once by default. Where they queue for slots, "
        f"{better_order(step_s, least_s)}; mean ({mean:,.0f} tokens) and longest ({longest:,.0f}) tell no more."
    )
    unknown = "whether responses queue, and for how long slots are empty; lines of the engine (running, waiting) would tell"
    finding = Finding("cannot say", share, sentence, ("generate_s", "step_ordered_least_s"))
    return Part(tuple(numbers), (finding,), (lever,), (unknown,))


def better_order(step_s: float, least_s: float) -> str:
    """Return what a better order of queued responses saves of a step, by the least seconds that it may take; a clause."""
    return f"a better order saves 0 to {1 - least_s / step_s:.0%} (a step of {least_s:,.1f} s at least)"


def _assignment(run: LoggedRun, empty: float, share: float | None) -> Iterator[Lever]:
    """The lever of packing; none with one replica, and of several one works to the end of the longest response.

    Fuller batches decode nearly as fast, so the empty slots bound no GPU-hours. The number of replicas does.

    Args:
        empty: share of the slots until the longest response ends. share: of generation in the GPU-hours, where it is known.
    """
    replicas = _replicas(run)
    name = "assign responses by length, to as few replicas as pay off"
    if not replicas:
        yield Lever("assignment", name, empty, PACKING_PRICE, SLOTS)
    elif replicas > 1:
        of = GENERATION_GPU_HOURS if share is None else GPU_HOURS
        price = f"{PACKING_PRICE}; the most is if 1 of {replicas:,.0f} replicas took all responses in the same time"
        yield Lever("assignment", name, (1.0 if share is None else share) * (1.0 - 1.0 / replicas), price, of)


def _of_unknown_cause(run: LoggedRun, found: Collected, share: float | None) -> Part:
    """Generation that takes much of a step, where lengths do not tell what is behind it."""
    generate_s, step_s = (found.numbers.value(key) for key in ("generate_s", "step_s"))
    if generate_s is None or step_s is None or share is None or share < WORTH_SAYING:
        return Part()
    if run.responses is not None or len(run.engine) or synchronous(run) is False:
        return Part()
    column, lacks = ("mean", "mean") if "response_tokens_max" in found.numbers else ("max", "longest")
    usable = "usable " if f"response_tokens_{column}" in run.steps else ""
    limit = "" if "cut_share" in found.numbers else ", a limit"
    sentence = (
        f"{_generation(generate_s, step_s)}. Whether the engine{limit} or the longest responses are behind it, this log cannot "
        f"say: it has no {usable}{lacks} response."
    )
    return Part((), (Finding("cannot say", share, sentence, ("generate_s", "step_s")),))


def _levers(
    run: LoggedRun, found: Collected, steps: Sequence[StepEnds], tail_share: float, tenth: float, known: float | None
) -> Iterator[Lever]:
    """Carry the last responses over, drop them, release GPUs that wait for them, and assign responses by length, each at most.

    A lever is named at the smallest setting that saves nearly as much as carrying over the last tenth of the responses.

    Args:
        tail_share: that setting, of responses. tenth: share of generation that the last tenth takes.
        known: share of generation in the run's time; None where the log does not say it. Its share in the GPU-hours is the
            same, unless an executed run has it.
    """
    share, time = (1.0, GENERATION_TIME) if known is None else (known, TIME)
    executed = found.numbers.value("generate_gpu_share")
    of_gpus = known if executed is None else executed
    gpu_share, gpu_hours = (1.0, GENERATION_GPU_HOURS) if of_gpus is None else (of_gpus, GPU_HOURS)
    replicas = _replicas(run)
    carried = _of_step([carried_over(steps, part) for part in SHARES], share)
    one = _at(carried, tail_share)
    name = f"carry over the last {_responses(one.data['unfinished_responses_per_step'])}"
    yield Lever("partial rollout", name, one.at_most, _late(one, steps), time, knob=UNFINISHED, value=one.value, swept=carried)

    sampled = _of_step([over_sampled(steps, factor) for factor in FACTORS], share)
    one = _at(sampled, smallest_enough({each.value: each.at_most for each in sampled}, share * tenth))
    name = f"start {one.value:g} times the prompts, keep those that are complete first"
    yield Lever("over-sampling", name, one.at_most, _dropped(one), time, knob=STARTED, value=one.value, swept=sampled)

    if replicas is None or replicas >= 2:
        free = _of_step([released(steps, part, replicas) for part in SHARES], gpu_share)
        one = _at(free, tail_share)
        left = one.data["unfinished_responses_per_step"]
        name = f"release all replicas but one when {left:,.0f} {'response is' if round(left) == 1 else 'responses are'} left"
        yield Lever("release", name, one.at_most, RELEASE_PRICE, gpu_hours, knob=UNFINISHED, value=one.value,
                    swept=free)  # fmt: skip

    busy = sum(float(step.responses.mean()) for step in steps) / sum(step.last for step in steps)
    yield from _assignment(run, 1.0 - busy, of_gpus)


def _of_step(knobs: Sequence[Knob], share: float) -> tuple[Knob, ...]:
    """Return knobs whose savings of generation are savings of whole steps, of which it takes this share."""
    return tuple(replace(one, at_most=share * one.at_most) for one in knobs)


def _at(knobs: Sequence[Knob], value: float) -> Knob:
    return next(one for one in knobs if one.value == value)


def _late(knob: Knob, steps: Sequence[StepEnds]) -> str:
    """The price of partial rollout: what is late, and the groups that wait with it."""
    price = f"{knob.data['late_responses_share']:.2%} of the samples are learned from at least one version of the weights late"
    if all(len(step.prompts) == len(step.responses) for step in steps):
        return f"{price}; where a prompt has several, incomplete groups wait, too"
    prompts, of = knob.data["late_prompts_per_step"], float(np.mean([len(step.prompts) for step in steps]))
    return (
        f"{price}; incomplete groups wait, too: {prompts:,.0f} of {counted(of, 'prompt')}, "
        f"{knob.data['late_with_groups_share']:.0%} of the samples"
    )


def _dropped(knob: Knob) -> str:
    """The price of over-sampling: what is dropped, and how much shorter the rest is."""
    price, ratio = f"{knob.data['dropped_responses_share']:.0%} of the samples are dropped", knob.data["learned_length_ratio"]
    return f"{price}, and the rest is {1 - ratio:.0%} shorter" if ratio < 0.995 else price


def _responses(count: float) -> str:
    return "response" if count < 1.5 else f"{count:,.0f} responses"


def _taken(steps: Sequence[StepEnds], curves: Sequence[Completion]) -> dict[float, float]:
    """Return the share of generation that the last ``SHARES`` of the responses take, up to ``MOST_UNFINISHED``."""
    weights = np.array([step.last for step in steps])
    shares = [share for share in SHARES if share <= MOST_UNFINISHED]
    return {share: float(np.average([curve.left_after(share)[1] for curve in curves], weights=weights)) for share in shares}


def _replicas(run: LoggedRun) -> float | None:
    gpus = gpus_of(run)
    generate = gpus.generate or gpus.total
    return generate / (run.stated.tensor_parallel or 1) if generate else None
