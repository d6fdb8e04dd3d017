"""The graphs of four algorithms: their waits in a step and across steps, and what is refused."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.dataflow.graph import Call, Graph, dpo, grpo, ppo, remax
from solver.model.errors import PlanningError

ALGORITHMS = (ppo, grpo, remax, dpo)


def names(graph: Graph, pairs: frozenset[tuple[int, int]]) -> set[tuple[str, str]]:
    return {(graph.calls[i].name, graph.calls[j].name) for i, j in pairs}


def unrolled(graph: Graph, steps: int) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """What every (step, call) waits for, directly or not."""
    waits: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for step in range(steps):
        for call in graph.order:
            direct = {(step, before) for before in graph.after[call]}
            train = graph.trained_by[call]
            if step and train is not None:
                direct.add((step - 1, train))
            waits[step, call] = direct | {far for near in direct for far in waits[near]}
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


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_closures_are_those_of_unrolled_steps(graph: Graph) -> None:
    waits = unrolled(graph, 4)
    count = range(len(graph.calls))
    assert graph.precedes == {(i, j) for i in count for j in count if (2, i) in waits[2, j]}
    assert graph.precedes_next == {(i, j) for i in count for j in count if (1, i) in waits[2, j]}
    never = {
        (i, j) for i, j in combinations(count, 2)
        if all((s, i) in waits[t, j] or (t, j) in waits[s, i] for s in range(4) for t in range(4) if abs(s - t) < 2)
    }  # fmt: skip
    assert graph.never_together == never


def test_ppo_waits_as_the_paper_draws_it() -> None:
    graph = ppo()
    assert ("generate", "train_actor") in names(graph, graph.precedes)
    assert ("train_actor", "generate") in names(graph, graph.precedes_next)
    assert ("train_critic", "generate") not in names(graph, graph.precedes_next)  # generation does not wait for the critic
    assert ("train_critic", "values") in names(graph, graph.precedes_next)
    assert ("generate", "train_actor") in {tuple(sorted(pair)) for pair in names(graph, graph.never_together)}


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
        ((Call("a", "m", "train", ("b",)),), "'a' waits for 'b', which is no call"),
        ((Call("a", "m", "train"), Call("b", "m", "train")), "role 'm' is trained by two calls"),
        ((Call("a", "m", "train", ("b",)), Call("b", "n", "train", ("a",))), "wait for each other in a circle"),
        ((Call("a", "m", "train", ("a",)),), "wait for each other in a circle"),
    ],
)
def test_what_is_no_graph_is_refused(calls: object, sentence: str) -> None:
    with pytest.raises(PlanningError, match=sentence):
        Graph("wrong", calls)  # type: ignore[arg-type]
