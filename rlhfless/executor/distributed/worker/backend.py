"""Asks what an engine kind can do (``Capabilities``): which part of a process is its own, and what of a step it cannot run.

The record names the module that actors' processes import, so the executor imports neither torch nor vLLM.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pickle
import sys
from collections.abc import Sequence
from typing import Any, cast

from rlhfless.engine.common.pool_engines import Backend, Capabilities, PoolEngines
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.factory import SimulatedEngineFactory
from rlhfless.errors import InputTypeError
from rlhfless.executor.step.work_items import WorkServer
from solver.model.plan import Plan
from solver.model.plurals import counted

OF_A_FACTORY = ("version", "weight_bytes", "measured", "to_remote", "compatibility_key", "check")
"""What every factory has from ``PoolEngines``."""


def backend_of(module: str) -> Backend:
    """Return the backend of a module that ``Capabilities.backend`` names."""
    return cast(Backend, importlib.import_module(module).Backend())


def pool_engines(engines: Any) -> PoolEngines:
    """Return ``engines`` if other processes can make them; the class ``SimulatedEngine`` stands for its factory.

    Raises:
        InputTypeError: they cannot; nothing was started.
    """
    factory: Any = SimulatedEngineFactory() if engines is SimulatedEngine else engines
    name = getattr(engines, "__name__", type(engines).__name__)
    if isinstance(factory, type) and issubclass(factory, PoolEngines):
        raise InputTypeError(f"engine is the class {name}; give a factory, which it makes: {name}(...)")
    if not all(hasattr(factory, attribute) for attribute in OF_A_FACTORY):  # one that wraps another has them without the base
        if hasattr(factory, "capabilities"):
            raise InputTypeError(f"{name} is no PoolEngines, which other processes need; write class {name}(PoolEngines)")
        raise InputTypeError(
            "actors in processes decode with a TorchEngineFactory, a VllmEngineFactory, a ServerEngineFactory, a "
            f"SimulatedEngineFactory or PoolEngines of your own, not with {name}; run it on the virtual clock: "
            "Executor(engine, cluster, latency=latency)"
        )
    if not isinstance(getattr(factory, "capabilities", None), Capabilities):
        raise InputTypeError(f"{name} has no Capabilities; write capabilities = Capabilities('the NAME engine') in the class")
    backend, found = factory.capabilities.backend, None
    with contextlib.suppress(ModuleNotFoundError):  # of a package in its name
        found = sys.modules.get(backend) or importlib.util.find_spec(backend)
    if found is None:
        raise InputTypeError(
            f"the Capabilities of {name} name the backend {backend!r}, and there is no such module; leave it out, or name a "
            "module with a class Backend"
        )
    if type(factory).__module__ == "__main__":
        raise InputTypeError(
            f"{name} is defined in a script or notebook, which processes of actors do not run; put it in a file, my_engine.py, "
            f"and write from my_engine import {name}"
        )
    if backend == Capabilities.backend:  # others pack what cannot be pickled alone, such as weights
        try:
            pickle.dumps(factory)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise InputTypeError(
                f"{name} cannot be sent to processes of actors ({error}); define it outside functions in a file, and give it "
                "fields that can be pickled, such as the folder of a model"
            ) from error
    if not callable(factory) or type(factory).__call__ is PoolEngines.__call__:
        raise InputTypeError(f"{name} makes no engine; write def __call__(self, latency, admission, start_s=0.0) in its class")
    return cast(PoolEngines, factory)


def refusal(plan: Plan, engines: PoolEngines, devices: Sequence[str], servers: Sequence[WorkServer] = ()) -> str | None:
    """Return why these engines cannot run a plan, in one sentence that says what works; None where they can.

    Args:
        devices: of each actor of the plan: ``cpu``, or CUDA devices separated by commas, or the URL of a server.
        servers: of work beside decoding, in other processes.
    """
    can, name = engines.capabilities, type(engines).__name__
    for i, (actor, device) in enumerate(zip(plan.actors, devices, strict=True)):
        if not can.takes_prefixes and (actor.prefixes or i == plan.prefill_actor):
            does = "receives prefixes" if actor.prefixes else "computes prefixes for others"
            return f"actor {i} of the plan {does}, which a {name} cannot; run a plan without deduplicated prefill"
        if can.one_gpu and len(actor.gpu_ids) > 1 and device != "cpu":
            return (
                f"actor {i} of the plan has {counted(len(actor.gpu_ids), 'GPU')}, but {can.name} decodes on one; plan for 1 "
                "GPU per actor, or choose engine 'vllm', which is tensor-parallel over the GPUs of an actor"
            )
        if can.served != ("://" in device):
            what, use = "on devices of this machine", "ProcessPool(), or a ServerEngineFactory"
            if can.served:
                what, use = "on servers that run already", "ProcessPool with their URLs: ProcessPool(['http://localhost:8000'])"
            return f"actor {i} of the plan is on {device}, but a {name} decodes {what}; use {use}"
        if can.served and device in devices[:i]:
            return (
                f"actors {devices.index(device)} and {i} of the plan are both on {device}, but a server is one actor; name one "
                f"URL for all GPUs of an actor, and plan for {counted(len(set(devices)), 'actor')} or start more servers"
            )
    if plan.rule is not None and not can.moves:
        return (
            f"the plan of {plan.policy!r} may move responses between actors while they decode, which {can.name} cannot; choose "
            "a policy without a rule, such as 'solver'"
        )
    used = {gpu for actor in plan.actors for gpu in actor.gpu_ids}
    for server in servers if can.starts_server or can.served else ():
        if not used.isdisjoint(server.gpu_ids):
            return (
                f"server {server.holder!r} of the work is on GPU {min(used.intersection(server.gpu_ids))} of an actor, but a "
                f"{name} keeps its GPU memory when it is done; give the work GPUs beside the actors"
            )
    return None
