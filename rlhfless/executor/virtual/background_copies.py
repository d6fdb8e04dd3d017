"""Copies of KV states that are sent while their responses decode on: the first step of a two-step migration.

Knows the times at which a sender's link is busy. Does not know engines: ``backend.py`` says when a response has left.

A link sends what stands still first. Copies use the rest of its time, one after another, in the order in which they were
ordered. A copy has the tokens that are there when its link begins to send it. Its end is known only once it is there, because
everything that stands still and is sent until then puts it off.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.executor.virtual.actors import VirtualActor


@dataclass(eq=False)
class BackgroundCopy:
    """A KV state that is copied, or was, of a response that still decodes.

    Attributes:
        sender, receiver: the actor that decodes the response, and the one to which it belongs.
        start_s: when its link began to send it; infinite before.
        kv_tokens: that are copied; 0 before that.
        since_s: when its link goes on to send it; left_s: seconds that this still takes.
    """

    response: int
    sender: VirtualActor
    receiver: VirtualActor
    start_s: float = math.inf
    kv_tokens: int = 0
    since_s: float = math.inf
    left_s: float = math.inf

    @property
    def there_s(self) -> float:
        """Return when it is there, if nothing else is sent until then."""
        return self.since_s + self.left_s


class BackgroundCopies:
    """The copies of a step, by response.

    Args:
        links: of the nodes, where they are shared.
        context_of: returns the context tokens of a response that decodes on an actor, after the last committed iteration.
    """

    def __init__(self, links: NodeLinks | None, context_of: Callable[[VirtualActor, int], int]) -> None:
        self._links, self._context_of = links, context_of
        self._of: dict[int, BackgroundCopy] = {}
        self._queues: dict[int, deque[BackgroundCopy]] = {}  # by sender: those that are not there yet

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, response: int) -> bool:
        return response in self._of

    def __iter__(self) -> Iterator[BackgroundCopy]:
        return iter(list(self._of.values()))

    def __getitem__(self, response: int) -> BackgroundCopy:
        return self._of[response]

    @property
    def next_s(self) -> float:
        """Return when the next copy is there; infinite without one."""
        return min((queue[0].there_s for queue in self._queues.values()), default=math.inf)

    def begin(self, boundary_s: float, response: int, sender: VirtualActor, receiver: VirtualActor) -> None:
        """Copy the KV state of a response from an iteration boundary on, as soon as the link has sent earlier copies."""
        copy = BackgroundCopy(response, sender, receiver)
        self._of[response] = copy
        queue = self._queues.setdefault(sender.index, deque())
        queue.append(copy)
        if queue[0] is copy:
            self._start(copy, boundary_s)

    def _start(self, copy: BackgroundCopy, at_s: float) -> None:
        copy.kv_tokens = self._context_of(copy.sender, copy.response)
        copy.start_s = copy.since_s = max(at_s, copy.sender.link_free_s, copy.sender.engine.clock_s)
        copy.left_s = copy.sender.latency.transfer_s(copy.kv_tokens)
        if self._links is not None:
            nodes = copy.sender.plan.node, copy.receiver.plan.node
            copy.left_s += self._links.delay_s(*nodes, copy.start_s, copy.left_s)

    def link_busy(self, sender: VirtualActor, start_s: float, end_s: float) -> None:
        """Put the sender's copies off while its link sends something that stands still."""
        if (queue := self._queues.get(sender.index)) and start_s < min(end_s, queue[0].there_s):
            head = queue[0]
            head.left_s -= max(0.0, start_s - head.since_s)
            head.since_s = max(head.since_s, end_s)

    def take_there(self, now_s: float) -> list[BackgroundCopy]:
        """Return the copies that are there by now, in order of time, and have their links go on with the next ones."""
        there: list[BackgroundCopy] = []
        for queue in list(self._queues.values()):
            while queue and queue[0].there_s <= now_s:
                there.append(self._pop(queue, queue[0].there_s))
        return sorted(there, key=lambda copy: copy.there_s)

    def stop(self, copy: BackgroundCopy, now_s: float) -> None:
        """Send nothing more of a copy; its link goes on with the next."""
        queue = self._queues.get(copy.sender.index, deque())
        if copy in queue:
            if queue[0] is copy:
                self._pop(queue, now_s)
            else:
                queue.remove(copy)

    def forget(self, copy: BackgroundCopy) -> None:
        """Forget a copy whose response has left or is complete."""
        del self._of[copy.response]

    def _pop(self, queue: deque[BackgroundCopy], at_s: float) -> BackgroundCopy:
        copy = queue.popleft()
        if queue:
            self._start(queue[0], at_s)
        else:
            del self._queues[copy.sender.index]
        return copy
