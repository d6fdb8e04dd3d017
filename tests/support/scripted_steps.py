"""Steps in a scripted world, and what every one of them has to satisfy, whatever went wrong."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmark_scripts import chaos_counts
from executor_samples import plan_of
from scripted_engine import LEARNERS, ScriptedEngines, expected_tokens, requests_of
from scripted_pools import LocalPool
from scripted_world import Actor, Dice, Trouble, World

from rlhfless.engine.protocol import Request
from rlhfless.executor import Faults, Lifecycle, StepFailed, StepRecord
from rlhfless.executor.distributed.messages import ActorReport
from rlhfless.executor.distributed.pool.pool import ActorPool
from rlhfless.trace import Trace
from solver import Cluster, LatencyModel, Plan
from solver.model.runtime_rules import ActorView, Decision, RuntimeRule, StepState, Trigger

POOL_KINDS = ("local", pytest.param("ray", marks=pytest.mark.full))  # Ray is no part of what `make test` installs
LENGTHS = [3, 9, 1, 14, 6, 22, 2, 17, 11, 5, 8, 30]
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11]]
LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 1e-4, 1e-6, prefill_base_s=1e-3, prefill_per_token_s=1e-5, start_s=0.01,
    transfer_base_s=1e-4, transfer_per_kv_token_s=1e-6, max_batch=16, kv_capacity_tokens=1 << 20,
)  # fmt: skip
SOON = Faults(retries=50, restarts=50, silence_factor=1.0, silence_floor_s=0.3, min_start_timeout_s=0.5, slow_factor=math.inf)


@dataclass
class Stage:
    """A pool in its world, and the steps that ran there."""

    world: World
    pool: ActorPool[Any]
    pool_kind: str
    records: list[StepRecord] = field(default_factory=list)

    def run(
        self,
        plan: Plan | None = None,
        lengths: Sequence[int] | None = None,
        requests: Sequence[Request] | None = None,
        engines: ScriptedEngines = ScriptedEngines(),  # noqa: B008 (frozen)
        **options: Any,
    ) -> StepRecord:
        """A step that is checked, also when it ends with an error."""
        plan = plan_of(GROUPS, slots=3) if plan is None else plan
        asked = requests_of(LENGTHS if lengths is None else list(lengths)) if requests is None else list(requests)
        seen: list[int] = []
        heard = Heard(self.world)
        if plan.rule is not None:
            plan = replace(plan, rule=Causal(plan.rule, heard))
        given: dict[str, Any] = {"migration": "move", "step": len(self.records), **options}
        given.setdefault("start_s", self.records[-1].end_s if self.records else 0.0)
        with chaos_counts.counted() as entered:
            try:
                record = self.pool.run_step(
                    self._placed(plan),
                    asked,
                    engines,
                    LATENCY,
                    self.cluster,
                    on_progress=lambda p: seen.append(p.completed),
                    **given,
                )
            except (StepFailed, KeyboardInterrupt) as error:
                self.records.append(StepFailed.of(error).record)
                self.check(self.records[-1], asked, engines)
                assert not self.pool.idle, "whatever ends a step early ends every actor"
                assert not self.alive
                raise
            finally:
                heard.close()
                assert max(entered.values(), default=0) <= 1, "a response is entered twice"
                left = list(Path("/dev/shm").glob(f"{getattr(self.pool, '_name', 'none')}-*"))
                for memory in left:
                    memory.unlink()
                zombies = [a for a in self.world.actors if a.killed and not a.ends_when_killed]
                assert not left or zombies, "only who goes on after its end leaves memory, which it is no longer asked for"
        self.records.append(record)
        assert sorted(record.completions) == list(range(len(asked)))
        assert seen == sorted(seen)
        assert seen[-1:] == [len(asked)] or not asked
        self.check(record, asked, engines)
        assert {a.number for a in self.alive} <= {a.number for a in self.waiting}, "whoever lives waits for work"
        return record

    @property
    def cluster(self) -> Cluster:
        """Four GPUs here, or two nodes with two."""
        return Cluster(2, 2, 1) if self.pool_kind == "ray" else Cluster(1, 4, 1)

    def _placed(self, plan: Plan) -> Plan:
        """On the nodes of the pool."""
        node = (lambda gpu: gpu // 2) if self.pool_kind == "ray" else (lambda gpu: 0)
        return replace(plan, actors=tuple(replace(a, node=node(a.gpu_ids[0])) for a in plan.actors))

    @property
    def alive(self) -> list[Actor]:
        """Actors that have not ended; nobody can end a zombie."""
        return [a for a in self.world.actors if a.state != "dead" and (a.ends_when_killed or not a.killed)]

    @property
    def waiting(self) -> list[Actor]:
        """Those that the pool has kept."""
        idle = self.pool.idle.values()
        return [one.actor if self.pool_kind == "local" else one._handle.actor for one in idle]

    def check(self, record: StepRecord, asked: Sequence[Request], engines: ScriptedEngines) -> None:
        """What is there is whole and right, and the rows tell one story."""
        for i, c in record.completions.items():
            assert c.token_ids.tolist() == expected_tokens(asked[i], engines.weights), f"the tokens of response {i}"
            assert record.start_s - 1e-9 <= c.start_s <= c.first_token_s <= c.time_s <= record.end_s + 1e-9
        by_gpu: dict[int, list[tuple[float, float]]] = {}
        for a in record.allocations:
            for gpu in a["gpu_ids"]:
                by_gpu.setdefault(gpu, []).append((a["start_s"], a["end_s"]))
        for held in by_gpu.values():
            assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(sorted(held))), "one holder at a time"
        held_by: dict[str, dict[str, Any]] = {}  # a server of work may hold its GPUs several times
        for a in record.allocations:
            before = held_by.get(a["holder"], a)
            began_s, ended_s = min(a["start_s"], before["start_s"]), max(a["end_s"], before["end_s"])
            held_by[a["holder"]] = {**a, "start_s": began_s, "end_s": ended_s}
        spans: dict[str, list[tuple[float, float]]] = {}
        for s in record.spans:
            if s["holder"] != "learner" and not s["background"]:
                spans.setdefault(s["holder"], []).append((s["start_s"], s["end_s"]))
        for holder, own in spans.items():
            if not holder.startswith("warm"):
                assert held_by[holder]["start_s"] - 1e-9 <= min(own)[0]
                assert max(end for _, end in own) <= held_by[holder]["end_s"] + 1e-9
                assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(sorted(own))), holder
        lost = events(record, "lost")
        for one in lost:
            assert held_by[one["holder"]]["end_s"] == one["time_s"], "it holds nothing after its loss"
            finished = [i for i, who in record.actor_of.items() if who == one["holder"]]
            assert all(record.completions[i].time_s <= one["time_s"] for i in finished)
        retries = events(record, "retry")
        often = Counter(r for e in retries for r in e["responses"])
        assert max([*often.values(), *(e["times"] for e in retries)], default=0) <= self.pool.faults.retries
        on = Counter(g for one in lost for g in held_by[one["holder"]]["gpu_ids"])
        assert max(on.values(), default=0) <= self.pool.faults.restarts + 1
        decoded = sum(s["tokens"] for s in record.spans if s["phase"] == "decode")
        complete = sum(c.response_tokens for c in record.completions.values())
        assert decoded >= complete
        if not lost and len(record.completions) == len(asked):
            assert decoded == complete, "nothing is generated twice"
        read = Counter(s["from_actor"] for s in record.spans if s["phase"] == "transfer")
        assert "" not in read, "whoever handed it over is known"

    def trace(self) -> Trace:
        """All steps as a trace, which refuses whatever the schema refuses."""
        rows = [
            {"step": r.step, "prompt_id": i, "sample": 0, "run": r.run, **r.rollout_times(i)}
            for r in self.records
            for i in sorted(r.completions)
        ]
        tables = {
            name: pd.DataFrame([row for r in self.records for row in getattr(r, name)])
            for name in ("allocations", "spans", "events")
        }
        return Trace(rollouts=pd.DataFrame(rows), **{name: table for name, table in tables.items() if len(table)})


@contextlib.contextmanager
def stage(
    pool_kind: str = "local",
    seed: int | Dice = 0,
    troubles: Sequence[Trouble] = (),
    faults: Faults = SOON,
    lifecycle: Lifecycle = Lifecycle.serverful(),  # noqa: B008 (frozen)
    **world: Any,
) -> Iterator[Stage]:
    """A world with a pool, after which nothing of it is left."""
    there = World(Dice(seed) if isinstance(seed, int) else seed, list(troubles), **world)
    if pool_kind == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
        from scripted_ray import ray_pool_in

        opened = ray_pool_in(there, faults=faults, lifecycle=lifecycle)
    else:
        opened = LocalPool(there, faults=faults, lifecycle=lifecycle)  # type: ignore[assignment]
    LEARNERS.append(there)
    try:
        with opened as pool:
            on = Stage(there, pool, pool_kind)
            yield on
    finally:
        LEARNERS.pop()
    assert not on.alive, "nothing is left behind"


class Heard:
    """What has arrived from actors by now: how many tokens of each response, and what is complete."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tokens: Counter[int] = Counter()
        self.complete: set[int] = set()
        world.hears.append(self._hear)

    def _hear(self, actor: Actor, report: ActorReport) -> None:
        for response, tokens in zip(*report.tokens, strict=True):
            self.tokens[int(response)] = max(self.tokens[int(response)], int(tokens))
        for r in report.taken or ():
            self.tokens[r.response] = max(self.tokens[r.response], r.generated_tokens)
        for c in report.completions:
            self.tokens[c.response] = max(self.tokens[c.response], c.response_tokens)
            self.complete.add(c.response)

    def close(self) -> None:
        """Listen no more."""
        self.world.hears.remove(self._hear)


@dataclass
class Causal:
    """A rule that looks at what it is shown: no more than has been reported by then, and every response somewhere."""

    rule: RuntimeRule
    heard: Heard
    asked: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Causal:
        return Causal(copy.deepcopy(self.rule, memo), self.heard)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["rule"], name)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return self.rule.next_trigger(view)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.asked += 1
        assert self.asked < 20_000, "the step never ends"
        assert now_s == state.now_s
        complete = np.flatnonzero(state.complete).tolist()
        assert set(complete) <= self.heard.complete, "nothing is complete that nobody has reported"
        assert all(int(n) <= self.heard.tokens[r] for r, n in enumerate(state.generated_tokens))
        shown = [r for view in state.actors for r in (*view.unfinished, *view.arriving)]
        assert len(shown) == len(set(shown)), "a response is in two places"
        assert not set(shown).intersection(complete)
        assert all(view.completed <= view.assigned for view in state.actors)
        assert all(view.free_slots >= 0 for view in state.actors)
        return self.rule.decide(now_s, state)


def events(record: StepRecord, name: str) -> list[dict[str, Any]]:
    """Events of that name, with what they say."""
    return [e | json.loads(e["detail"] or "{}") for e in record.events if e["name"] == name]


def spans(record: StepRecord, phase: str) -> list[dict[str, Any]]:
    """Of a phase."""
    return [s for s in record.spans if s["phase"] == phase]
