"""Partial rollout: a step stops before its longest responses are complete, and the next step continues them first.

Nothing is dropped. What continues is prefilled again with its prompt, under the new weights, so its earlier tokens are stale.
Three rules for the stop are known:

- Few enough responses are unfinished (``unfinished``). This is the knob that is swept, as in a diagnosis.
- Enough prompts are complete, so that at most a share of the step's own prompts is carried over (``carried``). slime does so
  with ``--partial-rollout``, Agent Lightning with ``async_rollout.async_train_batch_size`` above ``data.train_batch_size``.
- Every response has a budget of tokens per step (Kimi k1.5, arXiv:2501.12599, "partial rollouts"). A step learns from all
  prompts that are complete then. Where none is, it goes on for another budget under the same weights.

A prompt is complete when all its responses are, as advantages of a group (GRPO) need all of them. So some complete responses
wait with the unfinished ones of their groups.
"""

from __future__ import annotations

import math

import numpy as np

from rlhfless.analysis.what_ifs import swept
from rlhfless.analysis.what_ifs.collected_steps import Collected, Intake, collected, earlier_laps
from rlhfless.analysis.what_ifs.generation import generate
from rlhfless.analysis.what_ifs.ledger import TokenLedger
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import checked, learning_s
from rlhfless.diagnosis.knobs import ENOUGH, MOST_UNFINISHED, SHARES, UNFINISHED, smallest_enough, unfinished_at
from rlhfless.errors import InputError
from solver.model.errors import as_given, is_number, is_whole
from solver.model.workload import IntArray

NAME = "partial rollout"
CARRIED = "unfinished_prompts_share"
RULE = f"This is the smallest share that saves at least {ENOUGH:.0%} as much as the best share up to {MOST_UNFINISHED:.0%}."


def way(
    run: RunToChange, carried: float | None = None, token_budget: int | None = None, unfinished: float | None = None
) -> WayOutcome:
    """Simulate the run's steps with partial rollout, by one of three rules for the stop.

    Args:
        carried: a step stops when no more than this share of its own prompts is incomplete (rounded down); 0 is the run's own
            way. token_budget: most tokens of a response per step. unfinished: a step stops when no more than this share of its
            own responses is unfinished (at least one), and a prompt is complete; 0 is the run's own way.

    Raises:
        InputError: an argument makes no sense, not exactly one is given, or the run cannot be changed
            (``whole_steps.checked``). PlanningError: a response fits on no actor.
    """
    checked(run)
    rules = {"carried": carried, "token_budget": token_budget, "unfinished": unfinished}
    given = [name for name, value in rules.items() if value is not None]
    if len(given) != 1:
        raise InputError(f"{' and '.join(given) or 'nothing'} is given; a step stops by one of {', '.join(rules)}")
    if token_budget is not None:
        return _by_budget(run, token_budget)
    if unfinished is not None:
        share = _checked_share(unfinished, "unfinished", "responses")
        return _stopped_at(run, share).outcome(run, NAME, _change(share), {UNFINISHED: share})
    share = _checked_share(carried, "carried", "prompts")
    prompts = PromptPool.of(run.logged).prompts_of_step.tolist()

    def intake(step: int, waiting: int) -> Intake:
        return Intake(prompts[step], waiting + prompts[step] - math.floor(share * prompts[step] + 1e-9))

    change = f"A step stops when {share:.0%} of its prompts are incomplete; the next step continues them first."
    return collected(run, _pool(run), intake, keep=True).outcome(run, NAME, change, {CARRIED: share})


def best(run: RunToChange, own_s: float) -> WayOutcome:
    """Simulate several shares of unfinished responses, and return the one that ``RULE`` says, with all of them as ``swept``.

    Args:
        own_s: seconds of the run's own way.

    Raises:
        InputError, PlanningError: as of ``way``.
    """
    responses = [len(step.truth) for step in checked(run).logged]

    def setting(share: float) -> swept.Setting:
        counts = tuple(unfinished_at(share, count) for count in responses)
        return swept.Setting(share, counts, lambda: _stopped_at(run, share))

    found = swept.simulated(setting(share) for share in SHARES)
    by_share = swept.saved(found, own_s)
    share = smallest_enough({share: saved for share, saved in by_share.items() if share <= MOST_UNFINISHED})
    outcome = found[share].outcome(run, NAME, f"{_change(share)} {RULE}", {UNFINISHED: share})
    return swept.with_settings(run, outcome, UNFINISHED, found)


def _checked_share(share: float | None, name: str, of: str) -> float:
    if share is None or not is_number(share, 0) or share >= 1:
        raise InputError(f"{name} is {as_given(share)}; a share of a step's {of} from 0 to below 1 is needed")
    return float(share)


def _change(share: float) -> str:
    return (
        f"A step stops with {100 * share:.3g}% of its responses unfinished; these and their groups go on first in the next one."
    )


def _stopped_at(run: RunToChange, share: float) -> Collected:
    """Return steps that stop when this share of their own responses is unfinished."""
    prompts = PromptPool.of(run.logged).prompts_of_step.tolist()
    unfinished = [unfinished_at(share, len(step.truth)) for step in run.logged]
    return collected(run, _pool(run), lambda step, _: Intake(prompts[step], unfinished=unfinished[step]), keep=True)


def _pool(run: RunToChange) -> PromptPool:
    prompts = PromptPool.of(run.logged).prompts_of_step.sum()
    return PromptPool.of(run.logged, int(prompts) * (earlier_laps(run, carries=True) + 1))


def _by_budget(run: RunToChange, token_budget: int) -> WayOutcome:
    if not is_whole(token_budget, 1):
        raise InputError(f"token_budget is {as_given(token_budget)}; a whole number of at least 1 token is needed")
    pool, learn_s = _pool(run), learning_s(run)
    ledger, taken, generated_s = TokenLedger(pool), 0, 0.0
    seconds: list[float] = []
    open_prompts: IntArray = np.zeros(0, dtype=np.int64)
    earlier = earlier_laps(run, carries=True) * len(run.logged)
    for wanted in np.tile(pool.prompts_of_step, earlier_laps(run, carries=True) + 1).tolist():
        if len(seconds) == earlier:
            ledger.count_from(earlier)
        new = np.arange(taken, taken + wanted)
        ledger.start(new)
        taken, open_prompts = taken + wanted, np.concatenate([open_prompts, new])
        complete = np.zeros(len(open_prompts), dtype=bool)
        while not complete.any():
            generated_s += _generate(run, ledger, len(seconds), open_prompts, int(token_budget))
            complete = ledger.complete(open_prompts)
        after_s = learn_s(ledger.learn(len(seconds), open_prompts[complete])) + run.phases.sync_s
        seconds.append(generated_s + after_s)
        open_prompts, generated_s = open_prompts[~complete], 0.0
    change = f"A response generates at most {int(token_budget):,} tokens per step; the next step continues it first."
    steps = Collected(ledger, seconds[earlier:], repeated=len(run.logged) == 1)
    return steps.outcome(run, NAME, change, {"token_budget": float(token_budget)})


def _generate(run: RunToChange, ledger: TokenLedger, update: int, prompts: IntArray, token_budget: int) -> float:
    """Generate up to the budget of every response of these prompts; return the seconds."""
    responses = ledger.unfinished(prompts)
    begin, length = ledger.tokens[responses], ledger.pool.length[responses]
    until = np.minimum(length, begin + token_budget)
    generated = generate(run.setting, run.setup.dispatch, ledger.pool.workload(responses, begin, until))
    ledger.generated(update, responses, generated.tokens, generated.tokens == length)
    return generated.seconds
