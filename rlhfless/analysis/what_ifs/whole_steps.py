"""What all ways have in common: the GPUs of a run, seconds of learning by its tokens, and the least time of a step.

Seconds of preparation and learning are proportional to the tokens of a step; the log gives their average over steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.errors import InputError
from rlhfless.simulate import LoggedStep
from solver.bounds.clairvoyant import clairvoyant_bound
from solver.model.cluster import Cluster
from solver.model.workload import IntArray, Workload

HALVINGS = 20  # of the interval in which a least time lies: to a millionth of it


def checked(run: RunToChange) -> RunToChange:
    """Return the run, if ways can be simulated on it.

    Raises:
        InputError: it is no ``RunToChange``, has no steps, or its actors have faults.
    """
    if not isinstance(run, RunToChange):
        raise InputError(f"run is a {type(run).__name__}; a RunToChange is needed")
    if not len(run.logged):
        raise InputError("the run has no steps; at least one is needed")
    if run.setting.effects is not None:
        raise InputError("the run's setting has effects; other ways are simulated without faults, so None is needed")
    return run


def gpus_of(run: RunToChange) -> int:
    """Return all GPUs that the run pays for: the actors', and those of a learner of its own as far as known."""
    return run.setting.cluster.gpus + (0 if run.setup.colocated else run.setup.learner_gpus)


def step_tokens(step: LoggedStep) -> IntArray:
    """Return (R,) tokens that are learned from: of each response and its prompt."""
    tokens: IntArray = step.truth.prompt_tokens[step.truth.prompt_of] + step.truth.response_tokens
    return tokens


def learning_s(run: RunToChange) -> Callable[[float], float]:
    """Return the seconds of preparation and learning, on the learner's own GPUs, as a function of a step's tokens.

    Tokens are those of ``step_tokens``. The average over the run's own steps is that of its phases.
    """
    mean = float(np.mean([step_tokens(step).sum() for step in run.logged]))
    seconds = run.phases.prepare_s + run.phases.learn_s
    return lambda tokens: seconds * float(tokens) / mean if mean else seconds


def least_step_s(run: RunToChange, workload: Workload, learn_s: float, within_s: float) -> float:
    """Return a lower bound on the seconds of a step without sending its weights, for any order of its work.

    Where learner and actors share GPUs, the GPU-seconds of generation and of learning fit into the step. Else learning may
    overlap with generation on other GPUs.

    Args:
        workload: what is generated. learn_s: seconds of preparation and learning on all GPUs of the learner.
        within_s: seconds that some schedule takes.
    """
    cluster = run.setting.cluster
    learn_gpu_s = cluster.gpus * learn_s if run.setup.colocated else 0.0
    return max(learn_s, least_time_s(run, workload, cluster, learn_gpu_s, within_s))


def least_time_s(run: RunToChange, workload: Workload, cluster: Cluster, other_gpu_s: float, within_s: float) -> float:
    """Return a lower bound on the time in which a cluster generates a workload and does other work.

    It is the closed form of the clairvoyant bound (``solver.clairvoyant_bound``), at the least time that has GPU-seconds for
    both.

    Args:
        other_gpu_s: GPU-seconds of the other work. within_s: seconds that some schedule takes.
    """
    bound = clairvoyant_bound(replace(run.setting.problem(workload), cluster=cluster), work=0)
    low, high = 0.0, within_s
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        gpu_s = bound.gpu_seconds(middle) + other_gpu_s
        low, high = (middle, high) if gpu_s > cluster.gpus * middle * (1 + 1e-9) else (low, middle)
    return low
