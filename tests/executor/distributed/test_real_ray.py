"""What only a real Ray cluster shows: placement, objects on nodes, Ray's words for a death, a node that is gone, GPUs that are
free again. What the event loop, crews and life-cycles make of it is tested in a scripted world (``test_scripted_*.py``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import real_work
from benchmark_scripts import chaos_counts, counting_engine
from busy_machine import PATIENT, Gate, Gated, has_moved
from error_messages import refused
from executor_samples import Restless, plan_of
from torch_wall_samples import LATENCY, actor_plan, assert_noticed_in_time, factory_of, requests, token_bytes, until

from rlhfless.executor import Faults, Gpus, Lifecycle, RayPool, StepFailed, WorkItem, run_step
from rlhfless.trace.schema.validation import validate
from solver import Cluster, PlanningError

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
import ray
from ray_samples import (
    CLUSTER,
    GPUS_PER_NODE,
    LOST_SOON,
    AtFirst,
    Kill,
    Puts,
    a_process_of,
    details,
    free_gpus,
    long_requests,
    note_records,
    running,
    spread,
    two_nodes,
)  # fmt: skip
from scripted_strikes import MoveOne

from rlhfless.executor.distributed.ray import handle as ray_handle

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
GPUS = CLUSTER.gpus
TOO_LARGE = 160 * 2**20  # bytes: more than the object store of a node
TWO = Cluster(2, 1, 1)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """They put nothing on the disk that their memory has no room for."""
    with two_nodes(local_fs_capacity_threshold=0.0) as both:
        yield both


@pytest.fixture
def pool(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayPool]:
    """It says what it records while it does; afterwards no GPU is held."""
    with RayPool(nodes.address, runtime_env={}, faults=PATIENT) as joined:
        note_records(joined, monkeypatch)
        yield joined
        until(lambda: free_gpus() == GPUS, "no GPU is held")
    assert not ray.is_initialized()


def counting(
    pool: RayPool,
    rule: Any = None,
    tokens: int = 300,
    kv_bytes: int = 8,
    work: Sequence[WorkItem] = (),
    gate: Gate | None = None,
) -> Any:
    """A step with an actor on each node. Every response is entered once. The last three of an actor end behind the gate."""
    lengths = [20, *(tokens + 20 * i for i in range(1, 8))]
    asked = [replace(r, target_tokens=n, max_tokens=600) for r, n in zip(requests(), lengths, strict=False)]
    plan = plan_of([range(4), range(4, 8)], rule)
    plan = replace(plan, actors=tuple(replace(a, node=i) for i, a in enumerate(plan.actors)))
    with chaos_counts.counted() as entered:
        engines: Any = counting_engine.CountingEngines(kv_bytes=kv_bytes)
        engines = engines if gate is None else Gated(engines, gate, last=3)
        record = pool.run_step(plan, asked, engines, replace(LATENCY, max_batch=16), TWO, migration="move", work=work)
    assert dict(entered) == dict.fromkeys(range(8), 1)
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    return record


def opening(gate: Gate, what: Callable[[], object]) -> Callable[[], None]:
    """Do that, then open the gate."""

    def both() -> None:
        what()
        gate.open()

    return both


@pytest.mark.full
def test_a_step_on_two_nodes(pool: RayPool) -> None:
    """Actors decode where the plan puts them, with weights that each node has once; moved KV states change no token."""
    puts, plan = Puts(pool), spread(2, Restless(1, 0.004), per_node=1)
    for step, seed in enumerate((3, 11)):
        engines = factory_of(seed)
        expected = token_bytes(run_step(actor_plan("static"), requests(), engines, LATENCY, Cluster(1, 4, 1)))
        before_s = pool.now_s() if step else 0.0
        record = pool.run_step(plan, requests(), engines, LATENCY, TWO, migration="move", step=step, start_s=before_s)
        assert token_bytes(record) == expected
        ready = details(record, "ready")
        where = {r.node_id for r in pool._nodes.values()}
        assert len(where) == 2
        placed = {i: pool._nodes[a.node].node_id for i, a in enumerate(record.plan.actors)}
        assert {holder: one["ray_node"] for holder, one in ready.items()} == {f"actor-{i}": node for i, node in placed.items()}
        assert len({one["pid"] for one in ready.values()}) == 2
        assert {one["clock_error_s"] for one in ready.values()} == {0.0}, "these nodes share a clock"
        assert {one["weights_version"] for one in ready.values()} == {step}
        sent, received = (sum(s["bytes"] for s in record.spans if s["phase"] == phase) for phase in ("migrate", "transfer"))
        assert sent == received
    assert [sorted(nodes) for nodes in puts.places()] == [sorted(where)] * 2


@pytest.mark.full
def test_work_items_run_in_ray_actors_on_released_gpus_and_beside_the_cluster(pool: RayPool, tmp_path: Path) -> None:
    """Each runs once with what it waits for, also when its actor is killed; one whose actors die twice ends the step."""
    prepare = [WorkItem("prepare", run=real_work.count, responses=(r,)) for r in range(8)]
    killed = partial(real_work.die_first, str(tmp_path / "mark"))
    learner = Gpus.beside(TWO, "learner")
    record = counting(pool, work=[*prepare, WorkItem("learn", run=killed, gpus=learner, items=tuple(range(8)))])
    tokens = [record.completions[r].response_tokens for r in range(8)]
    assert [ran.result[1] for ran in record.work] == [*tokens, sum(tokens)]
    ((holder, lost),) = details(record, "work lost").items()
    assert (holder, lost["item"]) == ("learner", 8)
    assert {a["role"] for a in record.allocations} - {"warm"} == {"decode", "prepare", "learner"}
    assert {ran.holder for ran in record.work[:-1]} <= {"released-0", "released-1"}
    until(lambda: free_gpus() == GPUS, "no GPU is held")
    with pytest.raises(StepFailed, match=r"^work item 0 \(learn\) was lost 2 times with its process, the last time because"):
        counting(pool, work=[WorkItem("learn", run=real_work.die, gpus=learner, responses=(0,))])
    until(lambda: free_gpus() == GPUS, "no GPU is held")


@pytest.mark.full
def test_a_killed_actor_is_lost_with_rays_reason_and_what_cannot_be_retried_ends_the_step(
    pool: RayPool, tmp_path: Path
) -> None:
    undisturbed, kill, gate = chaos_counts.token_bytes(counting(pool)), Kill(pool), Gate(tmp_path / "killed")
    record = counting(pool, AtFirst(opening(gate, kill)), gate=gate)
    assert chaos_counts.token_bytes(record) == undisturbed
    ((holder, lost),) = details(record, "lost").items()
    assert lost["why"].startswith(f"(process {kill.killed} on cpu, node 127.0.0.1) died: ")
    assert holder in details(record, "ready")
    until(lambda: free_gpus() == GPUS, "no GPU is held")
    pool.faults, kill, gate = replace(PATIENT, retries=0), Kill(pool), Gate(tmp_path / "killed again")
    with pytest.raises(StepFailed, match=r"\(process \d+ on cpu, node 127.0.0.1\) died: .* so the step was aborted$"):
        counting(pool, AtFirst(opening(gate, kill)), gate=gate)


@pytest.mark.nightly
def test_an_actor_that_is_stopped_is_ended(pool: RayPool, tmp_path: Path) -> None:
    """It obeys nothing, not even its end."""
    stopped, gate = list[int](), Gate(tmp_path / "stopped")

    def stop() -> None:
        stopped.append(a_process_of(pool.record))  # type: ignore[attr-defined]
        os.kill(stopped[0], signal.SIGSTOP)

    undisturbed = chaos_counts.token_bytes(counting(pool))
    pool.faults = replace(PATIENT, silence_floor_s=2.0, silence_factor=1.0)
    record = counting(pool, AtFirst(opening(gate, stop)), gate=gate)
    assert chaos_counts.token_bytes(record) == undisturbed
    holder = next(h for h, one in details(record, "ready").items() if one["pid"] == stopped[0])
    assert details(record, "lost")[holder]["why"].startswith("has not reported since")
    assert_noticed_in_time(record, holder, pool.faults)
    until(lambda: not running(set(stopped)), "its process has ended")


@pytest.mark.nightly
def test_a_kv_state_whose_sender_dies_or_that_has_no_room_is_computed_again(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def moving(**how: int) -> Any:
        gate = Gate(tmp_path / "moved")
        with gate.opened(lambda: has_moved(pool)):
            record = counting(pool, MoveOne(), gate=gate, **how)
        gate.close()
        return record

    with RayPool(nodes.address, runtime_env={}, faults=PATIENT, lifecycle=Lifecycle.serverful()) as pool:
        undisturbed = chaos_counts.token_bytes(counting(pool))  # both are up from now on
        roomy, full = moving(), moving(kv_bytes=TOO_LARGE)
        for record in (roomy, full):
            assert chaos_counts.token_bytes(record) == undisturbed
            assert record.moves == 1
            assert not details(record, "lost"), "nobody is lost for it"
        assert [len([s for s in r.spans if s["phase"] == "transfer"]) for r in (roomy, full)] == [1, 0]
        assert (len(roomy.recomputes), len(full.recomputes)) == (0, 1)
        export, killed = ray_handle.RayActorHandle.export, []

        def dead(self: Any, name: str) -> Any:
            """It has said what it hands over, and is asked for it too late."""
            killed.append(self.up.pid)
            os.kill(self.up.pid, signal.SIGKILL)
            until(lambda: not running({self.up.pid}), "it has ended")
            return export(self, name)

        monkeypatch.setattr(ray_handle.RayActorHandle, "export", dead)
        record = moving()
        assert chaos_counts.token_bytes(record) == undisturbed
        assert len(killed) == len(record.recomputes) == 1
        assert list(details(record, "lost")) == ["actor-0"]
        assert not [s for s in record.spans if s["phase"] == "transfer"]


@pytest.mark.nightly
def test_actors_whose_gpus_others_hold_are_not_waited_for_for_ever(pool: RayPool) -> None:
    @ray.remote(num_gpus=GPUS_PER_NODE, num_cpus=0)
    class Other:
        def there(self) -> bool:
            return True

    others = [Other.remote() for _ in range(2)]
    assert all(ray.get([o.there.remote() for o in others]))
    pool.faults = Faults(min_start_timeout_s=1.0, restarts=0)
    with pytest.raises(StepFailed, match=r"actor-\d has not reported since it was started"):
        counting(pool)
    for other in others:
        ray.kill(other)
    until(lambda: free_gpus() == GPUS, "no GPU is held, nor wanted by an actor that is not there")


@pytest.mark.nightly
def test_nodes_are_sent_the_code(nodes: Any) -> None:
    def sent_packages() -> list[str]:
        """Of this program: what Ray put where its workers find it."""
        places = [Path(p) for p in sys.path if "_ray_pkg_" in p]
        return sorted(name for name in ("rlhfless", "solver") if any((p / name / "__init__.py").exists() for p in places))

    with RayPool(nodes.address) as pool:
        record = pool.run_step(spread(1), requests(), factory_of(), LATENCY, CLUSTER)
        assert len(record.completions) == len(requests())
        assert ray.get(ray.remote(num_cpus=0)(sent_packages).remote()) == ["rlhfless", "solver"]


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import time
from ray_samples import AtFirst
from test_real_ray import counting
from rlhfless.executor import Lifecycle, RayPool

def say():
    print("running", *pool.working, flush=True)
    time.sleep(600)

with RayPool({address!r}, runtime_env={{}}, lifecycle=Lifecycle.serverful()) as pool:
    counting(pool)  # both are up
    counting(pool, AtFirst(say))
"""


@pytest.mark.full
def test_a_driver_that_is_killed_leaves_nothing_on_a_cluster_that_goes_on(pool: RayPool, nodes: Any, tmp_path: Path) -> None:
    """No actor, no GPU, no temporary file; the cluster serves others as before."""
    script, folder = tmp_path / "script.py", tmp_path / "temporary"
    folder.mkdir()
    paths = [str(HERE), str(TESTS / "support"), str(TESTS / "benchmarks"), str(TESTS.parent)]
    script.write_text(SCRIPT.format(paths=paths, address=nodes.address))
    driver = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},  # it uses the loopback as well
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        said, *pids = driver.stdout.readline().split() or ["nothing"]
        assert said == "running", driver.communicate()[1]
        actors = set(map(int, pids))
        assert len(running(actors)) == 2
        until(lambda: free_gpus() == GPUS - 2, "it holds two GPUs")
        driver.kill()
        driver.communicate(timeout=600)
        until(lambda: not running(actors), "its actors have ended")
        until(lambda: free_gpus() == GPUS, "no GPU is held")
        assert not [*folder.iterdir()]
    finally:
        driver.kill()
        driver.wait()
    assert len(counting(pool).completions) == 8


@pytest.mark.nightly
def test_a_lost_node_is_named_and_the_step_goes_on_with_the_other() -> None:
    """Ray waits for the cause of a death for 1 ms only, so its actor is only unavailable at first."""
    engines, forced = factory_of(longest=900), long_requests(800)
    expected = run_step(actor_plan("static"), forced, engines, LATENCY, Cluster(1, 4, 1))
    with (
        two_nodes(timeout_ms_task_wait_for_death_info=1, **LOST_SOON) as nodes,
        RayPool(nodes.address, runtime_env={}, lifecycle=Lifecycle.serverful(), faults=PATIENT) as pool,
    ):
        assert "2 nodes with 8 GPUs" in repr(pool)
        rule = AtFirst(lambda: nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False))
        plan = plan_of([range(12), range(12, 24)], rule)
        plan = replace(plan, actors=(plan.actors[0], replace(plan.actors[1], gpu_ids=(GPUS_PER_NODE,), node=1)))
        record = pool.run_step(plan, forced, engines, LATENCY, CLUSTER)
        assert token_bytes(record) == token_bytes(expected)
        ((gone, lost),) = details(record, "lost").items()
        assert lost["why"].endswith("was lost with its node 127.0.0.1")
        assert len({a["node"] for a in record.allocations if a["holder"] != gone}) == 1
        with refused(PlanningError):
            pool.run_step(spread(8), requests(), engines, LATENCY, CLUSTER)


@pytest.mark.full
def test_what_cannot_run_is_refused_before_anything_starts(pool: RayPool) -> None:
    made = factory_of()
    for message, plan, cluster, engines, error in (
        ("3 nodes with 4 gpu, 4 gpu, 4 gpu", spread(4), Cluster(3, 4, 1), made, PlanningError),
        ("actor 4 .*node 1", spread(8), Cluster(1, 4, 1), made, PlanningError),
        (r"\bint\b", spread(2), CLUSTER, int, TypeError),
    ):
        with pytest.raises(error, match=message):
            pool.run_step(plan, requests(), engines, LATENCY, cluster)
        assert len(pool.idle) == 0
        assert not pool.history.starts_s
    large = mock.patch.object(type(made), "weight_bytes", property(lambda _: 12 * 2**30))
    with large, pytest.raises(PlanningError, match=r"the weights have 12\.00 GiB, .*`ray start --object-store-memory"):
        pool.run_step(spread(2), requests(), made, LATENCY, CLUSTER)
    assert not pool.history.starts_s
