"""Lets vLLM's NCCL weight transfer run on the CPU: gloo takes the place of NCCL, and nothing that of CUDA's streams.

What remains is vLLM's own: the meeting of trainer and replica, the handshake, packing, the order of weights, layer by layer
reloading. Call ``replace_nccl`` in both processes; then ``send`` serves a model's weights in one of them.
"""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from vllm_samples import model_of

from rlhfless.engine.vllm.weight_server import OfferedWeights, WeightServer
from rlhfless.engine.vllm.weight_transfer import ServerAddress

WITHIN = timedelta(seconds=60)
SMALL_BUFFER = 1 << 16  # many messages, most of several weights
SERVERS: list[WeightServer] = []  # of this process
BEFORE: list[Any] = []  # the engine that a worker had


class Gloo:
    """Has what vLLM's weight transfer uses of ``PyNcclCommunicator``."""

    def __init__(self, group: Any, device: Any) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("weights", group.store), group.rank, group.world_size, WITHIN)
        self.disabled = False

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        """See vLLM."""
        options = dist.BroadcastOptions()
        options.rootRank = src
        self._group.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        """See vLLM."""
        self._group.abort()
        self.disabled = True


class NoStream:
    """The CPU computes at once."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


def replace_nccl() -> None:
    """Replace NCCL and streams in this process."""
    from vllm.distributed.device_communicators import pynccl
    from vllm.distributed.weight_transfer import packed_tensor

    pynccl.PyNcclCommunicator = Gloo
    packed_tensor._get_streams = lambda device, count: (NoStream(),) * count
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = lambda *device: None


def on_ray() -> None:
    """Let the CPU build of vLLM have ranks in Ray bundles of logical GPUs, as the builds for GPUs do: it names no resource."""
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.ray_device_key = "GPU"
    replace_nccl()


def with_head(seed: int) -> Any:
    """The model of this seed, with output weights of its own: vLLM's CPU build needs them."""
    model = model_of(seed)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def serve() -> ServerAddress:
    """Start a server in this process, with gloo."""
    replace_nccl()
    SERVERS.append(WeightServer("127.0.0.1", SMALL_BUFFER))
    return SERVERS[-1].address


def offer(seed: int, version: int) -> int:
    """Offer the weights of a model; returns their bytes."""
    offered = OfferedWeights(with_head(seed), version, torch.float32)
    SERVERS[-1].offer(offered)
    return offered.nbytes


def withdraw() -> bool:
    """Offer no weights; waits for what is sent."""
    SERVERS[-1].withdraw()
    return True


def takes_nccl(worker: Any) -> None:
    """Give a running vLLM worker the weight-transfer engine that it has if it is started with ``nccl``."""
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    replace_nccl()
    real = getattr(worker, "worker", worker)
    BEFORE.append(real.weight_transfer_engine)
    real.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
        WeightTransferConfig(backend="nccl"), real.vllm_config, real.device, real.model_runner.get_model()
    )


def takes_it_no_more(worker: Any) -> None:
    """Give it the engine back that it had."""
    real = getattr(worker, "worker", worker)
    real.weight_transfer_engine.shutdown()
    real.weight_transfer_engine = BEFORE.pop()
