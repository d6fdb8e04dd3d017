"""What all ways have in common: the GPUs of a run, seconds of learning by its tokens, and the least time of a step.

Seconds of preparation and learning are proportional to the tokens of a step; the log gives their average over steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.errors import InputError
from rlhfless.simulate import LoggedStep
from solver.bounds.schedules import ScheduleBound
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases
from solver.model.workload import IntArray, Workload
from solver.step.bound import LearnerBound, WholeStepBound


def checked(run: RunToChange) -> RunToChange:
    """Return the run, if ways can be simulated on it.

    Raises:
        InputError: it is no ``RunToChange``, has no steps, or its setting has more than generation without faults.
    """
    if not isinstance(run, RunToChange):
        raise InputError(f"run is of type {type(run).__name__}; a RunToChange is needed")
    if not len(run.logged):
        raise InputError("the run has no steps; at least one is needed")
    setting = run.setting
    if setting.effects is not None:
        raise InputError("the run's setting has effects; other ways are simulated without faults, so None is needed")
    if setting.work is not None or setting.phases != NonGenerationPhases():
        raise InputError("the run's setting has phases or work; give the seconds outside generation as the run's phases only")
    return run


def gpus_of(run: RunToChange) -> int:
    """Return all GPUs that the run pays for: the actors', and those of a learner of its own as far as known."""
    return run.setting.cluster.gpus + (0 if run.setup.colocated else run.setup.learner_gpus)


def learner_gpus_of(run: RunToChange) -> int:
    """Return the GPUs on which the run prepares and learns; 0 where their number is unknown."""
    return run.setup.learns_on(run.setting.cluster.gpus)


def with_actors(run: RunToChange, actors: int) -> Cluster:
    """Return a cluster of so many actors of the run's size, kind and price."""
    cluster = run.setting.cluster
    return replace(cluster, nodes=actors, gpus_per_node=cluster.gpus_per_actor)


def step_tokens(step: LoggedStep) -> IntArray:
    """Return (R,) tokens that are learned from: of each response and its prompt."""
    tokens: IntArray = step.truth.prompt_tokens[step.truth.prompt_of] + step.truth.response_tokens
    return tokens


def learning_s(run: RunToChange) -> Callable[[float], float]:
    """Return the seconds of preparation and learning, on the run's own learner GPUs, as a function of a step's tokens.

    Tokens are those of ``step_tokens``. The average over the run's own steps is that of its phases.
    """
    mean = float(np.mean([step_tokens(step).sum() for step in run.logged]))
    seconds = run.phases.prepare_s + run.phases.learn_s
    return lambda tokens: seconds * float(tokens) / mean if mean else seconds


def least_work_s(run: RunToChange, workload: Workload | None, learn_s: float, within_s: float) -> float:
    """Return a lower bound on the time in which the run's GPUs generate and learn, for any order of the work.

    It is the least time of a ``WholeStepBound`` in which any of the GPUs may do any of the work. Generation is bounded for any
    schedule (its closed form), on actors that run already and keep the KV caches of responses that have tokens.

    Args:
        workload: what is generated; None: nothing. learn_s: seconds of preparation and learning on the run's own learner GPUs.
        within_s: seconds that some schedule takes.
    """
    gpus, learner_gpus = gpus_of(run), learner_gpus_of(run)
    learn_gpu_s = learner_gpus * learn_s
    least_s = 0.0 if learner_gpus else min(learn_s, within_s)  # nobody knows how many GPUs there are to share it
    if workload is None:
        return max(least_s, learn_gpu_s / gpus)
    everything = with_actors(run, gpus // run.setting.cluster.gpus_per_actor)
    problem = replace(run.setting.problem(workload), cluster=everything, latency=_running_already(run.setting.latency))
    new = np.unique(workload.prompt_of[(workload.generated_tokens == 0) & (workload.remaining_tokens > 0)])
    generation = ScheduleBound(problem, prefill_tokens=float(workload.prompt_tokens[new].sum()), lp_work=0)
    learning = LearnerBound(1, least_s, 0.0, learn_gpu_s)
    return min(within_s, WholeStepBound(generation, lambda _: learning, 1, gpus).shortest_s())


@lru_cache(maxsize=8)  # minorants are kept by latency model
def _running_already(latency: LatencyModel) -> LatencyModel:
    """Return the latency model of actors that are running already: start-up, weight sync and joining the batch take no time."""
    return replace(latency, start_s=0.0, sync_s=0.0, join_s=0.0)
