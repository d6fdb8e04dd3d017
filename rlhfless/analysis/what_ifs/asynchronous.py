"""Asynchronous generation: some GPUs generate the next steps while the others learn from an earlier one.

A token is at most ``staleness`` updates older than the weights that it updates; 0 takes turns on divided GPUs. Weight updates
treat running responses in one of two ways:

- ``interrupt``: they continue under the new weights and prefill again (``split_gpus.with_interrupts``). AReaL
  (arXiv:2505.24298, ``rollout.max_head_offpolicyness``) does so, verl's fully async policy
  (``async_training.staleness_threshold``, ``async_training.partial_rollout``), and NeMo-RL
  (``grpo.async_grpo.in_flight_weight_updates`` with ``recompute_kv_cache_after_weight_updates``).
- ``wait``: an update is sent between two batches (``split_gpus.between_batches``), as in verl's one-step-off policy,
  OpenRLHF's ``--async_train``, ROLL's ``async_generation_ratio`` and slime's ``train_async.py``.

Frameworks that learn from whichever prompts are complete first (AReaL, TRL's ``AsyncGRPOTrainer`` with ``max_staleness``) lose
less time to stragglers, and learn from them later. Here every step learns from the same responses as in the log.

All GPUs of the run are divided anew, and the best division is reported. Learning is taken to speed up in proportion to its
GPUs, and nobody checks whether it fits into their memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhfless.analysis.what_ifs.outcome import DataChange, RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.split_gpus import DividedRun, between_batches, update_seconds, with_interrupts
from rlhfless.analysis.what_ifs.whole_steps import checked, gpus_of, learner_gpus_of, with_actors
from rlhfless.errors import InputError
from solver.bounds.clairvoyant import clairvoyant_bound
from solver.model.errors import as_given, is_whole
from solver.model.plurals import counted

NAME = "asynchronous"
UPDATES = {"interrupt": with_interrupts, "wait": between_batches}
WORDS = {"interrupt": "interrupt running responses", "wait": "wait until a batch is complete"}
LONG_S = 1e9  # longer than any run
UNKNOWN = "seconds of learning are unknown, and so is what it saves to learn meanwhile; give --prepare-s and --learn-s"


def way(run: RunToChange, staleness: int = 1, updates: str = "interrupt", generator_actors: int | None = None) -> WayOutcome:
    """Simulate the run's steps with generation and learning on GPUs of their own.

    Args:
        staleness: most updates between the weights that generate a token and those that it updates.
        updates: ``interrupt`` or ``wait``. generator_actors: that generate; the best number when None.

    Returns:
        An outcome with ``generator_gpus`` and ``trainer_gpus`` among its parameters. Where the seconds of learning are unknown,
        times are not a number, ``unknown`` says so, and stale tokens are the most that there may be.

    Raises:
        InputError: an argument makes no sense, the GPUs cannot be divided, or the run cannot be changed
            (``whole_steps.checked``). PlanningError: a response fits on no actor.
    """
    checked(run)
    if not is_whole(staleness, 0):
        raise InputError(f"staleness is {as_given(staleness)}; a whole number of updates of 0 or more is needed")
    if updates not in UPDATES:
        raise InputError(f"updates is {as_given(updates)}; one of {', '.join(UPDATES)} is needed")
    fits = _divisions(run)
    if generator_actors is not None:
        if not is_whole(generator_actors, 1) or int(generator_actors) not in fits:
            raise InputError(f"generator_actors is {as_given(generator_actors)}; {_range(fits)} actors leave GPUs to learn")
        fits = [int(generator_actors)]
    change = f"Steps are generated while earlier ones are learned, at most {counted(staleness, 'update')} behind; updates "
    change += f"{WORDS[updates]}."
    if not run.phases.prepare_s + run.phases.learn_s:
        return _unknown(run, int(staleness), change)
    best = _fastest(run, int(staleness), updates, fits)
    ends_s = np.array(best.sent_s)
    return WayOutcome(
        NAME,
        change,
        len(run.logged),
        best.time_s,
        gpus_of(run) * best.time_s,
        best.ledger.least_time_s(run, np.diff(ends_s, prepend=0.0).tolist()),
        best.ledger.change(),
        _parameters(int(staleness), best, run),
        _fill_s(run, best, int(staleness), updates),
    )


def _fill_s(run: RunToChange, best: DividedRun, staleness: int, updates: str) -> float:
    """Return what the steps take beyond what they add to a longer run: they are simulated twice in a row as well."""
    if not staleness:
        return 0.0
    twice = UPDATES[updates](replace(run, logged=(*run.logged, *run.logged)), best.actors, staleness)
    return max(0.0, 2 * best.time_s - twice.time_s)


def _divisions(run: RunToChange) -> list[int]:
    """Return the numbers of actors that leave GPUs to learn; only the run's own where nobody knows those."""
    cluster = run.setting.cluster
    if not learner_gpus_of(run):
        return [cluster.max_actors]
    most = (gpus_of(run) - 1) // cluster.gpus_per_actor
    if not most:
        raise InputError(
            f"the run has {counted(gpus_of(run), 'GPU')} and actors of {cluster.gpus_per_actor}; GPUs for one actor and at "
            "least one more to learn are needed"
        )
    return list(range(1, most + 1))


def _range(fits: list[int]) -> str:
    return str(fits[0]) if len(fits) == 1 else f"{fits[0]} to {fits[-1]}"


def _fastest(run: RunToChange, staleness: int, updates: str, fits: list[int]) -> DividedRun:
    """Return the fastest division. Those that a bound excludes are not simulated: generation takes at least the GPU-seconds of
    the clairvoyant bound of all steps together, and learning its seconds."""
    pool = PromptPool.of(run.logged)
    everything = np.arange(len(pool.length))
    problem = run.setting.problem(pool.workload(everything, np.zeros_like(everything), pool.length))
    bound = clairvoyant_bound(replace(problem, cluster=with_actors(run, fits[-1])), work=0)
    learn_s = {actors: float(update_seconds(run, actors).sum()) for actors in fits}
    least_gpu_s = bound.gpu_seconds(LONG_S)

    def least_s(actors: int) -> float:
        return max(learn_s[actors], least_gpu_s / (actors * run.setting.cluster.gpus_per_actor))

    first, *others = sorted(fits, key=least_s)
    best = UPDATES[updates](run, first, staleness)
    for actors in others:
        least_gpu_s = bound.gpu_seconds(best.time_s)
        if least_s(actors) < best.time_s and (found := UPDATES[updates](run, actors, staleness)).time_s < best.time_s:
            best = found
    return best


def _parameters(staleness: int, split: DividedRun, run: RunToChange) -> dict[str, float]:
    generators = split.actors * run.setting.cluster.gpus_per_actor
    known = {"trainer_gpus": float(split.trainer_gpus)} if split.trainer_gpus else {}
    return {"staleness": float(staleness), "generator_gpus": float(generators), **known}


def _unknown(run: RunToChange, staleness: int, change: str) -> WayOutcome:
    """Return the outcome where the seconds of learning are unknown."""
    tokens = sum(int(step.truth.response_tokens.sum()) for step in run.logged)
    data = DataChange(sum(len(step.truth) for step in run.logged), tokens, tokens if staleness else 0, staleness)
    nan = float("nan")
    return WayOutcome(NAME, change, len(run.logged), nan, nan, nan, data, {"staleness": float(staleness)}, nan, UNKNOWN)
