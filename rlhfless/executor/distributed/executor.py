"""Puts a step on the wall clock together: the event loop, remote actors as its backend, and the handler of failures.

Inputs: a plan, its rule and a ``StepActors``. Output: a ``StepRecord``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.requests import Requests
from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.backend import PoolBackend
from rlhfless.executor.distributed.failure_handling import FailureHandler
from rlhfless.executor.distributed.orders import ActorOrders, WallOptions
from rlhfless.executor.distributed.step_actors import StepActors
from rlhfless.executor.distributed.work import PoolWork
from rlhfless.executor.step.dispatcher import Dispatcher
from rlhfless.executor.step.event_loop import EventLoop
from rlhfless.executor.step.phase_work import phase_items
from rlhfless.executor.step.plan_validation import check_gpus
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.rule_driver import RuleDriver
from rlhfless.executor.step.step_state import RunningStep, StepOptions
from rlhfless.executor.step.work_items import check_work
from solver.model.plan import Plan


class WallStep:
    """One step of a plan on the wall clock.

    Args:
        step_actors: the ``StepActors`` on which it runs.
        options, wall: how it is executed.

    Attributes:
        step: its state; work: its work items; failures: how it goes on without lost actors; step_actors: as given.

    Raises:
        PlanningError: a kind has no latency model, or a response does not name the prompt that the plan shares; nothing was
            started.
    """

    def __init__(
        self,
        plan: Plan,
        requests: Sequence[Request],
        step_actors: StepActors[Any],
        record: StepRecord,
        options: StepOptions,
        wall: WallOptions = WallOptions(),  # noqa: B008 (frozen)
    ) -> None:
        check_gpus(plan, options.cluster)
        check_work(options.work, plan, len(requests), phase_items(options.phases, options.cluster))
        self.record, self.step = record, RunningStep[RemoteActorState](plan, requests, record, options)
        self.step_actors, self._orders = step_actors, ActorOrders(self.step, step_actors, wall)
        self.work = PoolWork(self.step, self._orders)
        backend = PoolBackend(self.step, self._orders, self.work)
        dispatcher = Dispatcher(self.step, backend)
        driver = None if plan.rule is None else RuleDriver(plan.rule, self.step, backend.known)
        self.failures, self._backend = FailureHandler(backend, dispatcher), backend
        self._loop = EventLoop(self.step, backend, dispatcher, driver, self.work, self.failures)

    @property
    def planned(self) -> list[RemoteActorState]:
        """Return the actors of the plan."""
        return self._orders.planned

    @property
    def cold_start_s(self) -> float:
        """Return the longest cold start that was measured, in earlier steps or in this one."""
        return self._backend.cold_start_s

    def wants(self, gpu_ids: Sequence[int]) -> bool:
        """Return whether a work item could run now on the GPUs of an actor that closes, if its process stayed."""
        return self.work.wants(gpu_ids)

    def will_use(self, gpu_ids: Sequence[int]) -> bool:
        """Return whether the step is going to start an actor on exactly these GPUs, or to run work items on them."""
        return self._orders.starts_later(gpu_ids) or self.work.will_use(gpu_ids)

    @property
    def requests(self) -> Requests:
        """Return the requests, by response."""
        return self.step.requests

    def run(self) -> None:
        """Run until every response is complete and every actor has released its GPUs; see ``EventLoop.run``.

        Raises:
            StepFailed: the step cannot be finished. The ``StepActors`` still have live actors then.
        """
        self._loop.run()
