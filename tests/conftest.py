"""Settings of all tests, and the notebooks' one run.

Knows hypothesis, signals and which notebooks need what. Every run tries the same examples, so that a change is judged by what
it changes; ``make test-search`` tries examples that nobody has seen, and an example that fails there goes into its test with
``@example``.

Two processes run the tests, but for those that are marked ``alone``, by the names of their files: real processes, a real clock
(searches that stop at a time limit, too), a real browser, or what is left behind on the machine. Nothing may run beside these.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
SEARCHES = (
    "brute_force", "canonical", "ctrl_c", "dedup", "degenerate", "evaluate", "front_over_scenarios", "invariants",
    "limits_over_scenarios", "mixed", "mixed_bound", "mixed_history", "mixed_options", "mixed_scenarios", "mixed_together",
    "monotone", "planner", "real_lengths", "refusals", "replan_mixed", "room_to_blame", "scenarios", "solver_imports",
    "together_or_split", "variants",
)  # fmt: skip
ALONE = (
    "browser/test_*.py",
    "engine/test_vllm_*.py",
    "executor/test_chaos.py",
    "executor/test_folders.py",
    "executor/test_full_memory.py",
    "executor/test_nothing_left_behind.py",
    "executor/test_real_*.py",
    *(f"solver/test_{name}.py" for name in SEARCHES),
    "test_notebook.py",
    "trace/importers/test_import_memory.py",
    "trace/test_recorder.py",
    "trace/test_trace_writer.py",
    "training/test_full_disk.py",
    "training/test_kills.py",
    "training/test_learner_processes.py",
    "training/test_left_behind.py",
    "training/test_loop.py",
    "training/test_odd_rewards.py",
    "training/test_prewarmed.py",
    "training/test_ray_training.py",
    "training/test_reward_processes.py",
    "training/test_rewards.py",
    "training/test_step_time.py",
    "training/test_vllm_training.py",
)

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: two processes share two cores
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NEEDS = {"04_cluster": "ray", "06_your_logs": "tokenizers"}

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background starts programs so, and theirs; tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def executed_notebook(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Executes a shipped notebook, once for all tests that look at it.

    Returns:
        Name (``08_paper/01_figures``) to the executed copy; the page that it wrote lies beside it as ``page.html``.
    """
    made: dict[str, Path] = {}

    def execute(name: str) -> Path:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
        if name not in made:
            from rlhfless.notebook import run_notebook

            made[name] = run_notebook(NOTEBOOKS / f"{name}.ipynb", tmp_path_factory.mktemp("executed") / "page.html")
        return made[name]

    return execute


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what nothing may run beside."""
    for item in items:
        name = item.path.relative_to(TESTS).as_posix()
        if any(fnmatch(name, pattern) for pattern in ALONE):
            item.add_marker(pytest.mark.alone)
