"""The trainer as an object: made of a configuration's names or of given parts, stepped through, told of by callbacks."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from error_messages import refused
from training_samples import config, variety

from rlhfless.engine.torch.pretrained import load_model
from rlhfless.predict import EwmaPredictor
from rlhfless.scheduling import make_policy
from rlhfless.trace import read_trace
from rlhfless.training.algorithms.registry import make_algorithm
from rlhfless.training.callbacks import Callback
from rlhfless.training.config import TrainError
from rlhfless.training.loggers import as_callbacks
from rlhfless.training.loop import Trainer, train
from rlhfless.training.rewards import FunctionReward, Rewards
from rlhfless.training.tasks.arithmetic import ArithmeticTask


class Own(ArithmeticTask):
    """A user's task: another reward, another name."""

    name = "own"

    def reward(self, problem: Any, response_text: str) -> float:
        return variety(self, problem, response_text)


class Told(Callback):
    """Notes what it is told; raises at a step if it shall."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[str] = []
        self.fails_at = fails_at

    def on_step(self, trainer: Any, step: Any) -> None:
        assert trainer.next_step == step.step + 1, "the step counts when it is told of"
        self.calls.append(f"step {step.step}")
        if step.step == self.fails_at:
            raise RuntimeError("the callback failed")

    def on_end(self, trainer: Any) -> None:
        self.calls.append("end")


def given(untrained: Path) -> dict[str, Any]:
    """Every part as an object, as a notebook makes them."""
    model, tokenizer = load_model(untrained)
    task = Own(0, 12)
    return {
        "task": task,
        "model": (model, tokenizer),
        "algorithm": make_algorithm("grpo", model, learning_rate=1e-2),
        "planner": make_policy("random"),
        "predictor": EwmaPredictor(2),
        "rewards": Rewards([(FunctionReward("mine", lambda response: task.reward(response.problem, response.text)), 0.5)]),
    }


def test_a_notebook_steps_through_a_run_of_its_own_parts(tmp_path: Path, untrained: Path) -> None:
    parts = given(untrained)
    before = parts["model"][0].state_dict()["model.norm.weight"].clone()
    steps = []
    with Trainer(config(), tmp_path / "run", progress=False, **parts) as trainer:
        for step in trainer:
            steps.append(step)
            assert step.trace.steps == [step.step]
            assert step.trace.meta["config"]["rollout"]["samples_per_prompt"] == 3
    trace = read_trace(tmp_path / "run")
    assert [step.step for step in steps] == trace.steps == [0, 1, 2]
    assert trace.runs == ["own"]
    assert {plan["policy"] for plan in trace.plans} == {"random"}
    assert trace.meta["policy"] == "random"
    texts = trace.rollouts["response"]
    expected = [0.5 * len(set(text)) / max(1, len(text)) for text in texts]
    assert trace.rollouts["reward"].tolist() == pytest.approx(expected)
    assert not torch.equal(before, parts["model"][0].state_dict()["model.norm.weight"]), "the given model is trained in place"
    for name in ("allocations", "spans"):
        assert sum(len(getattr(step.trace, name)) for step in steps) == len(getattr(trace, name))


def test_a_run_of_given_parts_resumes_with_the_same_parts_only(tmp_path: Path, untrained: Path) -> None:
    def final(folder: str, *stops: int) -> tuple[list[str], Any]:
        for number, steps in enumerate(stops):
            with Trainer(
                config(steps=steps), tmp_path / folder, resume=number > 0, progress=False, **given(untrained)
            ) as trainer:
                trainer.train()
        return read_trace(tmp_path / folder).rollouts["response"].tolist(), trainer.model.state_dict()

    texts, weights = final("parts", 1, 3)
    whole, expected = final("whole", 3)
    assert texts == whole
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    other = {**given(untrained), "task": ArithmeticTask(0, 12)}
    with refused(TrainError, "test_trainer.Own", "ArithmeticTask"):
        Trainer(config(), tmp_path / "parts", resume=True, progress=False, **other)
    with refused(TrainError, "test_trainer.Own"):
        Trainer(config(), tmp_path / "parts", resume=True, progress=False, **{**given(untrained), "task": None})


def test_metrics_are_numbers_of_the_step(model: Path) -> None:
    step = Trainer(config(), model=model, progress=False).step()
    numbers = step.metrics
    assert math.isnan(numbers.pop("cost_usd")), "emulated GPUs have no price"
    assert all(isinstance(value, float) and math.isfinite(value) for value in numbers.values())
    assert numbers["reward_mean"] == step.mean_reward
    assert numbers["makespan_s"] == step.record.makespan_s
    phases = ("generation_s", "preparation_s", "learning_s", "sync_s")
    assert sum(numbers[name] for name in phases) == pytest.approx(numbers["step_s"])
    assert min(numbers[name] for name in phases[:3]) > 0
    assert numbers["learn_loss"] == step.learning["loss"]
    assert numbers["reward_failures"] == 0
    billed = sum((a["end_s"] - a["start_s"]) * len(a["gpu_ids"]) for a in step.record.allocations)
    assert numbers["gpu_seconds"] == pytest.approx(billed)


def test_callbacks_are_called_for_committed_steps_and_once_at_the_end(tmp_path: Path, model: Path) -> None:
    told = Told()
    with Trainer(config(), tmp_path / "run", model=model, callbacks=[told], progress=False) as trainer:
        trainer.train()
    trainer.close()
    assert told.calls == ["step 0", "step 1", "step 2", "end"]


def test_an_error_of_a_callback_ends_the_run_and_its_step_counts(tmp_path: Path, model: Path) -> None:
    told, later = Told(fails_at=1), Told()
    with (
        refused(RuntimeError),
        Trainer(config(), tmp_path / "run", model=model, callbacks=[told, later], progress=False) as trainer,
    ):
        trainer.train()
    assert (told.calls, later.calls) == (["step 0", "step 1", "end"], ["step 0", "end"])
    assert read_trace(tmp_path / "run").steps == [0, 1]
    resumed = train(config(), tmp_path / "run", resume=True)
    assert (
        resumed.rollouts["response"].tolist() == train(config(), tmp_path / "whole", model=model).rollouts["response"].tolist()
    )


def test_metrics_go_to_json_lines(tmp_path: Path, model: Path) -> None:
    train(config(steps=2), tmp_path / "run", model=model, callbacks=["jsonl"])
    train(config(steps=3), tmp_path / "run", resume=True, callbacks=["jsonl"])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    rewards = read_trace(tmp_path / "run").rollouts.groupby("step")["reward"].mean()
    assert [line["reward_mean"] for line in lines] == pytest.approx(rewards.tolist())


def test_metrics_go_to_tensorboard(tmp_path: Path, model: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'rlhfless[loggers]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(config(), tmp_path / "run", model=model, callbacks=["tensorboard"])
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    scalars = read.Scalars("reward_mean")
    assert [scalar.step for scalar in scalars] == [0, 1, 2]
    rewards = read_trace(tmp_path / "run").rollouts.groupby("step")["reward"].mean()
    assert [scalar.value for scalar in scalars] == pytest.approx(rewards.tolist())


@pytest.fixture(params=["wandb", "trackio"])
def tracked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[tuple[str, Any]]]:
    """The name of a library, and what the module in its place is told."""
    told: list[tuple[str, Any]] = []
    module = SimpleNamespace(
        init=lambda **given: told.append(("init", given)),
        log=lambda metrics, step: told.append(("log", (step, metrics))),
        finish=lambda: told.append(("finish", None)),
    )
    monkeypatch.setitem(sys.modules, request.param, module)
    return request.param, told


def known(given: dict[str, Any]) -> Any:
    """What a library finds a run again by."""
    return given.get("id", given["name"])


def test_a_library_gets_a_run_and_the_same_one_when_it_is_resumed(
    tmp_path: Path, model: Path, tracked: tuple[str, list[tuple[str, Any]]]
) -> None:
    library, told = tracked
    out = tmp_path / "mine"
    train(config(steps=2), out, model=model, callbacks=[library])
    train(config(steps=3), out, resume=True, callbacks=[library])
    assert [what for what, _ in told] == ["init", "log", "log", "finish", "init", "log", "finish"]
    begun, again = (given for what, given in told if what == "init")
    assert {**again, "config": None} == {**begun, "config": None}
    assert (begun["project"], begun["resume"], begun["config"]["rollout"]["samples_per_prompt"]) == ("rlhfless", "allow", 3)
    assert begun["name"].startswith("mine")
    assert known(begun).endswith(json.loads((out / "meta.json").read_text())["run_id"])
    logged = [given for what, given in told if what == "log"]
    assert [step for step, _ in logged] == [0, 1, 2]
    rewards = read_trace(out).rollouts.groupby("step")["reward"].mean()
    assert [metrics["reward_mean"] for _, metrics in logged] == pytest.approx(rewards.tolist())


def test_no_two_runs_are_one_to_a_library(tmp_path: Path, model: Path, tracked: tuple[str, list[tuple[str, Any]]]) -> None:
    """Not those of folders that are called alike, nor one that is trained anew where another was."""
    library, told = tracked
    for out in (tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "a" / "run"):
        shutil.rmtree(out, ignore_errors=True)
        train(config(steps=1), out, model=model, callbacks=[library])
    assert len({known(given) for what, given in told if what == "init"}) == 3


def test_a_run_that_was_begun_without_an_id_has_its_folders_name(tmp_path: Path, model: Path) -> None:
    train(config(steps=1), tmp_path / "old", model=model)
    meta = tmp_path / "old" / "meta.json"
    meta.write_text(json.dumps({name: value for name, value in json.loads(meta.read_text()).items() if name != "run_id"}))
    with Trainer(config(steps=2), tmp_path / "old", resume=True, progress=False) as trainer:
        assert trainer.step().meta["run_id"] == "old"


def test_a_run_with_nothing_left_to_do_tells_a_library_nothing(
    tmp_path: Path, model: Path, tracked: tuple[str, list[tuple[str, Any]]]
) -> None:
    library, told = tracked
    train(config(steps=1), tmp_path / "run", model=model)
    train(config(steps=1), tmp_path / "run", resume=True, callbacks=[library])
    assert told == []


def test_metrics_go_to_trackio(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library itself takes what it is told; a resumed run is the same run there."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="trackio is not installed: pip install trackio")
    train(config(steps=2), tmp_path / "named", model=model, callbacks=["trackio"])
    train(config(steps=3), tmp_path / "named", resume=True, callbacks=["trackio"])
    run_id = json.loads((tmp_path / "named" / "meta.json").read_text())["run_id"]
    assert [run.name for run in trackio.Api().runs("rlhfless")] == [f"named-{run_id}"]


def test_metrics_go_to_weights_and_biases(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, as nobody is asked on a network; a resumed run is the same run there."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    train(config(steps=2), tmp_path / "named", model=model, callbacks=["wandb"])
    train(config(steps=3), tmp_path / "named", resume=True, callbacks=["wandb"])
    run_id = json.loads((tmp_path / "named" / "meta.json").read_text())["run_id"]
    written = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert {path.name for path in written} == {f"run-{run_id}.wandb"}
    assert all(b"reward_mean" in path.read_bytes() for path in written)


def test_unknown_loggers_are_refused(tmp_path: Path) -> None:
    with refused(ValueError, "'paper'"):
        as_callbacks(["paper"], tmp_path)


@pytest.mark.full
def test_checkpoints_are_kept_by_count(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"

    def kept() -> list[str]:
        return sorted(folder.name for folder in (out / "checkpoints").iterdir())

    train(config(steps=4, save_total_limit=3), out, model=model)
    assert kept() == ["after-000002", "after-000003", "after-000004"]
    train(config(steps=5, save_total_limit=2), out, resume=True)
    assert kept() == ["after-000004", "after-000005"]


def test_a_run_that_ended_in_its_warm_up_is_resumed_by_starting_anew(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoints" / "after-000000.tmp").mkdir(parents=True)
    with Trainer(config(), out, model=model, resume=True, progress=False) as trainer:
        assert trainer.step().step == 0
    with refused(ValueError):
        Trainer(config(), tmp_path / "nowhere", model=model, resume=True, progress=False)
