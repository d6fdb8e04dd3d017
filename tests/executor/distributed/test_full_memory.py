"""Shared memory that is full, really: a program with a small one of its own, as in a container that was given too little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SMALL = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from dataclasses import replace
from pathlib import Path
import numpy as np
from busy_machine import PATIENT, Gate, Gated, has_moved
from chaos_counts import token_bytes
from counting_engine import CountingEngines
from executor_samples import Restless, plan_of
from rlhfless.engine.protocol import Request
from rlhfless.executor import StepFailed, ProcessPool
from solver import Cluster, LatencyModel

LATENCY = LatencyModel("tiny", 1, 2e-3, 0.0, max_batch=16, kv_capacity_tokens=1 << 20)
requests = [Request(i, 3, 300, prompt_ids=np.arange(3), seed=i, target_tokens=100 + 9 * i) for i in range(8)]
ballast = Path("/dev/shm/ballast")


def fill():
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


class FillAndMove(Restless):  # once actors have the weights
    def decide(self, now_s, state):
        if not ballast.exists():
            fill()
        return super().decide(now_s, state)


def step(rule=None):  # whose rule has moved something before the last responses end
    plan = replace(plan_of([range(4), range(4, 8)]), rule=rule)
    gate = Gate(Path({gates!r}) / str(pool.now_s()))
    with gate.opened(lambda: rule is None or has_moved(pool)):
        engines = Gated(CountingEngines(), gate, last=3)
        return pool.run_step(plan, requests, engines, LATENCY, Cluster(1, 2, 1), migration="move")


with ProcessPool(["cpu"] * 2, faults=PATIENT) as pool:
    undisturbed = token_bytes(step())
    roomy = step(Restless(1, period_s=0.02, late=True))
    full = step(FillAndMove(1, period_s=0.02, late=True))
    for record in (roomy, full):
        received = [s for s in record.spans if s["phase"] == "transfer"]
        lost = [e["name"] for e in record.events if e["name"] == "lost"]
        print("same" if token_bytes(record) == undisturbed else "other", record.moves > 0, len(received) > 0, lost)
    fill()
    try:
        step()
    except StepFailed as error:
        print(error, "|", error.record.step == 0)
    ballast.unlink()
    print("same" if token_bytes(step()) == undisturbed else "other")
print(*Path("/dev/shm").iterdir())
"""


@pytest.mark.full
def test_full_shared_memory_costs_kv_states_or_the_step_but_never_a_process(tmp_path: Path) -> None:
    """KV states that cannot be handed over are recomputed; weights that cannot be laid out end the step with a sentence."""
    try:
        subprocess.run(["unshare", "--mount", "sh", "-c", SMALL, "sh", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small /dev/shm of one's own can be mounted by root on Linux only")
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.format(paths=[str(TESTS / "support"), str(TESTS / "benchmarks"), str(TESTS.parent)], gates=str(tmp_path))
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SMALL, "sh", sys.executable, str(script)],
        capture_output=True, text=True, env={**os.environ}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    roomy, full, error, again, left = done.stdout.split("\n")[:5]
    assert roomy == "same True True []"
    assert full == "same True False []", "moved without KV states, and nobody was lost"
    assert error.startswith("shared memory has no room for ")
    assert error.endswith("| True")
    assert again == "same"
    assert left == "", "nothing is left there"
