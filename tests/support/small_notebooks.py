"""The shipped notebooks with small parameters, as the tests execute them.

Knows the notebooks' parameters; nothing of what they compute. ``make nightly`` executes them
with the parameters that they are shipped with.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORDED = "../data/traces/arithmetic-grpo"
SMALL_MODELS = dict.fromkeys(("actor", "reference", "critic", "reward"), "llama2-7b")
SMALL: Mapping[str, Mapping[str, Any]] = {
    "01_quick_start": {"LOG": RECORDED, "STEPS": 1},
    "02_your_log": {"STEPS": 1},
    "03_planning": {"LOG": RECORDED, "SLOTS": [8, 64], "DISCOUNTS": [0.0], "DEADLINE_S": 11.0},
    "04_one_step": {"POLICIES": ["static", "solver+replan"], "PROMPTS": 4, "REST_S": 1.0, "STEPS": 2, "RAY": False},
    "05_training": {"STEPS": 1},
    "06_what_if": {"LOG": RECORDED, "PROFILE": "h100-qwen2.5-3b-tp1", "STEP": 30, "GPUS": [2, 5], "TIME_WEIGHT": 0.25},
    "07_whole_steps": {
        "NODES": 1, "MODELS": SMALL_MODELS, "RESPONSES": 64, "ACTOR": [2, 2, 4], "CRITIC": [2, 1, 4], "UNIT_S": 0.01,
        "TRACE": RECORDED, "GPUS": 8, "LEARNER_GPUS": 2,
    },
    "08_speculation": {"GPUS": 8, "MAX_TOKENS": 4000, "TIME_WEIGHTS": [0.8], "PROMPTS": [1]},
    "09_papers": {},
    "cookbook": {},
}  # fmt: skip
"""Values of parameters by notebook; one that is not named keeps the value that it is shipped with."""


def execute(name: str, folder: Path, parameters: Mapping[str, Any]) -> Path:
    """Execute a shipped notebook with other values of its parameters.

    Args:
        name: of the notebook under ``notebooks/``, without its ending.
        folder: where ``page.ipynb``, the executed copy, and ``page.html``, its page, are put.
        parameters: values of the names that its cell tagged ``parameters`` binds.

    Returns:
        The executed copy.
    """
    from rlhfless.plots.export.notebook_page import write_notebook_page
    from rlhfless.system.run_notebook import run_notebook

    root = folder / "root"  # notebooks read ../data
    copy = root / "notebooks" / f"{name}.ipynb"
    copy.parent.mkdir(parents=True)
    (root / "data").symlink_to(ROOT / "data")
    write_copy(name, copy, parameters)
    executed = run_notebook(copy, folder / "page.html")
    write_notebook_page(executed, folder / "page.html")
    shutil.rmtree(root)
    return executed


def write_copy(name: str, copy: Path, parameters: Mapping[str, Any]) -> None:
    """Write a copy of a shipped notebook that is not executed yet and has other values of its parameters."""
    pytest.importorskip("papermill", reason="papermill is not installed (pip install 'rlhfless[notebook]')")
    import nbformat
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    cells = load_notebook_node(str(ROOT / "notebooks" / f"{name}.ipynb"))
    nbformat.write(parameterize_notebook(cells, dict(parameters)) if parameters else cells, copy)
