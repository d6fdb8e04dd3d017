"""A replica's end of the connection to the trainer's ``WeightServer``: asks for weights, and makes the calls that send them.

The server drives vLLM's weight-transfer API, as vLLM's trainer engines do. Each of its calls comes as a message, is made in
vLLM here, and is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import Any

import torch

from rlhfless.engine.vllm.weight_transfer import ServerAddress


@dataclass(frozen=True)
class Hello:
    """The first message of a replica. ``ranks``: its vLLM processes; ``gpus``: their GPUs' unique ids, empty on the CPU."""

    ranks: int
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class TransferCall:
    """A call of vLLM's weight-transfer API that the replica has to make."""

    name: str
    arguments: Mapping[str, Any]


class WeightClient:
    """The connection of a replica, which stays from step to step.

    Args:
        gpus: unique ids of the replica's GPUs, one of each rank; empty texts on the CPU.

    Raises:
        OSError, AuthenticationError: nobody listens at the address, or somebody else does.
    """

    def __init__(self, address: ServerAddress, gpus: Sequence[str]) -> None:
        self.address = address
        self._connection = Client((address.host, address.port), authkey=address.key)
        self._connection.send(Hello(len(gpus), tuple(gpu for gpu in gpus if gpu)))

    def receive(self, version: int, call: Callable[..., Any]) -> str | None:
        """Receive the weights of a version.

        Args:
            call: as ``collective_rpc`` of a vLLM engine: makes a call in all ranks.

        Returns:
            Why the trainer does not send them; None: they are there.

        Raises:
            EOFError, OSError: the trainer is gone. Any other exception is that of a call.
        """
        self._connection.send(version)
        # no limit here: a trainer that ends closes the connection, and the driver gives up a replica that takes too long
        while isinstance(message := self._connection.recv(), TransferCall):
            try:
                call(message.name, kwargs=dict(message.arguments))
            except Exception as error:
                self._connection.send(f"{type(error).__name__}: {error}")
                raise
            self._connection.send(None)
        return None if message is None else str(message)

    def close(self) -> None:
        """Close the connection; the server gives up the group of this replica."""
        self._connection.close()


def gpu_of(worker: Any) -> str:
    """Return the unique id of a vLLM worker's GPU; the empty text on the CPU."""
    device = worker.device
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
