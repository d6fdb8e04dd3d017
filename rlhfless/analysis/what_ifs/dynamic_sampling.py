"""Dynamic sampling (DAPO, arXiv:2503.14476): groups whose rewards are all equal are dropped, and others are generated instead.

Such a group has no advantage to learn from. verl (``algorithm.filter_groups``) and NeMo-RL (``use_dynamic_sampling``) generate
whole rounds of prompts until the batch is full. A round that generates more groups than the batch needs at once
(``data.gen_batch_size``, slime's ``--over-sampling-batch-size``) seldom needs a second one, and drops what is left over.

The first groups of a step are its own. Further ones are drawn from all groups of the run, with their lengths and rewards. In a
log without rewards useless groups are drawn at random, whatever their lengths: as many as its scalars say, else as are stated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.analysis.what_ifs.changed_generation import generated_s, learned_from, whole_steps, whole_time_s
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked
from rlhfless.errors import InputError
from rlhfless.simulate import LoggedStep, logged_steps
from solver.model.errors import as_given, is_number, is_whole
from solver.model.workload import IntArray

USELESS_SHARE = 0.3
"""Of a log without rewards, where nothing is stated."""
MOST_USELESS = 0.9
USELESS_SHARES = (0.1, 0.5)
"""The range of the same, over which times are told."""
ASSUMED = f"The log has no rewards: {USELESS_SHARE:.0%} such groups are assumed."
COUNTED = "The log has no rewards of single responses; {share:.0%} of its groups are such, which are drawn at random."
ONE_EACH = (
    "every prompt has one response, so there are no groups whose rewards could differ; of a log of scalars, "
    "--samples-per-prompt N states their size"
)
MOST_ROUNDS = 10
SURE = 1.645  # standard deviations: a round in one go is enough in 95 % of the steps
IN_SEQUENCE = "Groups with equal rewards are dropped, and rounds of a whole batch are generated until the batch is full."
AT_ONCE = "Groups with equal rewards are dropped, and so many groups are generated at once that the batch is usually full."


class SampledGroup(NamedTuple):
    """All responses of a prompt in a step of the log.

    Attributes:
        at: their rows in the table of all steps. useful: whether their rewards differ.
    """

    at: IntArray
    useful: bool


@dataclass(frozen=True, eq=False)
class Rounds:
    """Dynamic sampling of one step.

    Attributes:
        rounds: the groups of every round. learned: those that are learned from.
    """

    rounds: tuple[tuple[SampledGroup, ...], ...]
    learned: tuple[SampledGroup, ...]


def groups_of(rows: pd.DataFrame, useless_share: float, rng: np.random.Generator) -> list[list[SampledGroup]]:
    """Return the groups of every step.

    Args:
        rows: of all steps. useless_share, rng: of groups without rewards, how many are useless, and their draws.
    """
    group = rows.groupby(["step", "prompt_id"], sort=False).ngroup().to_numpy()  # in order of appearance
    at = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    rewards = rows["reward"].to_numpy(dtype=float) if has_rewards(rows) else None
    steps: dict[int, list[SampledGroup]] = {}
    for rows_at, step in zip(at, rows["step"].to_numpy()[[rows_at[0] for rows_at in at]].tolist(), strict=True):
        useful = rng.random() >= useless_share if rewards is None else np.ptp(rewards[rows_at]) > 0
        steps.setdefault(step, []).append(SampledGroup(rows_at, bool(useful)))
    return list(steps.values())


def has_rewards(rows: pd.DataFrame) -> bool:
    """Return whether every response has its reward."""
    return "reward" in rows and bool(rows["reward"].notna().all())


def sampled(own: Sequence[SampledGroup], others: Sequence[SampledGroup], size: int, rng: np.random.Generator) -> Rounds:
    """Return the rounds of a step until as many useful groups are there as the step has groups.

    Args:
        own: groups of the step, which are generated first. others: what further ones are drawn from. size: groups of a round.

    Raises:
        InputError: the batch is not full after ``MOST_ROUNDS`` rounds.
    """
    rounds: list[tuple[SampledGroup, ...]] = []
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
    learned = [group for groups in rounds for group in groups if group.useful]
    return Rounds(tuple(rounds), tuple(learned[: len(own)]))


def round_size(groups: int, useful_share: float) -> int:
    """Return how many groups to generate so that ``groups`` of them are useful with a probability of about 95 %.

    Example:
        >>> round_size(64, 0.5), round_size(64, 1.0)
        (149, 64)
    """
    spread = SURE * math.sqrt(useful_share * (1 - useful_share))
    root = (spread + math.sqrt(spread**2 + 4 * useful_share * groups)) / (2 * useful_share)  # of n: n u - spread sqrt(n)
    return max(groups, math.ceil(root**2 - 1e-9))


def way(run: RunToChange, at_once: bool = False, useless_share: float | None = None, seed: int = 0) -> WayOutcome:
    """Return the run with dynamic sampling; one time per step of learning, as the batch has its usual size.

    Args:
        at_once: rounds generate as many groups as are usually enough (``round_size``), not only a batch.
        useless_share: share of groups with equal rewards, for a log without rewards; when None that of the run, else
            ``USELESS_SHARE``.
        seed: of drawn groups.

    Raises:
        InputError: the share is none from 0 to 0.9, no prompt has several responses, or a batch is not full after
            ``MOST_ROUNDS`` rounds.
    """
    simulated = _simulated(run, at_once, useless_share, seed)
    words = ("dynamic sampling, at once", AT_ONCE) if at_once else ("dynamic sampling", IN_SEQUENCE)
    return whole_steps(
        run, words, simulated.steps_s, learned=simulated.learned, data=learned_from(simulated.learned, simulated.rounds),
        parameters={"useless_share": simulated.useless_share, "rounds_per_step": len(simulated.rounds) / len(run.logged)},
    )  # fmt: skip


class _Simulated(NamedTuple):
    """Simulated steps: seconds of generation of each, what each learns from, all rounds, and the share of useless groups."""

    steps_s: list[float]
    learned: list[LoggedStep]
    rounds: list[LoggedStep]
    useless_share: float


def _simulated(run: RunToChange, at_once: bool, useless_share: float | None, seed: int) -> _Simulated:
    """Simulate the steps of ``way``; the same arguments and errors."""
    logged = USELESS_SHARE if run.useless_share is None else run.useless_share
    stated = logged if useless_share is None else useless_share
    if useless_share is not None and (not is_number(useless_share, 0) or useless_share > MOST_USELESS):
        raise InputError(f"useless_share is {as_given(useless_share)}; a number from 0 to {MOST_USELESS} is needed")
    if stated > MOST_USELESS:
        raise InputError(
            f"the rewards of {stated:.0%} of the log's groups are equal, so that a step would sample more than "
            f"{1 / (1 - MOST_USELESS):.0f} times its prompts; at most {MOST_USELESS:.0%} can be simulated"
        )
    if not is_whole(seed, 0):
        raise InputError(f"seed is {as_given(seed)}; a whole number of at least 0 is needed")
    rows = pd.concat([step.rows for step in checked(run).logged], ignore_index=True)
    if useless_share is not None and has_rewards(rows):
        raise InputError("useless_share is given, but the log has the rewards of all responses; leave it out")
    rng = np.random.default_rng((seed, len(rows)))
    steps = groups_of(rows, stated, rng)
    every = [group for groups in steps for group in groups]
    if all(len(group.at) == 1 for group in every):
        raise InputError(ONE_EACH)
    useful_share = sum(group.useful for group in every) / len(every)
    if not useful_share:
        raise InputError("no group of the log has rewards that differ, so dynamic sampling would never fill a batch")
    sizes = [round_size(len(groups), useful_share) if at_once else len(groups) for groups in steps]
    sampled_steps = [sampled(groups, every, size, rng) for groups, size in zip(steps, sizes, strict=True)]
    limit = run.logged[0].truth.max_response_tokens
    rounds = list(_as_steps(rows, [groups for step in sampled_steps for groups in step.rounds], limit))
    learned = list(_as_steps(rows, [step.learned for step in sampled_steps], limit))
    rounds_s = iter(generated_s(run, rounds, run.setup.dispatch))
    steps_s = [sum(next(rounds_s) for _ in step.rounds) for step in sampled_steps]
    return _Simulated(steps_s, learned, rounds, 1 - useful_share)


def with_range(run: RunToChange, at_once: bool = False) -> WayOutcome:
    """Return ``way``; where nobody knows the share of useless groups with the parameters ``low_s`` and ``high_s``, its times
    over ``USELESS_SHARES``.

    Raises:
        InputError: as of ``way``.
    """
    outcome = way(run, at_once)
    if all(has_rewards(step.rows) for step in run.logged):
        return outcome
    if run.useless_share is not None:
        return replace(outcome, change=f"{outcome.change} {COUNTED.format(share=run.useless_share)}")
    ends = (_simulated(run, at_once, share, 0) for share in USELESS_SHARES)
    times_s = [outcome.time_s, *(whole_time_s(run, end.steps_s, end.learned) for end in ends)]
    of_time = {"low_s": min(times_s), "high_s": max(times_s)}
    return replace(outcome, change=f"{outcome.change} {ASSUMED}", parameters={**outcome.parameters, **of_time})


def _as_steps(rows: pd.DataFrame, rounds: Sequence[Sequence[SampledGroup]], limit: int) -> Iterator[LoggedStep]:
    """Yield each round as a step of its own, without history; a prompt that is drawn twice is two prompts."""
    for number, groups in enumerate(rounds):
        names = np.repeat([f"{place}" for place in range(len(groups))], [len(group.at) for group in groups])
        drawn = rows.iloc[np.concatenate([group.at for group in groups])]
        yield from logged_steps(drawn.assign(step=number, prompt_id=names), max_response_tokens=limit)
