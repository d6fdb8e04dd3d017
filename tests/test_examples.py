"""The examples in the docstrings of the functions that users call: they run, and show what they say."""

from __future__ import annotations

import doctest
import importlib
from typing import Any

import pytest

MAIN = {
    "rlhfless.run.example": ("example",),
    "rlhfless.run.loading": ("load",),
    "rlhfless.run.run": ("Run.plan", "Run.plan_step", "Run.simulate", "Run.search", "Run.split", "Run.sweep", "Run.what_ifs"),
    "rlhfless.run.sweeps": ("variants",),
    "rlhfless.plots.variants": ("plot_variants",),
    "rlhfless.simulate.draft_fronts": ("draft_fronts",),
    "rlhfless.simulate.fusion_front": ("fusion_front",),
    "rlhfless.diagnosis.before_run": ("before_run",),
    "rlhfless.diagnosis.engine_profile": ("time_per_token",),
    "rlhfless.diagnosis.memory": ("model_memory", "memory_fit", "kv_ratio"),
    "rlhfless.engine.common.drafter": ("Drafter", "SuffixDrafter"),
    "rlhfless.engine.torch.engine": ("TorchEngine",),
    "rlhfless.executor.executor": ("Executor.plan", "Executor.problem", "Executor.run"),
    "rlhfless.executor.step.requests": ("requests",),
    "rlhfless.executor.step.work_items": ("WorkItem",),
    "rlhfless.latency.calls": (
        "CallTable",
        "CallTable.seconds",
        "CallTable.memory",
        "CallTable.reallocate",
        "StepBatch",
        "CostOptions",
    ),
    "rlhfless.latency.call_tables": ("list_call_kinds", "load_call_tables", "KindTables.times"),
    "rlhfless.latency.gpus": ("gpu", "weights_floor_ms"),
    "rlhfless.latency.scaling": ("profile_like",),
    "rlhfless.latency.effects": ("Effects",),
    "rlhfless.paper.real_settings": ("real_settings",),
    "rlhfless.scheduling.policy_table": ("as_policy", "policies", "policy_names"),
    "rlhfless.simulate.whole_steps.call_layouts": ("call_layouts",),
    "rlhfless.simulate.whole_steps.step_of_calls": ("step_of_calls",),
    "rlhfless.scheduling.published": ("colocated_plan", "partitions", "megatron_plan", "real_plan"),
    "rlhfless.trace.importers.engine_lines": ("EngineLines",),
    "solver.generation.planner": ("plan",),
    "solver.generation.plan_of": ("plan_of",),
    "solver.generation.random_split": ("random_split",),
    "solver.model.cluster": ("Cluster",),
    "solver.generation.pareto_front": ("pareto_front",),
    "solver.lower_bound": ("bound",),
    "solver.model.step_levers": ("lever_names",),
    "solver.step.cut": ("choose_cut",),
    "solver.step.bound": ("whole_step_bound",),
    "solver.step.charges": ("Charges",),
}
"""Modules of the main functions, and the functions of each; without a name: the module's own docstring."""
EACH = [(module, name) for module, names in MAIN.items() for name in names] + [("rlhfless", "")]


@pytest.mark.parametrize(("module", "name"), EACH, ids=lambda part: part)
def test_an_example_shows_what_it_says(module: str, name: str) -> None:
    found: Any = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    (example,) = doctest.DocTestFinder(recurse=False).find(found, name or module, globs={})
    report: list[str] = []
    result = doctest.DocTestRunner().run(example, out=report.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(report)
