"""Places a plan's actors on nodes, near the prefill actor, and times the arrival of their prefixes.

Inputs: a plan with its prefixes, the cluster and its links; ``evaluate`` times the result.

Locality-aware placement (RLHFless, arXiv 2602.22718) runs the prefill actor on the learner's GPUs. These are allocated for the
whole step anyway and are not billed again. The longest group decodes in the same node, heavier groups nearer than lighter ones.
Here that order is the start, and any change that shortens the makespan is taken. With a busy link in the node, the network may
serve some actors sooner. Without a learner the prefill actor gets GPUs of its own next to the longest group. It is then an
``ActorPlan`` without responses, held until its last transfer is over, so that ``solver.evaluate`` bills it.

**Timing.** The prefill actor serves the longest group first, then the next. Actor i can receive when it is ready (start
and weight sync) and its prefixes are computed; its ``receive_s`` ends when they have arrived (``kv_transfer``). The paper's
inequality ``L_model(i) + L_kv(i) + L_decode(i) <= L_prefill + L_decode(1)`` says that the longest group, actor 1, is the last
to finish. The slack is that difference, with the waits that the paper leaves out: for the prefill and for a busy link. Where no
slack is below 0 the other actors add nothing to the makespan; a late one lengthens it, and ``deduplicate`` prices that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError, as_given
from solver.model.latency import LatencyModel
from solver.model.offers import latency_of
from solver.model.plan import ActorPlan, Plan, Prefill
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, IntArray
from solver.prefix_sharing.kv_transfer import (
    bandwidth_bytes_per_s,
    pool_of_node,
    prefill_done_s,
    schedule_transfers,
    transfer_coefficients,
)
from solver.prefix_sharing.node_layouts import Layouts, TimedLayout, gpu_ids_on
from solver.prefix_sharing.prefix_tree import PrefixTree
from solver.timing.build_plan import timed
from solver.timing.evaluate import admission_of, evaluate, ready_s

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Placement:
    """A placed plan of N decode actors.

    Attributes:
        plan: the N actors, then the prefill actor where it has GPUs of its own.
        longest: the actor with the longest decode. prefill_node: where the prefill actor runs; None when there is none.
        prefill_gpu_ids: its own GPUs, none on the learner's. prefill_s: when its last prefix is computed.
        transfer_s: (N,) seconds of each actor's transfer. arrives_s: (N,) when it can decode, from the start of the step.
        slack_s: (N,) seconds by which each actor is done before the longest group; below 0 it is late.
    """

    plan: Plan
    longest: int
    prefill_node: int | None
    prefill_gpu_ids: tuple[int, ...]
    prefill_s: float
    transfer_s: FloatArray
    arrives_s: FloatArray
    slack_s: FloatArray

    @property
    def late(self) -> tuple[int, ...]:
        """Return the actors that break the inequality: they are done after the longest group."""
        return tuple(np.flatnonzero(self.slack_s < -1e-9).tolist())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per decode actor (needs pandas)."""
        frame: pd.DataFrame = self.plan.to_frame()[: len(self.slack_s)]
        near = [a.node == self.prefill_node for a in self.plan.actors[: len(self.slack_s)]]
        return frame.assign(near=near, transfer_s=self.transfer_s, arrives_s=self.arrives_s, slack_s=self.slack_s)

    def __repr__(self) -> str:
        where = "no prefill actor"
        if self.prefill_node is not None:
            gpus = f"GPUs {','.join(map(str, self.prefill_gpu_ids))}" if self.prefill_gpu_ids else "the learner's GPUs"
            where = f"prefill on {gpus} in node {self.prefill_node}, done at {self.prefill_s:.2f} s"
        lines = [
            f"Placement: {where}; actor {self.longest} has the longest group; {counted(len(self.late), 'actor')} later than it"
        ]
        for i, (actor, t, at, slack) in enumerate(
            zip(self.plan.actors, self.transfer_s, self.arrives_s, self.slack_s, strict=False)
        ):
            lines.append(
                f"  actor {i}: node {actor.node}, transfer {t:.3f} s, decodes from {at:.2f} s to {actor.predicted_s:.2f} s, "
                f"slack {slack:.2f} s"
            )
        return "\n".join([*lines[:9], *([f"  ... and {len(lines) - 9} more actors"] if len(lines) > 9 else [])])


def check_learner_node(cluster: Cluster | MixedCluster, learner_node: int | None) -> None:
    """Refuse a node of the learner that the cluster does not have.

    Raises:
        PlanningError: it has no such node.
    """
    nodes = sum(pool.nodes for pool in cluster.pools)
    if learner_node is not None and not 0 <= learner_node < nodes:
        raise PlanningError(f"learner_node is {as_given(learner_node)}; the cluster has nodes 0 to {nodes - 1}")


def retimed(plan: Plan, problem: PlanningProblem) -> Plan:
    """Return the plan with the times that ``evaluate`` gives it.

    If they differ from the plan's own, its value and its bound are removed. They were for other waits, and bounds charge every
    response its own prefill.
    """
    evaluated = timed(plan, problem)
    if (evaluated.makespan_s, evaluated.gpu_seconds) == (plan.makespan_s, plan.gpu_seconds):
        return evaluated
    return replace(evaluated, value=None, lower_bound=None, status="heuristic")


def place(
    plan: Plan,
    problem: PlanningProblem,
    *,
    tree: PrefixTree | None = None,
    learner_node: int | None = None,
    prefill_latency: LatencyModel | None = None,
    streamed: bool = True,
    late_start: bool = False,
) -> Placement:
    """Return the plan with its actors on nodes and the waits for their prefixes, timed by ``evaluate``.

    Args:
        plan: for ``problem``. Its actors' ``prefixes`` and ``prefix_tokens`` say what each receives, and so what is computed; a
            plan without any is placed all the same.
        tree: the workload's prefix tree, so that shared tokens are computed and sent once; None when prompts share nothing.
        learner_node: node of the learner's GPUs, which the prefill actor uses; None gives it GPUs of its own.
        prefill_latency: times of the prefill actor; None takes those of the longest group's actor.
        streamed: caches are sent as soon as an actor's prefixes are computed; else after the whole prefill, as in the paper.
        late_start: allocate an actor's GPUs only so early that it is ready when its transfer starts.

    Raises:
        PlanningError: the actors do not fit, or an argument makes no sense.
    """
    check_problem(problem)
    check_learner_node(problem.cluster, learner_node)
    if not any(a.responses for a in plan.actors):
        raise PlanningError("the plan has no actors with responses; there is nothing to place")
    tree = PrefixTree.of_lengths(problem.workload.prompt_tokens) if tree is None else tree
    return _Placer(problem, tree, learner_node, prefill_latency, streamed, late_start).place(plan)


@dataclass(frozen=True, eq=False)
class _Placer:
    """Places plans for the fixed arguments of ``place``."""

    problem: PlanningProblem
    tree: PrefixTree
    learner_node: int | None
    prefill_latency: LatencyModel | None
    streamed: bool
    late_start: bool

    def place(self, plan: Plan) -> Placement:
        """Return the placement of least makespan, then of least GPU-seconds, then with most of the heaviest actors near."""
        actors = tuple(replace(a, receive_s=0.0) for a in plan.actors if a.responses)  # drops the actor of an earlier prefill
        problem, cluster = self.problem, self.problem.cluster
        models = [latency_of(problem.latency, a.kind, len(a.gpu_ids)) for a in actors]
        ready = np.array([ready_s(m, a.prewarmed) for a, m in zip(actors, models, strict=True)])
        start = np.array([a.start_s for a in actors])
        decode = evaluate(replace(plan, actors=actors), problem).done_s - start - ready
        order = np.argsort(-decode, kind="stable")
        longest = int(order[0])
        has_prefixes = any(len(a.prefixes) for a in actors)
        needs_gpus = has_prefixes and self.learner_node is None
        prefill_actor = self._prefill_actor_like(actors[longest], models[longest]) if needs_gpus else None
        prefill_gpus = 0 if prefill_actor is None else len(prefill_actor.gpu_ids)
        layouts = Layouts.of(actors, cluster, order.tolist(), self.learner_node, prefill_gpus)
        source = layouts.near_node
        new_tokens, received, computed_tokens = self._tokens(actors, order)
        begin_s = 0.0 if prefill_actor is None else ready_s(models[longest], prefill_actor.prewarmed)
        computed = np.empty(len(actors))
        computed[order] = prefill_done_s(new_tokens[order], self.prefill_latency or models[longest], begin_s, self.streamed)
        near, far = (self._link_times(actors, models, source, received, same_node) for same_node in (True, False))
        gpus = np.array([len(a.gpu_ids) for a in actors])

        def timed_layout(nodes: list[int]) -> TimedLayout:
            is_near = np.array(nodes) == source
            can_receive = start + ready + np.where(is_near, near[1], far[1])
            release = np.where(received > 0, np.maximum(can_receive, computed), can_receive)
            transfer = np.where(is_near, near[0], far[0])
            sent_at, arrives = schedule_transfers(release, transfer, decode, is_near.tolist())
            starts = start + np.maximum(sent_at - can_receive, 0.0) if self.late_start else start
            done = arrives + decode
            score = float(done.max()), float((gpus * (done - starts)).sum())
            return TimedLayout(nodes, transfer, arrives, starts, done, score)

        best = layouts.fastest(timed_layout)
        sizes, nodes = gpus.tolist(), list(best.nodes)
        if prefill_actor is not None:
            sizes, nodes = [*sizes, prefill_gpus], [*nodes, source]
        ids = gpu_ids_on(cluster, nodes, sizes)
        wait = np.maximum(best.arrives_s - best.start_s - ready, 0.0)
        placed = [
            replace(a, node=node, gpu_ids=gpu, start_s=s, receive_s=w)
            for a, node, gpu, s, w in zip(actors, best.nodes, ids, best.start_s.tolist(), wait.tolist(), strict=False)
        ]
        prefill_s = float(computed.max()) if has_prefixes else 0.0
        if prefill_actor is not None:  # held until its last transfer ends
            until = max(float(best.arrives_s[received > 0].max(initial=0.0)), prefill_s)
            placed.append(replace(prefill_actor, node=source, gpu_ids=ids[-1], receive_s=until - begin_s))
        prefill = _prefill(actors, computed_tokens, prefill_s) if has_prefixes else None
        return Placement(
            retimed(replace(plan, actors=tuple(placed), prefill=prefill), problem), longest,
            source if has_prefixes or self.learner_node is not None else None, () if prefill_actor is None else ids[-1],
            prefill_s, best.transfer_s, best.arrives_s, best.done_s[longest] - best.done_s,
        )  # fmt: skip

    def _tokens(self, actors: Sequence[ActorPlan], order: IntArray) -> tuple[IntArray, IntArray, int]:
        """Return (N,) tokens that the prefill actor computes for each actor in that order, (N,) tokens that each
        receives, and the total that it computes."""
        covered = np.array([self.tree.covered(a.prefixes, a.prefix_tokens) for a in actors])
        new_tokens: IntArray = np.zeros(len(actors), np.int64)
        computed: IntArray = np.zeros(len(self.tree), np.int64)
        for i in order.tolist():
            new_tokens[i] = np.maximum(covered[i] - computed, 0).sum()
            computed = np.maximum(computed, covered[i])
        return new_tokens, covered.sum(axis=1), int(computed.sum())

    def _link_times(
        self, actors: Sequence[ActorPlan], models: Sequence[LatencyModel], source: int, received: IntArray, same_node: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return (N,) seconds of each actor's transfer over the link within or between nodes, and the (N,) delay of its
        weights beyond the latency model's sync.

        The delay needs the weights' bytes, the link and the learner's node; otherwise it is 0.
        """
        source_pool = pool_of_node(self.problem.cluster, source)
        transfer_s, weight_delay_s = [], []
        for actor, model, tokens in zip(actors, models, received.tolist(), strict=True):
            speed = bandwidth_bytes_per_s(source_pool, pool_of_node(self.problem.cluster, actor.node), same_node)
            base, per_token = transfer_coefficients(model, speed)
            transfer_s.append(base + per_token * tokens if tokens else 0.0)
            sends_weights = speed and self.learner_node is not None
            weight_delay_s.append(max(0.0, model.weight_bytes / speed - model.sync_s) if sends_weights and speed else 0.0)
        return np.array(transfer_s), np.array(weight_delay_s)

    def _prefill_actor_like(self, actor: ActorPlan, model: LatencyModel) -> ActorPlan:
        """Return a prefill actor of the same kind and size as a decode actor, to be placed on GPUs of its own."""
        slots = admission_of(model).max_batch
        return replace(
            actor, responses=(), prompts=(), prefixes=(), prefix_tokens=(), max_batch=slots, start_s=0.0, prewarmed=False
        )  # fmt: skip


def _prefill(actors: Sequence[ActorPlan], computed_tokens: int, done_s: float) -> Prefill:
    """Return the prefixes computed once: of every prompt the longest prefix that an actor receives."""
    longest: dict[int, int] = {}
    for actor in actors:
        for prompt, tokens in zip(actor.prefixes, actor.prefix_tokens, strict=True):
            longest[prompt] = max(tokens, longest.get(prompt, 0))
    prompts = tuple(sorted(longest))
    return Prefill(prompts, tuple(longest[p] for p in prompts), computed_tokens, done_s)
