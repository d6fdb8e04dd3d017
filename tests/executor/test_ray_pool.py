"""Ray actors on a cluster of two local nodes with logical GPUs, decoding with a tiny model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from executor_samples import Restless, plan_of
from torch_wall_samples import LATENCY, actor_plan, factory_of, requests, token_bytes

from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.executor import ActorError, Executor, Faults, Lifecycle, RayPool, ShortestStep, StepRecord, run_step
from rlhfless.trace import Trace, held_gpu_seconds
from solver import Cluster, Plan, PlanningError, deduplicate

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
import ray
from ray_samples import (
    CLUSTER,
    GPUS_PER_NODE,
    AtFirst,
    Kill,
    Puts,
    descendants,
    details,
    free_gpus,
    long_requests,
    note_records,
    running,
    spread,
    two_nodes,
    until,
)  # fmt: skip

GPUS = CLUSTER.gpus


def trace_of(records: list[StepRecord]) -> Trace:
    """Refuses whatever the schema refuses, two holders of one GPU for example."""
    tables = {
        name: pd.DataFrame([row for r in records for row in getattr(r, name)]) for name in ("allocations", "spans", "events")
    }
    rows = [
        {"step": r.step, "prompt_id": i, "sample": 0, "run": r.run, **r.rollout_times(i)}
        for r in records
        for i in r.completions
    ]
    return Trace(rollouts=pd.DataFrame(rows), **tables)


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    return factory_of()


@pytest.fixture(scope="module")
def undisturbed(factory: TorchEngineFactory) -> dict[int, bytes]:
    return token_bytes(run_step(actor_plan("static"), requests(), factory, LATENCY, Cluster(1, 4, 1)))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with two_nodes() as both:
        yield both


@pytest.fixture
def pool(nodes: Any) -> Iterator[RayPool]:
    """A pool without actors that has joined the cluster, whose nodes have the code."""
    with RayPool(nodes.address, runtime_env={}) as joined:
        yield joined
    assert not ray.is_initialized()


def test_a_step_on_two_nodes(pool: RayPool, factory: TorchEngineFactory, undisturbed: dict[int, bytes]) -> None:
    """Actors decode where the plan puts them, with weights that each node has once; moved KV states change no token."""
    puts, plan = Puts(pool), spread(2, Restless(1, 0.004), per_node=1)
    record = pool.run_step(plan, requests(), factory, LATENCY, Cluster(2, 1, 1), migration="move")
    assert token_bytes(record) == undisturbed
    ready = details(record, "ready")
    where = {r.node_id for r in pool._nodes.values()}
    assert len(where) == 2
    placed = {i: pool._nodes[a.node].node_id for i, a in enumerate(record.plan.actors)}
    assert {holder: one["ray_node"] for holder, one in ready.items()} == {f"actor-{i}": node for i, node in placed.items()}
    assert len({one["pid"] for one in ready.values()}) == 2
    assert [sorted(nodes) for nodes in puts.places()] == [sorted(where)]
    assert {one["clock_error_s"] for one in ready.values()} == {0.0}, "these nodes share a clock"
    trace_of([record])
    assert {s["phase"] for s in record.spans} >= {"start", "sync", "prefill", "decode"}
    sent, received = (sum(s["bytes"] for s in record.spans if s["phase"] == phase) for phase in ("migrate", "transfer"))
    assert sent == received
    assert len(pool._idle) == 0
    until(lambda: free_gpus() == GPUS, "the GPUs of killed actors are free")


@pytest.mark.full
def test_from_one_actor_to_eight_and_back_to_zero(
    nodes: Any, factory: TorchEngineFactory, undisturbed: dict[int, bytes]
) -> None:
    with RayPool(nodes.address, runtime_env={}, lifecycle=Lifecycle(keep_s=5.0)) as pool:
        records: list[StepRecord] = []
        for step, actors in enumerate((1, 8, 8)):
            start_s = records[-1].end_s if records else 0.0
            record = pool.run_step(spread(actors), requests(), factory, LATENCY, CLUSTER, step=step, start_s=start_s)
            assert token_bytes(record) == undisturbed
            records.append(record)
        started = [{s["holder"] for s in r.spans if s["phase"] == "start"} for r in records]
        assert started[0] == {"actor-0"}
        assert started[1] >= {f"actor-{i}" for i in range(1, 8)}
        assert not [s for s in records[2].spans if s["phase"] == "start"], "all eight were kept"
        pids = [{d["pid"] for d in details(r, "ready").values()} for r in records]
        assert pids[1] == pids[2]
        until(lambda: len(pool._idle) == 0 and free_gpus() == GPUS, "scaled to zero")
        until(lambda: not running(pids[1]), "every actor's process has ended")
        pool.settle(records[2])
        held = held_gpu_seconds(trace_of(records))
        assert held["total"].sum() == pytest.approx(held[["start", "sync", "work", "hold"]].to_numpy().sum())
        kept = held[(held["role"] == "warm") & (held["step"] == 2)]
        assert kept["hold"].item() >= 8 * 5.0


@pytest.mark.full
def test_every_step_decodes_with_its_own_weights(nodes: Any) -> None:
    """With actors of the step before, and whatever node has which weights."""
    with RayPool(nodes.address, runtime_env={}, lifecycle=Lifecycle.serverful()) as pool:
        puts, before = Puts(pool), set[int]()
        for step, seed in enumerate((3, 11, 3, 12)):
            engines = factory_of(seed)
            expected = run_step(actor_plan("static"), requests(), engines, LATENCY, Cluster(1, 4, 1))
            record = pool.run_step(spread(8), requests(), engines, LATENCY, CLUSTER, step=step, start_s=pool_end(pool))
            assert token_bytes(record) == token_bytes(expected)
            ready = details(record, "ready")
            assert {one["weights_version"] for one in ready.values()} == {step}
            pids = {one["pid"] for one in ready.values()}
            assert before in (set(), pids), "actors of the step before are used again"
            before = pids
        assert all(len(nodes) == len(set(nodes)) == 2 for nodes in puts.places())


def pool_end(pool: RayPool) -> float:
    """The time that the pool's clock shows, or the run's start."""
    now_s = pool.now_s()
    return now_s if now_s == now_s else 0.0


@pytest.mark.full
def test_serverful_and_cold_hold_what_they_say(nodes: Any, factory: TorchEngineFactory) -> None:
    """The same two steps with learning after each: one pool pays for waiting, the other for starting."""
    shares = {}
    for name, lifecycle in {"cold": Lifecycle.cold(), "serverful": Lifecycle.serverful()}.items():
        with RayPool(nodes.address, runtime_env={}, lifecycle=lifecycle) as pool:
            run, records = Executor(factory, LATENCY, CLUSTER, pool=pool), []  # not closed: others need its weights
            for _ in range(2):
                records.append(run.run(spread(2), requests()))
                time.sleep(0.5)  # learning
                pool.settle(records[-1])
            learned_s = records[0].end_s - records[0].makespan_s
            pool.close(records[-1])
        held = held_gpu_seconds(trace_of(records)).groupby("role")[["start", "sync", "work", "hold", "total"]].sum()
        shares[name] = held
        if name == "serverful":
            assert learned_s >= 0.5
            assert held.loc["warm", "hold"] >= 2 * 2 * 0.5
            assert not [s for s in records[1].spans if s["phase"] == "start"]
        else:
            assert "warm" not in held.index
            assert [s for s in records[1].spans if s["phase"] == "start"]
    assert shares["cold"].loc["decode", "start"] > shares["serverful"].loc["decode", "start"]


@pytest.mark.full
def test_prewarmed_actors_are_up_before_their_step(nodes: Any, factory: TorchEngineFactory) -> None:
    with RayPool(nodes.address, runtime_env={}, lifecycle=Lifecycle(prewarm=ShortestStep(1.0))) as pool:
        records, gap_s = [], 0.0
        for step in range(3):
            began = time.monotonic()
            records.append(pool.run_step(spread(2), requests(), factory, LATENCY, CLUSTER, step=step, start_s=pool_end(pool)))
            if step == 0:
                gap_s = 3 * (time.monotonic() - began)  # so long that starting ahead begins after the actors have ended
            time.sleep(max(0.0, gap_s - (time.monotonic() - began)) if step < 2 else 0.0)
            if step == 1:
                until(lambda: len(pool._idle) == 2 and all(pool.up_s(w.actor) for w in pool._idle._waiting), "prewarmed")
            pool.settle(records[-1])
        ahead = [s for s in records[1].spans if s["call"] == "prewarm"]
        assert {s["holder"] for s in ahead} == {"warm-0", "warm-1"}
        assert not [s for s in records[2].spans if s["phase"] == "start"]
        assert [e["name"] for e in records[1].events if e["name"] == "prewarm"] == ["prewarm"] * 2
        held = held_gpu_seconds(trace_of(records))
        assert held["total"].sum() == pytest.approx(held[["start", "sync", "work", "hold"]].to_numpy().sum())


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_what_cannot_run_is_refused_before_anything_starts(pool: RayPool, factory: TorchEngineFactory) -> None:
    def refused(
        message: str, plan: Plan, cluster: Cluster, engines: Any = factory, error: type[Exception] = PlanningError
    ) -> None:
        with pytest.raises(error, match=message):
            pool.run_step(plan, requests(), engines, LATENCY, cluster)
        assert len(pool._idle) == 0
        assert not pool._idle.history.starts_s

    refused("3 nodes with 4 gpu, 4 gpu, 4 gpu, for which Ray's GPU nodes", spread(4), Cluster(3, 4, 1))
    refused("actor 4 of the plan is on node 1, but its cluster has 1 nodes", spread(8), Cluster(1, 4, 1))
    refused("not with int", spread(2), CLUSTER, int, TypeError)


@pytest.fixture
def noted(pool: RayPool, monkeypatch: pytest.MonkeyPatch) -> RayPool:
    """The pool, which says what it records while it does."""
    note_records(pool, monkeypatch)
    return pool


@pytest.mark.full
def test_a_killed_actor_is_lost_with_a_reason_and_others_go_on(noted: RayPool, factory: TorchEngineFactory) -> None:
    engines, forced = factory_of(longest=900), long_requests(800)
    expected = run_step(actor_plan("static"), forced, engines, LATENCY, Cluster(1, 4, 1))
    kill = Kill(noted)
    record = noted.run_step(spread(3, AtFirst(kill)), forced, engines, LATENCY, CLUSTER)
    assert token_bytes(record) == token_bytes(expected)
    ((holder, lost),) = details(record, "lost").items()
    assert lost["why"].startswith(f"(process {kill.killed} on cpu, node 127.0.0.1) died: ")
    assert holder in details(record, "ready")
    trace_of([record])
    until(lambda: free_gpus() == GPUS, "no GPU is held")


@dataclass
class KillOther(Kill):
    """Kills actor 1 once it decodes and another one has ended; the driver goes on meanwhile, as it has to be told of both."""

    def __call__(self) -> None:
        threading.Thread(target=self._kill, daemon=True).start()

    def _kill(self) -> None:
        until(lambda: len(details(self.pool.record, "ready")) == 2, "both are ready")
        self.killed = int(details(self.pool.record, "ready")["actor-1"]["pid"])
        until(lambda: len(self.pool.working) == 1, "the other one waits")
        os.kill(self.killed, signal.SIGKILL)


def test_who_waits_on_the_gpus_that_another_actor_would_need_is_that_actor(nodes: Any) -> None:
    """An actor that is kept holds its GPUs; what is left of the step goes there when its own actor may not be started again."""
    engines = factory_of(longest=2100)
    forced = [replace(r, target_tokens=2000 if r.response else 1, limit_tokens=2000) for r in requests()[:6]]
    with (
        RayPool(nodes.address, runtime_env={}, lifecycle=Lifecycle.serverful(), faults=Faults(restarts=0)) as pool,
        pytest.MonkeyPatch.context() as patch,
    ):
        note_records(pool, patch)
        first = pool.run_step(
            plan_of([[0], range(1, 6)]), [replace(r, target_tokens=2) for r in forced], engines, LATENCY, CLUSTER
        )
        kill = KillOther(pool)
        plan = plan_of([[0], range(1, 6)], AtFirst(kill))
        record = pool.run_step(plan, forced, engines, LATENCY, CLUSTER, step=1, start_s=first.end_s)
        assert {c.response_tokens for c in record.completions.values()} == {1, 2000}
        assert list(details(record, "lost")) == ["actor-1"]
        pids = {holder: one["pid"] for holder, one in details(record, "ready").items()}
        assert pids["actor-2"] == pids["actor-0"] != kill.killed
        held = held_gpu_seconds(trace_of([first, record]))
        assert held[(held["role"] == "warm") & (held["step"] == 1)]["hold"].item() > 0


@pytest.mark.full
def test_an_actor_too_many_ends_the_step_with_one_sentence(
    noted: RayPool, factory: TorchEngineFactory, undisturbed: dict[int, bytes]
) -> None:
    noted.faults, kill = Faults(retries=0), Kill(noted)
    with pytest.raises(ActorError) as error:
        noted.run_step(spread(3, AtFirst(kill)), long_requests(), factory_of(longest=4100), LATENCY, CLUSTER)
    assert f"(process {kill.killed} on cpu, node 127.0.0.1) died: " in str(error.value)
    assert str(error.value).endswith("so the step was given up")
    assert error.value.record is not None
    until(lambda: free_gpus() == GPUS, "no GPU is held")
    wrong = [replace(r, prompt_ids=None) for r in requests()]
    with pytest.raises(
        ActorError, match=r"^actor-0 \(process \d+ on cpu, node 127.0.0.1\) failed with ValueError: response 0 has"
    ):
        noted.run_step(spread(1), wrong, factory, LATENCY, CLUSTER)
    again = noted.run_step(spread(1), requests(), factory, LATENCY, CLUSTER)  # the pool goes on with new actors
    assert token_bytes(again) == undisturbed


@pytest.mark.full
def test_actors_whose_gpus_others_hold_are_not_waited_for_for_ever(pool: RayPool, factory: TorchEngineFactory) -> None:
    @ray.remote(num_gpus=GPUS_PER_NODE, num_cpus=0)
    class Other:
        def there(self) -> bool:
            return True

    others = [Other.remote() for _ in range(2)]
    assert all(ray.get([o.there.remote() for o in others]))
    pool.faults = Faults(start_floor_s=1.0, restarts=0)
    with pytest.raises(ActorError, match=r"actor-0 has not been heard of since it was started"):
        pool.run_step(spread(1), requests(), factory, LATENCY, CLUSTER)
    for other in others:
        ray.kill(other)
    until(lambda: free_gpus() == GPUS, "no GPU is held, nor wanted by an actor that is not there")


@pytest.mark.full
@pytest.mark.parametrize("waits_ms", [1000, 1])  # Ray's for the cause of a death; 1 ms: its actor is only unavailable then
def test_a_lost_node_is_named_and_the_step_goes_on_with_the_other(
    waits_ms: int, factory: TorchEngineFactory, undisturbed: dict[int, bytes]
) -> None:
    engines, forced = factory_of(longest=900), long_requests(800)
    expected = run_step(actor_plan("static"), forced, engines, LATENCY, Cluster(1, 4, 1))
    config = {"timeout_ms_task_wait_for_death_info": waits_ms}
    with two_nodes(**config) as nodes, RayPool(nodes.address, runtime_env={}, lifecycle=Lifecycle.serverful()) as pool:
        assert "2 nodes with 8 GPUs" in repr(pool)
        rule = AtFirst(lambda: nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False))
        plan = plan_of([range(12), range(12, 24)], rule)
        plan = replace(plan, actors=(plan.actors[0], replace(plan.actors[1], gpu_ids=(GPUS_PER_NODE,), node=1)))
        record = pool.run_step(plan, forced, engines, LATENCY, CLUSTER)
        assert token_bytes(record) == token_bytes(expected)
        ((gone, lost),) = details(record, "lost").items()
        assert lost["why"].endswith("was lost with its node 127.0.0.1")
        node_of = {f"actor-{i}": actor.node for i, actor in enumerate(plan.actors)}
        (survivor,) = set(node_of.values()) - {node_of[gone]}
        assert {a["node"] for a in record.allocations if a["holder"] != gone} == {survivor}
        over_s = next(a["end_s"] for a in record.allocations if a["holder"] == gone)
        after = [i for i, c in record.completions.items() if c.time_s > over_s]
        assert len(after) > 0
        assert gone not in {record.actor_of[i] for i in after}
        with pytest.raises(PlanningError, match="the plan's cluster has 2 nodes"):
            pool.run_step(spread(8), requests(), factory, LATENCY, CLUSTER)
        again = pool.run_step(spread(2), requests(), factory, LATENCY, Cluster(1, GPUS_PER_NODE, 1), start_s=record.end_s)
        assert token_bytes(again) == undisturbed


@pytest.mark.full
def test_prefixes_and_kv_states_go_from_actor_to_actor(nodes: Any) -> None:
    """What a prefill actor computed once is read by others; tokens are those of actors that compute everything."""
    from test_torch_prefill import CLUSTER as ONE_NODE
    from test_torch_prefill import LATENCY as SLOW
    from test_torch_prefill import PROMPTS, SAMPLES, dealt, prompts, workload
    from test_torch_prefill import requests as many

    lengths, engines = np.full(PROMPTS * SAMPLES, 9), factory_of(longest=120)
    expected = run_step(dealt(2), many(lengths), engines, SLOW, ONE_NODE)
    plan = deduplicate(dealt(2), workload(lengths), ONE_NODE, SLOW, [p.tolist() for p in prompts()]).plan
    assert plan.prefill_actor is not None
    with RayPool(nodes.address, runtime_env={}) as pool:
        record = pool.run_step(plan, many(lengths), engines, SLOW, ONE_NODE)
    assert token_bytes(record) == token_bytes(expected)
    received = [s for s in record.spans if s["phase"] == "transfer"]
    assert {s["from_actor"] for s in received} == {f"actor-{plan.prefill_actor}"}
    assert {s["holder"] for s in received} == {f"actor-{i}" for i, a in enumerate(plan.actors) if a.prefixes}
    computed = sum(c.prefill_tokens_computed for c in record.completions.values())
    assert computed < sum(c.prefill_tokens_computed for c in expected.completions.values())


def sent_packages() -> list[str]:
    """Of this program: what Ray put where its workers find it."""
    places = [Path(p) for p in sys.path if "_ray_pkg_" in p]
    return sorted(name for name in ("rlhfless", "solver") if any((p / name / "__init__.py").exists() for p in places))


@pytest.mark.full
def test_nodes_are_sent_the_code(nodes: Any, factory: TorchEngineFactory, undisturbed: dict[int, bytes]) -> None:
    with RayPool(nodes.address) as pool:
        record = pool.run_step(spread(2), requests(), factory, LATENCY, CLUSTER)
        assert token_bytes(record) == undisturbed
        assert ray.get(ray.remote(num_cpus=0)(sent_packages).remote()) == ["rlhfless", "solver"]


# --- nothing is left behind -------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys
sys.path[:0] = {paths!r}
from dataclasses import replace
from ray_samples import AtFirst, descendants
from torch_wall_samples import LATENCY, factory_of, requests
from executor_samples import plan_of
from rlhfless.executor import Lifecycle, RayPool
from solver import Cluster

def say():
    print("running", pool.cluster._folder, *descendants(os.getpid()), flush=True)

long = [replace(r, target_tokens=20000 if r.response else 1, limit_tokens=20000) for r in requests()]
with RayPool(gpus=2, lifecycle=Lifecycle.serverful()) as pool:  # no main guard, a cluster of its own
    pool.run_step(plan_of([range(12), range(12, 24)], AtFirst(say)), long, factory_of(longest=20100), LATENCY, Cluster(1, 2, 1))
"""


@pytest.mark.full
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_program_that_is_stopped_leaves_nothing_behind(how: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C as a terminal sends it, to the program and all that it started; and a program that is killed outright."""
    here = Path(__file__).parent
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(paths=[str(here), str(here.parents[1])]))
    program = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert program.stdout is not None
        said, *rest = program.stdout.readline().split() or ["nothing"]
        assert said == "running", program.stderr.read() if program.stderr is not None else ""
        folder, pids = Path(rest[0]), set(map(int, rest[1:]))
        assert len(running(pids)) >= 4, "a cluster and two actors"
        os.killpg(program.pid, how) if how == signal.SIGINT else program.kill()
        _, errors = program.communicate(timeout=60)
        assert how == signal.SIGKILL or "KeyboardInterrupt" in errors
        until(lambda: not running(pids), "every process has ended")
        until(lambda: not folder.exists(), "the folder is gone")
    finally:
        program.kill()
        program.wait()


@pytest.mark.full
def test_a_cluster_of_ones_own_ends_with_the_pool(factory: TorchEngineFactory, undisturbed: dict[int, bytes]) -> None:
    before = descendants(os.getpid())
    with RayPool(gpus=2) as pool:
        assert pool.cluster.own
        assert pool.meta["clock"] == "wall"
        one = Cluster(1, 2, 1)
        assert token_bytes(pool.run_step(plan_of([range(12), range(12, 24)]), requests(), factory, LATENCY, one)) == undisturbed
        folder = pool.cluster._folder
        assert folder is not None
        assert folder.exists()
    pool.close()
    assert not folder.exists()
    until(lambda: not running(descendants(os.getpid()) - before), "every process has ended")
