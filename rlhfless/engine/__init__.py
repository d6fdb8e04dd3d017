"""Inference engines with one protocol: simulated, torch, vLLM, and servers that run already.

Importing this package is fast; torch is loaded with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhfless.lazy_names import lazy_names

if TYPE_CHECKING:
    from rlhfless.engine.common.drafter import Drafter
    from rlhfless.engine.common.pool_engines import Capabilities, PoolEngines
    from rlhfless.engine.common.sampling import Sampling
    from rlhfless.engine.protocol import Completion, Engine, EngineSpan, Progress, Request
    from rlhfless.engine.server.engine import ServerEngineFactory
    from rlhfless.engine.simulated.disturbances import FaultInjectingFactory
    from rlhfless.engine.simulated.engine import SimulatedEngine
    from rlhfless.engine.simulated.factory import SimulatedEngineFactory
    from rlhfless.engine.torch.engine import TorchEngine
    from rlhfless.engine.torch.factory import TorchEngineFactory
    from rlhfless.engine.torch.model import DecoderModel, counting
    from rlhfless.engine.torch.transformers_model import TransformersModel
    from rlhfless.engine.vllm.factory import VllmEngineFactory

__all__ = [
    "Capabilities", "Completion", "DecoderModel", "Drafter", "Engine", "EngineSpan", "FaultInjectingFactory", "PoolEngines",
    "Progress", "Request", "Sampling", "ServerEngineFactory", "SimulatedEngine", "SimulatedEngineFactory", "TorchEngine",
    "TorchEngineFactory", "TransformersModel", "VllmEngineFactory", "counting",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Capabilities": "engine.common.pool_engines",
        "Completion": "engine.protocol",
        "DecoderModel": "engine.torch.model",
        "Drafter": "engine.common.drafter",
        "Engine": "engine.protocol",
        "EngineSpan": "engine.protocol",
        "FaultInjectingFactory": "engine.simulated.disturbances",
        "PoolEngines": "engine.common.pool_engines",
        "Progress": "engine.protocol",
        "Request": "engine.protocol",
        "Sampling": "engine.common.sampling",
        "ServerEngineFactory": "engine.server.engine",
        "SimulatedEngine": "engine.simulated.engine",
        "SimulatedEngineFactory": "engine.simulated.factory",
        "TorchEngine": "engine.torch.engine",
        "TorchEngineFactory": "engine.torch.factory",
        "TransformersModel": "engine.torch.transformers_model",
        "VllmEngineFactory": "engine.vllm.factory",
        "counting": "engine.torch.model",
    },
)
