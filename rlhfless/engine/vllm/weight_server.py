"""Sends the trained model's weights to vLLM replicas in other processes, by vLLM's weight-transfer API over NCCL.

Replicas come, go and are replaced within a step, but a group of NCCL never changes. So every replica has a group of its own:
the trainer is rank 0, the replica's tensor-parallel ranks follow. It is made when the replica first asks for weights, and
stays until the replica ends. Weights are packed by vLLM into buffers of ``BUFFER_BYTES``, in the order of the model's
parameters. ``WeightClient`` is the replica's end.

This file knows nothing of training. It imports vLLM when the first replica asks for weights.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from multiprocessing.context import AuthenticationError
from typing import Any

import torch
from torch import Tensor

from rlhfless.engine.vllm.weight_client import Hello, TransferCall
from rlhfless.engine.vllm.weight_transfer import ServerAddress

BUFFER_BYTES = 256 << 20  # of weights that are packed into one message; vLLM has two such buffers at either end
KEY_BYTES = 32
ANSWER_S = 600.0
"""That a replica may take to answer one call: to join a group of NCCL, or to read all weights. The trainer waits for it, so a
replica that stands still, or whose machine is cut off, must not hold it for ever."""


class OfferedWeights:
    """The weights of a version in the order and number format in which they are sent: vLLM's ``WeightSource``.

    Args:
        model: a transformers model; its parameters must not change while weights are sent.
    """

    def __init__(self, model: Any, version: int, dtype: torch.dtype) -> None:
        self.version, self._dtype, self.device = version, dtype, model.device
        self._weights = {name: weight.detach() for name, weight in model.named_parameters()}
        self.nbytes = sum(weight.numel() * dtype.itemsize for weight in self._weights.values())
        self.gpu = ""
        if self.device.type == "cuda":
            self.gpu = str(torch.cuda.get_device_properties(self.device).uuid)
            torch.cuda.synchronize(self.device)  # other streams read them

    def metadata(self) -> list[Any]:
        """Return vLLM's name, number format and shape of every weight, in order."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, self._dtype, tuple(weight.shape)) for name, weight in self._weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self._weights.items():
            yield name, weight.to(self._dtype)


class WeightServer:
    """Waits for replicas and sends them the offered weights. Every replica is served by a thread, one at a time sends.

    Args:
        host: the address of this machine at which replicas find it.
        buffer_bytes: see ``BUFFER_BYTES``.

    Attributes:
        address: what replicas need to find it.
    """

    def __init__(self, host: str, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._listener = Listener((host, 0))
        self.address = ServerAddress(host, int(self._listener.address[1]), secrets.token_bytes(KEY_BYTES))
        self._sending = threading.Lock()  # held while weights are sent
        self._offered: OfferedWeights | None = None
        self._closed = False
        threading.Thread(target=self._accept, name="rlhfless-weights", daemon=True).start()

    def offer(self, weights: OfferedWeights) -> None:
        """Send these weights to whoever asks for their version, instead of earlier ones."""
        with self._sending:
            self._offered = weights

    def withdraw(self) -> None:
        """Wait until nothing is sent, and send no weights from now on: they may change now."""
        with self._sending:
            self._offered = None

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # wakes the thread that waits for replicas
            socket.create_connection((self.address.host, self.address.port)).close()
        self._listener.close()
        self.withdraw()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="rlhfless-send-weights", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Serve a replica until its connection ends."""
        replica = ReplicaEnd(connection)
        with connection, contextlib.suppress(EOFError, OSError, AuthenticationError):
            deliver_challenge(connection, self.address.key)
            answer_challenge(connection, self.address.key)
            hello = connection.recv()
            try:
                while True:
                    connection.send(self._send(connection.recv(), hello, replica))
            finally:
                replica.give_up()

    def _send(self, version: int, hello: Hello, replica: ReplicaEnd) -> str | None:
        """Send a replica the weights of a version; returns why not, or None.

        Raises:
            EOFError, OSError: the replica ended.
        """
        offered = self._offered
        if refusal := _refusal(offered, version, hello):
            return refusal
        assert offered is not None
        if offered.device.type == "cuda":
            torch.cuda.set_device(offered.device)
        try:
            engine = replica.engine or self._meet(offered, hello, replica)
            with self._sending:
                if self._offered is not offered:
                    return _refusal(self._offered, version, hello)
                engine.source = offered
                engine.send_weights()
        except (EOFError, OSError):
            raise
        except Exception as error:
            replica.give_up()
            return f"weights {version} were not sent: {type(error).__name__}: {error}"
        return None

    def _meet(self, offered: OfferedWeights, hello: Hello, replica: ReplicaEnd) -> Any:
        """Make the group of a replica; both ends are vLLM's."""
        for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_NO_USAGE_STATS", "1")):
            os.environ.setdefault(name, value)
        warnings.filterwarnings("ignore", "Tensor '.*' has size .* exceeds buffer_size_bytes")  # then it is a message alone
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        host = self.address.host
        with socket.create_server((host, 0)) as free:
            port = free.getsockname()[1]
        info = NCCLTrainerInitInfo(host, port, 1 + hello.ranks, packed_buffer_size_bytes=self._buffer_bytes, rank=0)
        engine: Any = WeightTransferTrainerFactory.trainer_init(info, client=replica, source=offered)
        replica.engine = engine
        if engine.model_update_group.disabled:
            raise RuntimeError("vLLM cannot load NCCL here; choose weight_sync 'folder'")
        return engine


class ReplicaEnd:
    """A replica as vLLM's trainer engine sees it (``VLLMWeightSyncClient``): each call is a message that it answers.

    Attributes:
        engine: vLLM's trainer engine with the group of this replica; None: there is no group.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.engine: Any = None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """See vLLM."""
        self._call("init_weight_transfer_engine", init_info=init_info)

    def start_weight_update(self) -> None:
        """See vLLM."""
        self._call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """See vLLM. vLLM calls it beside sending, which would wait forever for a replica that failed or ended."""
        try:
            self._call("update_weights", update_info=update_info)
        except BaseException:
            self.give_up()
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """See vLLM. The replica labels its weights itself."""
        self._call("finish_weight_update")

    def give_up(self) -> None:
        """Abort the group; what is being sent by it ends. Idempotent."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.shutdown()

    def _call(self, name: str, **arguments: Any) -> None:
        self._connection.send(TransferCall(name, arguments))
        if not self._connection.poll(ANSWER_S):  # an OSError, so that the connection ends: a late answer has no place in it
            raise TimeoutError(f"{name} was not answered by the replica within {ANSWER_S:g} s")
        if (failure := self._connection.recv()) is not None:
            raise RuntimeError(f"{name} failed in the replica: {failure}")


def _refusal(offered: OfferedWeights | None, version: int, hello: Hello) -> str | None:
    """Return why a replica does not get the weights of a version; None where it does."""
    if offered is None or offered.version != version:
        has = "no weights" if offered is None else f"weights {offered.version}"
        return f"the trainer offers {has}, but the step needs weights {version}"
    if offered.gpu and offered.gpu in hello.gpus:
        return (
            f"the learner and an actor share GPU {offered.gpu}, but NCCL sends between GPUs only; leave the learner a GPU that "
            "no actor uses, or choose weight_sync 'folder'"
        )
    return None
