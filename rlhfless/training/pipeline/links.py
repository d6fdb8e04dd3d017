"""Sends and receives tensors between the processes of a pipeline: messages of a peer come in the order in which it sends them.

Messages have no tags, as NCCL has none. Each direction between two processes has its own process group: with NCCL, messages of
a group wait for each other, so one group for both directions could block. Over gloo this is tested; NCCL, which needs two GPUs,
is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

AHEAD = 2
"""Receives that are posted ahead for every peer, so that a message arrives while the process computes."""


class Links:
    """This process's connections to its peers.

    Args:
        rank: of this process. pairs: (sender, receiver) of all messages; the same in every process.
    """

    def __init__(self, rank: int, pairs: Iterable[tuple[int, int]]) -> None:
        self._rank = rank
        self._groups = {pair: dist.new_group(list(pair)) for pair in sorted(pairs)}
        self._sends: deque[tuple[Any, Tensor]] = deque()

    def expect(self, incoming: Mapping[int, Sequence[tuple[Hashable, Tensor]]]) -> None:
        """Begin to receive: by peer, the name of each message and the tensor to be filled, in the order of sending."""
        self._waiting = {peer: deque(expected) for peer, expected in incoming.items()}
        self._posted: dict[int, deque[tuple[Hashable, Any, Tensor]]] = {peer: deque() for peer in incoming}
        self._sender = {name: peer for peer, expected in incoming.items() for name, _ in expected}
        self._arrived: dict[Hashable, Tensor] = {}
        for peer in incoming:
            for _ in range(AHEAD):
                self._post(peer)

    def _post(self, peer: int) -> None:
        if self._waiting[peer]:
            name, buffer = self._waiting[peer].popleft()
            work = dist.irecv(buffer, peer, group=self._groups[peer, self._rank])
            self._posted[peer].append((name, work, buffer))

    def receive(self, name: Hashable) -> Tensor:
        """Return the named message; waits for it, and for those that its sender sends before it."""
        peer = self._sender[name]
        while name not in self._arrived:
            first, work, buffer = self._posted[peer].popleft()
            work.wait()  # a peer that stands still is found by the driver, which ends all processes; torch has a limit, too
            self._arrived[first] = buffer
            self._post(peer)
        return self._arrived.pop(name)

    def send(self, peer: int, tensor: Tensor) -> None:
        """Begin to send a tensor, which must not change before ``flush``."""
        tensor = tensor.contiguous()
        self._sends.append((dist.isend(tensor, peer, group=self._groups[self._rank, peer]), tensor))
        while self._sends and self._sends[0][0].is_completed():
            self._sends.popleft()

    def flush(self) -> None:
        """Wait until everything is sent."""
        while self._sends:
            self._sends.popleft()[0].wait()
