"""Every script of measurements runs to its end at its smallest size; what it measures there says nothing and is not read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SMALLEST = {
    "planning_speed": "--tiny --repeats 1 --markdown --json OUT",
    "planner_table": "--tiny --markdown --json OUT",
    "solver_moves": "--tiny --markdown --json OUT",
    "exact_bound": "--tiny --markdown --json OUT",
    "pipeline_schedules": "--tiny --markdown --json OUT",
    "step_search": "--tiny --markdown --json OUT",
    "stage_fusion": "--tiny --markdown --json OUT",
    "whole_step_aims": "--tiny --markdown --json OUT",
    "whole_step_planning": "--tiny --json OUT",
    "learner_memory": "--tiny --json OUT",
    "replan_speed": "--tiny --markdown --json OUT",
    "mixed_clusters": "--tiny --markdown --json OUT",
    "prefixes": "--tiny --markdown --json OUT",
    "saving_range": "--logs demonstration --json OUT",
    "policies": "--fast --logs arithmetic --policies random static --markdown --json OUT",
    "flip_rate": "--tiny -o OUT",
    "executor_speed": "--tiny --rounds 1 --markdown --json OUT",
    "torch_engine_speed": "--tiny --rounds 1 -o OUT --only",
    "engine_rows": "--tiny --json OUT",
    "gpu_engine": "--tiny --device cpu --only memory,reload,flips -o OUT",
    "learning_curves": "--tiny --seeds 1 --problems 8 --json OUT",
    "trl_step_time": "--tiny --markdown --json OUT",
    "import_speed": "--tiny --json OUT",
    "report_speed": "--tiny --json OUT",
    "predictors": "--logs shipped --steps 1 --json OUT",
    "recorder_overhead": "--responses 1000 --json OUT",
    "validation": "--only steps executed --json OUT",
    "live_overhead": "--tiny --json OUT",
    "value_of_information": "--tiny --markdown --json OUT",
    "dashboard_speed": "--tiny --moves 2 --json OUT",
    "draft_policies": "--tiny --draws 1 --markdown --json OUT",
    "stated_errors": "--tiny --json OUT",
    "drawn_coverage": "--tiny --json OUT",
    "scaled_profiles": "--tiny --json OUT",
}
OURS = "engine,engine x 2,generate"  # the other contenders of torch_engine_speed need minutes, or a package

SLOW = (
    "dashboard_speed",
    "gpu_engine",
    "learner_memory",
    "report_speed",
    "solver_moves",
    "torch_engine_speed",
    "trl_step_time",
)  # 20 to 60 s of CPU time each


def tiered(script: str) -> Any:
    """A script, in the tier that its time allows."""
    return pytest.param(script, marks=pytest.mark.nightly if script in SLOW else pytest.mark.full)


@pytest.mark.parametrize("script", [tiered(script) for script in SMALLEST])
def test_a_script_runs_at_its_smallest_size(script: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = [str(out) if word == "OUT" else word for word in SMALLEST[script].split()]
    options += [OURS] if options[-1] == "--only" else []
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(HERE / f"{script}.py"), *options],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
    assert out.stat().st_size > 2


def test_every_script_is_tried() -> None:
    """Every file is a script that is tried above, a part of one, or a script that a test of its own runs."""
    parts = {
        "gpu_checks",
        "gpu_parts",
        "gpu_plans",
        "gpu_replay",
        "gpu_training",
        "gpu_workload",
    }
    parts |= {"chaos", "chaos_counts", "chaos_learning", "counting_engine", "executor_rows", "executor_steps"}
    parts |= {
        "planner_problems",
        "policy_comparison",
        "policy_tables",
        "predictor_logs",
        "public_logs",
        "stage_fusion_logs",
        "task_dynamics",
    }
    parts |= {"process_cpu", "step_stopwatch", "trl_same_update", "trl_trainer", "turns"}
    parts |= {"validation_errors", "validation_executed", "validation_operators", "validation_points", "validation_runs"}
    parts |= {"validation_steps"}
    assert {path.stem for path in HERE.glob("*.py")} - parts - {Path(__file__).stem} == set(SMALLEST)
