"""Groups of responses to one prompt whose rewards are all equal: GRPO and its kin learn nothing from them."""

from __future__ import annotations

import re

import numpy as np

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import COUNTED, DERIVED, RESPONSES, Collected, Finding, Number, Part, counted, mean_of, number

ZERO_STD = re.compile(r"rollout/zero_std/count_.+")  # slime: groups by their one reward
WORTH_SAYING = 0.2  # share of groups


def groups(run: LoggedRun, found: Collected) -> Part:
    """Return the share of groups without a learning signal, or their number where only that is logged."""
    share = _counted(run) or _logged(run)
    if share is not None:
        return Part((share,), _finding(share))
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
    return Part((equal, share), _finding(share))


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
    shares = shares[(shares >= 0) & (shares <= 1)]
    return mean_of("no_signal_share", shares, "steps", "shares of groups of equal rewards") if len(shares) else None


def _finding(share: Number) -> tuple[Finding, ...]:
    if share.value < WORTH_SAYING:
        return ()
    equal = f"{share.value:.0%} of them have equal rewards, so nothing is learned from them"
    sentence = f"Groups without a learning signal: {equal}."
    return (Finding("groups", share.value, sentence, ("no_signal_share",), RESPONSES),)
