"""``TwoStepDispatcher``: carries out a rule's decisions on the virtual clock, where moves may take two steps.

In the first step a KV state is copied while its response decodes on (``Move.two_step``, ``background_copies.py``). In the
second the response leaves, with what it has decoded since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from rlhfless.executor.step.dispatcher import Dispatcher
from rlhfless.executor.step.rule_validation import receiver_of
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.virtual.actors import VirtualActor
from rlhfless.executor.virtual.backend import VirtualBackend
from solver.model.runtime_rules import Move, RuntimeRule
from solver.replanning.marginal_value import two_step_saves_s


class TwoStepDispatcher(Dispatcher[VirtualActor]):
    """A ``Dispatcher`` that begins to copy the KV states of moves that take two steps."""

    def __init__(self, step: RunningStep[VirtualActor], backend: VirtualBackend) -> None:
        super().__init__(step, backend)
        self._copying = backend
        self._longest_tokens = int((step.prompt_tokens + step.requests.rows["max_tokens"]).max(initial=0))

    def begin_copies(
        self, now_s: float, rule: RuntimeRule | None, sender: VirtualActor, moves: Sequence[Move]
    ) -> Collection[int]:
        """See ``Dispatcher``: of the moves that take two steps."""
        slow = _takes_long(sender, self._longest_tokens)
        if not any(move.two_step if move.two_step != "auto" else slow for move in moves):
            return ()
        batch = self._copying.batch(now_s, sender)
        iteration_s = partial(sender.latency.one_iteration_s, len(batch), sum(batch.values()))
        copied = {}
        for move in moves:
            if move.response in batch:
                receiver = receiver_of(rule, move, sender, self.step.live)
                if self._copies_first(move, sender, receiver, batch[move.response], iteration_s):
                    copied[move.response] = receiver
        return self._copying.copy(now_s, sender, copied) if copied else ()

    def _copies_first(
        self, move: Move, sender: VirtualActor, receiver: VirtualActor, context_tokens: int, iteration_s: Callable[[], float]
    ) -> bool:
        """Return whether to copy the KV state before the response of this move leaves.

        Args:
            iteration_s: returns the seconds of an iteration of the sender's batch; asked where ``auto`` depends on it.
        """
        if not move.two_step or not self.step.moves_kv(sender, receiver, context_tokens):
            return False
        if move.two_step != "auto":
            return True
        return _takes_long(sender, context_tokens) and two_step_saves_s(sender.latency, context_tokens, iteration_s()) > 0


def _takes_long(sender: VirtualActor, context_tokens: int) -> bool:
    """Return whether the tokens of a transfer may take longer than an iteration, which takes ``base_s`` at least."""
    return sender.latency.transfer_per_kv_token_s * context_tokens > sender.latency.base_s
