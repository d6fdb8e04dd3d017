"""A pipeline of processes (gloo, on the CPU): the gradients of threads, an end that leaves nothing, a training run with it."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import TOKENIZER, noise_batch  # noqa: E402
from pipeline_devices import LOSSES, ThreadGroup, actor_and_critic, micro_batches  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from training_samples import config  # noqa: E402

from rlhfless.trace import read_trace  # noqa: E402
from rlhfless.training.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from rlhfless.training.config import LearnerError  # noqa: E402
from rlhfless.training.config.pipeline import PipelineOptions  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402
from rlhfless.training.loop import train  # noqa: E402
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2  # noqa: E402
from rlhfless.training.pipeline.fused import FusedTraining  # noqa: E402
from rlhfless.training.pipeline.passes import PipelinePasses  # noqa: E402
from solver.pipeline import ExecutedPlan, fused, schedule_pipeline  # noqa: E402


@pytest.mark.full
def test_processes_have_the_gradients_of_threads_and_a_killed_one_ends_all() -> None:
    actor, critic = actor_and_critic(layers=2, kind="llama")
    parts, plan = micro_batches(4), schedule_pipeline(fused((2, 2, 4), (2, 1, 4), activations=(1, 1)), time_limit_s=0.1)
    weights = [*actor.parameters(), *critic.parameters()]
    with FusedTraining(actor, critic, plan, LOSSES, group=ThreadGroup()) as threads:
        threads.step(parts, parts)
    expected = [parameter.grad for parameter in weights]
    with FusedTraining(actor, critic, plan, LOSSES, unit_s=0.05) as training:
        step = training.step(parts, parts)
        assert all(torch.equal(parameter.grad, gradient) for parameter, gradient in zip(weights, expected, strict=True))
        assert max(step.in_flight) <= plan.peak_memory
        assert step.latency_s >= plan.latency * 0.05
        assert ExecutedPlan(plan, step.passes, 0.05).table()["memory"].max() == plan.peak_memory
        first, second = training.pids
        threading.Timer(0.5, os.kill, (second, signal.SIGKILL)).start()  # while both compute and wait for each other
        with refused(LearnerError, "process 1", "SIGKILL", "'step'"):
            while True:
                training.step(parts, parts)
        assert training.pids == []
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


@pytest.mark.full
def test_twenty_steps_of_ppo_in_stages_are_twenty_steps_and_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {"critic": "model", "kl_coef": 0.1, "learning_rate": 1e-4}

    def learner(stages: bool) -> LocalLearner:
        model = tiny_qwen2(TOKENIZER, 0, hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64)
        found = LocalLearner.make("ppo", model, **options)
        if stages:
            algorithm: Any = found.algorithm
            algorithm.passes = PipelinePasses(algorithm, PipelineOptions(2, 1, 4), ThreadGroup())
        return found

    whole, staged = learner(stages=False), learner(stages=True)
    for step in range(20):
        batch = noise_batch(whole.algorithm.trained.policy, seed=step)
        whole.learn(batch)
        if step == 10:
            save_checkpoint(tmp_path, 10, staged)
            staged = learner(stages=True)
            load_checkpoint(tmp_path, 10, staged)
        staged.learn(batch)
    for p, q in zip(whole.algorithm.trained.parameters(), staged.algorithm.trained.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=0)


@pytest.mark.full
def test_a_run_learns_in_stages_records_their_passes_and_resumes_whole_or_in_stages(tmp_path: Path) -> None:
    model = tiny_qwen2(TOKENIZER, seed=1, hidden=32, layers=2, intermediate=64)
    save_model(model, TOKENIZER, tmp_path / "model")
    options: dict[str, Any] = {
        "algorithm": "ppo", "critic": "model", "executor": "local", "gpus": 1, "policy": "static", "learning_rate": 1e-4,
        "pipeline": 2, "pipeline_critic": 1, "micro_batches": 4,
    }  # fmt: skip
    trace = train(config(**options, steps=2), tmp_path / "run", model=tmp_path / "model")
    spans = trace.spans[trace.spans["call"].isin(["forward", "backward"])]
    assert (spans["phase"] == "learn").all()
    assert spans["background"].all()
    details = [json.loads(detail) for detail in spans.loc[spans["step"] == 1, "detail"]]
    assert {(each["chain"], each["stage"]) for each in details} == {
        ("actor", 0),
        ("actor", 1),
        ("critic 0", 0),
        ("critic 1", 0),
    }
    assert sum(each["chain"] == "actor" for each in details) == 2 * 2 * 4
    whole = {name: value for name, value in options.items() if name not in ("pipeline", "pipeline_critic", "micro_batches")}
    train(config(**whole, steps=3), tmp_path / "run", resume=True)
    train(config(**{**whole, "executor": "virtual"}, steps=3), tmp_path / "whole", model=tmp_path / "model")
    ours, theirs = (read_trace(tmp_path / name).rollouts for name in ("run", "whole"))
    assert ours["response"].tolist() == theirs["response"].tolist()
    mine, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "whole"))
    assert max(float((mine[name] - other[name]).abs().max()) for name in other) < 1e-5
    assert np.isfinite(ours["reward"]).all()
