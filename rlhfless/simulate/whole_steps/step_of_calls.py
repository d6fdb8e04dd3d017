"""Makes a whole step whose costs are those of its model calls, so that plans choose the actors' size and layouts, too.

Latency of actors of every size and the seconds of preparation and learning have one source: the tables of measured operators.
Weights are sent from the learner's layout to the actors' at the end of a step, which the learner is charged for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhfless.latency import CallTable, generation_latency
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.whole_steps.call_layouts import LOAD_BYTES_PER_S, CallLayouts, call_layouts
from rlhfless.simulate.whole_steps.generations import WholeStepPlan
from rlhfless.simulate.whole_steps.whole_step import StepVariant, WholeStep
from solver.layouts import Graph
from solver.model.errors import PlanningError
from solver.model.step_levers import ACTOR_SIZE, LAYOUTS


@dataclass(frozen=True, eq=False)
class StepOfCalls:
    """A whole step, with the layouts of its model calls.

    Attributes:
        step: the step to plan and execute. layouts: layouts of its own setting, and of each variant.
    """

    step: WholeStep
    layouts: tuple[CallLayouts, ...]

    def words(self, plan: WholeStepPlan) -> str:
        """Return the plan in words: number of actors, size of the learner, and the layouts of the model calls."""
        layouts, actors = self.layouts[plan.variant], len(plan.generation.plan.actors)
        servers = plan.learner.servers(actors)
        learn = layouts.learn[servers - 1]
        gpus = self.step.of_plan(plan).gpus_per_actor
        return (
            f"{actors} x {gpus} GPUs decode as {layouts.actors} (dp x tp x pp); {servers} x {gpus} GPUs learn, each as "
            f"{learn}, and prepare as {layouts.prepare}"
        )


def step_of_calls(
    logged: LoggedStep,
    setting: SimulationConfig,
    graph: Graph,
    table: CallTable,
    *,
    memory_bytes: float | None = None,
    load_bytes_per_s: float = LOAD_BYTES_PER_S,
) -> StepOfCalls:
    """Return a whole step, with a variant for every actor size that can decode and learn, each with its best layouts.

    Args:
        logged: the step.
        setting: gives the cluster and the start-up seconds of an actor. Its actor size is the step's own, or else the smallest
            size that can learn in the actors' layout. Latencies of all sizes come from the table.
        graph, table, memory_bytes, load_bytes_per_s: see ``call_layouts``.

    Raises:
        PlanningError: the step does not generate once, or no size of actors can decode and learn.

    Example:
        >>> import rlhfless as rl
        >>> from rlhfless.latency import CallTable, StepBatch
        >>> from rlhfless.simulate.whole_steps.step_of_calls import step_of_calls
        >>> from solver.layouts import grpo
        >>> planned = rl.load(rl.example(), gpus=8, profile="h100-qwen2.5-3b-tp1", verbose=False).plan()
        >>> models = dict.fromkeys(("actor", "reference", "reward"), "qwen2.5-3b")
        >>> table = CallTable("h100", models, StepBatch(256, 20, 40))
        >>> "actor size" in step_of_calls(planned.logged, planned.setting, grpo(), table).step.levers()
        True
    """
    latency = generation_latency(table)
    found: dict[int, dict[bool, CallLayouts]] = {}
    settings: dict[int, SimulationConfig] = {}
    refused: PlanningError | None = None
    for size, model in sorted(latency.items()):
        if setting.cluster.gpus_per_node % size:
            continue
        cluster = replace(setting.cluster, gpus_per_actor=size)
        started = replace(model, start_s=setting.latency.start_s)
        settings[size] = replace(setting, cluster=cluster, latency=started, planned_latency=None, drafts=None)
        for own in (False, True):
            try:
                layouts = call_layouts(
                    graph, table, cluster, own=own, memory_bytes=memory_bytes, load_bytes_per_s=load_bytes_per_s
                )
            except PlanningError as error:
                refused = error
                continue
            found.setdefault(size, {})[own] = layouts
    plain = [size for size, of in found.items() if False in of]
    if not plain:
        raise refused or PlanningError(
            f"no tensor-parallel size of the table ({', '.join(map(str, latency))}) divides the "
            f"{setting.cluster.gpus_per_node} GPUs of a node"
        )
    size = setting.cluster.gpus_per_actor if setting.cluster.gpus_per_actor in plain else plain[0]
    base = found[size][False]
    variants, every = [], [base]
    for other, of_size in found.items():
        for own, layouts in of_size.items():
            if layouts is base or (own and False in of_size and _equal(layouts, of_size[False])):
                continue
            levers = frozenset({ACTOR_SIZE} if other != size else ()) | frozenset({LAYOUTS} if own else ())
            variants.append(StepVariant(settings[other], layouts.token_work, levers))
            every.append(layouts)
    return StepOfCalls(WholeStep(logged, settings[size], base.token_work, variants), tuple(every))


def _equal(one: CallLayouts, other: CallLayouts) -> bool:
    return (one.prepare, one.learn) == (other.prepare, other.learn)
