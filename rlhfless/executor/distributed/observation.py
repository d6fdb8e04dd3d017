"""Builds what a runtime rule sees of a step on the wall clock: what the actors had reported by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.orders import ActorOrders
from rlhfless.executor.step.step_state import RunningStep
from solver.model.runtime_rules import ActorView, Decision
from solver.model.runtime_rules import StepState as ShownState


class ReportObserver:
    """Shows a step on the wall clock to its rule; see ``rlhfless.executor.step.rule_driver.Observer``."""

    def __init__(self, step: RunningStep[RemoteActorState], orders: ActorOrders) -> None:
        self.step, self.orders = step, orders

    def show_state(self, now_s: float, to: Callable[[ShownState], Sequence[Decision]]) -> Sequence[Decision]:
        """See ``Observer``."""
        step = self.step
        tokens, complete = step.observed_tokens.copy(), step.complete.copy()
        return to(ShownState(now_s, self._views(), tokens, complete, step.prompt_tokens, step.reserved_tokens))

    def _views(self) -> tuple[ActorView, ...]:
        return tuple(self.view(actor) for actor in self.step.live.values() if not actor.closing)

    def view(self, actor: RemoteActorState) -> ActorView:
        """Return the actor as it was last reported, without responses that were assigned to others since. Responses that it has
        not reported yet count as arriving.
        """
        responses, leaving = actor.responses, self.orders.leaving
        running = tuple(r for r in actor.running if r in responses and r not in leaving)
        waiting = tuple(r for r in actor.waiting if r in responses and r not in leaving)
        here = {*running, *waiting}
        arriving = tuple(r for r in responses if r not in here)
        free, gpus = max(0, actor.admission.max_batch - len(responses)), len(actor.plan.gpu_ids)
        free_kv = actor.admission.kv_capacity_tokens - self.step.weigh([*responses], self.step.observed_tokens)
        return ActorView(actor.index, gpus, actor.assigned, actor.completed, running, waiting, arriving, free, free_kv)
