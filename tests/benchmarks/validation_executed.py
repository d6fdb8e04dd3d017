"""Steps that were simulated and executed with the same plans and lengths, as other scripts have recorded them.

Knows the recorded results of ``plan_against_reality.py`` (the shipped model on the CPU) and of ``gpu_engine.py`` (on a GPU,
where it was run); nothing is executed here. Simulated is what the profile's table, by which simulated engines are charged, says
of the plan. Executed is what a real engine took, every actor's iterations replayed alone; "without drift" is the same with the
seconds by which the machine was slower than when it was profiled taken out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from validation_errors import signed_error

RESULTS = Path(__file__).parent / "results"
CPU, GPU = "plan_against_reality.json", "gpu_engine_*.json"
SUMS = {"makespan_s": "makespan", "gpu_seconds": "GPU-seconds"}
SIDES = {"executed": "as executed", "without_drift": "without drift"}


def validate(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Every recorded step and sum: ``case, group, simulated, executed, error`` (signed)."""
    return [*_on_cpu(results), *_on_gpu(results)]


def _on_cpu(results: Path) -> list[dict[str, Any]]:
    file = results / CPU
    if not file.is_file():
        return []
    steps = json.loads(file.read_text(encoding="utf-8"))["known"]
    return [
        _case(f"step {i}", f"CPU, {said}, {how}", step[what]["by_table"], step[what][side])
        for what, said in SUMS.items()
        for side, how in SIDES.items()
        for i, step in enumerate(steps)
    ]


def _on_gpu(results: Path) -> list[dict[str, Any]]:
    cases = []
    for file in sorted(results.glob(GPU)):
        device = file.stem.removeprefix("gpu_engine_")
        replayed = json.loads(file.read_text(encoding="utf-8")).get("parts", {}).get("replay", {}).get("policies", {})
        for name, row in replayed.items():  # a policy that was skipped or failed says so instead
            if all(what in row for what in SUMS):
                cases += [
                    _case(name, f"{device}, {said}, as executed", row[what]["simulated"], row[what]["executed"])
                    for what, said in SUMS.items()
                ]
    return cases


def _case(name: str, group: str, simulated: float, executed: float) -> dict[str, Any]:
    error = signed_error(simulated, executed)
    return {"case": name, "group": group, "simulated": simulated, "executed": executed, "error": error}
