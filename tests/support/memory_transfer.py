"""A backend of vLLM's weight-transfer API that works without a GPU: weights come from a file of safetensors in memory.

It is the data plane only. What vLLM does around it (sessions, layer by layer reloading) is the real thing, as with CUDA IPC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "file"


@dataclass
class Nothing(WeightTransferInitInfo):
    """Nothing has to be agreed on."""


@dataclass
class InFile(WeightTransferUpdateInfo):
    """Where the weights are."""

    path: str


class FromFile(WeightTransferEngine[Nothing, InFile]):
    """Reads the file."""

    init_info_cls, update_info_cls = Nothing, InFile

    def init_transfer_engine(self, init_info: Nothing) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """As the engines of vLLM do."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Without the synchronisation of an accelerator, which is not there."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: InFile) -> None:
        """Load them."""
        self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        """As the engines of vLLM do."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing to do."""


def register() -> None:
    """Make it known to vLLM in this process."""
    WeightTransferEngineFactory.register_engine(BACKEND, FromFile)
