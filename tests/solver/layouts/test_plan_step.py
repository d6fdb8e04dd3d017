"""Step plans: against all plans of small clusters, within memory, the same again, as text and JSON, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from dataflow_samples import ALGORITHMS, FewLayouts, RandomCosts, all_plans
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import Cluster
from solver.layouts import CallMemory, Layout, dpo, grpo, plan_step, ppo
from solver.layouts.costs import CallOptions
from solver.layouts.times import step_times
from solver.model.errors import PlanningError


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000), st.sampled_from([0.0, 0.3, 2.0]), st.sampled_from([math.inf, 14.0, 10.0, 8.0]))
def test_no_plan_is_shorter_than_the_bound_and_the_best_is_within_the_gap(seed: int, link: float, memory: float) -> None:
    graph = ALGORITHMS[seed % 4]()
    costs = FewLayouts(seed, link, 2 if len(graph.calls) > 4 else 5)
    cluster = Cluster(1, 4, 1)
    options = CallOptions.of(graph, 4, 4, costs)
    plans = all_plans(options)
    fits = options.peak_bytes(plans).max(axis=1) <= memory
    if not fits.any():
        with pytest.raises(PlanningError, match="no plan fits into"):
            plan_step(graph, cluster, costs, memory_bytes=memory)
        return
    best_s = float(step_times(options, plans[fits]).period_s.min())
    plan = plan_step(graph, cluster, costs, memory_bytes=memory)
    assert plan.status == "optimal"
    assert plan.lower_bound_s <= best_s + 1e-9
    assert plan.period_s <= best_s / 0.99 + 1e-9
    assert max(plan.peak_bytes) <= memory


def test_work_that_is_used_up_is_said_and_its_bound_holds() -> None:
    costs = RandomCosts(1, link=0.3)
    stopped = plan_step(ppo(), Cluster(1, 4, 1), costs, work=500)
    proven = plan_step(ppo(), Cluster(1, 4, 1), costs)
    assert (stopped.status, proven.status) == ("stopped", "optimal")
    assert stopped.lower_bound_s <= proven.period_s <= stopped.period_s + 1e-9
    assert stopped.gap > 0.02 > 0.01 >= proven.gap


def test_once_a_gap_is_proven_a_tenth_of_it_is_searched_for() -> None:
    rough, fine = (plan_step(ppo(), Cluster(1, 4, 1), RandomCosts(3, link=0.3), gap=gap) for gap in (0.05, 0.005))
    assert rough.period_s <= fine.period_s / 0.995
    assert rough.gap <= 0.005 + 1e-9


def test_the_same_seed_and_work_plan_the_same() -> None:
    plans = [plan_step(grpo(), Cluster(2, 4, 1), RandomCosts(5), work=5_000, seed=3) for _ in range(2)]
    assert plans[0] == plans[1]


def test_a_plan_tells_what_it_does() -> None:
    plan = plan_step(ppo(), Cluster(1, 4, 1), RandomCosts(2, link=0.1))
    rows = plan.to_frame()
    assert list(rows["call"]) == [call.name for call in plan.calls]
    assert rows["start_s"].min() == 0
    assert rows["start_s"].is_monotonic_increasing
    after = rows.set_index("call")
    assert (
        after.loc["train_actor", "start_s"]
        >= (after["start_s"] + after["seconds"])[["reward", "reference", "values"]].max() - 1e-9
    )
    read = json.loads(plan.to_json())
    assert read["period_s"] == plan.period_s
    assert [call["call"] for call in read["calls"]] == list(rows["call"])
    assert "Step plan of ppo on 4 GPUs" in repr(plan)
    assert "<table>" in plan._repr_html_()
    assert plan.gpu_seconds <= 4 * plan.period_s + 1e-9
    assert plan.first_steps_s >= 4 * plan.period_s


class Wrong(RandomCosts):
    """Costs with one thing wrong."""

    def __init__(self, seconds: Any = None, memory: Any = None, sent: Any = None) -> None:
        super().__init__(0)
        self.wrong_seconds, self.wrong_memory, self.wrong_sent = seconds, memory, sent

    def seconds(self, call: Any, layout: Layout) -> float:
        return super().seconds(call, layout) if self.wrong_seconds is None else self.wrong_seconds

    def memory(self, call: Any, layout: Layout) -> CallMemory:
        return super().memory(call, layout) if self.wrong_memory is None else CallMemory(self.wrong_memory, 0.0)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        return super().reallocate(role, source, destination) if self.wrong_sent is None else self.wrong_sent


class FrozenCopy(Wrong):
    """Costs whose frozen model is too large for a GPU."""

    def memory(self, call: Any, layout: Layout) -> CallMemory:
        return CallMemory(0.0, 1.0, 100.0 if call.role == "reference" else 0.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"graph": "ppo"}, "graph is 'ppo'; a Graph, such as ppo(), is needed"),
        ({"cluster": 8}, "cluster is 8; a Cluster is needed"),
        ({"cluster": Cluster(512, 8, 1)}, "the cluster has 4,096 GPUs; steps are planned on 256 at most"),
        ({"cluster": Cluster(1, 6, 1)}, "gpus_per_node is 6; 1, 2, 4 or 8 is needed"),
        ({"memory_bytes": 0}, "memory_bytes is 0; more than 0 is needed"),
        ({"memory_bytes": "80"}, "memory_bytes is '80'; a number is needed"),
        ({"gap": 1.0}, "gap is 1.0; a share of 0 or more and below 1 is needed"),
        ({"work": 0}, "work is 0; a whole number of 1 or more is needed"),
        ({"costs": Wrong(seconds=-1.0)}, "seconds of call 'reference' on 1 GPU as 1x1x1 are -1.0"),
        ({"costs": Wrong(seconds=math.nan)}, "seconds of call 'reference' on 1 GPU as 1x1x1 are nan"),
        ({"costs": Wrong(seconds=math.inf)}, "call 'reference' runs in no layout on 2 GPUs"),
        ({"costs": Wrong(memory=math.inf)}, "bytes of call 'reference' on 1 GPU as 1x1x1 are (inf, 0.0, 0.0)"),
        ({"memory_bytes": 0.001}, "call 'train_actor' alone needs"),
        ({"costs": FrozenCopy(), "memory_bytes": 50}, "call 'reference' alone needs 101 bytes at least"),
        ({"graph": grpo(), "costs": Wrong(sent=(-1.0, 0.0))}, "sending the weights of 'actor' from"),
        ({"graph": grpo(), "costs": Wrong(sent=(math.nan, 0.0))}, "two numbers of 0 or more, are needed"),
        ({"graph": grpo(), "costs": Wrong(sent=3.0)}, "is 3.0; seconds and bytes"),
        ({"costs": None}, "costs are None without the method seconds; the methods of CallCosts are needed"),
        ({"seed": "a"}, "seed is 'a'; a whole number of 0 or more is needed"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    given_: dict[str, Any] = {"graph": dpo(), "cluster": Cluster(1, 2, 1), "costs": RandomCosts(0), **arguments}
    graph, cluster, costs = (given_.pop(name) for name in ("graph", "cluster", "costs"))
    with pytest.raises(PlanningError) as refused:
        plan_step(graph, cluster, costs, **given_)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
