"""Partial rollout: a step stops before its longest responses are complete, and the next step continues them first.

Nothing is dropped. What continues is prefilled again with its prompt, under the new weights, so its earlier tokens are stale.
Two rules for the stop are known:

- Enough prompts are complete, so that at most a share of the step's own prompts is carried over. slime does so with
  ``--partial-rollout``, Agent Lightning with ``async_rollout.async_train_batch_size`` above ``data.train_batch_size``.
- Every response has a budget of tokens per step (Kimi k1.5, arXiv:2501.12599, "partial rollouts"). A step learns from all
  prompts that are complete then. Where none is, it goes on for another budget under the same weights.

A prompt is complete when all its responses are, as advantages of a group (GRPO) need all of them.
"""

from __future__ import annotations

import math

import numpy as np

from rlhfless.analysis.what_ifs.collected_steps import Collected, Intake, collected, earlier_laps
from rlhfless.analysis.what_ifs.generation import generate
from rlhfless.analysis.what_ifs.ledger import TokenLedger
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import checked, learning_s
from rlhfless.errors import InputError
from solver.model.errors import as_given, is_number, is_whole
from solver.model.workload import IntArray

NAME = "partial rollout"
CARRIED = 0.2  # share of a step's prompts


def way(run: RunToChange, carried: float | None = None, token_budget: int | None = None) -> WayOutcome:
    """Simulate the run's steps with partial rollout.

    Args:
        carried: a step stops when no more than this share of its own prompts is incomplete (rounded down); 0 is the run's own
            way. ``CARRIED`` where neither is given.
        token_budget: most tokens of a response per step, instead.

    Raises:
        InputError: an argument makes no sense, both are given, or the run cannot be changed (``whole_steps.checked``).
        PlanningError: a response fits on no actor.
    """
    checked(run)
    if token_budget is not None:
        if carried is not None:
            raise InputError("carried and token_budget are both given; a step stops by one of them, so give only one")
        return _by_budget(run, token_budget)
    share = CARRIED if carried is None else carried
    if not is_number(share, 0) or share >= 1:
        raise InputError(f"carried is {as_given(share)}; a share of a step's prompts from 0 to below 1 is needed")

    def intake(wanted: int, waiting: int) -> Intake:
        return Intake(wanted, waiting + wanted - math.floor(share * wanted + 1e-9))

    steps = collected(run, _pool(run), intake, keep=True)
    change = f"A step stops when {share:.0%} of its prompts are incomplete; the next step continues them first."
    return steps.outcome(run, NAME, change, {"carried": float(share)})


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
    return Collected(ledger, seconds[earlier:]).outcome(run, NAME, change, {"token_budget": float(token_budget)})


def _generate(run: RunToChange, ledger: TokenLedger, update: int, prompts: IntArray, token_budget: int) -> float:
    """Generate up to the budget of every response of these prompts; return the seconds."""
    responses = ledger.unfinished(prompts)
    begin, length = ledger.tokens[responses], ledger.pool.length[responses]
    until = np.minimum(length, begin + token_budget)
    generated = generate(run.setting, run.setup.dispatch, ledger.pool.workload(responses, begin, until))
    ledger.generated(update, responses, generated.tokens, generated.tokens == length)
    return generated.seconds
