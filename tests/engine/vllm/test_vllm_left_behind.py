"""Whatever ends a program that decodes with vLLM, nothing of vLLM stays: no process, no temporary file, no shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_wall_samples import until
from vllm_samples import model_of, needs_vllm, shared_memory_of

from rlhfless.engine.vllm.temp_files import PREFIX
from rlhfless.engine.vllm.weight_folders import write_weights
from rlhfless.system.scratch_folders import ELSEWHERE, SHARED_MEMORY

pytestmark = needs_vllm
PATHS = [
    str(Path(__file__).parents[2] / "support"),
    str(Path(__file__).parents[2] / "benchmarks"),
    str(Path(__file__).parents[3]),
]
SCRIPT = """
import os, sys, time
sys.path[:0] = {paths!r}
from dataclasses import replace
from pathlib import Path
from chaos_counts import descendants
from vllm_samples import LATENCY, factory_of, requests
from rlhfless.executor import Faults, ProcessPool
from solver import Cluster, Plan
from solver.model.plan import ActorPlan

gpus, way = {what!r}
plan = Plan((ActorPlan("gpu", tuple(range(gpus)), 0, (0, 1), (), 6),), "by hand", 0.0, 0.0, 0.0)
with ProcessPool([], faults=Faults(restarts=0)) as pool:
    if way == "starting":
        print("starts", flush=True)
    engines, latency = factory_of(Path({weights!r}), 0), replace(LATENCY, gpus_per_actor=gpus)
    pool.run_step(plan, requests(2), engines, latency, Cluster(1, gpus, gpus))
    print("has", *descendants(os.getpid()), flush=True)
    sys.stdin.readline()
"""
SIGNALS = {"interrupted": signal.SIGINT, "terminated": signal.SIGTERM, "killed": signal.SIGKILL, "starting": signal.SIGKILL}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A short name: vLLM's sockets are in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("gpus", "way"),
    [
        pytest.param(2, "killed", marks=pytest.mark.full),
        *(pytest.param(1, way, marks=pytest.mark.nightly) for way in ("end", "killed")),
        *(pytest.param(2, way, marks=pytest.mark.nightly) for way in ("end", "interrupted", "terminated", "starting")),
    ],
)
def test_nothing_of_vllm_is_left_behind(gpus: int, way: str, temporary: Path, tmp_path: Path) -> None:
    weights, script = write_weights(model_of(3), tmp_path, 0), tmp_path / "script.py"
    script.write_text(SCRIPT.format(paths=PATHS, what=(gpus, way), weights=str(weights)))
    program = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        assert program.stdout is not None
        said, *rest = program.stdout.readline().split() or ["nothing"]
        assert said in ("has", "starts"), program.communicate()[1]
        if way == "starting":  # its ranks are
            until(lambda: len(noted(temporary)) >= 3, "vLLM has laid something out", 600.0)
        pids = [int(pid) for pid in rest]
        files = noted(temporary) if way == "starting" else shared_memory_of(pids)
        assert len(files) >= (1 if gpus == 1 else 3)
        assert [*temporary.glob(f"{PREFIX}*")] == [*temporary.iterdir()] != []
        if way in SIGNALS:
            program.send_signal(SIGNALS[way])
        program.communicate("go on\n" if way == "end" else None, timeout=600)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == (0 if way == "end" else -SIGNALS[way])
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "every process has ended")
    until(lambda: not [*temporary.iterdir()], "temporary files are removed")
    until(lambda: not [file for file in files if file.exists()], "shared memory is freed")


def noted(temporary: Path) -> set[Path]:
    """Shared memory that is noted in vLLM's folder."""
    patterns = [line for file in temporary.glob(f"{PREFIX}*/{ELSEWHERE}") for line in file.read_text().splitlines()]
    return {file for pattern in patterns for file in SHARED_MEMORY.glob(pattern)}
