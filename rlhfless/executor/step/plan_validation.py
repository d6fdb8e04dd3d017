"""Checks a plan against its requests and cluster before anything is started, on either clock.

Errors are ``PlanningError`` and ``ValueError`` that name what is wrong. Engines check their own limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.requests import Requests
from solver.model.admission import Admission
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.timing.evaluate import admission_of, check_complete


@runtime_checkable
class ChecksRequests(Protocol):
    """An engine factory that checks which requests its engines can decode."""

    def check(self, requests: Sequence[Request], admission: Admission) -> None:
        """Refuse requests that an engine with this admission could not decode.

        Raises:
            ValueError: naming the response and what is wrong with it.
        """
        ...


def check_responses(plan: Plan, requests: Requests) -> None:
    """Refuse requests that do not match the plan's responses one to one; they must be ordered by ``response``.

    Raises:
        PlanningError: naming the first response that is wrong.
    """
    responses = requests.rows["response"]
    if (wrong := np.flatnonzero(responses != np.arange(len(responses)))).size:
        index, response = int(wrong[0]), int(responses[wrong[0]])
        what = (
            f"response {response} has two requests"
            if index and response == responses[index - 1]
            else f"response {index} has no request"
        )
        raise PlanningError(
            f"{what}; the {len(responses)} requests must be exactly one for each of the responses 0 to {len(responses) - 1}"
        )
    check_complete(plan, len(responses))


def check_gpus(plan: Plan, cluster: Cluster | MixedCluster) -> None:
    """Refuse actors on GPUs that the cluster does not have, or that another actor of the plan uses.

    Raises:
        PlanningError: naming the actor and the GPU.
    """
    holder: dict[int, int] = {}
    for i, actor in enumerate(plan.actors):
        for gpu in actor.gpu_ids:
            if not 0 <= gpu < cluster.gpus:
                raise PlanningError(f"actor {i} of the plan is on GPU {gpu}; the cluster has GPUs 0 to {cluster.gpus - 1} only")
            if gpu in holder:
                raise PlanningError(
                    f"GPU {gpu} belongs to actor {holder[gpu]} and to actor {i} of the plan; every actor needs GPUs of its own"
                )
            holder[gpu] = i


def check_drafting(plan: Plan, engines: Any) -> None:
    """Refuse a plan with drafts on engines that decode without them.

    Raises:
        PlanningError: naming the engines, and what to use instead.
    """
    if plan.drafting is not None and getattr(engines, "drafting", None) is None:
        name = engines.__name__ if isinstance(engines, type) else type(engines).__name__
        raise PlanningError(
            f"the plan of {plan.policy!r} drafts tokens, but {name} decodes one token per pass; engines with drafting are "
            "needed"
        )


def check_before_prefill(
    engines: ChecksRequests, plan: Plan, requests: Requests, models: Sequence[LatencyModel], admission: str
) -> None:
    """Refuse requests that their actors could not decode, before prefixes are computed for engines that have seen no request
    yet.

    Args:
        models: of the plan's actors. admission: the rule.

    Raises:
        ValueError: naming the response and what is wrong with it.
    """
    for actor, model in zip(plan.actors, models, strict=True):
        engines.check(requests.take(actor.responses), admission_of(model, actor.max_batch, admission))
