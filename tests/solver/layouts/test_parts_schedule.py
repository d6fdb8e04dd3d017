"""The list schedule of parts: that of whole calls where none is divided, one call on a GPU at a time, and waits that hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dataflow_samples import freeing, random_plans, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from lever_samples import DividedRandomCosts, space, tailed

from solver.layouts import grpo, ppo, remax
from solver.layouts.parts_schedule import WHOLE, PartsSchedule
from solver.layouts.schedule import step_times

ALGORITHMS = {"grpo": grpo, "ppo": ppo, "remax": remax}


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.2]))
def test_without_divided_calls_times_are_those_of_the_schedule_of_calls(seed: int, link: float) -> None:
    """With a link of 0 sending takes no time, and waits for no GPU."""
    rng = np.random.default_rng(seed)
    options = freeing(sample(seed, link=link), rng)
    for plan in random_plans(options, 2, rng):
        times = PartsSchedule(options, plan, {}, {}).times(8)
        expected = step_times(options, plan[None], steps=8)
        assert times.start_s == pytest.approx(expected.start_s, abs=1e-7)
        assert times.period_s == pytest.approx(expected.period_s, abs=1e-7, nan_ok=True)


@settings(max_examples=3, deadline=None)
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(0, 1000), st.sampled_from([1, 2]))
def test_parts_wait_for_their_prompt_and_a_gpu_runs_one_at_a_time(name: str, seed: int, mini_batches: int) -> None:
    rng, steps, graph = np.random.default_rng(seed), 4, ALGORITHMS[name]()
    costs = DividedRandomCosts(seed, 0.1)
    costs.mini_batches = mini_batches
    of = space(graph, 4, costs, tailed(seed))
    plan = random_plans(of.options, 1, rng)[0]
    divided = frozenset(call for call in of.calls_of(("fuse", "stream")) if rng.random() < 0.7)
    times = of.schedule(plan, divided).times(steps)
    complete_s = of.complete_s(plan)
    calls, prompts = graph.calls, of.prompts
    start_s, end_s = times.start_s[0], times.end_s[0]
    node = {(int(task), int(part)): at for at, (task, part) in enumerate(zip(times.task, times.part, strict=True))}

    for (task, part), at in node.items():
        if task >= len(calls) or part >= prompts:
            continue
        for before in graph.after[task]:
            if before in complete_s and part != WHOLE:
                ends = start_s[node[before, WHOLE]] + complete_s[before][part]
            elif (before, WHOLE) in node:
                ends = end_s[node[before, WHOLE]]
            elif part != WHOLE:
                ends = end_s[node[before, part]]
            else:
                ends = np.max([end_s[node[before, one]] for one in range(prompts)], axis=0)
            assert (start_s[at] >= ends - 1e-9).all()
        train = graph.trained_by[task]
        if train is not None:  # the last update of the step before comes first
            assert (start_s[at, 1:] >= times.of_task(train)[1][:-1] - 1e-9).all()
    for call in divided:
        parts = of.parts(call, int(plan[call]))
        for prompt, batch in enumerate(parts.batch_of):
            if parts.updates:
                assert (end_s[node[call, prompt]] <= start_s[node[call, prompts + batch]] + 1e-9).all()
            if batch:
                assert (start_s[node[call, prompt]] >= end_s[node[call, prompts + batch - 1]] - 1e-9).all()

    held: dict[int, list[tuple[float, float]]] = {}
    for at in range(len(times.task)):
        task = int(times.task[at])
        for step in range(steps):
            for gpu in times.gpus[at][step].tolist():
                until_s = end_s[at, step]
                if task in complete_s:
                    until_s = start_s[at, step] + of.options.freed_early[task].release_s[plan[task], gpu]
                held.setdefault(gpu, []).append((start_s[at, step], until_s))
    for spans in held.values():
        spans.sort()
        assert all(one[1] <= other[0] + 1e-9 for one, other in itertools.pairwise(spans) if other[1] > other[0])
    gpu_s = dict.fromkeys(divided, 0.0)
    for at in range(len(times.task)):
        if (call := int(times.task[at])) in gpu_s:
            gpu_s[call] += len(times.gpus[at][0]) * (end_s[at, 0] - start_s[at, 0])
    for call, sum_s in gpu_s.items():
        layout, seconds = of.options.layouts[call][plan[call]], of.options.seconds[call][plan[call]]
        assert sum_s == pytest.approx(seconds * layout.mesh.gpus)


def test_a_prompt_is_shared_by_idle_servers_and_not_by_busy_ones() -> None:
    of = space(grpo(), 4, DividedRandomCosts(1, 0.0), tailed(1, prompts=3, samples=4))
    reference = 2
    widest = max(range(len(of.options.layouts[reference])), key=lambda one: of.options.layouts[reference][one].strategy.dp)
    plan = np.array([0, 0, widest, 0])
    schedule = of.schedule(plan, frozenset({reference}))
    parts = schedule.divided[reference]
    assert parts.most == (4, 4, 4)
    node = schedule.first[reference]
    assert [schedule.shared_by(node, free=4, ready=ready) for ready in (1, 2, 3, 9)] == [4, 2, 1, 1]
