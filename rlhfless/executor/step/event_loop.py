"""``EventLoop``: the one loop of a step on either clock: wait for what happens, ask the rule, carry out its decisions.

Causality: a rule sees at ``now_s`` only what had ended by then. The backend publishes what happened until a moment at which the
rule may want to be asked. The loop asks it at that moment, and nothing is published between its view and its decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from rlhfless.executor.step.actor_state import Actor
from rlhfless.executor.step.allocations import bill
from rlhfless.executor.step.dispatcher import Dispatcher, TakesAndGives
from rlhfless.executor.step.failure import ends_as_failed
from rlhfless.executor.step.rule_driver import RuleDriver
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.step.work_rows import ExecutedWork
from rlhfless.system.cleanup import clean_up
from solver.model.objective import NonGenerationPhases

A = TypeVar("A", bound=Actor)


class Backend(TakesAndGives[A], Protocol[A]):
    """Where the actors of a step decode: engines of this process on the virtual clock, or remote actors on the wall clock."""

    def now_s(self) -> float:
        """Return seconds since the run's start."""
        ...

    def start(self) -> None:
        """Start the actors of the plan and give them their requests."""
        ...

    def going_on(self) -> bool:
        """Return whether any actor works, or any completion is not published yet."""
        ...

    def events(self, driver: RuleDriver[A] | None) -> Sequence[A]:
        """Publish what happens until the next moment at which the rule may want to be asked, or somebody wants to know.

        Returns the actors that had completions. ``now_s`` is that moment.
        """
        ...

    def release_done(self) -> None:
        """Release the GPUs of actors with nothing left to do."""
        ...

    def stop_early(self) -> None:
        """Record what was done, and allocate the GPUs of actors that still have some until now."""
        ...

    def close(self) -> None:
        """Free what belongs to this step; it is called however the step ends."""
        ...


class LoopListener(Protocol):
    """Is told of the loop after each of its events, such as the handler of failures; absent on the virtual clock."""

    def after_events(self, now_s: float) -> bool:
        """Return whether this changed which actor has which response, so that the rule has to be asked for triggers anew."""
        ...


class StepWork(Protocol):
    """The work items of a step."""

    def finish(self) -> None:
        """Run what has not run by the end of generation.

        Raises:
            ActorError: an item failed.
        """
        ...

    def executed(self) -> ExecutedWork:
        """Return the items that have run so far, and the GPUs held for them."""
        ...


class EventLoop(Generic[A]):
    """Runs a step on a backend. ``driver``: None where the plan has no rule. ``listener``: None where nothing can fail."""

    def __init__(
        self,
        step: RunningStep[A],
        backend: Backend[A],
        dispatcher: Dispatcher[A],
        driver: RuleDriver[A] | None,
        work: StepWork,
        listener: LoopListener | None = None,
    ) -> None:
        self.step, self.backend, self.dispatcher = step, backend, dispatcher
        self.driver, self.work, self.listener = driver, work, listener

    def run(self) -> None:
        """Run until every response is complete, all work has ended and all GPUs are released, and write the allocations.

        Raises:
            StepFailed: something ended it early, such as a rule's error or too many lost actors.
        """
        step, options = self.step, self.step.options
        with ends_as_failed(step.record):
            try:
                self._run()
                self.work.finish()
            except BaseException as error:
                clean_up(self.backend.stop_early, self._bill_early, self.backend.close, after=error)
                raise
            self.backend.close()
        bill(step.record, step.plan, step.held, options.cluster, options.phases, self.work.executed())

    def _bill_early(self) -> None:
        """Write the allocations of a step that is not complete, without the phases that would have followed."""
        step = self.step
        bill(step.record, step.plan, step.held, step.options.cluster, NonGenerationPhases(), self.work.executed())

    def _run(self) -> None:
        backend, driver, live = self.backend, self.driver, self.step.live
        backend.start()
        backend.release_done()
        if driver is not None:
            driver.query(self.step.record.start_s)
        while backend.going_on():
            completing = backend.events(driver)
            backend.release_done()
            now_s = backend.now_s()
            changed = self.listener is not None and self.listener.after_events(now_s)
            if driver is None:
                if changed:
                    backend.release_done()
            elif live and math.isfinite(now_s) and driver.due(now_s, completing):
                decisions = driver.decide(now_s)
                for decision in decisions:
                    self.dispatcher.apply(now_s, decision, driver.rule)
                backend.release_done()
                if decisions:
                    driver.query(now_s)
            elif changed:
                backend.release_done()
                driver.query(now_s)
