"""Makes work items of preparation (rewards, reference log-probabilities, values) and of learning from a whole batch.

Inputs are seconds per response and the options of the cluster. In the trace, preparation has its own allocations.
``after``: preparation starts when all responses are complete, on the GPUs of generation. ``released``: each response is
prepared once it is complete and an actor has released its GPUs, on these (RLHFuse's inter-stage fusion, arXiv:2409.13221,
section 4). ``overlap``: as soon as it is complete, on GPUs outside the cluster. All compute the same numbers; on the virtual
clock only the times differ. On the wall clock there is only ``after``, by the learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rlhfless.executor import Gpus, WorkItem
from rlhfless.training.config import ClusterConfig
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel


@dataclass(frozen=True, eq=False)
class Charge:
    """Seconds charged for a step's preparation and learning.

    Attributes:
        prepare_s: (R,) for each response. learn_s: for the learner.
        clock: ``profile`` or ``measured``: the source of these seconds.
    """

    prepare_s: np.ndarray
    learn_s: float
    clock: str

    @classmethod
    def by_profile(
        cls, latency: LatencyModel, tokens: np.ndarray, learned: Mapping[str, float], reward_s_per_response: float
    ) -> Charge:
        """Return the charge from the latency profile: every pass over a token takes what a prefill of one token takes.

        Args:
            tokens: (R,) prompt and response tokens. learned: the algorithm's numbers, see ``token_counts.pass_tokens``.
            reward_s_per_response: seconds to compute the reward of one response.
        """
        per_token_s = latency.prefill_per_token_s
        shares = tokens / tokens.sum()
        prepare_s = reward_s_per_response + shares * learned.get("prepare_pass_tokens", 0.0) * per_token_s
        return cls(prepare_s, learned.get("learn_pass_tokens", 0.0) * per_token_s, "profile")

    @classmethod
    def measured(cls, tokens: np.ndarray, learned: Mapping[str, float], judging_s: float) -> Charge:
        """Return the charge from this machine's times: reward seconds split evenly, pass seconds split by tokens.

        Args:
            tokens, learned: as in ``by_profile``. judging_s: reward seconds of all responses together.
        """
        passes_s = learned.get("prepare_seconds", 0.0)
        prepare_s = judging_s / len(tokens) + tokens / tokens.sum() * passes_s
        return cls(prepare_s, learned["seconds"] - passes_s, "measured")


def batch_items(
    cluster: Cluster,
    latency: LatencyModel | None,
    tokens: np.ndarray,
    learning: Mapping[str, float],
    judging_s: float,
    config: ClusterConfig,
    *,
    generated_s: float,
    learner: Gpus | None = None,
) -> list[WorkItem]:
    """Return the work items of a step that is learned from as a batch: R preparations, then learning.

    Every preparing actor has its GPUs allocated from its first response to its last. The learner takes the GPUs of one actor
    when the last response is prepared. Neither is charged a start-up.

    Args:
        latency: the profile that gives the seconds; None charges the seconds measured here.
        tokens: (R,) of each response with its prompt. learning: the algorithm's numbers.
        judging_s: seconds measured here to compute all rewards.
        generated_s: when generation ended, in seconds from the start of the step.
        learner: GPUs of the learner on the wall clock, which also prepares. None: on the virtual clock, where the options
            decide.
    """
    if latency is None:
        charge = Charge.measured(tokens, learning, judging_s)
    else:
        charge = Charge.by_profile(latency, tokens, learning, config.reward_s_per_response)
    if learner is None:
        preparing, learner = _preparing(cluster, config), Gpus("learner", cluster.place(0)[1])
    else:
        preparing = replace(learner, name="prepare-0")
    ready_s, clock = generated_s if config.preparation == "after" else 0.0, {"clock": charge.clock}
    work = [
        WorkItem("prepare", seconds, gpus=preparing, responses=(i,), after_s=ready_s, detail=clock)
        for i, seconds in enumerate(charge.prepare_s.tolist())
    ]
    learned = {**clock, "learning": learning, "judging_s": judging_s}
    every = tuple(range(len(work)))
    return [*work, WorkItem("learn", charge.learn_s, gpus=learner, items=every, after_s=generated_s, detail=learned)]


def _preparing(cluster: Cluster, config: ClusterConfig) -> Gpus:
    """Return the GPUs of preparation on the virtual clock."""
    if config.preparation == "released":
        return Gpus("prepare", released=True)
    first = cluster.nodes * cluster.actors_per_node if config.preparation == "overlap" else 0
    return Gpus("prepare", tuple(cluster.place(first + k)[1] for k in range(config.preparation_actors)))
