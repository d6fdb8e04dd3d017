"""The project still makes what the golden record holds. Every change of results on purpose is recorded anew and listed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compare import differences, told
from produce import ITEMS, of_policy, settings
from produce_findings import ITEMS as FINDINGS
from produce_plots import FIGURES
from record import load

from rlhfless import plots
from rlhfless.scheduling import POLICIES

QUICK_FINDINGS = ("findings-as-verl", "findings-as-slime", "findings-table", "findings-prime-rl-console")
LONG = (
    "report-executed", "report-logged", "predictions", "retimed-step", "info-frames",
    *(item for item in FINDINGS if item not in QUICK_FINDINGS),
)  # fmt: skip
WITHOUT_A_RUN = {
    "plot_acceptance", "plot_cost_over_time", "plot_cut_surface",
    "plot_pipeline", "plot_speedup_map", "plot_step_comparison",
    "plot_step_fusion", "plot_step_plan", "plot_step_search", "plot_two_step_gain",
}  # fmt: skip
"""Plots that came after the record (drafts, pipelines, migrations, whole steps, what-ifs, variants) have tests of their own."""
HOW = "if the change is meant, run `make golden` and list it in tests/golden/README.md"


def check(item: str, recorded: Any, now: Any) -> None:
    """Fail with the first differences."""
    found = list(differences(recorded, now))
    assert not found, f"{item} is not what was recorded; {HOW}:\n{told(found)}"


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_plan_and_run_a_step_of_every_setting_as_recorded(policy):
    recorded = {name: dict([next(iter(steps.items()))]) for name, steps in load(f"policy-{policy}").items()}
    assert recorded.keys() == settings().keys()
    check(policy, recorded, of_policy(policy, 1))


@pytest.mark.full
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_plan_and_run_all_steps_as_recorded(policy):
    recorded = load(f"policy-{policy}")
    assert sum(map(len, recorded.values())) == 12
    check(policy, recorded, of_policy(policy))


@pytest.mark.parametrize("item", [item for item in ITEMS if not item.startswith("policy-") and item not in LONG])
def test_everything_else_is_as_recorded(item):
    check(item, load(item), ITEMS[item]())


@pytest.mark.full
@pytest.mark.parametrize("item", LONG)
def test_what_takes_long_is_as_recorded(item):
    if item == "findings-slime":
        pytest.importorskip("torch", reason="torch is not installed, which reads the files of slime")
    check(item, load(item), ITEMS[item]())


def test_every_policy_and_every_plot_is_recorded():
    assert {f"policy-{name}" for name in POLICIES} <= set(ITEMS)
    assert {name.partition(",")[0] for name in FIGURES} | WITHOUT_A_RUN == {
        name for name in plots.__all__ if name.startswith("plot_")
    }
    assert set(load("info-frames")) == set(FIGURES)


@pytest.mark.full
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the kernels that are chosen here are of x86-64")
def test_plans_are_as_recorded_with_the_kernels_of_an_older_processor() -> None:
    """BLAS sums in an order of its kernel, and numpy's vector instructions round differently; no plan may follow from that."""
    older = {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", str(Path(__file__)), "-k"]
    selected = "all_steps_as_recorded and (solver or oracle)"
    ran = subprocess.run(
        [*words, selected], env={**os.environ, **older}, capture_output=True, text=True, timeout=800, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "4 passed" in ran.stdout
