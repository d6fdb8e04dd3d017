"""Asynchronous generation: some GPUs generate the next steps while the others learn from an earlier one.

A token is at most ``staleness`` updates older than the weights that it updates; 0 takes turns on divided GPUs. Batch j may
start to generate at version ``j - staleness`` of the weights or later, and update j learns from all of it, so nothing is
dropped. Updates interrupt running responses, which continue under the new weights and prefill again. AReaL (arXiv:2505.24298,
``rollout.max_head_offpolicyness``) does so, verl's fully async policy (``async_training.staleness_threshold``,
``async_training.partial_rollout``), and NeMo-RL (``grpo.async_grpo.in_flight_weight_updates`` with
``recompute_kv_cache_after_weight_updates``).

Frameworks that generate one batch after another (verl's one-step-off policy, OpenRLHF's ``--async_train``, ROLL's
``async_generation_ratio``, slime's ``train_async.py``) are those of ``analysis.split``. Frameworks that learn from whichever
prompts are complete first (AReaL, TRL's ``AsyncGRPOTrainer`` with ``max_staleness``) lose less time to stragglers, and learn
from them later. Here every step learns from the same responses as in the log.

All GPUs of the run are divided anew, and the best division is reported. Learning is taken to speed up in proportion to its
GPUs, and nobody checks whether it fits into their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from rlhfless.analysis.what_ifs.generation import generate
from rlhfless.analysis.what_ifs.ledger import BoolArray, TokenLedger
from rlhfless.analysis.what_ifs.outcome import DataChange, RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import checked, gpus_of, learner_gpus_of, learning_s, step_tokens, with_actors
from rlhfless.errors import InputError
from rlhfless.simulate import SimulationConfig
from solver.bounds.schedules import ScheduleBound
from solver.model.errors import as_given, is_whole
from solver.model.plurals import counted
from solver.model.workload import FloatArray

NAME = "asynchronous"
LONG_S = 1e9  # longer than any run
UNKNOWN = (
    "seconds of learning are unknown, and so is what it saves to learn meanwhile; of a log that is no executed "
    "trace, --prepare-s and --learn-s state them"
)


class DividedRun(NamedTuple):
    """Simulated steps on divided GPUs.

    Attributes:
        actors: that generate. ledger: what was generated and learned.
        sent_s: (K,) when the weights of every update have been sent.
    """

    actors: int
    ledger: TokenLedger
    sent_s: Sequence[float]

    @property
    def time_s(self) -> float:
        """Seconds of all steps."""
        return self.sent_s[-1]


def way(run: RunToChange, staleness: int = 1, generator_actors: int | None = None) -> WayOutcome:
    """Simulate the run's steps with generation and learning on GPUs of their own.

    Args:
        staleness: most updates between the weights that generate a token and those that it updates.
        generator_actors: that generate; the best number when None.

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
    fits = _divisions(run)
    if generator_actors is not None:
        if not is_whole(generator_actors, 1) or int(generator_actors) not in fits:
            raise InputError(f"generator_actors is {as_given(generator_actors)}; {_range(fits)} actors leave GPUs to learn")
        fits = [int(generator_actors)]
    change = f"Steps are generated while earlier ones are learned, at most {counted(staleness, 'update')} behind; updates "
    change += "interrupt running responses."
    if not run.phases.prepare_s + run.phases.learn_s:
        return _unknown(run, int(staleness), change)
    best = _fastest(run, int(staleness), fits)
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
        _fill_s(run, best, int(staleness)),
    )


def trainer_gpus(run: RunToChange, actors: int) -> int:
    """Return the GPUs that are left to learn beside so many actors; 0 where their number is unknown."""
    return gpus_of(run) - actors * run.setting.cluster.gpus_per_actor if learner_gpus_of(run) else 0


def update_seconds(run: RunToChange, actors: int) -> FloatArray:
    """Return (K,) seconds of preparing and learning each step on the GPUs beside so many actors, in proportion to them."""
    of_tokens, gpus = learning_s(run), trainer_gpus(run, actors)
    scale = learner_gpus_of(run) / gpus if gpus else 1.0
    return np.array([scale * of_tokens(step_tokens(step).sum()) for step in run.logged])


def with_interrupts(run: RunToChange, actors: int, staleness: int, update_s: FloatArray) -> DividedRun:
    """Simulate updates that interrupt running responses: these continue under the new weights, and prefill again.

    Responses of all batches that may start run together, those of earlier batches first, each prompt where the fewest responses
    are in flight. While weights are sent, neither side works. Actors load them in the time of a start.

    Args:
        update_s: (K,) seconds of preparing and learning each step.
    """
    setting, pool = _on(run, actors), PromptPool.of(run.logged)
    dispatch = "least-loaded" if staleness else run.setup.dispatch
    ledger, now_s = TokenLedger(pool), 0.0
    begins = np.concatenate([[0], np.cumsum(pool.prompts_of_step)])
    sent_s: list[float] = []
    for version, learn_s in enumerate(update_s.tolist()):
        prompts = np.arange(begins[version], begins[min(version + staleness + 1, len(update_s))])
        ledger.start(prompts)
        responses = ledger.unfinished(prompts)
        batch = pool.prompts_of(responses) < begins[version + 1]
        waits_s = 0.0
        if len(responses):
            generated = generate(setting, dispatch, ledger.workload(responses), partial(_learned_s, batch, learn_s))
            waits_s = _learned_s(batch, 0.0, generated.completion_s)
            ledger.generated(version, responses, generated.tokens, generated.completion_s <= waits_s + learn_s)
        ledger.learn(version, prompts[prompts < begins[version + 1]])
        now_s += waits_s + learn_s + run.phases.sync_s
        sent_s.append(now_s)
    return DividedRun(actors, ledger, sent_s)


def _divided(run: RunToChange, actors: int, staleness: int) -> DividedRun:
    return with_interrupts(run, actors, staleness, update_seconds(run, actors))


def _learned_s(batch: BoolArray, learn_s: float, completion_s: FloatArray) -> float:
    """Return when a batch has been learned: ``learn_s`` after its last response is complete."""
    return float(completion_s[batch].max(initial=0.0)) + learn_s


def _on(run: RunToChange, actors: int) -> SimulationConfig:
    fixed = run.setting.static_actors
    static = None if fixed is None else min(fixed, actors)
    return replace(run.setting, cluster=with_actors(run, actors), static_actors=static)


def _fill_s(run: RunToChange, best: DividedRun, staleness: int) -> float:
    """Return what the steps take beyond what they add to a longer run: they are simulated twice in a row as well."""
    if not staleness:
        return 0.0
    twice = _divided(replace(run, logged=(*run.logged, *run.logged)), best.actors, staleness)
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


def _fastest(run: RunToChange, staleness: int, fits: list[int]) -> DividedRun:
    """Return the fastest division. Those that a bound excludes are not simulated: generation takes at least the GPU-seconds of
    the bound of any schedule of all steps together, and learning its seconds."""
    pool = PromptPool.of(run.logged)
    everything = np.arange(len(pool.length))
    problem = run.setting.problem(pool.workload(everything, np.zeros_like(everything), pool.length))
    bound = ScheduleBound(replace(problem, cluster=with_actors(run, fits[-1])), lp_work=0)
    learn_s = {actors: float(update_seconds(run, actors).sum()) for actors in fits}
    least_gpu_s = bound.gpu_seconds(LONG_S)

    def least_s(actors: int) -> float:
        return max(learn_s[actors], least_gpu_s / (actors * run.setting.cluster.gpus_per_actor))

    first, *others = sorted(fits, key=least_s)
    best = _divided(run, first, staleness)
    for actors in others:
        least_gpu_s = bound.gpu_seconds(best.time_s)
        if least_s(actors) < best.time_s and (found := _divided(run, actors, staleness)).time_s < best.time_s:
            best = found
    return best


def _parameters(staleness: int, split: DividedRun, run: RunToChange) -> dict[str, float]:
    generators = split.actors * run.setting.cluster.gpus_per_actor
    train = trainer_gpus(run, split.actors)
    known = {"trainer_gpus": float(train)} if train else {}
    return {"staleness": float(staleness), "generator_gpus": float(generators), **known}


def _unknown(run: RunToChange, staleness: int, change: str) -> WayOutcome:
    """Return the outcome where the seconds of learning are unknown."""
    tokens = sum(int(step.truth.response_tokens.sum()) for step in run.logged)
    data = DataChange(sum(len(step.truth) for step in run.logged), tokens, tokens if staleness else 0, staleness)
    nan = float("nan")
    return WayOutcome(NAME, change, len(run.logged), nan, nan, nan, data, {"staleness": float(staleness)}, nan, UNKNOWN)
