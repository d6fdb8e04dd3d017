"""``ActorPool``: checks, prepares and runs a run's steps on remote actors, and keeps actors between steps.

It is independent of the transport; ``local/pool.py`` and ``ray/pool.py`` start and end actors. Any exception that ends a step
early (too many lost actors, Ctrl-C) ends every actor.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, cast

from rlhfless.engine.protocol import Request
from rlhfless.executor.distributed.executor import WallStep
from rlhfless.executor.distributed.failure_limits import Faults
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, Block, Order, Prewarm, Started
from rlhfless.executor.distributed.orders import WallOptions
from rlhfless.executor.distributed.pool.lifecycle import Lifecycle
from rlhfless.executor.distributed.pool.placement import ActorHandle, ActorPlacement
from rlhfless.executor.distributed.pool.warm_pool import WarmPool
from rlhfless.executor.distributed.step_actors import StepActors
from rlhfless.executor.distributed.wall_clock import MACHINE, Clock
from rlhfless.executor.distributed.worker.backend import (
    RemoteEngines,
    WorkerBackend,
    kept_memory,
    prefix_refusal,
    remote_engines,
)
from rlhfless.executor.step.plan_validation import ChecksRequests, check_before_prefill, check_drafting
from rlhfless.executor.step.progress import OnProgress
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.step_state import StepOptions
from rlhfless.executor.step.step_trace import executed_with
from rlhfless.executor.step.work_items import WorkItem, WorkServer
from rlhfless.system.cleanup import clean_up
from solver.lengths.remaining import RemainingLengths
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.objective import NonGenerationPhases
from solver.model.offers import Latencies, latency_of
from solver.model.plan import ActorPlan, Plan


class ActorPool(ABC, Generic[ActorHandle]):
    """Actors for a run's steps; use it in a ``with`` statement, or ``close`` it. It also launches the actors of its warm pool.

    Seconds are those of the run since its start, also between steps. A step starts when ``run_step`` is called, so GPUs that
    were allocated meanwhile are charged. Call ``finalise_allocations`` when the other phases of a step are over and before its
    record is kept.

    Args:
        lifecycle: how long actors live.
        faults: how actors that die, hang or are slow are handled.
        clock: the run's clock.
    """

    def __init__(self, lifecycle: Lifecycle, faults: Faults, clock: Clock = MACHINE) -> None:
        self.faults, self.clock = faults, clock
        self._idle: WarmPool[ActorHandle] = WarmPool(self, lifecycle)
        self._origin_s = math.nan
        self._bound: tuple[str, Any] | None = None  # the actors' backend module and its own bindings
        self._last_engines: tuple[Any, Latencies] | None = (
            None  # engines of the last step, for actors that start ahead of the next
        )
        self._under_way: StepActors[ActorHandle] | None = None  # of the step under way
        self._step: WallStep | None = None  # which is this

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        clean_up(self.close, after=error)

    @property
    def lifecycle(self) -> Lifecycle:
        """Return how long actors live."""
        return self._idle.lifecycle

    @property
    def working(self) -> list[int]:
        """Return the process ids of the actors of the running step, as far as they are known."""
        step_actors = self._under_way
        return [] if step_actors is None else step_actors.working

    def run_step(
        self,
        plan: Plan,
        requests: Sequence[Request],
        engines: Any,
        latency: Latencies,
        cluster: Cluster | MixedCluster,
        *,
        run: str = "run",
        step: int = 0,
        start_s: float = 0.0,
        phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
        admission: str = "reserve",
        migration: str = "cheaper",
        forecast: RemainingLengths | None = None,
        work: Sequence[WorkItem] = (),
        on_progress: OnProgress | None = None,
    ) -> StepRecord:
        """Run ``plan`` on real devices in real time and record everything; arguments as for ``rlhfless.executor.run_step``.

        Args:
            engines: a ``TorchEngineFactory`` or a ``VllmEngineFactory``, whose current weights are sent to every actor (hooks
                of a model stay in this process). They are the step's weights, and an actor with others counts as lost.
                Iteration times are real. Or a ``SimulatedEngineFactory``, whose actors sleep instead of computing.
            latency: slots and memory, whether moving a KV cache or recomputing it is cheaper, and how long an actor may be
                silent; it charges no time.
            start_s: the step starts now, at this time of the run's clock, or at a later one where more time has passed.
            forecast: of the lengths of all responses, for re-planning when actors are lost; None learns from the step itself.
            work: as for ``rlhfless.executor.run_step``. Functions run in processes without an engine, on GPUs that actors have
                given back or beside the cluster. Other processes must be able to import them, unless their GPUs are those of
                this process (``WorkGpus.in_this_process``).
            on_progress: progress callback.

        Raises:
            PlanningError: the plan or the work asks for devices that do not exist, or an item cannot run in another process;
                nothing was started.
            ValueError: prefixes are to be computed, and a request cannot be decoded; nothing was started.
            TypeError: engines of another kind.
            MissingExtra, InputError: the engines cannot be made here.
            StepFailed: too many actors or their nodes were lost (see ``Faults``), which is an ``ActorError``, or another error
                ended the step. It has the record. All actors have ended; the pool can be used again.
        """
        check_drafting(plan, engines)
        engines = remote_engines(engines)
        if (refusal := prefix_refusal(plan, engines) or self._refusal(plan, engines, cluster)) is not None:
            raise PlanningError(refusal)
        engines = engines.measured()
        version = engines.weights_version
        faults = replace(self.faults, min_start_timeout_s=max(self.faults.min_start_timeout_s, engines.min_start_timeout_s))
        self._bind(engines, latency)
        meta = {**executed_with(plan, latency, cluster), **self.meta}
        record = StepRecord(run, step, plan, self._start_clock(start_s), requests=requests, meta=meta)
        step_actors = StepActors(self, lambda order: self._take(order, record), self.keeps, engines, record, self._origin_s)
        options = StepOptions(latency, cluster, phases, admission, migration, on_progress, tuple(work))
        wall = WallOptions(faults, forecast, step if version is None else version, self._idle.history.start_s)
        self._step = under_way = WallStep(plan, requests, step_actors, record, options, wall)
        servers = [one.server for one in under_way.work.servers if not one.here]
        if (refusal := kept_memory(servers, plan, engines) or self._work_refusal(servers, cluster)) is not None:
            raise PlanningError(refusal)
        if plan.prefill is not None and isinstance(engines, ChecksRequests):
            models = [actor.latency for actor in under_way.planned]
            check_before_prefill(engines, plan, under_way.requests, models, admission)
        self._under_way = step_actors
        try:
            self._idle.begin(record, plan, phases)
            under_way.run()
            step_actors.remove_dead()
            if engines.starts_server and self.lifecycle.prewarm is not None:
                self._last_engines = self._to_prewarm(engines, step_actors.weights), latency
            self._keep(step_actors, record)
        except BaseException as error:
            end = lambda: self.end_all(step_actors.used)  # noqa: E731
            clean_up(end, lambda: self._give_up(step_actors, record), self._forget_step, after=error)
            raise
        self._forget_step()
        return record

    def _give_up(self, step_actors: StepActors[ActorHandle], record: StepRecord) -> None:
        """Record how long actors of a step waited that will not be complete, and end all other waiting actors."""
        for order, _, done_s in step_actors.finished:
            self._idle.waited(ActorPlacement.of(order.plan), done_s, self.now_s())
        self._idle.give_up(record)

    def _forget_step(self) -> None:
        self._under_way = self._step = None
        self._step_over()

    def finalise_allocations(self, record: StepRecord) -> None:
        """Add the GPU time of actors that have waited since then to the record of the last step, up to now.

        A second in which another holder, such as the learner, has their GPUs is charged to that holder.
        """
        self._idle.finalise_allocations(record)

    def release(self) -> None:
        """End the waiting actors; another step would start new ones."""
        self._idle.close()

    @property
    @abstractmethod
    def meta(self) -> dict[str, str]:
        """Return the entries of ``meta.json`` for a run whose steps are executed here."""

    @abstractmethod
    def close(self, record: StepRecord | None = None) -> None:
        """End every actor; allocations up to then are written to ``record``. Idempotent."""

    def now_s(self) -> float:
        """Return the seconds since the run's start; NaN before the first step."""
        return self.clock.now_s() - self._origin_s

    # --- what a pool of one kind knows --------------------------------------------------------------------------------

    @abstractmethod
    def _refusal(self, plan: Plan, engines: RemoteEngines, cluster: Cluster | MixedCluster) -> str | None:
        """Return why the plan cannot run here; None when it can."""

    @abstractmethod
    def _work_refusal(self, servers: Sequence[WorkServer], cluster: Cluster | MixedCluster) -> str | None:
        """Return why servers of work cannot run here; None when they can. Called after ``_refusal``."""

    @abstractmethod
    def new_name(self) -> str:
        """See ``Transport``."""

    @abstractmethod
    def put(self, name: str, obj: Any) -> Block:
        """See ``Transport``."""

    def remote_form(self, engines: Any) -> Any:
        """See ``Transport``."""
        return engines

    def _to_prewarm(self, engines: Any, weights: Block | None) -> Any:
        """Return the engine factory of a step in the form in which prewarmed actors of the next step receive it."""
        return engines  # such engines name their weights and contain none

    @abstractmethod
    def send(self, actor: ActorHandle, order: Order, version: int) -> None:
        """See ``Transport``."""

    @abstractmethod
    def listen(
        self, actors: Collection[ActorHandle], timeout_s: float | None
    ) -> list[tuple[ActorHandle, ActorReport | ActorLost]]:
        """See ``Transport``."""

    @abstractmethod
    def kill(self, actor: ActorHandle, *, at_once: bool = False) -> None:
        """See ``Transport``."""

    @abstractmethod
    def pid(self, actor: ActorHandle) -> int | None:
        """See ``Transport``."""

    def cpu_s(self, actor: ActorHandle) -> float | None:
        """See ``Transport``."""
        return None

    def ready_event(self, actor: ActorHandle) -> Mapping[str, Any] | None:
        """See ``Transport``."""
        return None

    @abstractmethod
    def start(self, place: ActorPlacement, prewarm: bool = False) -> ActorHandle:
        """See ``ActorLauncher``."""

    @abstractmethod
    def serves(self, here: ActorPlacement, wanted: ActorPlacement) -> bool:
        """See ``ActorLauncher``."""

    @abstractmethod
    def up_s(self, actor: ActorHandle) -> float | None:
        """See ``ActorLauncher``."""

    @abstractmethod
    def alive(self, actor: ActorHandle) -> bool:
        """See ``ActorLauncher``."""

    def end(self, actor: ActorHandle) -> None:
        """See ``ActorLauncher``."""
        self.end_all([actor])

    @abstractmethod
    def end_all(self, actors: Sequence[ActorHandle]) -> None:
        """See ``Transport``."""

    def _step_over(self) -> None:
        """Free the resources of one step, whether it succeeded or not."""

    def keeps(self, actor: ActorPlan) -> bool:
        """Return whether an actor of the running step stays alive when it has no work left, perhaps for its work items."""
        assert self._step is not None
        return self._step.work.wants(actor.gpu_ids) or self._idle.keeps(actor, self._step.cold_start_s)

    # --- a step's beginning and end -----------------------------------------------------------------------------------

    @property
    def worker_backend(self) -> WorkerBackend:
        """Return the backend of the kind of engine to which actors are bound."""
        return cast(WorkerBackend, importlib.import_module(self.side_name))

    @property
    def side_name(self) -> str:
        """Return the name of the backend's module."""
        assert self._bound is not None, "nothing starts before a step has said which engines there are"
        return self._bound[0]

    def _take(self, order: Started, record: StepRecord) -> ActorHandle:
        """Return the actor for an order: a waiting one, one that has just finished its part of this step, or a new one."""
        wanted, step_actors = ActorPlacement.of(order.plan), self._under_way
        assert step_actors is not None
        for entry in [entry for entry in step_actors.finished if not set(wanted.gpu_ids).isdisjoint(entry[0].plan.gpu_ids)]:
            before, actor, done_s = entry
            step_actors.finished.remove(entry)
            here = ActorPlacement.of(before.plan)
            if here.gpu_ids == wanted.gpu_ids and self.alive(actor):
                self._idle.waited(here, done_s, self.now_s())
                return actor
            self.end(actor)  # it is in the way, or dead
            self._idle.waited(here, done_s, self.now_s())
        return self._idle.take(order.index, wanted, record.start_s + order.plan.start_s)

    def _start_clock(self, start_s: float) -> float:
        """Set the run's clock to the caller's time, never backwards."""
        if math.isnan(self._origin_s) or start_s > self.now_s():
            self._origin_s = self.clock.now_s() - start_s
            return start_s
        return self.now_s()

    def _bind(self, engines: RemoteEngines, latency: Latencies) -> None:
        """Bind the pool to these engines: waiting actors that cannot make them end, and new ones are of their kind."""
        models = latency if isinstance(latency, Mapping) else {None: latency}
        bound = engines.backend_module, {key: engines.compatibility_key(model) for key, model in models.items()}
        if bound != self._bound:
            self._idle.close()
        self._bound, self._last_engines = bound, None

    def _prewarm_order(self, place: ActorPlacement) -> Prewarm | None:
        """Return the prewarm order for an actor there; None where the process alone is enough."""
        if self._last_engines is None:
            return None
        engines, latency = self._last_engines
        return Prewarm(engines, latency_of(latency, place.kind, len(place.gpu_ids)))

    def _keep(self, step_actors: StepActors[ActorHandle], record: StepRecord) -> None:
        """Move the surviving actors into the warm pool after generation; each waits from the time at which the record says that
        it finished.
        """
        until_s = {row["holder"]: row["end_s"] for row in record.allocations}
        idle = [(actor, order.plan, until_s.get(order.holder, done_s)) for order, actor, done_s in step_actors.finished]
        cold_s = [s["end_s"] - s["start_s"] for s in record.spans if s["phase"] == s["call"] == "start"]
        self._idle.generated(record, idle, max(cold_s, default=0.0))
