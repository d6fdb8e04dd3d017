"""Actors that decode with real vLLM as Ray actors, on a cluster of two local nodes with logical GPUs."""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from busy_machine import PATIENT
from vllm_samples import (
    AHEAD,
    LATENCY,
    Shuffle,
    assert_handed_over,
    factory_of,
    model_of,
    needs_vllm,
    requests,
    shared_memory_of,
    start_s,
    torch_engine,
)

from rlhfless.engine.protocol import Request
from rlhfless.engine.vllm import weight_shipping
from rlhfless.engine.vllm.factory import VllmEngineFactory
from rlhfless.engine.vllm.temp_files import PREFIX
from rlhfless.engine.vllm.weight_folders import write_weights
from rlhfless.engine.vllm.weight_shipping import ShippedWeights
from rlhfless.executor import Lifecycle, RayPool, StepFailed, StepRecord
from rlhfless.executor.distributed.pool import pool as actor_pool
from rlhfless.system.scratch_folders import in_memory
from rlhfless.trace.schema.validation import validate
from solver import Cluster, Plan
from solver.model.plan import ActorPlan
from solver.model.runtime_rules import RuntimeRule

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
import ray
from ray_samples import GPUS_PER_NODE, AtFirst, Puts, descendants, details, free_gpus, running, two_nodes
from torch_wall_samples import until

pytestmark = needs_vllm
COUNT = 12
HALVES = [range(0, COUNT, 2), range(1, COUNT, 2)]
TWO_NODES = Cluster(2, 1, 1)
PATIENCE_S = 300.0


def plan_of(groups: Sequence[Sequence[int]], rule: RuntimeRule | None = None, gpus: int = 1) -> Plan:
    """An actor per group, each on a node of its own."""
    actors = [ActorPlan("gpu", tuple(range(i * gpus, (i + 1) * gpus)), i, tuple(g), (), 6) for i, g in enumerate(groups)]
    return Plan(tuple(actors), "by hand", 0.0, 0.0, 0.0, rule=rule)


def by_torch(seed: int, wanted: Sequence[Request]) -> dict[int, list[int]]:
    engine = torch_engine(seed)
    engine.add(wanted)
    return {c.response: np.asarray(c.token_ids).tolist() for c in engine.advance(math.inf).completions}


def tokens_of(record: StepRecord) -> dict[int, list[int]]:
    return {i: np.asarray(c.token_ids).tolist() for i, c in sorted(record.completions.items())}


def assert_sound(record: StepRecord) -> None:
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    decoded = sum(s["tokens"] for s in record.spans if s["phase"] == "decode")
    assert decoded == sum(c.response_tokens for c in record.completions.values())


def pids(record: StepRecord) -> dict[str, int]:
    return {holder: one["pid"] for holder, one in details(record, "ready").items()}


def carried_here() -> set[Path]:
    return set(in_memory().glob(f"{weight_shipping.PREFIX}*"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with two_nodes() as both:
        yield both


@pytest.fixture
def pool(nodes: Any) -> Iterator[RayPool]:
    """It keeps its actors, and moves nothing from one that shares its core with other work to another; afterwards none of
    their processes is left, and no weights."""
    before, weights_before = descendants(os.getpid()), carried_here()
    with RayPool(nodes.address, runtime_env={}, lifecycle=Lifecycle.serverful(), faults=PATIENT) as joined:
        yield joined
        started = descendants(os.getpid()) - before
        joined.release()
        until(lambda: free_gpus() == 2 * GPUS_PER_NODE, "scaled to zero", PATIENCE_S)
        replicas = {pid for pid in started if "vllm" in command(pid).lower() or "DecodeActor" in command(pid)}
        until(lambda: not running(replicas), "every process of an actor has ended", PATIENCE_S)
    assert carried_here() <= weights_before


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.full
def test_a_run_of_steps_on_two_nodes(pool: RayPool, tmp_path: Path) -> None:
    """vLLM starts once in every actor. The weights of each step are in the object store of each node once, and come from there:
    the learner's folder is gone when actors look for them."""
    puts, wanted = Puts(pool), requests(COUNT)
    puts.then = lambda: shutil.rmtree(engines.weights)
    engines = factory_of(write_weights(model_of(3), tmp_path, 0), 0)
    first = pool.run_step(plan_of(HALVES), wanted, engines, LATENCY, TWO_NODES)
    assert tokens_of(first) == by_torch(3, wanted)
    assert_sound(first)
    assert {s["holder"] for s in first.spans if s["phase"] == "start"} == {"actor-0", "actor-1"}
    where = {i: pool._nodes[i].node_id for i in range(2)}
    assert {h: one["ray_node"] for h, one in details(first, "ready").items()} == {f"actor-{i}": n for i, n in where.items()}

    engines = factory_of(write_weights(model_of(3), tmp_path, 1), 1)
    forced = [replace(r, target_tokens=8 + 4 * r.response, max_tokens=60) for r in wanted]
    options: dict[str, Any] = {"step": 1, "start_s": first.end_s, "migration": "move"}
    moved = pool.run_step(plan_of(HALVES, Shuffle()), forced, engines, LATENCY, TWO_NODES, **options)
    assert tokens_of(moved) == by_torch(3, forced)
    assert moved.moves > 0
    assert_handed_over(moved)

    engines = factory_of(write_weights(model_of(4), tmp_path, 2), 2)
    learned = pool.run_step(plan_of(HALVES), wanted, engines, LATENCY, TWO_NODES, step=2, start_s=moved.end_s)
    assert tokens_of(learned) == by_torch(4, wanted)
    assert_sound(learned)
    assert pids(learned) == pids(first), "actors of the step before are used again"
    assert not [s for s in learned.spans if s["phase"] == "start"]
    assert {one["weights_version"] for one in details(learned, "ready").values()} == {2}
    assert [sorted(nodes) for nodes in puts.places()] == [sorted(where.values())] * 3
    assert running(set(pids(first).values())) == set(pids(first).values())


@pytest.mark.nightly
def test_vllm_runs_before_the_step_of_an_actor_that_is_started_ahead(nodes: Any, tmp_path: Path) -> None:
    """It starts with the last step's weights, which are in the object store still, and decodes with the step's."""
    wanted, plan, cluster = requests(6), plan_of([range(6)]), Cluster(1, 1, 1)
    with RayPool(nodes.address, runtime_env={}, lifecycle=AHEAD) as pool:
        puts = Puts(pool)
        puts.then = lambda: shutil.rmtree(engines.weights)
        engines = factory_of(write_weights(model_of(3), tmp_path, 0), 0)
        cold = pool.run_step(plan, wanted, engines, LATENCY, cluster)
        until(lambda: [pool.up_s(a) is not None for a in pool.idle.values()] == [True], "vLLM runs", 300.0)
        pool.finalise_allocations(cold)
        assert start_s(cold, "warm-0") > start_s(cold, "actor-0") / 4, "vLLM's, and not the process's alone"

        engines = factory_of(write_weights(model_of(4), tmp_path, 1), 1)
        warm = pool.run_step(plan, wanted, engines, LATENCY, cluster, step=1)
        assert tokens_of(warm) == by_torch(4, wanted)
        assert_sound(warm)
        assert start_s(warm, "actor-0") == 0.0
        assert len(puts.objects) == 2, "once per step"
        pool.release()  # the next one too, which is on its way up
        until(lambda: free_gpus() == 2 * GPUS_PER_NODE, "nobody holds a GPU", PATIENCE_S)


@pytest.mark.nightly
def test_a_killed_actor_is_lost_and_what_it_had_goes_on_elsewhere(
    pool: RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same weights, laid down anew where they are needed."""
    long = [replace(r, target_tokens=60 if r.response else 1, max_tokens=60) for r in requests(COUNT)]
    engines = factory_of(write_weights(model_of(3), tmp_path, 0), 0)
    kill = Kill(pool, monkeypatch)
    record = pool.run_step(plan_of(HALVES, AtFirst(kill)), long, engines, LATENCY, TWO_NODES)
    assert tokens_of(record) == by_torch(3, long)
    ((holder, lost),) = details(record, "lost").items()
    assert lost["why"].startswith(f"(process {kill.killed} on cpu, node 127.0.0.1) died: ")
    assert pids(record)[holder] == kill.killed
    assert_kept(record)


def assert_kept(record: StepRecord) -> None:
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))


@dataclass
class Kill:
    """Kills the first actor that the step under way says is ready."""

    pool: Any
    monkeypatch: pytest.MonkeyPatch
    killed: int = 0

    def __post_init__(self) -> None:
        made = actor_pool.StepActors

        def crew(*given: Any) -> Any:
            self.record = given[2]
            return made(*given)

        self.monkeypatch.setattr(actor_pool, "StepActors", crew)

    def __deepcopy__(self, memo: object) -> Kill:
        """It looks on from outside: the step's copy of the rule that calls it has this same one."""
        return self

    def __call__(self) -> None:
        self.killed = next(iter(pids(self.record).values()))
        os.kill(self.killed, signal.SIGKILL)


@pytest.mark.nightly
def test_an_actor_never_decodes_with_weights_that_are_not_the_steps(
    pool: RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were others sent by mistake, it would say which ones it has, and the step would end."""
    other = factory_of(write_weights(model_of(4), tmp_path / "other", 6), 6)
    engines = factory_of(write_weights(model_of(3), tmp_path / "right", 7), 7)
    monkeypatch.setattr(VllmEngineFactory, "to_remote", lambda engines: ShippedWeights(engines, ShippedWeights.of(other).files))
    said = r"failed with InputError: .*has weights version 6, but the step needs version 7"
    with pytest.raises(StepFailed, match=said) as error:
        pool.run_step(plan_of([range(4)]), requests(4), engines, LATENCY, Cluster(1, 1, 1))
    assert error.value.record is not None
    assert not error.value.record.completions


@pytest.mark.nightly
def test_an_actor_of_two_gpus_is_two_ranks_of_vllm(pool: RayPool, tmp_path: Path) -> None:
    """On the CPU a rank is a process; all of them end with their actor."""
    wanted, latency, cluster = requests(6), replace(LATENCY, gpus_per_actor=2), Cluster(1, 2, 2)
    engines = factory_of(write_weights(model_of(3), tmp_path, 0), 0)
    record = pool.run_step(plan_of([range(6)], gpus=2), wanted, engines, latency, cluster)
    assert tokens_of(record) == by_torch(3, wanted)
    (actor,) = pids(record).values()
    until(lambda: free_gpus() == 2 * GPUS_PER_NODE - 2, "it holds two GPUs")
    ranks = descendants(actor)
    assert len(running(ranks)) >= 2
    files, temporary = shared_memory_of(running(ranks)), temporary_of(running(ranks))
    assert len(files) >= 3
    assert temporary.name.startswith(PREFIX)
    assert temporary.is_dir()
    pool.release()
    until(lambda: not running({actor, *ranks}), "the ranks have ended with their actor", PATIENCE_S)
    until(lambda: not temporary.exists(), "its temporary files are removed", PATIENCE_S)
    until(lambda: not [file for file in files if file.exists()], "its shared memory is freed", PATIENCE_S)
    assert ray.is_initialized()


def temporary_of(pids: Iterable[int]) -> Path:
    """Where processes were started to have their temporary files, the one that is not everybody's."""
    environments = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in pids]
    (found,) = {os.fsdecode(v)[7:] for one in environments for v in one if v.startswith(b"TMPDIR=") and PREFIX.encode() in v}
    return Path(found)
