"""Copies of KV states that are sent while their responses decode on: the first step of a two-step migration.

Knows the times at which a sender's link is busy. Does not know engines: ``backend.py`` says when a response has left.

A link sends what stands still first. Copies use the rest of its time, one after another, in the order in which they were
ordered. So the end of a copy is known only once it is there: everything that its actor sends until then puts it off.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.executor.virtual.actors import VirtualActor


@dataclass(eq=False)
class BackgroundCopy:
    """A KV state that is copied, or was, of a response that still decodes.

    Attributes:
        sender, receiver: the actor that decodes the response, and the one to which it belongs.
        kv_tokens: that are copied.
        since_s: when its link began to send it, or goes on to; left_s: seconds that this still takes.
        start_s: when its link began; infinite before.
    """

    response: int
    sender: VirtualActor
    receiver: VirtualActor
    kv_tokens: int
    since_s: float
    left_s: float
    start_s: float = math.inf

    @property
    def there_s(self) -> float:
        """Return when it is there, if nothing else is sent until then."""
        return self.since_s + self.left_s


class BackgroundCopies:
    """The copies of a step, by response. ``links``: of the nodes, where they are shared."""

    def __init__(self, links: NodeLinks | None) -> None:
        self._links = links
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

    def sent_by(self, actor: VirtualActor) -> bool:
        """Return whether any response with a copy still decodes on the actor."""
        return any(copy.sender is actor for copy in self._of.values())

    @property
    def next_s(self) -> float:
        """Return when the next copy is there; infinite without one."""
        return min((queue[0].there_s for queue in self._queues.values()), default=math.inf)

    def begin(self, boundary_s: float, response: int, sender: VirtualActor, receiver: VirtualActor, kv_tokens: int) -> None:
        """Copy the KV state that a response has at an iteration boundary."""
        copy = BackgroundCopy(response, sender, receiver, kv_tokens, boundary_s, sender.latency.transfer_s(kv_tokens))
        self._of[response] = copy
        queue = self._queues.setdefault(sender.index, deque())
        queue.append(copy)
        if queue[0] is copy:
            self._start(copy, boundary_s)

    def _start(self, copy: BackgroundCopy, at_s: float) -> None:
        copy.start_s = copy.since_s = max(copy.since_s, at_s, copy.sender.link_free_s)
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
