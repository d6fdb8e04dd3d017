"""What a rule is shown on the virtual clock, and when it is asked: all that it keeps is as it was, however late it looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from executor_samples import LIMIT, Restless, execute, plan_of, random_step, run, uniform_step
from hypothesis import given, settings
from hypothesis import strategies as st
from wall_clock_steps import on_the_wall_clock

from rlhfless.executor import StepRecord
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling.rules import LocalCut
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorCounts, ActorView, Decision, StepState, Trigger


def read(view: ActorView) -> tuple[object, ...]:
    names = ("actor", "gpus", "assigned", "completed", "running", "waiting", "arriving", "free_slots", "free_kv_tokens")
    return *(getattr(view, name) for name in names), view.unfinished_count


@dataclass
class Keeps:
    """Another rule; keeps all that it is shown, and what it read of it at once, if it does."""

    rule: Any
    at_once: bool
    kept: list[Any] = field(default_factory=list)
    noted: list[Any] = field(default_factory=list)
    name: str = "keeps"

    def next_trigger(self, view: ActorView) -> Trigger | None:
        self.kept.append(view)
        if self.at_once:
            self.noted.append(read(view))
        return self.rule.next_trigger(view)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.kept.append(state)
        if self.at_once:
            self.noted.append(self.of(state))
        decided: list[Decision] = self.rule.decide(now_s, state)
        return decided

    @staticmethod
    def of(state: StepState) -> tuple[object, ...]:
        arrays = (state.generated_tokens, state.complete, state.held_tokens)
        return state.now_s, [read(v) for v in state.actors], *(np.asarray(a).tolist() for a in arrays)

    def later(self) -> list[Any]:
        return [self.of(one) if isinstance(one, StepState) else read(one) for one in self.kept]


@given(
    st.integers(0, 10_000),
    st.sampled_from(["fold", "rlhfless", "rlhfuse", "restless"]),
    st.sampled_from(["reserve", "preempt"]),
)
@settings(max_examples=40, deadline=None)
def test_what_a_rule_keeps_is_what_it_would_have_read_at_once(seed, policy, admission):
    step = random_step(seed, prompts=10)
    given_ = (
        PlanningProblem(step.predicted, step.cluster, step.latency, admission=admission),
        PlanningOptions(seed=seed),
    )
    plan = make_policy("static" if policy == "restless" else policy).plan(*given_)
    rule = Restless(seed) if policy == "restless" else plan.rule
    if rule is None:
        return
    lazy, eager = (run(step, replace(plan, rule=Keeps(rule, at_once)), admission=admission).rule for at_once in (False, True))
    assert eager.noted == eager.later() == lazy.later()


@given(st.integers(0, 10_000), st.sampled_from(["reserve", "preempt"]))
@settings(max_examples=40, deadline=None)
def test_counts_and_free_room_are_those_of_the_responses(seed, admission):
    step = random_step(seed, prompts=10)
    record = execute(step, "static", rule=Restless(seed), admission=admission)
    for state in record.rule.rule.seen:
        held = state.prompt_tokens + (state.generated_tokens if admission == "preempt" else LIMIT)
        np.testing.assert_array_equal(state.held_tokens, held)
        contexts = state.prompt_tokens + state.generated_tokens
        assert state.context_tokens == contexts[~np.asarray(state.complete)].sum()
        assert [state.context_of(r) for r in range(len(contexts))] == contexts.tolist()
        expected = ActorCounts.of(state.actors)
        for name in ("actor", "assigned", "completed", "unfinished", "arriving", "free_slots"):
            np.testing.assert_array_equal(getattr(state.counts, name), getattr(expected, name))
        for view in state.actors:
            own = [*view.unfinished, *view.arriving]
            assert view.unfinished_count == len(view.running) + len(view.waiting)
            assert view.assigned - view.completed == len(own)
            assert view.free_slots == max(0, step.latency.max_batch - len(own))
            assert view.free_kv_tokens == step.latency.kv_capacity_tokens - held[own].sum()


@pytest.mark.parametrize(("clock", "moving"), [(run, Restless(7)), (on_the_wall_clock, LocalCut(0.5))], ids=["virtual", "wall"])
def test_the_arrays_of_a_state_are_those_of_its_actors_on_both_clocks(clock: Callable[..., StepRecord], moving: Any) -> None:
    """Every unfinished response is listed once, with its actor and whether it is on its way there; nobody can write to it."""
    step = uniform_step([3 + 7 * k % 23 for k in range(24)], transfer_base_s=0.25)
    record = clock(step, plan_of([range(k, 24, 4) for k in range(4)], Keeps(moving, at_once=False)))
    assert isinstance(record.rule, Keeps)
    assert record.moves
    for state in (one for one in record.rule.kept if isinstance(one, StepState)):
        assert sorted(state.responses.tolist()) == np.flatnonzero(~state.complete).tolist()
        listed = list(zip(state.owner.tolist(), state.responses.tolist(), state.arriving.tolist(), strict=True))
        views = enumerate(state.actors)
        assert listed == [(k, r, r in v.arriving) for k, v in views for r in (*v.unfinished, *v.arriving)]
        assert state.sizes.tolist() == [[len(v.running), len(v.waiting), len(v.arriving)] for v in state.actors]
        assert [state.view_of(v.actor) for v in state.actors] == list(state.actors)
        with pytest.raises(KeyError):
            state.view_of(4)
        arrays = (state.responses, state.sizes, state.generated_tokens, state.complete, state.prompt_tokens, state.held_tokens)
        assert not any(array.flags.writeable for array in (*arrays, *vars(state.counts).values()))


@dataclass
class AtCounts:
    """Asked at some counts of the step's completions."""

    counts: list[int]
    name: str = "at counts"
    seen: list[int] = field(default_factory=list)
    free: list[list[float]] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(step_completions=self.counts[0]) if self.counts and view.actor == 2 else None

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.seen.append(int(np.count_nonzero(state.complete)))
        self.free.append([v.free_kv_tokens for v in state.actors])
        self.counts = [n for n in self.counts if n > self.seen[-1]]
        return []


@given(st.lists(st.integers(0, 40), min_size=3, max_size=30, unique=True), st.lists(st.integers(1, 30), max_size=5))
@settings(max_examples=40, deadline=None)
def test_a_rule_is_asked_at_the_very_completion_of_the_step_that_it_named(lengths, counts):
    """No two lengths are equal and an iteration takes the same everywhere, so no two completions come at the same time."""
    groups = [list(range(k, len(lengths), 3)) for k in range(3)]
    last = max(groups[2], key=lambda r: lengths[r])
    known = sum(n <= lengths[last] for n in lengths)  # while the actor whose trigger it is goes on
    counts = sorted({n for n in counts if n < known})
    record = run(uniform_step(lengths), plan_of(groups, AtCounts(counts)))
    assert record.rule.seen == counts


@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_counts_of_the_step_hold_on_both_clocks(clock: Callable[..., StepRecord]) -> None:
    """The memory that is free grows by the 70 tokens of each response that is complete, or by all of an actor that is done."""
    step = uniform_step([3, 9, 12, 14, 17, 20], kv_capacity_tokens=500)
    rule = clock(step, plan_of([[0, 1], [2, 3], [4, 5]], AtCounts([1, 3]))).rule
    assert isinstance(rule, AtCounts)
    assert rule.seen[0] >= 1
    assert rule.seen == sorted(rule.seen)
    assert rule.free[0] == [430.0, 360.0, 360.0]
