"""Who learns from which group, and when, if replicas join a learner: in a scripted world, with processes that die."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from error_messages import refused
from executor_samples import Restless, plan_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import HERE
from scripted_steps import GROUPS, POOL_KINDS, Stage, events, spans, stage
from scripted_world import Punctual, Trouble

from rlhfless.executor import Lifecycle, StepFailed, StepRecord, WorkGpus, WorkServer
from rlhfless.training.shared_learning import SharedFunctions, shared_items
from rlhfless.training.step_learner import StepLearner


class Piece(NamedTuple):
    """What stands for a gradient: the group, the weights that it was computed with, and whether a replica did it."""

    group: int
    weights: int
    replica: bool


class Joined(NamedTuple):
    """What stands for a learner of one process."""

    replica: bool

    def piece(self, batch: int, stream: Any, weights: int | None) -> Piece:
        """Take some time: in a process of the world, or really in the trainer, which would else leave nothing for replicas."""
        assert stream == (7, 0, batch + 1)
        if self.replica:
            HERE[-1].sleep(0.02 * HERE[-1].slowness)
        else:
            time.sleep(0.01)
        return Piece(batch, -1 if weights is None else weights, self.replica)


class Load(NamedTuple):
    """What loads one; without a device it is the trainer's."""

    fails: bool = False

    def __call__(self, device: str | None) -> Joined:
        """Take some time."""
        if device is not None:
            HERE[-1].sleep(0.03)
            if self.fails:
                raise OSError("no such weights")
        return Joined(device is not None)


class Trained:
    """The trainer's functions: what was added and updated, in order."""

    def __init__(self) -> None:
        self.did: list[Any] = []

    def judge(self, group: int, completions: Any, results: Any) -> int:
        assert {c.response for c in completions} >= set(GROUPS[group])
        return group

    def take(self, completions: Any, results: Any) -> None:
        self.did.append(results[0])

    def update(self, minibatch: int, completions: Any, results: Any) -> int:
        self.did.append(minibatch)
        return minibatch


def learner_on(on: Stage, own: int = 1, grows: bool = True, streams: bool = True, load: Load = Load()) -> StepLearner:  # noqa: B008
    """The trainer's server and ``own - 1`` others beside the actors, on nodes of the world."""
    if on.pool_kind == "local":
        on.pool.devices = ("cpu",) * 16  # type: ignore[attr-defined]
    gpus = WorkGpus.beside(on.cluster, "learner", servers=own, takes_freed=grows, in_this_process=1, load=load)
    assert gpus.servers is not None
    first = WorkGpus("learner", (WorkServer("learner", gpus.servers[0].gpu_ids),), in_this_process=1)
    return StepLearner(gpus, 1.0, own, streams, None, first)


def items_of(on: Stage, trained: Trained, minibatches: int, canonical: bool, **how: Any) -> list[Any]:
    parts = [range(4)] if minibatches == 1 else [range(2), range(2, 4)]
    functions = SharedFunctions(trained.judge, trained.take, trained.update)
    return shared_items(
        learner_on(on, **how), parts, lambda group: tuple(GROUPS[group]), functions, stream=(7, 0), canonical=canonical,
        details=({}, {"last": 1}),
    )  # fmt: skip


def assert_learned(record: StepRecord, trained: Trained, minibatches: int, canonical: bool, streams: bool) -> None:
    """Every group is added once, with the weights of its mini-batch, between its completion and its update."""
    updates = [i for i, did in enumerate(trained.did) if isinstance(did, int)]
    assert [trained.did[i] for i in updates] == list(range(minibatches))
    begins = [0, *(i + 1 for i in updates)]
    for minibatch, (begin, end) in enumerate(zip(begins, updates, strict=False)):
        pieces = trained.did[begin:end]
        groups = [piece.group for piece in pieces]
        size = len(GROUPS) // minibatches
        assert sorted(groups) == list(range(minibatch * size, (minibatch + 1) * size))
        assert groups == sorted(groups) or not canonical
        assert {piece.weights for piece in pieces} == {minibatch - 1}
    assert updates[-1] == len(trained.did) - 1
    learned = [ran for ran in record.work if ran.item.responses and ran.item.kind == "learn"]
    last_s = max(c.time_s for c in record.completions.values())
    for ran in learned:
        done_s = last_s if not streams else max(record.completions[r].time_s for r in ran.item.responses)
        assert ran.start_s >= done_s - 1e-9
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    for row in record.allocations:
        for gpu in row["gpu_ids"]:
            by_gpu.setdefault(gpu, []).append((row["start_s"], row["end_s"]))
    for rows in by_gpu.values():
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(sorted(rows)))
    for ran in learned:
        rows = [row for row in record.allocations if row["holder"] == ran.holder and row["role"] == "learner"]
        assert any(row["start_s"] - 1e-9 <= ran.start_s and ran.end_s <= row["end_s"] + 1e-9 for row in rows), ran
    assert not [row for row in (*record.allocations, *record.spans) if row["holder"] == "trainer"], "it holds no GPUs"


@pytest.mark.parametrize("pool_kind", POOL_KINDS)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    wrong=st.lists(st.builds(Trouble, st.sampled_from(["kill", "stop", "slow"]), st.integers(1, 160)), max_size=3),
    moves=st.booleans(),
    cold=st.booleans(),
    minibatches=st.sampled_from([1, 2]),
    canonical=st.booleans(),
    streams=st.booleans(),
)
def test_every_group_is_learned_from_once_whatever_dies(
    pool_kind: str, seed: int, wrong: list[Trouble], moves: bool, cold: bool, minibatches: int, canonical: bool, streams: bool
) -> None:
    plan = plan_of(GROUPS, Restless(seed, 0.02) if moves else None, slots=3)
    lifecycle = Lifecycle.cold() if cold else Lifecycle.serverful()
    with stage(pool_kind, seed, [replace(t) for t in wrong], lifecycle=lifecycle) as on:
        trained = Trained()
        work = items_of(on, trained, minibatches, canonical, streams=streams)
        try:
            record = on.run(plan, work=work)
        except StepFailed as failed:
            said = str(failed)
            assert re.search("was lost [0-9]+ times|no actor is left", said), said
            return
        assert_learned(record, trained, minibatches, canonical, streams)
        on.trace()


@pytest.mark.parametrize("pool_kind", POOL_KINDS)
def test_a_replica_loads_before_its_first_group_and_is_paid_for_from_its_start(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        trained = Trained()
        record = on.run(plan_of(GROUPS), work=items_of(on, trained, 1, False, own=2, streams=False))
        assert_learned(record, trained, 1, False, False)
        loads = {row["holder"]: row for row in spans(record, "start") if row["call"] == "load"}
        assert loads
        assert all(row["end_s"] - row["start_s"] >= 0.03 - 1e-9 for row in loads.values())
        assert "learner-0" not in loads, "the trainer's learner is there"
        for holder, row in loads.items():
            held = [a for a in record.allocations if a["holder"] == holder and a["role"] == "learner"]
            assert min(a["start_s"] for a in held) <= row["start_s"] + 1e-9
            learned = [ran for ran in record.work if ran.holder == holder]
            assert all(ran.start_s >= row["end_s"] - 1e-9 for ran in learned)
        freed = {event["to"] for event in events(record, "freed")}
        assert freed == {holder for holder in loads if "freed" in holder}


def test_a_learner_that_cannot_be_loaded_ends_the_step() -> None:
    with stage("local", Punctual(0)) as on:
        work = items_of(on, Trained(), 1, False, own=2, streams=False, load=Load(True))
        with refused(StepFailed, "loading models", "OSError", "no such weights"):
            on.run(plan_of(GROUPS), work=work)
