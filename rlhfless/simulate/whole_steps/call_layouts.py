"""Layouts of preparation and learning on servers of one size, chosen by measured operators, and the work of a step with them.

A server is the GPUs of one actor. It holds whole copies of every model that is called on it, so a layout is a strategy of one
server (dp, tp, pp). Passes over responses have one layout, and trainings have one: that of the actors, or one of their own. A
learner of S servers has S times the copies, over which its optimizer state is sharded. So its memory, its gradients, and the
weights that are sent to the actors depend on S. A size whose models fit into no layout is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhfless.latency import CallTable
from solver.layouts import Call, Graph, Layout, Mesh, Strategy
from solver.layouts.graph import GENERATE, INFERENCE, TRAIN
from solver.layouts.layout import strategies
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, is_number
from solver.step.charges import Charges
from solver.step.work import TokenWork

LOAD_BYTES_PER_S = 20e9  # from host memory to a GPU, assumed


@dataclass(frozen=True)
class CallLayouts:
    """The layouts of a step's calls on servers of one size.

    Attributes:
        token_work: seconds per token, and charges of a learner by its servers. actors: layout of an actor.
        prepare: layout of passes over responses on each server. learn: of trainings on each server, by the number of the
            learner's servers from 1; None where they do not fit.
    """

    token_work: TokenWork
    actors: Strategy
    prepare: Strategy
    learn: tuple[Strategy | None, ...]


@dataclass(frozen=True)
class _Learner:
    """Trainings on so many servers in one layout, with passes over responses on the same GPUs."""

    learn_s: float  # in proportion to the responses, of all servers
    finish_s: float
    loading_s: float

    @property
    def seconds(self) -> float:
        return self.learn_s + self.finish_s


def call_layouts(
    graph: Graph,
    table: CallTable,
    cluster: Cluster,
    *,
    own: bool,
    memory_bytes: float | None = None,
    load_bytes_per_s: float = LOAD_BYTES_PER_S,
) -> CallLayouts:
    """Return the layouts of preparation and learning, and the work of a step with them.

    Args:
        graph: of a step that generates once, such as ``grpo()``. table: costs of its calls on a batch of the mean lengths.
        cluster: its actors' size is that of a server. own: choose layouts; else all calls have that of the actors.
        memory_bytes: of a GPU; as its driver reports it when None. load_bytes_per_s: from host memory to each GPU, when models
            are loaded on a server; an assumption.

    Raises:
        PlanningError: the step does not generate once, the bandwidth is none, or nothing can be learned on any number of
            servers.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import grpo
        >>> from rlhfless.latency import CallTable, StepBatch
        >>> from rlhfless.simulate.whole_steps.call_layouts import call_layouts
        >>> models = {"actor": "qwen2.5-7b", "reference": "qwen2.5-7b", "reward": "qwen2.5-7b"}
        >>> table = CallTable("l40s", models, StepBatch(256, 128, 384))
        >>> found = call_layouts(grpo(), table, Cluster(2, 8, 4, "l40s"), own=True)
        >>> [strategy is None for strategy in found.learn]
        [True, False, False, False]
    """
    if not isinstance(graph, Graph) or sum(call.kind == GENERATE for call in graph.calls) != 1:
        name = graph.name if isinstance(graph, Graph) else as_given(graph)
        raise PlanningError(f"the step of {name} does not generate exactly once; a step such as grpo() or ppo() is needed")
    if not (is_number(load_bytes_per_s, 0) and load_bytes_per_s > 0):
        raise PlanningError(f"load_bytes_per_s is {as_given(load_bytes_per_s)}; a number above 0 is needed")
    table.check_cluster(cluster)
    limit = table.gpu_memory_bytes if memory_bytes is None else memory_bytes
    bare = replace(table, options=replace(table.options, offload_bytes_per_s=None))  # loading is charged per server
    servers = _Servers(graph, bare, cluster, limit, load_bytes_per_s)
    size = cluster.gpus_per_actor
    actors = Strategy(1, size, 1)
    possible = strategies(size, 1) if own else (actors,)
    found = [one for prepare in possible if (one := servers.with_passes(prepare, possible)) is not None]
    if not found:
        raise PlanningError(
            f"the trained models of {graph.name} fit on no number of servers of {size} x {table.kind}; larger actors, smaller "
            "models or GPUs with more memory are needed"
        )
    return min(found, key=lambda one: one[0])[1]


@dataclass(frozen=True)
class _Servers:
    """Costs of a step's calls on servers of one size."""

    graph: Graph
    table: CallTable
    cluster: Cluster
    limit_bytes: float
    load_bytes_per_s: float

    @property
    def trainings(self) -> list[Call]:
        return [call for call in self.graph.calls if call.kind == TRAIN]

    @property
    def passes(self) -> list[Call]:
        return [call for call in self.graph.calls if call.kind == INFERENCE]

    def with_passes(self, prepare: Strategy, possible: Sequence[Strategy]) -> tuple[tuple[int, float], CallLayouts] | None:
        """Return the best layouts with these of passes, and their rank: sizes that do not fit, and seconds on all servers."""
        size, most, batch = self.cluster.gpus_per_actor, self.cluster.max_actors, self.table.batch
        prepare_s = sum(self.table.seconds(call, Layout(Mesh(0, size), prepare)) for call in self.passes)
        if not math.isfinite(prepare_s):
            return None
        learners: list[_Learner | None] = []
        layouts: list[Strategy | None] = []
        for servers in range(1, most + 1):
            of_size = [(one, cut) for cut in possible if (one := self._learner(servers, cut, prepare)) is not None]
            best, layout = min(of_size, key=lambda of: of[0].seconds, default=(None, None))
            learners.append(best)
            layouts.append(layout)
        if learners[-1] is None:
            return None
        full_s = min(one.learn_s * servers for servers, one in enumerate(learners, 1) if one is not None)
        tokens = batch.responses * batch.tokens
        charges = Charges(
            tuple(math.inf if one is None else one.learn_s * servers / full_s for servers, one in enumerate(learners, 1)),
            tuple(math.inf if one is None else one.finish_s for one in learners),
            tuple(math.inf if one is None else one.loading_s for one in learners),
        )
        token_work = TokenWork(prepare_s / tokens, full_s / tokens, self.graph.unlock, charges)
        rank = learners.count(None), prepare_s / most + learners[-1].seconds
        return rank, CallLayouts(token_work, Strategy(1, size, 1), prepare, tuple(layouts))

    def _learner(self, servers: int, cut: Strategy, prepare: Strategy) -> _Learner | None:
        """Return trainings on so many servers that each have these layouts; None where they do not run or fit."""
        size, all_gpus = self.cluster.gpus_per_actor, self.cluster.max_actors * self.cluster.gpus_per_actor
        layout = Layout(Mesh(0, servers * size), replace(cut, dp=servers * cut.dp))
        on_server = Layout(Mesh(0, size), prepare)
        learn_s = finish_s = kept = working = copies = 0.0
        for call in self.trainings:
            steps, update_s = self.table.updates(call, layout)
            learn_s += self.table.seconds(call, layout) - steps * update_s
            finish_s += steps * update_s
            memory = self.table.memory(call, layout)
            kept, working = kept + memory.kept, max(working, memory.working)
        for call in self.passes:
            memory = self.table.memory(call, on_server)
            trained = any(call.role == other.role for other in self.trainings) and prepare == cut
            copies, working = copies + (0.0 if trained else memory.copy), max(working, memory.working)
        if not math.isfinite(learn_s) or kept + copies + working > self.limit_bytes:
            return None
        (generate,) = (call for call in self.graph.calls if call.kind == GENERATE)
        actors = Layout(Mesh(0, all_gpus), Strategy(self.cluster.max_actors, size, 1))
        sent_s, _ = self.table.reallocate(generate.role, layout, actors)
        return _Learner(learn_s, finish_s + sent_s, (kept + copies) / self.load_bytes_per_s)
