"""Engines, rules and policies of one's own that cannot work: refused in one sentence that says what to type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from error_messages import refused
from executor_samples import plan_of

import rlhfless as rl
import solver
from rlhfless.engine import Capabilities, PoolEngines, Request, SimulatedEngine
from rlhfless.errors import InputError, InputTypeError
from rlhfless.executor import ProcessPool, RuleError, StepFailed, run_step
from rlhfless.scheduling import PolicyError
from solver.model.errors import PlanningError
from solver.model.runtime_rules import Cut, Move, Trigger

LATENCY = solver.LatencyModel("tiny", 1, 2e-3, 40e-6, max_batch=4, kv_capacity_tokens=1 << 20)
CLUSTER = solver.Cluster(1, 2, 1)


# --- factories --------------------------------------------------------------------------------------------------------


class Sound(PoolEngines):
    capabilities: ClassVar[Capabilities] = Capabilities("a sound engine")


class NoBase:
    capabilities: ClassVar[Capabilities] = Capabilities("an engine without a base")

    def __call__(self, latency: Any, admission: Any, start_s: float = 0.0) -> Any: ...


class NoCapabilities(PoolEngines):
    pass


class Options(PoolEngines):
    capabilities: ClassVar[Any] = {"moves": False}


class OfTheScript(Sound):
    pass


OfTheScript.__module__ = "__main__"


@dataclass(frozen=True)
class WithFunction(Sound):
    reads: Callable[[], int] = field(default=lambda: 3)


class OtherBackend(PoolEngines):
    capabilities: ClassVar[Capabilities] = Capabilities("an engine of another module", "no_such_module")


@pytest.mark.parametrize(("engine", "named"), [
    (Sound, ("Sound(...)",)), (Sound(), ("Sound", "def __call__(")), (NoBase(), ("NoBase", "class NoBase(PoolEngines)")),
    (NoCapabilities(), ("NoCapabilities", "capabilities = Capabilities(")), (Options(), ("capabilities = Capabilities(",)),
    (OfTheScript(), ("OfTheScript", "put it in a file", "from my_engine import OfTheScript")),
    (WithFunction(), ("WithFunction", "pickle", "folder")),
    (OtherBackend(), ("OtherBackend", "'no_such_module'", "class Backend")),
], ids=["class", "call", "base", "capabilities", "options", "script", "function", "backend"])  # fmt: skip
def test_a_factory_that_processes_cannot_have_is_refused(engine: Any, named: tuple[str, ...]) -> None:
    with refused(InputTypeError, *named):
        rl.Executor(engine, CLUSTER, latency=LATENCY, actor_pool=ProcessPool(["cpu"]))


def test_the_class_of_a_pool_is_refused() -> None:
    with refused(InputError, "actor_pool=ProcessPool()"):
        rl.Executor(Sound(), CLUSTER, latency=LATENCY, actor_pool=ProcessPool)  # type: ignore[arg-type]


def requests(count: int) -> list[Request]:
    return [Request(i, 2, 40, prompt_ids=np.array([1, 2]), target_tokens=10 * (i + 1)) for i in range(count)]


def test_an_engine_without_the_virtual_clock_needs_a_pool() -> None:
    class Engine:
        pass

    with refused(PlanningError, "advance", "actor_pool=ProcessPool()"):
        run_step(plan_of([[0]]), requests(1), lambda *_: Engine(), LATENCY, CLUSTER)  # type: ignore[arg-type]


# --- engines in their processes ---------------------------------------------------------------------------------------

ENGINE = """
from rlhfless.engine import Capabilities, PoolEngines, Progress


class Engine:
    clock_s = 0.0

    def __init__(self): self.queue = []
    def add(self, requests): self.queue += [r.response for r in requests]
    def step(self, from_s, clock): return [1, 2, 3]
    def cut(self, at_s, responses=None): return []
    def generated_tokens(self): return dict.fromkeys(self.queue, 0)
    def running(self): return tuple(self.queue)
    def waiting(self): return ()
    def close(self): pass


class Lacking(Engine):
    running = None


class WrongStep(PoolEngines):
    capabilities = Capabilities("an engine that returns a list")

    def __call__(self, latency, admission, start_s=0.0): return Engine()


class WrongEngine(PoolEngines):
    capabilities = Capabilities("an engine without a method")

    def __call__(self, latency, admission, start_s=0.0): return Lacking()
"""


@pytest.mark.parametrize(("factory", "named"), [
    ("WrongStep", ("Engine.step", "[1, 2, 3]", "return Progress(completions, spans)")),
    ("WrongEngine", ("WrongEngine", "Lacking without running",)),
])  # fmt: skip
def test_an_engine_that_can_work_nowhere_is_not_tried_again(
    factory: str, named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_engines.py").write_text(ENGINE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_engines", raising=False)
    import wrong_engines  # type: ignore[import-not-found]

    with ProcessPool(["cpu"]) as pool, refused(StepFailed, "aborted", *named) as failed:
        pool.run_step(plan_of([[0]]), requests(1), getattr(wrong_engines, factory)(), LATENCY, CLUSTER)
    assert sum(event["name"] == "lost" for event in failed.value.record.events) <= 1


# --- rules ------------------------------------------------------------------------------------------------------------


class Rule:
    name = "mine"

    def next_trigger(self, view: Any) -> Any:
        return Trigger(completions=1)

    def decide(self, now_s: float, state: Any) -> Any:
        return []


class NoDecide:
    name = "no decisions"

    def next_trigger(self, view: Any) -> Any: ...


class NoName:
    next_trigger, decide = Rule.next_trigger, Rule.decide


@pytest.mark.parametrize(("rule", "named"), [
    (Rule, ("Rule(...)",)), (NoDecide(), ("no decisions", "def decide(self, now_s, state)")), (NoName(), ("NoName", "name =")),
], ids=["class", "method", "name"])  # fmt: skip
def test_a_rule_that_lacks_something_is_refused_before_the_step(rule: Any, named: tuple[str, ...]) -> None:
    with refused(RuleError, *named):
        run_step(plan_of([[0], [1]], rule=rule), requests(2), SimulatedEngine, LATENCY, CLUSTER)


class Slot(Rule):
    def decide(self, now_s: float, state: Any) -> Any:
        return state.actors[0].free_slot


class Trips(Rule):
    def next_trigger(self, view: Any) -> Any:
        return Trigger(completions=1 // 0)


class MovesToView(Rule):
    def decide(self, now_s: float, state: Any) -> Any:
        return [Move(1, state.actors[0])]


class CutsView(Rule):
    def decide(self, now_s: float, state: Any) -> Any:
        return [Cut(state.actors[0], ())]


@pytest.mark.parametrize(("rule", "named"), [
    (Slot(), ("'ActorView' object has no attribute 'free_slot'", "decide")), (Trips(), ("ZeroDivisionError", "next_trigger")),
])  # fmt: skip
def test_an_exception_of_a_rule_names_the_rule_and_the_line(rule: Any, named: tuple[str, ...]) -> None:
    with refused(StepFailed, "mine", Path(__file__).name + ", line ", *named):
        run_step(plan_of([[0], [1]], rule=rule), requests(2), SimulatedEngine, LATENCY, CLUSTER)


@pytest.mark.parametrize("rule", [MovesToView(), CutsView()], ids=["move", "cut"])
def test_a_view_in_place_of_an_actor_is_refused(rule: Any) -> None:
    with refused(StepFailed, "mine", "view.actor") as failed:
        run_step(plan_of([[0], [1]], rule=rule), requests(2), SimulatedEngine, LATENCY, CLUSTER)
    assert isinstance(failed.value.__cause__, RuleError)


# --- policies ---------------------------------------------------------------------------------------------------------


class Policy:
    name, clairvoyant = "mine", False

    def plan(self, problem: Any, options: Any) -> Any:
        return solver.random_split(problem)


class TakesOne(Policy):
    def plan(self, problem: Any) -> Any: ...  # type: ignore[override]


class NoTruth:
    name, plan = "mine", Policy.plan


@pytest.mark.parametrize(("policy", "named"), [
    (Policy, ("Policy(...)",)), (TakesOne(), ("'mine'", "(problem, options)")), (NoTruth(), ("clairvoyant = False",)),
], ids=["class", "arguments", "clairvoyant"])  # fmt: skip
def test_an_object_that_is_no_policy_is_refused(policy: Any, named: tuple[str, ...]) -> None:
    run = rl.load(rl.example(), verbose=False)
    with refused(PolicyError, *named):
        run.simulate([policy], steps=run.steps[-1:])


def test_groups_of_fractions_are_refused() -> None:
    run = rl.load(rl.example(), verbose=False)
    with refused(PlanningError, "group 0", "whole numbers"):
        run.simulate([lambda problem, options: solver.plan_of([np.array([0.0, 1.0])], problem)], steps=run.steps[-1:])
