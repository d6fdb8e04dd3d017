"""A live view of steps on the wall clock: it grows between completions, and shows an actor that is killed and what it cost."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from executor_samples import plan_of
from scripted_engine import ScriptedEngines, requests_of
from scripted_steps import LATENCY, events, stage
from scripted_strikes import LONG, TWO, at, decodes
from scripted_world import Punctual

from rlhfless.executor import Executor
from rlhfless.executor.distributed import backend
from rlhfless.trace import step_metrics
from rlhfless.trace.metrics.growing_step import StepSoFar
from rlhfless.widgets import live_run


@pytest.mark.parametrize("kills", [False, True], ids=["all live", "one is killed"])
def test_a_view_grows_while_actors_of_a_pool_decode_and_ends_with_the_traces_numbers(
    kills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "OFTEN_S", 0.0)
    monkeypatch.setattr(live_run, "OFTEN_S", 0.0)
    monkeypatch.setattr(live_run, "SHARE", math.inf)
    seen: list[StepSoFar] = []
    with stage("local", Punctual(0)) as on:
        runner = Executor(ScriptedEngines(), on.cluster, latency=LATENCY, actor_pool=on.pool)
        view = runner.live()
        view.panes.observe(lambda _: seen.append(view.run.snapshot), "pane_timeline")
        if kills:
            at(on, lambda actor: actor.suffer("kill"), decodes(20), 1)
        record = runner.run(plan_of(TWO), requests_of(LONG))
        assert (view.run.state, view.run.error) == ("done", None)
        timeline: dict[str, Any] = json.loads(view.panes.pane_timeline)
        runner.close()
    looks = [one for one in seen if one is not None]
    assert len(looks) > len({one.completed for one in looks}), "some come between completions"
    assert [one.now_s for one in looks] == sorted(one.now_s for one in looks)
    for name in ("gpu_seconds", "end_s"):
        values = [getattr(one.cost, name) for one in looks]
        assert values == sorted(values)
    table, cost = step_metrics(record.trace).iloc[0], view.run.costs[-1]
    assert (cost.gpu_seconds, cost.idle_gpu_seconds) == (table["gpu_seconds"], table["idle_gpu_seconds"])
    named = {drawn["name"] for drawn in timeline["data"]}
    assert "wall clock" in timeline["layout"]["title"]["text"]
    assert bool(events(record, "lost")) == kills
    assert ({"event: lost", "event: retry"} <= named) == kills
    assert any(event["name"] == "lost" for one in looks for event in one.events) == kills, "shown before the step ends"
