"""Small steps to execute, a rule that moves responses at random, and what every executed step has to satisfy."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import StepRecord, run_step
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.trace import Trace
from solver import Cluster, LatencyModel, Plan, Workload
from solver.model.plan import ActorPlan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, Cut, Decision, Move, RuntimeRule, StepState, Trigger

LIMIT = 60


class Step(NamedTuple):
    """A step: true lengths, what was predicted, where and how fast."""

    truth: Workload
    predicted: Workload
    cluster: Cluster
    latency: LatencyModel

    def requests(self) -> list[Request]:
        tokens, owners = self.truth.prompt_tokens.tolist(), self.truth.prompt_of.tolist()
        return [
            Request(i, tokens[p], LIMIT, target_tokens=n, prompt=p)
            for i, (p, n) in enumerate(zip(owners, self.truth.response_tokens.tolist(), strict=True))
        ]

    def with_truth(self, lengths: np.ndarray) -> Step:
        return self._replace(truth=self.truth.with_response_tokens(lengths))


def random_step(seed: int, *, prompts: int = 6, samples: int = 3, **changes: float) -> Step:
    """A long tail of lengths (zeros included), a few actors, tight or ample slots, every cost there or not."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.07, (prompts, samples)) - 1, LIMIT)
    truth = Workload.grid(rng.integers(0, 20, prompts), lengths, max_response_tokens=LIMIT)
    options = {
        "base_s": 0.01,
        "per_response_s": rng.choice([0.0, 3e-4, 4e-3]),
        "per_kv_token_s": rng.choice([0.0, 1e-5, 1e-4]),
        "prefill_base_s": rng.choice([0.0, 3e-3]),
        "prefill_per_token_s": rng.choice([0.0, 2e-4]),
        "join_s": rng.choice([0.0, 2e-3]),
        "start_s": rng.choice([0.0, 0.2]),
        "sync_s": rng.choice([0.0, 0.05]),
        "transfer_base_s": rng.choice([0.0, 2e-3, 0.05]),
        "transfer_per_kv_token_s": rng.choice([0.0, 1e-4]),
        "max_batch": int(rng.choice([4, 8, 32])),
        "kv_capacity_tokens": int(rng.choice([160, 400, 1 << 40])),
    }
    latency = LatencyModel("random", 1, **{**options, **changes})
    predicted = truth.with_response_tokens(rng.permutation(np.maximum(lengths.ravel(), 1)))
    return Step(truth, predicted, Cluster(2, 2, 1, usd_per_gpu_hour=3.6), latency)


def execute(step: Step, policy: str, *, seed: int = 0, rule: RuntimeRule | None = None, **options: object) -> StepRecord:
    """Plan on the predictions and run on simulated engines; ``rule`` replaces the policy's. Decisions are recorded."""
    admission = str(options.get("admission", "reserve"))
    given = (
        PlanningProblem(step.predicted, step.cluster, step.latency, admission=admission),
        PlanningOptions(seed=seed),
    )
    plan = make_policy(policy).plan(*given)
    rule = plan.rule if rule is None else rule
    return run(step, replace(plan, rule=None if rule is None else Recorder(rule)), **options)


def run(step: Step, plan: Plan, engine: type[SimulatedEngine] = SimulatedEngine, **options: object) -> StepRecord:
    """``run_step`` on simulated engines."""
    return run_step(plan, step.requests(), engine, step.latency, step.cluster, **options)  # type: ignore[arg-type]


def plan_of(groups: Sequence[Sequence[int]], rule: RuntimeRule | None = None, slots: int = 64, release: str = "done") -> Plan:
    """A plan by hand: one actor of one GPU per group."""
    actors = [ActorPlan("gpu", (i,), i // 2, tuple(g), (), slots, release=release) for i, g in enumerate(groups)]
    return Plan(tuple(actors), "by hand", 0.0, 0.0, 0.0, rule=rule)


def uniform_step(lengths: Sequence[int], **changes: float) -> Step:
    """One prompt of 10 tokens per response; an iteration takes 0.1 s whatever the batch, everything else nothing."""
    truth = Workload(np.full(len(lengths), 10), range(len(lengths)), lengths, max_response_tokens=LIMIT)
    latency = LatencyModel("tenth", 1, **{"base_s": 0.1, "per_response_s": 0.0, **changes})
    return Step(truth, truth, Cluster(2, 2, 1), latency)


@dataclass
class Orders:
    """Decides what it is told at the times that it is told."""

    at: dict[float, list[Decision]]
    name: str = "orders"

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(time_s=min(self.at)) if self.at else None

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        return self.at.pop(min(self.at))


@dataclass
class Recorder:
    """Another rule, with a note of when it was asked and what it decided."""

    rule: RuntimeRule
    decided: list[tuple[float, list[Decision]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.rule.name

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return self.rule.next_trigger(view)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.decided.append((now_s, self.rule.decide(now_s, state)))
        return self.decided[-1][1]


@dataclass
class Restless:
    """Moves single responses and cuts whole actors at random, at completions and at odd times; knows only the state.
    ``late``: its step does not begin at 0, so it knows no times before the first completion."""

    seed: int
    period_s: float = 0.037
    start_s: float = 0.0  # of the step
    late: bool = False
    name: str = "restless"
    seen: list[StepState] = field(default_factory=list)
    _rng: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        if self.late and not self.seen:
            return Trigger(view.completed + 1)
        now_s = self.seen[-1].now_s if self.seen else self.start_s
        completions = view.completed + 1 + view.actor if self.seed % 2 else None
        return Trigger(completions, now_s + self.period_s * (1 + view.actor / 7))

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.seen.append(state)
        actors = list(self._rng.permutation(len(state.actors)))
        if len(actors) < 2 or len(self.seen) > 400 or self._rng.random() < 0.3:
            return []
        leaving = state.actors[actors.pop()]
        others = [state.actors[i].actor for i in actors]
        if self._rng.random() < 0.3 and not leaving.arriving:
            return [Cut(leaving.actor, tuple(Move(r, int(self._rng.choice(others))) for r in leaving.unfinished))]
        many = self._rng.permutation(leaving.unfinished)[: self._rng.integers(0, 3)]
        moves: list[Decision] = [Move(int(r), int(self._rng.choice(others))) for r in many]
        back = next((a for a in state.actors if a.actor == others[0]), None)
        if moves and back is not None and back.unfinished:  # and one the other way
            moves.append(Move(int(self._rng.choice(back.unfinished)), leaving.actor))
        return moves


@dataclass
class Stepping:
    """Another rule, all of whose moves take one step, two, or whatever the executor chooses."""

    rule: RuntimeRule
    two_step: bool | str

    @property
    def name(self) -> str:
        return self.rule.name

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return self.rule.next_trigger(view)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        return [in_steps(decision, self.two_step) for decision in self.rule.decide(now_s, state)]


def in_steps(decision: Decision, two_step: bool | str) -> Decision:
    """The same decision, whose moves take one step, two, or whatever the executor chooses."""
    if isinstance(decision, Cut):
        return replace(decision, moves=tuple(replace(move, two_step=two_step) for move in decision.moves))
    return replace(decision, two_step=two_step)


def trace_of(record: StepRecord, step: Step) -> Trace:
    """The step as a trace: refuses whatever the schema refuses, two holders of one GPU for example."""
    rows = [
        {"step": record.step, "prompt_id": i, "sample": 0, "run": record.run, **record.rollout_times(i)}
        for i in range(len(step.truth))
    ]
    tables = {name: pd.DataFrame(getattr(record, name)) for name in ("allocations", "spans", "events")}
    return Trace(rollouts=pd.DataFrame(rows), **tables)


def assert_sound(record: StepRecord, step: Step, release: str = "done", *, cuts_only: bool = True) -> None:
    """Every response exactly once and whole; allocations and spans tell one and the same story.

    With ``cuts_only`` every idle stretch must end with an arrival; a move from an actor that goes on leaves no span to see.
    """
    truth, latency = step.truth, step.latency
    assert sorted(record.completions) == list(range(len(truth)))
    for i, c in record.completions.items():
        assert c.response_tokens == truth.response_tokens[i]
        assert record.start_s <= c.start_s <= c.first_token_s <= c.time_s
    trace_of(record, step)
    spans = [s for s in record.spans if s["holder"] != "learner"]
    decoded = sum(s["tokens"] for s in spans if s["phase"] == "decode")
    assert decoded == truth.response_tokens.sum()
    computed = sum(s["tokens"] for s in spans if s["phase"] == "prefill")
    charged = latency.prefill_base_s + latency.prefill_per_token_s > 0
    assert computed == (sum(c.prefill_tokens_computed for c in record.completions.values()) if charged else 0)
    assert len([a for a in record.allocations if a["holder"] != "learner"]) == len(record.plan.actors)
    for holder in {s["holder"] for s in spans}:  # a link carries one transfer at a time, beside copies that give way to it
        migrations = [s for s in spans if s["phase"] == "migrate" and s["holder"] == holder and not s["background"]]
        sent = sorted((s["start_s"], s["end_s"]) for s in migrations)
        assert all(begin >= end - 1e-9 for (_, end), (begin, _) in itertools.pairwise(sent))
    # a response may come without a transfer, to be recomputed, from any boundary of an actor that was cut or gave one away
    cut = {e["holder"]: e["time_s"] for e in reversed(record.events) if e["name"] in ("cut", "move")}
    arrivals = [s["end_s"] for s in spans if s["phase"] == "transfer" or s["end_s"] >= cut.get(s["holder"], np.inf)]
    for a in record.allocations:
        if a["holder"] == "learner":
            continue
        own = [s for s in spans if s["holder"] == a["holder"]]
        for s in own:
            assert a["start_s"] - 1e-9 <= s["start_s"] <= s["end_s"] <= a["end_s"] + 1e-9, (a, s)
        begins_s = [s["start_s"] for s in own if s["phase"] in ("prefill", "decode")]
        assert begins_s == sorted(begins_s), "an engine's spans are in order"
        work = sorted((s["start_s"], s["end_s"]) for s in own if not s["background"])
        at_s = a["start_s"]
        for begin, end in work:
            if cuts_only and begin > at_s + 1e-9:
                assert any(abs(begin - t) < 1e-9 for t in arrivals), (a, begin)
            at_s = max(at_s, end)
        last_s = max([c.time_s for i, c in record.completions.items() if record.actor_of[i] == a["holder"]], default=at_s)
        # an actor whose last response is taken away while it waits for its arrival is held until that moment
        last_s = max([last_s, *(e["time_s"] for e in record.events if e["holder"] == a["holder"] and e["name"] == "move")])
        # one that waits for a response whose KV state is being copied learns that it is complete when it is
        copied = {json.loads(s["detail"])["response"] for s in own if s["phase"] == "transfer" and s["detail"]}
        kept = [record.completions[r].time_s for r in copied if record.actor_of[r] != a["holder"]]
        last_s = max([last_s, *(t for t in kept if t <= a["end_s"] + 1e-9)])
        if release == "done":
            assert a["end_s"] == pytest.approx(max(at_s, last_s), abs=1e-9)
