"""The graphs of four algorithms: their waits in a step and across steps, and what is refused."""

from __future__ import annotations

from itertools import combinations

import pytest
from dataflow_samples import RandomCosts
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.layouts.bound import never_together
from solver.layouts.costs import CallOptions
from solver.layouts.graph import Call, Graph, dpo, grpo, ppo, remax
from solver.model.errors import PlanningError

ALGORITHMS = (ppo, grpo, remax, dpo)


def unrolled(options: CallOptions, steps: int) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """What every (step, task) waits for, directly or not, but for the limit on how far a task may run ahead."""
    same, before, _ = options.task_graph
    waits: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for step in range(steps):
        while any((step, task) not in waits for task in range(options.tasks)):
            for task in range(options.tasks):
                direct = {(step, other) for other in same[task]} | {(step - 1, other) for other in before[task] if step}
                if all(one in waits for one in direct):
                    waits[step, task] = direct | {far for near in direct for far in waits[near]}
    return waits


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 6))
    trained: set[str] = set()
    calls = []
    for at in range(count):
        role = draw(st.sampled_from("abc"))
        trains = role not in trained and draw(st.booleans())
        trained |= {role} if trains else set()
        after = draw(st.sets(st.integers(0, at - 1))) if at else set()
        calls.append(Call(f"c{at}", role, "train" if trains else "inference", tuple(f"c{k}" for k in after)))
    return Graph("any", tuple(draw(st.permutations(calls))))


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_tasks_that_are_kept_apart_are_those_of_unrolled_steps(graph: Graph) -> None:
    options = CallOptions.of(graph, 1, 1, RandomCosts(0))
    waits = unrolled(options, 5)
    kept = {
        (i, j)
        for i, j in combinations(range(options.tasks), 2)
        if all((s, i) in waits[t, j] or (t, j) in waits[s, i] for s in (2, 3) for t in (2, 3))
    }
    assert {(i, j) for i, j in combinations(range(options.tasks), 2) if never_together(options)[i, j]} == kept


def test_ppo_waits_as_the_paper_draws_it() -> None:
    options = CallOptions.of(ppo(), 1, 1, RandomCosts(0))
    waits, name = unrolled(options, 2), {call.name: at for at, call in enumerate(options.graph.calls)}
    assert (1, name["generate"]) in waits[1, name["train_actor"]]
    assert (0, name["train_actor"]) in waits[1, name["generate"]]
    assert (0, name["train_critic"]) not in waits[1, name["generate"]]  # generation does not wait for the critic
    assert (0, name["train_critic"]) in waits[1, name["values"]]
    assert never_together(options)[name["generate"], name["train_actor"]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_actor_is_trained_once_and_last(algorithm: object) -> None:
    graph = algorithm()  # type: ignore[operator]
    assert [call.role for call in graph.calls if call.kind == "train"].count("actor") == 1
    assert graph.calls[graph.order[-1]].kind == "train"


@pytest.mark.parametrize(
    ("calls", "sentence"),
    [
        ((), "at least one Call is needed"),
        (7, "at least one Call is needed"),
        ((Call("a", "m", "sing"),), "one of generate, inference, train is needed"),
        ((Call("a", "m", "train"), Call("a", "m", "generate")), "two calls have the name 'a'"),
        ((Call("a", "m", "train", ("b",)),), "'a' waits for 'b', which is not a call"),
        ((Call("a", "m", "train"), Call("b", "m", "train")), "role 'm' is trained by two calls"),
        ((Call("a", "m", "train", ("b",)), Call("b", "n", "train", ("a",))), "wait for each other in a circle"),
        ((Call("a", "m", "train", ("a",)),), "wait for each other in a circle"),
        ((Call("a", "m", "train", None),), "after of call 'a' is None; a tuple of names of calls is needed"),  # type: ignore[arg-type]
        ((Call("a", "m", "train", "b"),), "after of call 'a' is 'b'; a tuple"),  # type: ignore[arg-type]
        ((Call("a", "m", "train", (["b"],)),), "after of call 'a' is"),  # type: ignore[arg-type]
        ((Call(["a"], "m", "train"),), "name of call .'a'. is .'a'.; a text is needed"),  # type: ignore[arg-type]
        ((Call("a", None, "train"),), "role of call 'a' is None; a text is needed"),  # type: ignore[arg-type]
        ((Call("a", "m", ["train"]),), "kind of call 'a' is"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_graph_is_refused(calls: object, sentence: str) -> None:
    with pytest.raises(PlanningError, match=sentence):
        Graph("wrong", calls)  # type: ignore[arg-type]


def test_a_graph_has_a_name() -> None:
    with pytest.raises(PlanningError, match="name of a graph is None; a text is needed"):
        Graph(None, ppo().calls)  # type: ignore[arg-type]
