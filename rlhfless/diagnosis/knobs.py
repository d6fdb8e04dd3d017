"""The levers of a long tail at several settings of their knobs, replayed on the logged ends of responses.

Each response is taken to end when it did in its own step, on the replica that it had. More responses at once decode slower, and
what is carried over takes its time in the next step, so a replay is the most that a setting can save under the run's own
assignment. No latency profile is needed.

A prompt is learned from when all its responses are complete, as advantages of a group need all of them. So where some responses
of a prompt are unfinished, the others wait with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhfless.diagnosis.numbers import Knob

UNFINISHED = "unfinished_responses_share"
"""Knob of partial rollout and of releasing replicas: responses that are unfinished when a step stops, or when replicas are
released, of all that the step starts; at least one (``unfinished_at``)."""
STARTED = "started_over_kept_prompts"
"""Knob of over-sampling: prompts that a step starts, for each that it learns from."""

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
FACTORS = (1.01, 1.02, 1.05, 1.1, 1.25, 1.5)
MOST_UNFINISHED = 0.1  # larger shares are swept, and never named
ENOUGH = 0.8  # of what carrying over the last tenth saves: the smallest setting that saves so much is named


@dataclass(frozen=True, eq=False)
class StepEnds:
    """When the responses of one step end, in seconds since its start, or in tokens where times were not logged.

    Attributes:
        responses: (r,) ends, ascending. prompts: (p,) ends of the last response of each prompt, in their order of appearance.
        sizes: (p,) responses of each prompt. tokens: (p,) of all its responses.
    """

    responses: np.ndarray
    prompts: np.ndarray
    sizes: np.ndarray
    tokens: np.ndarray

    @property
    def last(self) -> float:
        """The end of the step's generation."""
        return float(self.responses[-1])


def unfinished_at(share: float, responses: int) -> int:
    """Return how many responses of a step a share of them is: rounded down, at least one; none only for 0.

    Example:
        >>> unfinished_at(0.01, 1280), unfinished_at(0.01, 64), unfinished_at(0, 64)
        (12, 1, 0)
    """
    return max(1, math.floor(share * responses + 1e-9)) if share else 0


def smallest_enough(saved: Mapping[float, float], of: float | None = None) -> float:
    """Return the smallest setting that saves at least ``ENOUGH`` of a saving, the best one's when None.

    Where no setting saves so much, it is the best one.

    Example:
        >>> smallest_enough({0.01: 0.5, 0.05: 0.58, 0.1: 0.6}), smallest_enough({1.1: 0.2, 1.5: 0.5}, 0.9)
        (0.01, 1.5)
    """
    best = max(saved.values())
    enough = min(best, ENOUGH * (best if of is None else of))
    return min(setting for setting, share in saved.items() if share >= enough)


def carried_over(steps: Sequence[StepEnds], share: float) -> Knob:
    """Return partial rollout: a step stops when this share of its responses is unfinished, and the next one continues them.

    Where every step has one prompt only, it has nothing to learn from before that is complete, so nothing is carried over.
    """
    carries = any(len(step.prompts) > 1 for step in steps)
    spent = 0.0
    unfinished = waiting = prompts = 0
    for step in steps:
        stop = _when_left(step, unfinished_at(share if carries else 0.0, len(step.responses)))
        late = step.prompts > stop
        spent += stop
        unfinished += int(np.count_nonzero(step.responses > stop))
        waiting += int(step.sizes[late].sum())
        prompts += int(np.count_nonzero(late))
    responses = sum(len(step.responses) for step in steps)
    data = {
        "late_responses_share": unfinished / responses, "late_with_groups_share": waiting / responses,
        "unfinished_responses_per_step": unfinished / len(steps), "late_prompts_per_step": prompts / len(steps),
    }  # fmt: skip
    return Knob(share, _saved(steps, spent), data)


def over_sampled(steps: Sequence[StepEnds], factor: float) -> Knob:
    """Return over-sampling: a step starts so many times the prompts that it learns from, and drops the slowest.

    Prompts come from the log in its order, and after its end from its beginning again, as in
    ``analysis.what_ifs.over_sampling``.
    """
    wanted = [len(step.prompts) for step in steps]
    counts = [math.ceil(factor * count - 1e-9) for count in wanted]
    laps = -(-sum(counts) // sum(wanted))
    ends, sizes, tokens = (
        np.tile(np.concatenate([getattr(step, name) for step in steps]), laps) for name in ("prompts", "sizes", "tokens")
    )
    spent, taken = 0.0, 0
    learned = np.zeros(len(ends), dtype=bool)
    for keep, count in zip(wanted, counts, strict=True):
        first = np.argsort(ends[taken : taken + count], kind="stable")[:keep]
        learned[taken + first] = True
        spent += float(ends[taken + first[-1]])
        taken += count
    started = np.arange(len(ends)) < taken
    mean_learned, mean_started = (tokens[which].sum() / sizes[which].sum() for which in (learned, started))
    data = {
        "dropped_responses_share": float(sizes[started & ~learned].sum() / sizes[started].sum()),
        "learned_length_ratio": float(mean_learned / mean_started) if mean_started else 1.0,
    }
    return Knob(factor, _saved(steps, spent), data)


def released(steps: Sequence[StepEnds], share: float, replicas: float | None) -> Knob:
    """Return the release of all replicas but one once this share of responses is unfinished.

    ``at_most`` is of the GPU-seconds of generation. Where nobody knows how many replicas there are, it is as if all were
    released.
    """
    after = sum(_when_left(step, unfinished_at(share, len(step.responses))) for step in steps)
    of_generation = sum(step.last for step in steps)
    kept = (of_generation - after) / replicas if replicas else 0.0
    unfinished = sum(unfinished_at(share, len(step.responses)) for step in steps)
    data = {"unfinished_responses_per_step": unfinished / len(steps), "released_after_share": after / of_generation}
    return Knob(share, _saved(steps, after + kept), data)


def _when_left(step: StepEnds, left: int) -> float:
    """Return when at most so many responses of a step are left."""
    return float(step.responses[-left - 1]) if left < len(step.responses) else 0.0


def _saved(steps: Sequence[StepEnds], spent: float) -> float:
    return max(0.0, 1.0 - spent / sum(step.last for step in steps))
