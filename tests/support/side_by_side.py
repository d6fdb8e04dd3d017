"""Which of pytest-xdist's processes runs which tests: a file's tests run in one process, the longest files first.

Tests that look at the whole machine (what is left of actors in its memory, how much memory it has) run one after another in
one process, while the others go on with the rest. Those that start clusters of Ray do so in a second process. Both sequences
begin first, as they wait for most of their time. Knows xdist and the names of files; nothing of the tests.
"""

from __future__ import annotations

import contextlib
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

TESTS = Path(__file__).parents[1]
WHOLE_MACHINE = (
    "engine/vllm/test_vllm_left_behind.py",
    "engine/vllm/test_vllm_ray.py",
    "engine/vllm/test_vllm_wall.py",
    "executor/distributed/test_chaos.py",
    "executor/distributed/test_full_memory.py",
    "executor/distributed/test_nothing_left_behind.py",
    "executor/distributed/test_real_processes.py",
    "system/test_scratch_folders.py",
    "training/test_vllm_training.py",
)
CLUSTERS = ("executor/distributed/test_real_ray.py", "training/test_ray_training.py")
SEQUENCES = {"clusters of Ray": CLUSTERS, "the whole machine": WHOLE_MACHINE}
"""Files of which one process runs all tests, by the name of the sequence."""
TEST_BY_TEST = (
    "benchmarks/test_scripts.py",
    "browser/test_notebooks_in_lab.py",
    "paper/test_paper_command.py",
    "system/test_run_notebook.py",
)
"""Files of long tests that share nothing but what a test run makes once: each test may run in another process."""
LONG = (
    *CLUSTERS, *WHOLE_MACHINE, *TEST_BY_TEST[::-1], "engine/torch/test_gpu_benchmark.py",
    "executor/*", "training/*", "browser/*", "paper/*", "report/*", "golden/*",
)  # fmt: skip
"""Files in the order in which they begin; the others follow, in pytest's order."""


def _first(name: str, patterns: tuple[str, ...]) -> int:
    """Position of the first pattern that fits, their number where none does."""
    return next((i for i, pattern in enumerate(patterns) if fnmatch(name, pattern)), len(patterns))


def _sequence(name: str) -> str | None:
    """Name of the sequence that a file is part of; None where it is part of none."""
    return next((sequence for sequence, files in SEQUENCES.items() if _first(name, files) < len(files)), None)


def _memory() -> str:
    """What Linux says of memory: a process that it killed for want of it says nothing itself."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines() + Path("/proc/vmstat").read_text().splitlines()
        return ", ".join(" ".join(line.split()) for line in lines if line.startswith(("MemAvailable", "oom_kill")))
    return "nothing is known of its memory"


def in_order(items: list[pytest.Item]) -> None:
    """Mark the tests of sequences, and put the tests into the order in which they begin."""
    names = {item.path: item.path.relative_to(TESTS).as_posix() for item in items}
    for item in items:
        if _sequence(names[item.path]) is not None:
            item.add_marker(pytest.mark.whole_machine)
    items.sort(key=lambda item: _first(names[item.path], LONG))


class FileByFile(LoadScopeScheduling):
    """Gives whole files to the processes, in the order of the tests; a sequence goes to one of them."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by the number of tests, which says little of their time

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test in which a process ended, and give what that process had left to do to the others.

        xdist gives that test out again, so that one which ends its process ends the next one too. It also asks processes that
        have not collected yet, which fails after it took the work out of the queue: nobody does it, and the run never ends.
        """
        for unit in self.assigned_work.get(node, {}).values():
            for nodeid, completed in unit.items():
                if not completed:
                    unit[nodeid] = True
                    print(f"\na process ended in {nodeid}; {_memory()}", flush=True)
                    left = self.assigned_work.pop(node)
                    self.workqueue.update({name: unit for name, unit in left.items() if not all(unit.values())})
                    for other in list(self.assigned_work):
                        if self.workqueue and other in self.registered_collections:  # without work, it would be told to finish
                            self._reschedule(other)
                    return nodeid
        return super().remove_node(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a process its next work; one that has a single test waits with it until it gets more or is told to finish."""
        super()._assign_work_unit(node)
        if self._pending_of(self.assigned_work[node]) < 2:
            self._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        """Return the name of what is given to one process as a whole."""
        name = nodeid.split("::", 1)[0].removeprefix("tests/")
        sequence = _sequence(name)
        if sequence is not None:
            return sequence
        return nodeid if _first(name, TEST_BY_TEST) < len(TEST_BY_TEST) else name


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileByFile:
    """Take this order in place of the one that ``--dist`` names."""
    return FileByFile(config, log)
