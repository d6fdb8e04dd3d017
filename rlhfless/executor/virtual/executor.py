"""Runs a plan on the virtual clock: emulates N actors on one causal time line.

Inputs: a plan, one request per response, an engine factory and latency models. Output: a ``StepRecord``. ``VirtualStep`` puts
the event loop (``rlhfless.executor.step.event_loop``) and its backend for this clock (``backend.py``) together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhfless.engine.protocol import Request
from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.allocations import bill
from rlhfless.executor.step.dispatcher import Dispatcher
from rlhfless.executor.step.event_loop import EventLoop
from rlhfless.executor.step.failure import ends_as_failed
from rlhfless.executor.step.phase_work import phase_items
from rlhfless.executor.step.plan_validation import check_drafting, check_gpus
from rlhfless.executor.step.prefixes import prefixes_of
from rlhfless.executor.step.progress import OnProgress
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.rule_driver import RuleDriver
from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.executor.step.step_state import RunningStep, StepOptions
from rlhfless.executor.step.step_trace import executed_with
from rlhfless.executor.step.work_items import WorkItem, check_work
from rlhfless.executor.virtual.actors import EngineFactory, VirtualActor, begin
from rlhfless.executor.virtual.backend import VirtualBackend
from rlhfless.executor.virtual.measured_pass import check_replayable, measure, measure_prefixes
from rlhfless.executor.virtual.migration import KvTransfers
from rlhfless.executor.virtual.progress_pacing import ProgressPacer
from rlhfless.executor.virtual.retiming import RetimingLog, retime
from rlhfless.executor.virtual.two_step_moves import TwoStepDispatcher
from rlhfless.executor.virtual.work import VirtualWork
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.objective import NonGenerationPhases
from solver.model.offers import Latencies
from solver.model.plan import Plan

CHARGING = ("profile", "measured")
OnReplayProgress = Callable[[int, int], None]
"""Told how many of the replays that measure a step are done, and of how many."""


class VirtualStep:
    """One step of a plan on the virtual clock, put together from its parts. Use ``run_step``.

    Args:
        two_step: whether KV states can be copied before their responses leave.

    Attributes:
        step: its state; log: the data for retiming it, where engines keep journals. work: its work items.
    """

    def __init__(
        self,
        plan: Plan,
        requests: Sequence[Request],
        engine_factory: EngineFactory,
        record: StepRecord,
        options: StepOptions,
        links: NodeLinks | None = None,
        two_step: bool = False,
    ) -> None:
        check_gpus(plan, options.cluster)
        check_drafting(plan, engine_factory)
        check_work(options.work, plan, len(requests), phase_items(options.phases, options.cluster))
        self.step = step = RunningStep[VirtualActor](plan, requests, record, options)
        paced = options.on_progress is not None and plan.rule is None  # a rule asks often enough
        pace = ProgressPacer(plan.makespan_s) if paced else None
        live, step.held, startup = begin(
            step.plan, step.requests, engine_factory, options.latency, record, options.admission, links
        )
        self.log = RetimingLog.of({i: actor.engine for i, actor in live.items()}, startup)
        backend = VirtualBackend(step, live, KvTransfers(step, self.log, links), pace)
        driver = None if plan.rule is None else RuleDriver(plan.rule, step, backend.known)
        self.work = VirtualWork(options.work, step)
        dispatcher = TwoStepDispatcher(step, backend) if two_step else Dispatcher(step, backend)
        self._loop = EventLoop(step, backend, dispatcher, driver, self.work)

    @property
    def held(self) -> list[Allocation]:
        """Return the allocations of the actors that have released their GPUs."""
        return self.step.held

    def run(self) -> None:
        """Run until every response is complete and all work has ended; see ``EventLoop.run``."""
        self._loop.run()


def check_charging(charging: str) -> None:
    """Refuse a charging that is not in ``CHARGING`` (a PlanningError)."""
    if charging not in CHARGING:
        raise PlanningError(f"charging {charging!r} is unknown; choose one of {', '.join(CHARGING)}")


def run_step(
    plan: Plan,
    requests: Sequence[Request],
    engine_factory: EngineFactory,
    latency: Latencies,
    cluster: Cluster | MixedCluster,
    *,
    run: str = "run",
    step: int = 0,
    start_s: float = 0.0,
    phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
    work: Sequence[WorkItem] = (),
    admission: str = "reserve",
    migration: str = "cheaper",
    charging: str = "profile",
    on_progress: OnProgress | None = None,
    on_replay_progress: OnReplayProgress | None = None,
    links: NodeLinks | None = None,
) -> StepRecord:
    """Execute a plan on the virtual clock and return the record of the step.

    With ``charging="measured"`` the step runs twice, because tokens do not depend on timing: first with the latency model's
    seconds, then every actor's batches are replayed back to back on the device. The record gets the measured seconds (see
    ``rlhfless.executor.virtual.retiming``). Prefill and decode iterations of every actor are measured, and so is the shared
    computation of the plan's prefixes, for which their receivers wait. Decisions of rules stay as they were; start-up, sync and
    transfers stay charged by the latency model.

    Args:
        plan: must contain every request once. If it has a runtime rule, a copy of the rule decides while the step runs, so the
            plan can be run again. Execution and billing follow the plan's description of actors (kind, price, prewarmed, start,
            prefixes, sharing of prompts, prefill actor).
        requests: one per response of the workload, ``response`` counting from 0, in any order.
        engine_factory: called once per actor that decodes, with its latency model, its admission and the time at which it is
            ready; ``SimulatedEngine`` itself is one.
        latency: start-up, sync, transfer and recompute times, slots and memory; one model per kind and size of actors where the
            plan mixes them.
        start_s: start of the step in seconds since the run's start.
        phases: the phases after generation, on learner GPUs in addition to the cluster's (their ids come after the cluster's).
        work: work items on GPUs that actors have released, or on additional GPUs. Their functions run in this process after the
            last response. When they run in virtual time is ``schedule_work`` of completions and releases, also where iterations
            are measured. ``StepRecord.work`` has their times and results.
        migration: ``move`` KV caches, ``recompute`` them, or whichever is ``cheaper`` by the latency model. Between actors of
            different kinds or sizes they are always recomputed. A prefix that was received or shared for a response that has
            not begun stays behind when the response moves: it recomputes its whole context.
        charging: of iterations and of the plan's prefill, by ``profile`` or ``measured``.
        on_progress: progress callback. Where there is no rule, it is called about every half second of the wall clock (see
            ``rlhfless.executor.virtual.progress_pacing``). Without it and without a rule every actor runs to its end in one
            call.
        on_replay_progress: progress callback of the replays of ``measured``.
        links: of nodes. Weights and KV caches that are sent over them at the same time share their bandwidth, from this step's
            start on. None: transfers wait for their sender only. Not with ``measured``.

    Raises:
        PlanningError: links are shared in a step that is measured, or a work item could never run or lacks GPUs of its own.
        PlanningError: a response is not in the plan once or has not one request, or an actor's GPUs do not exist or belong to
            another actor. Or a kind has no latency model, or the plan reuses prefixes and the engines cannot. Or the step
            cannot be measured: its actors differ in kind or size, or its engines decode nothing or cannot time the prefixes
            that the plan computes once. Nothing was started.
        ValueError: a request cannot be decoded, such as one whose prompt is too long; no token was computed.
        StepFailed: something ended the step after it had begun, such as a rule that ordered something impossible (a
            ``RuleError``) or a work item that failed, also while ``measured`` replays. It has the record; so has the cause of
            an interrupt.
    """
    check_charging(charging)
    if getattr(getattr(engine_factory, "capabilities", None), "served", False):
        raise PlanningError(
            f"a {type(engine_factory).__name__} decodes in real time, not on the virtual clock; give Executor its servers: "
            "actor_pool=ProcessPool(['http://localhost:8000'])"
        )
    if charging == "measured" and links is not None:
        raise PlanningError("shared links need the latency model's transfer times; use charging='profile', not 'measured'")
    measured = check_replayable(plan, engine_factory) if charging == "measured" else None
    meta = {**executed_with(plan, latency, cluster), "clock": "virtual", "charging": charging}
    record = StepRecord(run, step, plan, start_s, requests=requests, meta=meta)
    two_step = charging == "profile"  # copies behind iterations are not measured
    options = StepOptions(latency, cluster, phases, admission, migration, on_progress, tuple(work))
    executed = VirtualStep(plan, requests, engine_factory, record, options, links, two_step)
    executed.run()
    if measured is not None:
        log, prefixes = executed.log, prefixes_of(executed.step.plan, executed.step.requests)
        with ends_as_failed(record):
            prefill = measure_prefixes(prefixes, measured) if prefixes else None
            taken = measure(log.journals, measured, on_progress=on_replay_progress)
        record, held, startup = retime(record, log, executed.held, taken, prefill)
        bill(record, startup.plan, held, cluster, phases, *executed.work.placed(record, held))
    return record
