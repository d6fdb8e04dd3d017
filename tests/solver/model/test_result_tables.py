"""What notebooks show of results: small tables with the numbers of the result, and text as text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import solver

CLUSTER = solver.Cluster(nodes=1, gpus_per_node=8, gpus_per_actor=2)
LATENCY = solver.LatencyModel("made up", gpus_per_actor=2, base_s=0.01, per_response_s=0.0005, start_s=0.1, max_batch=64)
FEW = solver.Workload.grid([20, 30], [[20, 400], [90, 200]], max_response_tokens=400)
WORKLOAD = solver.Workload.grid(np.full(16, 20), np.random.default_rng(0).integers(20, 400, (16, 4)), max_response_tokens=400)


def test_a_front_has_a_row_per_plan() -> None:
    front = solver.pareto_front(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), points=12)
    page = front._repr_html_()
    assert page.count("<tr>") == 1 + len(front.plans)
    assert f"{front.plans[0].makespan_s:.4g}" in page
    assert "GPU-seconds" in page


def test_a_bound_says_what_is_the_fastest_and_what_it_costs_around_it() -> None:
    bound = solver.bound(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY, admission="preempt"))
    page = bound._repr_html_()
    assert f"{bound.shortest_s():.4g} s" in page
    assert f"{bound.gpu_seconds(2 * bound.shortest_s()):.4g} GPU-seconds" in page
    assert f"{bound.shortest_s():.4g} s" in repr(bound)
    assert "array(" not in repr(bound)


def test_a_bound_of_what_cannot_be_done_says_so() -> None:
    impossible = solver.bound(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY, admission="preempt"))
    impossible.max_actors = 0
    assert "not possible" in impossible._repr_html_()


def test_a_workload_says_how_many_tokens_of_what() -> None:
    page = WORKLOAD._repr_html_()
    assert "64 to 16 prompts" in page
    assert f"{WORKLOAD.response_tokens.sum():,}, longest {WORKLOAD.response_tokens.max()}, limit 400" in page
    assert "already" not in page
    sampled = replace_lengths(np.stack([WORKLOAD.response_tokens] * 3), generated=5)
    assert "<td>3</td>" in sampled._repr_html_()
    assert f"{5 * 64} tokens" in sampled._repr_html_()


def replace_lengths(lengths: np.ndarray, generated: int) -> solver.Workload:
    """The same prompts with other lengths, of which some tokens are generated already."""
    return solver.Workload(WORKLOAD.prompt_tokens, WORKLOAD.prompt_of, lengths, generated, max_response_tokens=400)


def test_a_latency_model_says_what_an_iteration_takes() -> None:
    page = LATENCY._repr_html_()
    assert "10 + 0.5 per response" in page
    assert "the affine fit is charged" in page


@pytest.mark.parametrize("what", ["name", "kind"])
def test_names_are_text(what: str) -> None:
    page = replace(LATENCY, **{what: "<script>"})._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
