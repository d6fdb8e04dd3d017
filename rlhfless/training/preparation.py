"""Makes work items of preparation (rewards, reference log-probabilities, values) and learning, and adds them to a record.

Inputs are seconds per response, actors and the step's record. In the trace, preparation has its own allocations.
``after``: preparation starts when all responses are complete, on the GPUs of generation. ``freed``: each response is prepared
once it is complete and an actor has given its GPUs back, on these (RLHFuse's inter-stage fusion, arXiv:2409.13221, section 4).
``overlap``: as soon as it is complete, on GPUs outside the cluster. All compute the same numbers; on the virtual clock only the
times differ. On the wall clock there is only ``after``, by the learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlhfless.executor import StepRecord, WorkGpus, WorkItem, WorkServer
from rlhfless.executor.step.work_rows import add_work
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


def record_phases(
    record: StepRecord,
    cluster: Cluster,
    latency: LatencyModel | None,
    tokens: np.ndarray,
    learning: Mapping[str, float],
    judging_s: float,
    config: ClusterConfig,
    *,
    server: WorkServer | None = None,
) -> None:
    """Add preparation and learning to a step's record and close it.

    Every preparing actor has its GPUs allocated from its first response to its last. The learner takes the GPUs of one actor
    when the last response is prepared. Neither is charged a start-up.

    Args:
        latency: the profile that gives the seconds; None charges the seconds measured here.
        tokens: (R,) of each response with its prompt. learning: the algorithm's numbers.
        judging_s: seconds measured here to compute all rewards.
        server: of the learner on the wall clock, which also prepares. None: on the virtual clock, where the options decide.
    """
    if latency is None:
        charge = Charge.measured(tokens, learning, judging_s)
    else:
        charge = Charge.by_profile(latency, tokens, learning, config.reward_s_per_response)
    overlaps, frees = config.preparation == "overlap", config.preparation == "freed"
    generated_s = record.end_s - record.start_s
    behind = cluster.nodes * cluster.actors_per_node
    if server is None:
        first = behind if overlaps else 0
        servers = tuple(_server(f"prepare-{k}", cluster, first + k) for k in range(config.preparation_actors))
        server = _server("learner", cluster, 0)
    else:
        servers = (server._replace(holder="prepare-0"),)
    preparing = WorkGpus("prepare", None if frees else servers, "prepare")
    learner = WorkGpus("learner", (server,), "learner")
    ready_s, clock = 0.0 if overlaps or frees else generated_s, {"clock": charge.clock}
    work = [
        WorkItem("prepare", seconds, gpus=preparing, responses=(i,), after_s=ready_s, detail=clock)
        for i, seconds in enumerate(charge.prepare_s.tolist())
    ]
    learned = {**clock, "learning": learning, "judging_s": judging_s}
    every = tuple(range(len(work)))
    work.append(WorkItem("learn", charge.learn_s, gpus=learner, items=every, after_s=generated_s, detail=learned))
    add_work(record, work, cluster)


def _server(holder: str, cluster: Cluster, place: int) -> WorkServer:
    """Return the GPUs of actor number ``place``; numbers beyond the cluster's actors mean further GPUs outside of it."""
    node, gpu_ids = cluster.place(place)
    return WorkServer(holder, gpu_ids, node)
