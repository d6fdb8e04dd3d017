"""Dynamic sampling (DAPO, arXiv:2503.14476): groups whose rewards are all equal are dropped, and others are generated instead.

Such a group has no advantage to learn from. verl (``algorithm.filter_groups``) and NeMo-RL (``use_dynamic_sampling``) generate
whole rounds of prompts until the batch is full. A round that generates more groups than the batch needs at once
(``data.gen_batch_size``, slime's ``--over-sampling-batch-size``) seldom needs a second one, and drops what is left over.

The first groups of a step are its own. Further ones are drawn from all groups of the run, with their lengths and rewards. A log
without rewards has a stated share of useless groups, which are drawn at random, whatever their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.analysis.what_ifs.changed_generation import generated_s, learned_from, whole_steps
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked
from rlhfless.errors import InputError
from rlhfless.simulate import LoggedStep, logged_steps
from solver.model.errors import as_given, is_whole

USELESS_SHARE = 0.3
"""Of a log without rewards, where nothing is stated."""
USELESS_SHARES = (0.1, 0.5)
"""The range of the same, over which times are told."""
MOST_ROUNDS = 10
SURE = 1.645  # standard deviations: a round in one go is enough in 95 % of the steps
IN_SEQUENCE = "Groups with equal rewards are dropped, and rounds of a whole batch are generated until the batch is full."
AT_ONCE = "Groups with equal rewards are dropped, and so many groups are generated at once that the batch is usually full."


class Group(NamedTuple):
    """All responses of a prompt in a step of the log; ``useful``: whether their rewards differ."""

    rows: pd.DataFrame
    useful: bool


@dataclass(frozen=True)
class Rounds:
    """Dynamic sampling of one step.

    Attributes:
        rounds: the groups of every round. learned: of all of them, in order, whether a group is learned from.
    """

    rounds: tuple[tuple[Group, ...], ...]
    learned: tuple[bool, ...]


def groups_of(run: RunToChange, useless_share: float, seed: int) -> tuple[list[list[Group]], bool]:
    """Return the groups of every step, and whether the log's rewards say which of them are useful.

    Args:
        useless_share: where the log does not have the rewards of all responses. seed: of the draws then.
    """
    by_step = [[rows for _, rows in step.rows.groupby("prompt_id", sort=False)] for step in run.logged]
    known = all("reward" in step.rows and step.rows["reward"].notna().all() for step in run.logged)
    if known:
        return [[Group(rows, rows["reward"].nunique() > 1) for rows in groups] for groups in by_step], True
    rng = np.random.default_rng(seed)
    return [[Group(rows, bool(rng.random() >= useless_share)) for rows in groups] for groups in by_step], False


def sampled(own: Sequence[Group], others: Sequence[Group], size: int, rng: np.random.Generator) -> Rounds:
    """Return the rounds of a step until as many useful groups are there as the step has groups.

    Args:
        own: groups of the step, which are generated first. others: what further ones are drawn from. size: groups of a round.

    Raises:
        InputError: the batch is not full after ``MOST_ROUNDS`` rounds.
    """
    rounds: list[tuple[Group, ...]] = []
    useful = 0
    while useful < len(own):
        if len(rounds) == MOST_ROUNDS:
            raise InputError(
                f"dynamic sampling has {useful} of {len(own)} useful groups after {MOST_ROUNDS} rounds of {size}; fewer groups "
                "with equal rewards are needed"
            )
        first = list(own[:size]) if not rounds else []
        drawn = (others[i] for i in rng.integers(0, len(others), size - len(first)))
        rounds.append((*first, *drawn))
        useful += sum(group.useful for group in rounds[-1])
    learned, left = [], len(own)
    for group in (group for groups in rounds for group in groups):
        learned.append(group.useful and left > 0)
        left -= learned[-1]
    return Rounds(tuple(rounds), tuple(learned))


def round_size(groups: int, useful_share: float) -> int:
    """Return how many groups to generate so that ``groups`` of them are useful with a probability of about 95 %.

    Example:
        >>> round_size(64, 0.5), round_size(64, 1.0)
        (151, 64)
    """
    spread = SURE * math.sqrt(useful_share * (1 - useful_share))
    root = (spread + math.sqrt(spread**2 + 4 * useful_share * groups)) / (2 * useful_share)  # of n: n u - spread sqrt(n)
    return max(groups, math.ceil(root**2 - 1e-9))


def way(
    run: RunToChange, at_once: bool = False, useless_share: float | None = None, seed: int = 0
) -> WayOutcome:
    """Return the run with dynamic sampling; one time per step of learning, as the batch has its usual size.

    Args:
        at_once: rounds generate as many groups as are usually enough (``round_size``), not only a batch.
        useless_share: share of groups with equal rewards, for a log without rewards; ``USELESS_SHARE`` when None.
        seed: of drawn groups.

    Raises:
        InputError: the share is none from 0 to 0.9, or a batch is not full after ``MOST_ROUNDS`` rounds.
    """
    stated = USELESS_SHARE if useless_share is None else useless_share
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not 0 <= stated <= 0.9:
        raise InputError(f"useless_share is {as_given(useless_share)}; a number from 0 to 0.9 is needed")
    if not is_whole(seed, 0):
        raise InputError(f"seed is {as_given(seed)}; a whole number of at least 0 is needed")
    steps, known = groups_of(checked(run), stated, seed)
    if known and useless_share is not None:
        raise InputError("useless_share is given, but the log has the rewards of all responses; leave it out")
    every = [group for groups in steps for group in groups]
    useful_share = sum(group.useful for group in every) / len(every)
    if not useful_share:
        raise InputError("no group of the log has rewards that differ, so dynamic sampling would never fill a batch")
    rng = np.random.default_rng((seed, len(every)))
    sizes = [round_size(len(groups), useful_share) if at_once else len(groups) for groups in steps]
    sampled_steps = [sampled(groups, every, size, rng) for groups, size in zip(steps, sizes, strict=True)]
    limit = run.logged[0].truth.max_response_tokens
    rounds = list(_as_steps((groups for step in sampled_steps for groups in step.rounds), limit))
    learned = list(_as_steps((_learned(step) for step in sampled_steps), limit))
    rounds_s = iter(generated_s(run, rounds, run.setup.dispatch))
    steps_s = [sum(next(rounds_s) for _ in step.rounds) for step in sampled_steps]
    words = ("dynamic sampling, at once", AT_ONCE) if at_once else ("dynamic sampling", IN_SEQUENCE)
    parameters = {"useless_share": 1 - useful_share, "rounds_per_step": len(rounds) / len(steps)}
    return whole_steps(run, words, steps_s, learned=learned, data=learned_from(learned, rounds), parameters=parameters)


def _learned(step: Rounds) -> tuple[Group, ...]:
    every = [group for groups in step.rounds for group in groups]
    return tuple(group for group, learned in zip(every, step.learned, strict=True) if learned)


def _as_steps(rounds: Iterator[Sequence[Group]], limit: int) -> Iterator[LoggedStep]:
    """Yield each round as a step of its own, without history; a prompt that is drawn twice is two prompts."""
    for number, groups in enumerate(rounds):
        rows = pd.concat(
            [group.rows.assign(step=number, prompt_id=f"{place}") for place, group in enumerate(groups)], ignore_index=True
        )
        yield from logged_steps(rows, max_response_tokens=limit)
