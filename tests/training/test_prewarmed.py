"""Actors of a run on a pool, started ahead of its steps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from torch_wall_samples import until
from training_samples import config

from rlhfless.executor import Lifecycle, PlanForecast, ShortestStep
from rlhfless.trace import held_gpu_seconds, read_trace
from rlhfless.training.loop import Trainer


@pytest.mark.parametrize(("prewarm", "rule"), [("none", None), ("shortest", ShortestStep()), ("forecast", PlanForecast())])
def test_a_pool_lives_as_the_options_say(prewarm: str, rule: object, tmp_path: Path, model: Path) -> None:
    with Trainer(config(executor="local", idle_timeout_s=1.5, prewarm=prewarm), tmp_path / "run", model=model) as trainer:
        assert trainer.actor_pool is not None
        assert trainer.actor_pool.lifecycle == Lifecycle(idle_timeout_s=1.5, prewarm=rule)  # type: ignore[arg-type]


def test_by_default_costs_decide_with_the_planners_time_weight(tmp_path: Path, model: Path) -> None:
    with Trainer(config(executor="local", time_weight=0.4), tmp_path / "run", model=model) as trainer:
        assert trainer.actor_pool is not None
        assert trainer.actor_pool.lifecycle == Lifecycle(time_weight=0.4)


@pytest.mark.nightly
def test_an_actor_is_there_before_its_step(tmp_path: Path, model: Path) -> None:
    """The first steps say how long a step and a start take; before the third its actors have been started."""
    options = config(
        executor="local", idle_timeout_s=0.0, prewarm="shortest", gpus=2, gpus_per_node=2, policy="static", steps=3
    )
    with Trainer(options, tmp_path / "run", model=model, progress=False) as trainer:
        pool = trainer.actor_pool
        assert pool is not None
        started = max(span["end_s"] for span in trainer.step().record.spans if span["phase"] == "start")
        time.sleep(3 * started + 5)
        trainer.step()
        assert not pool.idle
        until(lambda: [a for a in pool.idle.values() if pool.up_s(a) is not None], "actors were started ahead", 600.0)
        trainer.step()
    trace = read_trace(tmp_path / "run")
    warm = trace.events[trace.events["name"] == "prewarm"]
    assert set(warm["step"]) == {2}, "known when the step has begun"
    starts = trace.spans[(trace.spans["phase"] == "start") & (trace.spans["step"] == 2)]
    cold = trace.spans[(trace.spans["phase"] == "start") & (trace.spans["step"] == 1)]
    assert len(cold) > 0
    assert starts["holder"].str.startswith("actor-").sum() < len(cold)
    held = held_gpu_seconds(trace)
    assert held["total"].sum() == pytest.approx(held[["start", "sync", "work", "hold"]].to_numpy().sum())
