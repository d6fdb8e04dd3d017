"""Two-step migration on the wall clock: orders to copy a KV state first, and to hand its response over once the copy is there.

Three messages are between the decision and the cut: the sender has written the copy, the receiver is told to read it, the
receiver has read it. Both decode on meanwhile. Whatever goes wrong until then, the response is with its sender, and leaves in
one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.messages import ActorReport
from rlhfless.executor.distributed.orders import ActorOrders


@dataclass(frozen=True)
class OrderedCopy:
    """A copy that was ordered: which actor decodes the response, and which receives the copy."""

    sender: RemoteActorState
    receiver: RemoteActorState


class CopyOrders:
    """The copies of a step that are under way. While one is, its sender is kept as if it owed an answer.

    Attributes:
        under_way: by response.
    """

    def __init__(self, orders: ActorOrders) -> None:
        self.orders = orders
        self.under_way: dict[int, OrderedCopy] = {}

    def begin(self, sender: RemoteActorState, moves: Mapping[int, RemoteActorState]) -> list[int]:
        """Order the sender to copy the KV states of these responses (by response: its receiver) that it has and can send.

        Returns them. A receiver that has not started cannot read a copy.
        """
        begun = [r for r, receiver in moves.items() if receiver.remote is not None and receiver.kept is None]
        if sender.remote is None or sender.kept is not None or not begun:
            return []
        for response in begun:
            self.under_way[response] = OrderedCopy(sender, moves[response])
            self.orders.leaving[response] = sender
            self.orders.sender[response] = sender.holder
        sender.answers += len(begun)
        sender.remote.copy(begun)
        self.orders.expect(sender)
        return begun

    def sends(self, actor: RemoteActorState, response: int) -> bool:
        """Return whether the actor decodes the response, whose KV state is being copied."""
        return response in self.under_way and self.under_way[response].sender is actor

    def heard(self, actor: RemoteActorState, report: ActorReport) -> None:
        """Go on with the copies that an actor reports written, or read."""
        for response, block in report.copied.items():
            copy = self.under_way.get(response)
            if copy is None or copy.sender is not actor:  # it is complete, or has another receiver
                continue
            if block is None or copy.receiver.remote is None:
                self.leave(response)
                continue
            copy.receiver.answers += 1
            copy.receiver.remote.receive({response: block})
            self.orders.expect(copy.receiver)
        for response, is_there in report.received.items():
            actor.answers -= 1
            copy = self.under_way.get(response)
            if copy is not None and copy.receiver is actor:
                self.leave(response, joins=is_there)

    def leave(self, response: int, joins: bool = False) -> None:
        """Order the sender to hand the response over: the rest of its KV state where it ``joins`` its copy, else all of it.

        One that was given back to its sender stays.
        """
        copy = self.end(response)
        assert copy is not None
        receiver = self.orders.step.owner[response]
        if receiver is copy.sender:
            del self.orders.leaving[response]
            return
        context = int(self.orders.step.prompt_tokens[response] + self.orders.step.observed_tokens[response])
        with_kv = {response} if joins or self.orders.step.moves_kv(copy.sender, receiver, context) else set()
        if joins:
            self.orders.joins[response] = receiver
        self.orders.take_off(copy.sender, [response], with_kv)

    def end(self, response: int) -> OrderedCopy | None:
        """Forget the copy of a response, if one is under way: it leaves now, is complete, or was lost."""
        copy = self.under_way.pop(response, None)
        if copy is not None:
            copy.sender.answers -= 1
        return copy
