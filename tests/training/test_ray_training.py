"""Training with actors on a Ray cluster: one that is started for the run, and one that is there."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import busy_machine
import numpy as np
import pytest
from busy_machine import Gate, gate_last
from error_messages import refused
from training_samples import RaggedTrainer, config, farthest

from rlhfless.errors import MissingExtra
from rlhfless.executor import RayPool
from rlhfless.trace import Trace, held_gpu_seconds, read_trace
from rlhfless.training.config import LearnerError, TrainError
from rlhfless.training.loop import Trainer, train
from solver.model.errors import PlanningError


def test_without_ray_one_sentence_says_how_to_get_it(tmp_path: Path, model: Path) -> None:
    with (
        mock.patch.dict(sys.modules, {"ray": None}),
        refused(MissingExtra),
    ):
        Trainer(config(executor="ray"), tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ray_address": "auto"}, ("ray_address", "'auto'", "'virtual'", "'ray'")),
        ({"executor": "ray", "idle_timeout_s": -1.0}, ("idle_timeout_s", "-1.0")),
        ({"executor": "ray", "idle_timeout_s": float("nan")}, ("idle_timeout_s",)),
        ({"executor": "local", "prewarm": "always"}, ("'always'",)),
        (
            {"prewarm": "shortest"},
            ("'shortest'",),
        ),
        (
            {"executor": "ray", "idle_timeout_s": math.inf, "prewarm": "forecast"},
            ("'forecast'",),
        ),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, object], message: tuple[str, ...]) -> None:
    with refused(TrainError, *message):
        config(**changes)


def test_a_cluster_that_is_started_here_is_one_node() -> None:
    assert config(gpus=16).cluster.gpus_of_node == 8
    assert config(gpus=12, executor="ray").cluster.gpus_of_node == 12
    assert config(gpus=16, executor="ray", ray_address="10.0.0.1:6379").cluster.gpus_of_node == 8


# --- with Ray ---------------------------------------------------------------------------------------------------------

COLUMNS = ["step", "prompt_id", "sample", "response", "weights_version"]


def spread(completions: list[str], **_: Any) -> list[float]:
    """Reward the share of characters that differ."""
    return [len(set(text)) / max(1, len(text)) for text in completions]


def texts(folder: Path) -> list[list[object]]:
    return read_trace(folder).rollouts[COLUMNS].to_numpy().tolist()


def pids_of_step(trace: Trace, step: int) -> set[int]:
    events = trace.events[(trace.events["name"] == "ready") & (trace.events["step"] == step)]
    return {json.loads(detail)["pid"] for detail in events["detail"]}


def check_run(trace: Trace, gpus: int) -> None:
    """Everything that is held is accounted for, and the learner is on no actor's GPU; on the CPU it has none."""
    held = held_gpu_seconds(trace)
    assert held["total"].sum() == pytest.approx(held[["start", "sync", "work", "hold"]].to_numpy().sum())
    learner = trace.allocations[trace.allocations["role"] == "learner"]
    assert {gpu for ids in learner["gpu_ids"] for gpu in ids} == (set() if "CPU" in trace.meta["learner_device"] else {gpus})
    waited = trace.allocations[trace.allocations["role"] == "warm"]
    last = trace.rollouts["step"].max()
    assert set(waited["step"]) == set(range(last + 1))
    ends = trace.allocations.groupby("step")["end_s"].max()
    starts = trace.allocations.groupby("step")["start_s"].min()
    assert (starts.to_numpy()[1:] >= ends.to_numpy()[:-1] - 1e-9).all(), "one time line"
    killed = trace.events[trace.events["name"] == "kill"]
    assert set(killed["step"]) == {last}, "nobody waits for a step after the last"


@pytest.mark.full
def test_actors_of_the_step_before_get_the_steps_weights(tmp_path: Path, model: Path) -> None:
    """The texts are those of the virtual clock, and the actors those of the first step."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    import ray

    options = {"gpus": 2, "policy": "static", "steps": 2}
    train(config(**options), tmp_path / "virtual", model=model)
    # waiting is set: what costs less, waiting or starting again, depends on how busy the machine is
    trace = train(config(**options, executor="ray", idle_timeout_s=60.0), tmp_path / "ray", model=model)
    assert not ray.is_initialized()
    assert texts(tmp_path / "ray") == texts(tmp_path / "virtual")
    assert len({tuple(t[3] for t in texts(tmp_path / "ray")[i : i + 12]) for i in (0, 12)}) == 2
    assert len(pids_of_step(trace, 0)) == 2
    assert pids_of_step(trace, 1) == pids_of_step(trace, 0)
    starts = trace.spans[trace.spans["phase"] == "start"]
    assert set(starts["step"]) == {0}
    assert (trace.meta["clock"], trace.meta["config"]["cluster"]["executor"]) == ("wall", "ray")
    check_run(trace, 2)


@pytest.mark.nightly
def test_a_run_on_a_cluster_that_is_there_goes_on_where_it_was(tmp_path: Path, model: Path) -> None:
    """Two nodes, without tokens; the program had a cluster of its own before, with tokens. The run is stopped, and resumed with
    other actors on the same nodes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    from ray_samples import two_nodes

    with RayPool(gpus=1) as pool:
        assert pool.cluster.started_here
        assert os.environ.get("RAY_AUTH_MODE") == "token"
    assert "RAY_AUTH_MODE" not in os.environ

    options = {"gpus": 4, "gpus_per_node": 2, "policy": "static"}
    train(config(**options, steps=3), tmp_path / "virtual", model=model)
    with two_nodes() as nodes:
        there = {**options, "executor": "ray", "ray_address": nodes.address}
        with refused(PlanningError):
            Trainer(config(**{**there, "gpus": 6}), tmp_path / "ray", model=model)
        assert not (tmp_path / "ray").exists()
        first = train(config(**there, steps=1), tmp_path / "ray", model=model)
        resumed = train(config(**{**there, "idle_timeout_s": 60.0}, steps=3), tmp_path / "ray", resume=True)
    assert texts(tmp_path / "ray") == texts(tmp_path / "virtual")
    assert set(first.allocations["node"]) >= {0, 1}
    assert pids_of_step(resumed, 1).isdisjoint(pids_of_step(resumed, 0))
    assert pids_of_step(resumed, 2) == pids_of_step(resumed, 1)
    assert np.isfinite(resumed.allocations["end_s"]).all()


@pytest.mark.full
def test_an_interrupted_step_leaves_no_actor_and_the_run_goes_on(tmp_path: Path, model: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    import ray

    options = {"gpus": 2, "policy": "static", "steps": 2}
    train(config(**options), tmp_path / "virtual", model=model)
    with Trainer(config(**options, executor="ray"), tmp_path / "ray", model=model, progress=False) as trainer:
        with (
            mock.patch.object(trainer.state.learner, "learn", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            trainer.step()
        assert trainer.next_step == 0
        trainer.train()
    assert not ray.is_initialized()
    assert texts(tmp_path / "ray") == texts(tmp_path / "virtual")


@pytest.mark.full
def test_two_learner_processes_learn_while_ray_actors_decode_and_a_killed_one_undoes_the_step(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that a kill ended is learned from once; weights are those of batches on the virtual clock.

    In the third step the responses to the last prompt end after the first group has come to the learner.
    """
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    options: dict[str, Any] = {
        "gpus": 2, "gpus_per_node": 2, "policy": "static", "steps": 2, "max_response_tokens": 200, "learning_rate": 1e-3,
        "kl_coef": 0.05, "num_mini_batches": 2,
    }  # fmt: skip
    with RaggedTrainer(config(**options), model=model, rewards=spread, progress=False) as trainer:
        trainer.train()
        learned = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    calls: list[int] = []
    monkeypatch.setenv("PYTHONPATH", str(Path(busy_machine.__file__).parent), prepend=os.pathsep)  # where actors find gates
    gate = Gate(tmp_path / "a group of the third step")

    def kills_in_the_second_step(completions: list[str], **_: Any) -> list[float]:
        calls.append(len(completions))
        if len(calls) == 4 + 2 + 4 + 1:
            gate.open()
        if len(calls) == 6:
            os.kill(trainer.state.learner.pids[1], signal.SIGKILL)  # type: ignore[attr-defined]
        return spread(completions)

    given = config(**{**options, "steps": 3}, executor="ray", learning="stream", learner_processes=2)
    with RaggedTrainer(given, tmp_path / "run", model=model, rewards=kills_in_the_second_step, progress=False) as trainer:
        first = trainer.step()
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        with refused(LearnerError, "process 1", "SIGKILL", "'add'", "not learned from"):
            trainer.step()
        assert trainer.next_step == 1
        trainer.state.restore_if_in_doubt()
        assert farthest(trainer.model.state_dict(), before) == 0, "nothing is half learned"
        second = trainer.step()
        assert farthest(trainer.model.state_dict(), learned) < 1e-4
        assert farthest(before, learned) > 1e-4, "something was learned"
        gate_last(trainer, gate, given.rollout.samples_per_prompt)
        third = trainer.step()
    assert calls == [3] * (4 + 2 + 4 + 4)
    read_trace(tmp_path / "run")  # which checks it
    for step in (first, second, third):
        learning = [span for span in step.record.spans if span["phase"] == "learn"]
        assert sum(json.loads(span["detail"]).get("responses", 0) for span in learning) == len(step.rollouts)
    assert min(span["start_s"] for span in learning) < third.rollouts["end_s"].max()
