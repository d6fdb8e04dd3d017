"""Step plans of a small analytic cost model with made-up numbers, for tests of what shows plans."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from solver import Cluster
from solver.layouts import Call, CallMemory, Graph, Layout, StepPlan, missing_share, plan_step, ppo

WEIGHTS = {"actor": 26e9, "reference": 26e9, "critic": 14e9, "reward": 14e9}  # bytes
WORK = {"generate": 3.0, "inference": 1.0, "train": 4.0}  # seconds per 1e9 bytes of weights on one GPU
NODE_BYTES_S, NETWORK_BYTES_S = 170e9, 20e9


class AnalyticCosts:
    """Calls scale with dp and pp as it were perfectly, less with tp and across nodes; every GPU of a layout sends at once."""

    def __init__(self, slow: float = 1.0) -> None:
        self.slow = slow

    def seconds(self, call: Call, layout: Layout) -> float:
        strategy = layout.strategy
        loss = 1 + 0.08 * math.log2(strategy.tp) + 0.05 * (strategy.pp - 1) + 0.03 * math.log2(strategy.dp)
        return self.slow * WORK[call.kind] * WEIGHTS.get(call.role, 14e9) / 1e9 * loss / layout.mesh.gpus

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        weights = WEIGHTS.get(call.role, 14e9) / (layout.strategy.tp * layout.strategy.pp)
        kept = 2 * weights + 10 * weights / layout.strategy.dp if call.kind == "train" else 0.0
        return CallMemory(kept, 4e9 + (0.0 if call.kind == "train" else weights), weights)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        near, far = missing_share(source, destination, 8)
        size = WEIGHTS.get(role, 14e9)
        seconds = size * float(np.max(near / NODE_BYTES_S + far / NETWORK_BYTES_S))
        return self.slow * seconds, size * float(np.sum(near + far))


def named_graph(text: str) -> Graph:
    """A graph whose name, calls and roles are all this text, with a number where they must differ."""
    calls = (Call(text, text, "generate"), Call(f"{text} 2", f"{text} 2", "inference", (text,)))
    return Graph(text, (*calls, Call(f"{text} 3", text, "train", (text, f"{text} 2"))))


@cache
def analytic_plan(graph: Graph | None = None, gpus: int = 4, slow: float = 1.0, work: int = 50_000) -> StepPlan:
    """A plan of PPO's step, or of another graph's, within memory on one node of 4 or 8 GPUs, or on nodes of 8."""
    nodes = max(1, gpus // 8)
    cluster = Cluster(nodes, gpus // nodes, 1)
    return plan_step(graph or ppo(), cluster, AnalyticCosts(slow), memory_bytes=1600e9 / gpus, gap=0.05, work=work)
