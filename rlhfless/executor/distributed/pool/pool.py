"""``ActorPool``: runs a run's steps on remote actors, and keeps actors without work: a dict from their place to the actor.

An actor of a step that has no work left is asked about once (``lifecycle.py``): it ends, or it enters the dict at that moment.
A step gets the actor at a place or a new one. A thread ends actors that waited too long, unless the step under way is going to
use them, and starts those that are needed soon.

The GPU time of actors without work becomes rows in the record (``warm_allocations.py``): a start where an actor was prewarmed,
and waiting where no span covers the time. Events say whether an actor waits, and the two costs that decided it.

It is independent of the transport; ``local/pool.py`` and ``ray/pool.py`` have those. Any exception that ends a step early (too
many lost actors, Ctrl-C) ends every actor.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Self

from rlhfless.engine.common.pool_engines import Backend, PoolEngines
from rlhfless.engine.protocol import Request
from rlhfless.executor.distributed.executor import WallStep
from rlhfless.executor.distributed.failure_limits import Faults
from rlhfless.executor.distributed.messages import Block, Prewarm, Started
from rlhfless.executor.distributed.orders import WallOptions
from rlhfless.executor.distributed.pool.lifecycle import Lifecycle, StepHistory
from rlhfless.executor.distributed.pool.warm_allocations import WarmRow, holder_at, write_warm
from rlhfless.executor.distributed.step_actors import StepActors
from rlhfless.executor.distributed.transport import ActorHandle, ActorPlacement, Transport
from rlhfless.executor.distributed.wall_clock import MACHINE, Clock
from rlhfless.executor.distributed.worker.backend import backend_of, pool_engines, refusal
from rlhfless.executor.step.plan_validation import check_before_prefill, check_drafting
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
from solver.model.plan import Plan


@dataclass
class _IdleActor(Generic[ActorHandle]):
    """An actor without work.

    Attributes:
        since_s: GPU time up to then is in a record, or in the allocation of its work.
        until_s: when it ends; None: it is asked about at the end of generation, because the plan has its GPUs until then, or
            once the step does not need it, because a work item wanted it when its work ended.
        needed: the step under way is going to use it, so that it waits for longer than ``until_s``.
        holder: its name in the step under way, where it has worked; None: it has waited since before.
        started_s: when it was started ahead of its step; None: it has worked.
    """

    actor: ActorHandle
    since_s: float
    until_s: float | None
    needed: bool = False
    holder: str | None = None
    started_s: float | None = None


class ActorPool(Transport[ActorHandle]):
    """Actors for a run's steps; use it in a ``with`` statement, or ``close`` it.

    Seconds are those of the run since its start, also between steps. A step starts when ``run_step`` is called, so GPUs that
    were allocated meanwhile are charged. Call ``finalise_allocations`` when the other phases of a step are over and before its
    record is kept.

    Args:
        lifecycle: how long actors live.
        faults: how actors that die, hang or are slow are handled.
        clock: the run's clock.
        watched: run the thread; otherwise the caller calls ``act``.

    Attributes:
        history: the steps so far. lock: acquired while the actors without work change.
    """

    def __init__(self, lifecycle: Lifecycle, faults: Faults, clock: Clock = MACHINE, *, watched: bool = True) -> None:
        self.lifecycle, self.faults, self.clock, self.watched = lifecycle, faults, clock, watched
        self.history = StepHistory()
        self.lock = threading.RLock()
        self._origin_s = math.nan
        self._bound: tuple[str, Any] | None = None  # the actors' backend module and its own bindings
        self._last_engines: tuple[Any, Latencies] | None = None  # of the last step, for actors that start ahead of the next
        self._step: WallStep | None = None  # under way
        self._idle: dict[ActorPlacement, _IdleActor[ActorHandle]] = {}
        self._prewarms: tuple[ActorPlacement, ...] = ()  # where actors are to be started ahead of the next step
        self._rows: list[WarmRow] = []  # GPU time that is in no record yet
        self._events: list[tuple[float, str, str, dict[str, object]]] = []  # that are in no record yet
        self._changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None  # another one than this is to end
        self._failed: BaseException | None = None  # it ended the thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        clean_up(self.close, after=error)

    @property
    def idle(self) -> dict[ActorPlacement, ActorHandle]:
        """Return the actors without work, by place."""
        with self.lock:
            return {place: idle.actor for place, idle in self._idle.items()}

    @property
    def working(self) -> list[int]:
        """Return the process ids of the actors of the running step, as far as they are known."""
        step = self._step
        return [] if step is None else step.step_actors.working

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
                Iteration times are real. Or a ``ServerEngineFactory``, whose actors are servers that run already. Or a
                ``SimulatedEngineFactory``, whose actors sleep instead of computing.
            latency: slots and memory, whether moving a KV cache or recomputing it is cheaper, and how long an actor may be
                silent; it charges no time.
            start_s: the step starts now, at this time of the run's clock, or at a later one where more time has passed.
            forecast: of the lengths of all responses, for re-planning when actors are lost; None learns from the step itself.
            work: as for ``rlhfless.executor.run_step``. Functions run in processes without an engine, on GPUs that actors have
                released or beside the cluster. Other processes must be able to import them, unless they run in this process
                (``WorkItem.in_process``).
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
        engines = pool_engines(engines)
        if (refused := self._refusal(plan, engines, cluster) or refusal(plan, engines, self.devices_of(plan))) is not None:
            raise PlanningError(refused)
        engines, can = engines.measured(self.devices_of(plan)), engines.capabilities
        version = engines.version
        faults = replace(self.faults, min_start_timeout_s=max(self.faults.min_start_timeout_s, can.min_start_timeout_s))
        if not can.moves:  # no slow actor is relieved
            faults = replace(faults, slow_factor=math.inf)
        self._bind(engines, latency)
        meta = {**executed_with(plan, latency, cluster), **self.meta}
        record = StepRecord(run, step, plan, self._start_clock(start_s), requests=requests, meta=meta)
        step_actors = StepActors(self, engines, record, self._origin_s)
        options = StepOptions(latency, cluster, phases, admission, migration, on_progress, tuple(work))
        wall = WallOptions(faults, forecast, step if version is None else version, self.history.start_s)
        under_way = WallStep(plan, requests, step_actors, record, options, wall)
        servers = [one.server for one in under_way.work.servers if not one.in_process]
        refused = refusal(plan, engines, self.devices_of(plan), servers) or self._work_refusal(servers, cluster)
        if refused is not None:
            raise PlanningError(refused)
        if plan.prefill is not None:
            models = [actor.latency for actor in under_way.planned]
            check_before_prefill(engines, plan, under_way.requests, models, admission)
        self._step = under_way
        try:
            self.begin_step(record, plan, phases)
            under_way.run()
            step_actors.remove_dead()
            if can.starts_server and self.lifecycle.prewarm is not None:
                self._last_engines = self._to_prewarm(engines, step_actors.weights), latency
            self.end_generation(record)
        except BaseException as error:
            end, give_up = partial(self._end_used, step_actors), partial(self.give_up, record)
            clean_up(end, give_up, self._forget_step, after=error)
            raise
        self._forget_step()
        return record

    def _end_used(self, step_actors: StepActors[ActorHandle]) -> None:
        with self.lock:  # some of them may be without work now, and the thread ends those
            self.end_all(step_actors.used)

    def _forget_step(self) -> None:
        self._step = None
        self._step_over()

    def finalise_allocations(self, record: StepRecord) -> None:
        """Add the GPU time of actors that have waited since then to the record of the last step, up to now.

        A second in which another holder, such as the learner, has their GPUs is charged to that holder.
        """
        with self.lock:
            self._raise()
            now_s = self.now_s()
            for place, idle in self._idle.items():
                self._note(place, idle, now_s)
            self._write(record)

    def release(self) -> None:
        """End the actors without work; another step would start new ones. Idempotent."""
        with self.lock:
            thread, self._thread, self._prewarms = self._thread, None, ()
            self._changed.notify_all()
            clean_up(*(partial(self._end, place) for place in list(self._idle)))
        if thread is not None and thread is not threading.current_thread():
            thread.join()  # it was waked, and only has to notice: what it does with actors, it does with the lock

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
    def _refusal(self, plan: Plan, engines: PoolEngines, cluster: Cluster | MixedCluster) -> str | None:
        """Return why the plan cannot run here; None when it can."""

    @abstractmethod
    def devices_of(self, plan: Plan) -> list[str]:
        """Return the device of each actor of the plan: ``cpu``, or CUDA devices, or the URL of a server. Called after
        ``_refusal``.
        """

    @abstractmethod
    def _work_refusal(self, servers: Sequence[WorkServer], cluster: Cluster | MixedCluster) -> str | None:
        """Return why servers of work cannot run here; None when they can. Called after ``_refusal``."""

    def _to_prewarm(self, engines: Any, weights: Block | None) -> Any:
        """Return the engine factory of a step in the form in which prewarmed actors of the next step receive it."""
        return engines  # such engines name their weights and contain none

    def _step_over(self) -> None:
        """Free the resources of one step, whether it succeeded or not."""

    # --- actors without work ------------------------------------------------------------------------------------------

    def begin_step(self, record: StepRecord, plan: Plan, phases: NonGenerationPhases) -> None:
        """Begin a step: actors without work move to the places of its plan where they can be used; others end there.

        An actor stays where it was if possible. Else it serves a place on its node without one. GPU time up to now that is in
        no record yet is written to this one.
        """
        with self.lock:
            self._raise()
            self.history.begin(record.start_s, plan, phases)
            self._prewarms = ()
            for row in self._rows:  # ended since the step's time was taken, and from then on its GPUs are the step's
                row.end_s = min(row.end_s, record.start_s)
            for place in [place for place, idle in self._idle.items() if not self.alive(idle.actor)]:
                self._end(place, "lost", record.start_s)
            planned = dict.fromkeys(ActorPlacement.of(actor) for actor in plan.actors)
            for place in planned:
                fits = (here for here in self._idle if here not in planned and self.serves(here, place))
                if place not in self._idle and (here := next(fits, None)) is not None:
                    self._note(here, self._idle[here], record.start_s)
                    self._idle[place] = self._idle.pop(here)
            for place, idle in self._idle.items():
                idle.needed = place in planned
            taken = {gpu for place in planned for gpu in place.gpu_ids}
            self._make_way([place for place, idle in self._idle.items() if not idle.needed], taken, record.start_s)
            self._write(record)

    def get(self, place: ActorPlacement) -> ActorHandle:
        """See ``Transport``. From now on the step is charged for it."""
        with self.lock:
            same = (here for here, idle in self._idle.items() if here.gpu_ids == place.gpu_ids and self.alive(idle.actor))
            found = next(same, None)  # perhaps at another price
            self._make_way([here for here in self._idle if here != found], set(place.gpu_ids))
            if found is None:
                return self.spawn(place)
            idle = self._idle.pop(found)
            self._note(found, idle, self.now_s())
            return idle.actor

    def keep(self, order: Started, actor: ActorHandle, since_s: float) -> bool:
        """See ``Transport``. It is not asked about while the plan has its GPUs, or an item of the step wants its process."""
        assert self._step is not None
        place = ActorPlacement.of(order.plan)
        idle = _IdleActor(actor, since_s, None, holder=order.holder)
        with self.lock:
            self.history.start_s = max(self.history.start_s, self._step.cold_start_s)
            if order.plan.release == "step":
                idle.until_s = math.inf  # the plan's own wish, until the next step or ``close``
            elif order.plan.release == "done" and self._step.wants(place.gpu_ids):
                idle.needed = True
            elif order.plan.release == "done":
                idle.until_s = self._ask(place, order.holder)
                if idle.until_s <= self.now_s():
                    return False
                idle.needed = self._step.will_use(place.gpu_ids)
            self._idle[place] = idle
            self._wake()
        return True

    def release_unneeded(self) -> None:
        """See ``Transport``. One that was not asked about because an item wanted its process is asked about now."""
        assert self._step is not None
        # only the step's own thread changes what it needs, so that it waits for the lock only where something has changed
        every = list(self._idle.items())
        unneeded = [(place, idle) for place, idle in every if idle.needed and not self._step.will_use(place.gpu_ids)]
        if not unneeded:
            return
        with self.lock:
            for place, idle in unneeded:
                idle.needed = False
                if idle.until_s is None:
                    idle.until_s = self._ask(place, idle.holder or holder_at(place))
            self._wake()

    def end_generation(self, record: StepRecord) -> None:
        """End a step's generation: no actor is needed by it any more. Each that worked waits from the time at which the record
        says that its work ended.
        """
        cold_s = [s["end_s"] - s["start_s"] for s in record.spans if s["phase"] == s["call"] == "start"]
        ended_s = {row["holder"]: row["end_s"] for row in record.allocations}
        with self.lock:
            self.history.end_generation(self.now_s(), max(cold_s, default=0.0))
            for place, idle in self._idle.items():
                if idle.holder is not None:
                    idle.since_s = max(idle.since_s, ended_s.get(idle.holder, idle.since_s))
                if idle.until_s is None:
                    idle.until_s = self._ask(place, idle.holder or holder_at(place))
                idle.needed, idle.holder = False, None
            self._prewarms = tuple(ActorPlacement.of(actor) for actor in record.plan.actors)
            self._write(record)
            self._wake()

    def give_up(self, record: StepRecord) -> None:
        """End the actors without work of a step that will not be complete, and write their GPU time to its record."""
        with self.lock:
            self._prewarms = ()
            if len(self.history.starts_s) > len(self.history.generated_s):
                self.history.give_up()
            ends = [partial(self._end, place, "given up") for place in list(self._idle)]
            clean_up(*ends, self._forget_idle, partial(self._write, record))

    def _forget_idle(self) -> None:
        """Note the GPU time of actors that could not be ended, which are of no use any more."""
        for place in list(self._idle):
            self._note(place, self._idle.pop(place), self.now_s())

    def _ask(self, place: ActorPlacement, holder: str) -> float:
        """Return until when an actor without work waits; not later than now: it ends. The trace says by which costs.

        A time that the user gave needs no words.
        """
        now_s = self.now_s()
        decision = self.lifecycle.keep(self.history, now_s, len(place.gpu_ids))
        if decision.by_cost:
            costs = {name: _rounded(getattr(decision, name)) for name in ("waiting_gpu_s", "starting_gpu_s")}
            self._events.append((now_s, "keep", holder, {"keeps": decision.until_s > now_s, **costs}))
        return decision.until_s

    def _make_way(self, places: Sequence[ActorPlacement], gpus: set[int], at_s: float | None = None) -> None:
        """End the actors at those of these places that have any of these GPUs."""
        for place in [place for place in places if not gpus.isdisjoint(place.gpu_ids)]:
            self._end(place, "in the way", at_s)

    def _end(self, place: ActorPlacement, reason: str = "no work", at_s: float | None = None) -> None:
        """End an actor without work. It is charged until its GPUs are free, or until ``at_s``, from when another holder is
        charged.
        """
        self.end_all([self._idle[place].actor])
        over_s = self.now_s() if at_s is None else at_s
        self._note(place, self._idle.pop(place), over_s)
        self._events.append((over_s, "kill", holder_at(place), {"reason": reason}))

    def _note(self, place: ActorPlacement, idle: _IdleActor[ActorHandle], now_s: float) -> None:
        """Note the GPU time of an actor without work up to now; later time becomes another row."""
        if now_s <= idle.since_s:
            return
        starting = None
        if idle.started_s is not None:
            up_s = self.up_s(idle.actor)
            over_s = now_s if up_s is None else min(max(up_s, idle.started_s), now_s)
            starting = (max(idle.since_s, idle.started_s), over_s)
        self._rows.append(WarmRow(place, idle.since_s, now_s, starting))
        idle.since_s = now_s

    def _write(self, record: StepRecord) -> None:
        for row in self._rows:
            write_warm(record, row)
        for time_s, name, holder, what in self._events:
            record.event(time_s, name, holder, **what)
        if self._rows and record.end_s:
            record.close(max(record.end_s, *(row.end_s for row in self._rows)))
        self._rows, self._events = [], []

    # --- the thread ---------------------------------------------------------------------------------------------------

    def act(self) -> float:
        """Do what is due; returns when the next action is due. The caller has acquired the lock."""
        now_s = self.now_s()
        for place in [place for place, idle in self._idle.items() if _ends_s(idle) <= now_s]:
            self._end(place)
        warm_s = self.lifecycle.prewarm_s(self.history) if self._prewarms else None
        if warm_s is not None and warm_s <= now_s:
            self._prewarm()
            warm_s = None
        return min([*map(_ends_s, self._idle.values()), math.inf if warm_s is None else warm_s], default=math.inf)

    def _prewarm(self) -> None:
        """Start actors like the last step's where none waits already."""
        places, self._prewarms = self._prewarms, ()
        held = {gpu for place in self._idle for gpu in place.gpu_ids}
        until_s = self.lifecycle.waits_until_s(self.history, self.now_s())
        for place in places:
            if (idle := self._idle.get(place)) is not None and idle.until_s is not None:
                idle.until_s = max(idle.until_s, until_s)
            elif held.isdisjoint(place.gpu_ids):
                now_s = self.now_s()
                self._idle[place] = _IdleActor(self.spawn(place, self._prewarm_order(place)), now_s, until_s, started_s=now_s)
                held.update(place.gpu_ids)
                self._events.append((now_s, "prewarm", holder_at(place), {}))

    def _wake(self) -> None:
        """Wake the thread because there is something new to watch."""
        if self._thread is None and self.watched:
            thread = threading.Thread(target=self._watch, name="rlhfless-pool", daemon=True)
            thread.start()
            self._thread = thread
        self._changed.notify_all()

    def _watch(self) -> None:
        with self.lock:
            try:
                while self._thread is threading.current_thread():
                    at_s = self.act()
                    self._changed.wait(None if at_s == math.inf else max(0.0, at_s - self.now_s()))
            except BaseException as error:  # raised by the next call: nothing reads what a thread raises
                self._failed, self._thread = error, None  # the next step's actors have another thread

    def _raise(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    # --- a step's beginning and end -----------------------------------------------------------------------------------

    @property
    def worker_backend(self) -> Backend:
        """Return the backend of the kind of engine to which actors are bound."""
        return backend_of(self.side_name)

    @property
    def side_name(self) -> str:
        """Return the name of the backend's module."""
        assert self._bound is not None, "nothing starts before a step has said which engines there are"
        return self._bound[0]

    def _start_clock(self, start_s: float) -> float:
        """Set the run's clock to the caller's time, never backwards."""
        if math.isnan(self._origin_s) or start_s > self.now_s():
            self._origin_s = self.clock.now_s() - start_s
            return start_s
        return self.now_s()

    def _bind(self, engines: PoolEngines, latency: Latencies) -> None:
        """Bind the pool to these engines: waiting actors that cannot make them end, and new ones are of their kind."""
        models = latency if isinstance(latency, Mapping) else {None: latency}
        bound = engines.capabilities.backend, {key: engines.compatibility_key(model) for key, model in models.items()}
        if bound != self._bound:
            self.release()
        self._bound, self._last_engines = bound, None

    def _prewarm_order(self, place: ActorPlacement) -> Prewarm | None:
        """Return the prewarm order for an actor there; None where the process alone is enough."""
        if self._last_engines is None:
            return None
        engines, latency = self._last_engines
        return Prewarm(engines, latency_of(latency, place.kind, len(place.gpu_ids)))


def _ends_s(idle: _IdleActor[Any]) -> float:
    """Return when an actor without work ends, unless a step uses it before."""
    return math.inf if idle.needed or idle.until_s is None else idle.until_s


def _rounded(gpu_s: float | None) -> float | None:
    """Return GPU-seconds to a millisecond; None where they are unknown, or infinite."""
    return None if gpu_s is None or math.isinf(gpu_s) else round(gpu_s, 3)
