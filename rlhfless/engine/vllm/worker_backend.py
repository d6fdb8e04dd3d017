"""``Backend`` of vLLM: chooses devices and owns the one replica of a worker process.

vLLM is started once in a process, because a start takes long. The replica stays from step to step, asleep in between, and loads
each step's weights.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from pickle import PickleBuffer
from typing import Any

from rlhfless.engine.common import pool_engines
from rlhfless.engine.torch import devices, tensor_pickles
from rlhfless.engine.vllm.adapter import Replica, VllmError
from rlhfless.engine.vllm.start_up import VllmSettings
from rlhfless.engine.vllm.weight_shipping import LocalWeights, ShippedWeights
from rlhfless.system.cleanup import clean_up, cleaning_up
from solver.model.latency import LatencyModel


@dataclass
class _Process:
    """State of this process. ``devices`` are the numbers of its GPUs, empty on the CPU; ``weights`` those that it is about to
    read, where they came from another machine.
    """

    devices: list[str] = field(default_factory=list)
    replica: Replica | None = None
    weights: LocalWeights | None = None


_here = _Process()


class Backend(pool_engines.Backend):
    """See ``pool_engines.Backend``: the process has one replica."""

    def cuda_devices(self) -> list[str]:
        """See ``Backend``."""
        return devices.cuda_devices()

    def use_device(self, device: str) -> None:
        """Let this process compute on ``device`` from now on: ``cpu``, or CUDA devices separated by commas.

        It does not initialise CUDA: vLLM chooses among the devices that it sees.
        """
        if device == "cpu":
            devices.compute_on(device)  # one thread
            return
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        numbers = [int(name.removeprefix("cuda:")) for name in device.split(",")]
        _here.devices = [visible.split(",")[i] if visible else str(i) for i in numbers]

    def pack(self, obj: Any) -> tuple[bytes, list[PickleBuffer]]:
        """Return the pickle of ``obj`` without its tensors or files, and the bytes of each; on the CPU they are not copied."""
        if not isinstance(obj, ShippedWeights):
            return tensor_pickles.pack(obj)
        buffers: list[PickleBuffer] = []
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append), buffers

    def unpack(self, form: bytes, buffers: Iterable[Any], device: str) -> Any:
        """Return the object that ``pack`` was given; weights that came with it are in a local folder until
        ``weights_are_read``.
        """
        obj = tensor_pickles.unpack(form, buffers, "cpu")  # to the device in whole blocks, when it is needed there
        if not isinstance(obj, ShippedWeights):
            return obj
        weights_are_read()
        _here.weights = obj.materialise()
        return _here.weights.engines

    def start_server(self, engines: Any, latency: LatencyModel) -> bool:
        """Start vLLM unless it runs; returns whether it had to be started."""
        if _here.replica is not None:
            return False
        try:
            replica_for(engines.compatibility_key(latency), Path(engines.weights), engines.weights_version)
        except BaseException as error:
            clean_up(weights_are_read, after=error)
            raise
        return True

    def prewarm(self, engines: Any, latency: LatencyModel) -> None:
        """Start vLLM before the step whose weights it will have: it sleeps without weights, as between two steps."""
        with cleaning_up(weights_are_read):
            replica_for(engines.compatibility_key(latency), Path(engines.weights), engines.weights_version).sleep()


def weights_are_read() -> None:
    """Release the folder of weights that the replica has loaded."""
    if _here.weights is not None:
        _here.weights.release()
        _here.weights = None


def replica_for(settings: VllmSettings, folder: Path, version: int) -> Replica:
    """Return this process's replica, started with these weights if there was none.

    Raises:
        VllmError: it was started with other settings.
    """
    if _here.replica is None:
        _here.replica = Replica(settings, _here.devices, folder, version)
    elif _here.replica.settings != settings:
        raise VllmError(f"vLLM runs here with {_here.replica.settings}; another process is needed for {settings}")
    return _here.replica
