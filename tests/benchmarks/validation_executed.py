"""Steps that were simulated and executed with the same plans and lengths, as ``gpu_engine.py`` has recorded them on a GPU.

Knows the recorded results; nothing is executed here. Simulated is what the profile's table, by which simulated engines are
charged, says of the plan. Executed is what a real engine took, every actor's iterations replayed alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from validation_errors import signed_error

RESULTS = Path(__file__).parent / "results"
GPU = "gpu_engine_*.json"
SUMS = {"makespan_s": "makespan", "gpu_seconds": "GPU-seconds"}


def validate(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Every recorded step and sum: ``case, group, simulated, executed, error`` (signed)."""
    cases = []
    for file in sorted(results.glob(GPU)):
        device = file.stem.removeprefix("gpu_engine_")
        replayed = json.loads(file.read_text(encoding="utf-8")).get("parts", {}).get("replay", {}).get("policies", {})
        for name, row in replayed.items():  # a policy that was skipped or failed says so instead
            if all(what in row for what in SUMS):
                cases += [
                    _case(name, f"{device}, {said}", row[what]["simulated"], row[what]["executed"])
                    for what, said in SUMS.items()
                ]
    return cases


def _case(name: str, group: str, simulated: float, executed: float) -> dict[str, Any]:
    error = signed_error(simulated, executed)
    return {"case": name, "group": group, "simulated": simulated, "executed": executed, "error": error}
