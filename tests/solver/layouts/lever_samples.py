"""Small steps with levers: responses with a long tail, costs whose trainings have optimizer steps, and random plans of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dataflow_samples import RandomCosts

from solver import Cluster, LatencyModel, Workload
from solver.layouts import Call, Graph, Layout, StepGeneration
from solver.layouts.generation import GenerationPlans, by_call, generated_options
from solver.layouts.lever_space import LeverSpace, with_slack
from solver.layouts.parts import PromptShares
from solver.model.acceptance import Acceptance

DRAFTS = Acceptance([0.5, 0.3, 0.1])


class DividedRandomCosts(RandomCosts):
    """Random costs; an optimizer step takes a tenth of the seconds of a mini-batch."""

    mini_batches = 1

    def updates(self, call: Call, layout: Layout) -> tuple[int, float]:
        return self.mini_batches, 0.1 * self.seconds(call, layout) / self.mini_batches


class FewDividedLayouts(DividedRandomCosts):
    """Layouts without stages, from the first GPU on, so that all plans can be enumerated."""

    def seconds(self, call: Call, layout: Layout) -> float:
        few = layout.strategy.pp == 1 and layout.mesh.first == 0 and (layout.strategy.tp == 1 or call.kind == "generate")
        return super().seconds(call, layout) if few else math.inf


def tailed(seed: int = 0, prompts: int = 6, samples: int = 2, **more: Any) -> StepGeneration:
    rng = np.random.default_rng(seed)
    tokens = np.minimum(rng.lognormal(4.5, 0.9, prompts * samples).astype(int) + 1, 900)
    workload = Workload([50] * prompts, np.repeat(np.arange(prompts), samples), tokens, max_response_tokens=1000)
    latency = {tp: LatencyModel(f"tp{tp}", tp, base_s=8e-3 / tp**0.7, per_response_s=1e-3, max_batch=64) for tp in (1, 2)}
    return StepGeneration(workload, latency, drafts=DRAFTS, **more)


def space(graph: Graph, gpus: int, costs: Any, given: StepGeneration, memory_bytes: float = math.inf) -> LeverSpace:
    cluster = Cluster(1, gpus, 1)
    plans = {name: GenerationPlans(one, gpus) for name, one in by_call(graph, given).items()}
    options, slacks = with_slack(generated_options(graph, cluster, costs, plans), plans)
    shares = PromptShares(graph, {name: one.generation.workload for name, one in plans.items()})
    return LeverSpace(options, costs, plans, slacks, shares, memory_bytes)
