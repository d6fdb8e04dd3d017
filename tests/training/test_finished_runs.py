"""What a finished run shows: the same curves of a trainer, its folder, trace and metrics file; its cost at a stated price."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from training_samples import config

from rlhfless.diagnosis import diagnose
from rlhfless.errors import InputError
from rlhfless.plots import plain, plot_curves
from rlhfless.trace import idle_share_if_held, read_trace, step_metrics
from rlhfless.training.config import TrainError
from rlhfless.training.loop import Trainer
from rlhfless.widgets import LiveRun, live, steps_of


def shown(run: object) -> dict[str, np.ndarray]:
    """The curves of what is drawn, by the beginning of their names."""
    return {one.name.partition(" (")[0]: np.array(one.y, dtype=float) for one in plot_curves(run).data}


def test_every_form_of_a_finished_run_has_the_same_curves(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Trainer(config(), folder, model=model, callbacks="jsonl", progress=False) as trainer:
        assert "No step is complete yet" in plot_curves(trainer).layout.annotations[0].text
        trace = trainer.train()
    curves = shown(trainer)
    assert {"mean reward", "mean length", "actors", "idle share of the GPU-seconds"} <= set(curves)
    assert curves["mean reward"].tolist() == pytest.approx(trace.rollouts.groupby("step")["reward"].mean().tolist())
    for other in (folder, str(folder), trace, read_trace(folder), trainer.table, folder / "metrics.jsonl"):
        assert set(shown(other)) == set(curves), other
        for name, values in shown(other).items():
            np.testing.assert_allclose(values, curves[name], atol=1e-9, err_msg=f"{name} of {type(other)}")
    with Trainer(config(), model=model, progress=False) as kept_nowhere:
        kept_nowhere.train()
    np.testing.assert_allclose(shown(kept_nowhere)["mean reward"], curves["mean reward"])
    assert kept_nowhere.table["step"].tolist() == [0, 1, 2]
    for timed in (folder, trace, trainer, trainer.table, kept_nowhere):
        assert "virtual clock, profile cpu-tiny-qwen2" in plain(plot_curves(timed).layout.title.text)


def test_a_table_of_something_else_is_refused_with_its_columns() -> None:
    with refused(InputError, "question", "answer", "reward_mean"):
        plot_curves(pd.DataFrame({"question": ["1+1"], "answer": ["2"]}))
    with refused(InputError, "Trainer", "folder"):
        plot_curves(42)
    assert "No step is complete yet" in plot_curves(pd.DataFrame()).layout.annotations[0].text


def test_a_stated_price_is_in_trace_metrics_and_live_view(model: Path, tmp_path: Path) -> None:
    with Trainer(config(steps=2, usd_per_gpu_hour=3.0), tmp_path / "run", model=model, progress=False) as trainer:
        run = LiveRun(steps_of(trainer))
        run.run()
        assert run.wait(300)
        facts = live(trainer).panes.pane_facts
    costs = step_metrics(read_trace(tmp_path / "run"))
    assert costs["cost_usd"].tolist() == pytest.approx((costs["gpu_seconds"] * 3.0 / 3600).tolist())
    assert run.table["cost_usd"].tolist() == pytest.approx(costs["cost_usd"].tolist())
    assert "no price" not in facts
    with refused(TrainError, "usd_per_gpu_hour", -1):
        config(usd_per_gpu_hour=-1.0)


def test_idle_gpus_are_also_counted_as_if_all_were_held(model: Path, tmp_path: Path) -> None:
    with Trainer(config(steps=2), tmp_path / "run", model=model, progress=False) as trainer:
        run = LiveRun(steps_of(trainer))
        run.run()
        assert run.wait(300)
        facts, gpus = live(trainer).panes.pane_facts, trainer.cluster.gpus
    trace = read_trace(tmp_path / "run")
    costs = step_metrics(trace)
    work_s = float((costs["gpu_seconds"] - costs["idle_gpu_seconds"]).sum())
    expected = 1.0 - work_s / (gpus * float(costs["time_s"].sum()))
    said = diagnose(trace)
    assert said.numbers["all_held_idle_gpu_share"].value == pytest.approx(expected)
    assert said.numbers["all_held_idle_gpu_share"].value > said.numbers["idle_gpu_share"].value
    assert f"if all {gpus} GPUs were held from the start to the end of every step, {expected:.1%}" in str(said)
    assert f"<span>idle share if all {gpus} GPUs were held</span><b>{expected:.1%}</b>" in facts
    assert math.isnan(idle_share_if_held(1.0, 0.0, 0.0))
