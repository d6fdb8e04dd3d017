"""Groups of responses to one prompt whose rewards are all equal: GRPO and its kin learn nothing from them.

DAPO throws them away and generates until it has enough others, so that a step has several rounds of generation.
"""

from __future__ import annotations

import re

import numpy as np

from rlhfless.diagnosis.engine_speed import generation_of_run, generation_rounds
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    COUNTED,
    DERIVED,
    GENERATION_TIME,
    RESPONSES,
    TIME,
    Collected,
    Finding,
    Number,
    Part,
    counted,
    mean_of,
    number,
)

ZERO_STD = re.compile(r"rollout/zero_std/count_.+")  # slime: groups by their one reward
WORTH_SAYING = 0.2  # share of groups
ROUNDS_WORTH_SAYING = 0.05  # of the time


def groups(run: LoggedRun, found: Collected) -> Part:
    """Return the share of groups without a learning signal, or their number, and how often a step generates for others."""
    equal, thrown = _equal(run, found), _rounds(run, found)
    return Part((*equal.numbers, *thrown.numbers), (*equal.findings, *thrown.findings), notes=equal.notes)


def _rounds(run: LoggedRun, found: Collected) -> Part:
    """How often a step generates until enough groups have a signal, where that is logged, and what one round would save."""
    rounds = generation_rounds(run)
    rounds = np.where(rounds >= 1, rounds, np.nan)
    generate_s, several = run.column("generate_s"), rounds > 1
    if not several.any():
        return Part()
    numbers = [mean_of("generation_rounds", rounds, "steps", "rounds of generation")]
    each_s = generate_s / rounds
    known, share = each_s > 0, generation_of_run(run, found)
    if not known.any():
        return Part(tuple(numbers))
    round_s = float(each_s[known].mean())
    numbers.append(number("generation_round_s", round_s, DERIVED, "seconds of generation over its rounds"))
    saved = 1.0 - float(each_s[known].sum() / generate_s[known].sum())
    at_stake, of = (saved, GENERATION_TIME) if share is None else (share * saved, TIME)
    if at_stake < ROUNDS_WORTH_SAYING:
        return Part(tuple(numbers))
    sentence = (
        f"Rounds of generation: a step takes {numbers[0].value:.1f}, of {round_s:,.1f} s each, until enough prompts have "
        f"responses of different rewards; the others are thrown away. One round instead would save at most {at_stake:.0%} "
        f"of the {of}."
    )
    finding = Finding("groups", at_stake, sentence, ("generation_rounds", "generation_round_s"), of)
    return Part(tuple(numbers), (finding,))


def _equal(run: LoggedRun, found: Collected) -> Part:
    share = _counted(run) or _logged(run)
    if share is not None:
        return Part((share,), _finding(share, found))
    names = [name for name in run.steps.columns if ZERO_STD.fullmatch(str(name))]
    if not names:
        return Part()
    counts = np.nansum([run.column(name) for name in names], axis=0)
    equal = mean_of("groups_without_signal", counts, "steps", "groups of equal rewards")
    note = (
        f"In a step, the rewards of {counted(equal.value, 'group')} are equal and teach nothing; of how many groups, "
        "the log does not say "
        "(--samples-per-prompt tells)."
    )
    samples, responses = run.stated.samples_per_prompt, found.numbers.value("responses_per_step")
    if samples is None or responses is None:
        return Part((equal,), notes=(note,))
    how = f"groups of equal rewards, of {samples:,} samples each, over the responses of a step"
    share = number("no_signal_share", min(1.0, equal.value * samples / responses), DERIVED, how)
    return Part((equal, share), _finding(share, found))


def _counted(run: LoggedRun) -> Number | None:
    if run.responses is None or run.responses["reward"].isna().all():
        return None
    groups_ = run.responses.dropna(subset=["reward"]).groupby(["step", "prompt_id"])["reward"]
    several = groups_.agg(["size", "min", "max"]).query("size > 1")
    if several.empty:
        return None
    share = float((several["min"] == several["max"]).mean())
    return number("no_signal_share", share, COUNTED, f"rewards of {len(several):,} groups of the log")


def _logged(run: LoggedRun) -> Number | None:
    shares = run.column("no_signal_rate")
    return None if np.isnan(shares).all() else mean_of("no_signal_share", shares, "steps", "shares of groups of equal rewards")


def _finding(share: Number, found: Collected) -> tuple[Finding, ...]:
    if share.value < WORTH_SAYING:
        return ()
    after = found.numbers.value("learner_share")
    time_share = None if after is None else share.value * after
    takes = "" if time_share is None else f"; what follows generation spends at most {time_share:.0%} of the time on them"
    equal = f"{share.value:.0%} of them have equal rewards, so nothing is learned from them{takes}"
    sentence = f"Groups without a learning signal: {equal}."
    return (Finding("groups", share.value, sentence, ("no_signal_share",), RESPONSES, time_share),)
