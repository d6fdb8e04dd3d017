"""The loop: every station is passed, what is traced is what happened, and a killed run goes on exactly."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from error_messages import refused
from training_samples import config, same_weights, started, variety

from rlhfless.trace import Trace, read_trace, step_metrics, store
from rlhfless.training.config import TrainError
from rlhfless.training.loop import TrainedStep, Trainer, train
from rlhfless.training.tasks.arithmetic import ArithmeticTask


def texts(folder: Path) -> list[tuple[str, int, str]]:
    rollouts = read_trace(folder).rollouts
    return list(zip(rollouts["prompt_id"], rollouts["sample"], rollouts["response"], strict=True))


def test_a_run_is_traced(tmp_path: Path, model: Path) -> None:
    trace = train(config(steps=5), tmp_path / "run", model=model)
    assert trace.steps == [0, 1, 2, 3, 4]
    rollouts = trace.rollouts
    assert (rollouts.groupby("step").size() == 12).all()
    assert rollouts["epoch"].tolist() == [step // 2 for step in rollouts["step"]]
    assert set(rollouts["weights_version"]) == {0, 1, 2, 3, 4}
    assert rollouts.groupby(["step", "prompt_id", "sample"]).size().max() == 1
    assert (rollouts["response_tokens"] <= 24).all()
    assert (rollouts.loc[rollouts["finish_reason"] == "length", "response_tokens"] == 24).all()
    assert len(trace.plans) == 5
    assert set(trace.spans["phase"]) >= {"start", "sync", "prefill", "decode", "prepare", "learn"}
    metrics = step_metrics(trace)
    assert (metrics["gpu_seconds"] > 0).all()
    first = rollouts[rollouts["step"] == 2].groupby("prompt_id")["predicted_tokens"].first()
    seen = rollouts[rollouts["epoch"] == 0].groupby("prompt_id")["response_tokens"].mean()
    assert np.allclose(np.ceil(seen[first.index]), first), "from the second epoch on, lengths are the last epoch's"


def test_the_first_epoch_is_predicted_from_reference_answers(tmp_path: Path, model: Path) -> None:
    trainer = Trainer(config(max_response_tokens=200), model=model, progress=False)
    problems = trainer.problems_of(0)
    workload = trainer.workload(problems, trainer.forecast(problems))
    expected = np.repeat([p.reference_answer_tokens for p in problems], 3)
    assert workload.response_tokens.tolist() == expected.tolist()


def test_responses_depend_on_nothing_but_the_seed(tmp_path: Path, model: Path) -> None:
    """Other policies, GPUs and prices of time: the same tokens, and so the same training."""
    train(config(), tmp_path / "solver", model=model)
    for name, changes in {"cut": {"policy": "rlhfless", "tau": 0.3}, "fold": {"policy": "fold", "gpus": 8}}.items():
        train(config(**changes), tmp_path / name, model=model)
        assert texts(tmp_path / name) == texts(tmp_path / "solver")
    train(config(seed=1), tmp_path / "seed", model=model)
    assert texts(tmp_path / "seed") != texts(tmp_path / "solver")


@pytest.mark.parametrize("charging", ["profile", pytest.param("measured", marks=pytest.mark.full)])
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path: Path, model: Path, charging: str) -> None:
    """Weights and rollouts; under the profile plans and allocations too."""
    train(config(steps=4, charging=charging), tmp_path / "whole", model=model)
    train(config(steps=2, charging=charging), tmp_path / "parts", model=model)
    assert not same_weights(tmp_path / "whole", tmp_path / "parts"), "nothing was learned after the second step"
    train(config(steps=4, charging=charging), tmp_path / "parts", resume=True)
    if charging == "profile":
        parts, whole = read_trace(tmp_path / "parts"), read_trace(tmp_path / "whole")
        pd.testing.assert_frame_equal(parts.allocations, whole.allocations)
        timings = {"solve_s", "history", "planning_s", "planning_delay_s"}
        plans = [[{k: plan[k] for k in plan.keys() - timings} for plan in run.plans] for run in (parts, whole)]
        assert plans[0] == plans[1]
    assert same_weights(tmp_path / "parts", tmp_path / "whole")
    assert texts(tmp_path / "parts") == texts(tmp_path / "whole")
    assert [p.name for p in (tmp_path / "parts" / "checkpoints").iterdir()] == ["after-000004"]


def test_planning_delays_generation_only_beyond_preparation_and_learning_of_the_step_before(
    tmp_path: Path, model: Path
) -> None:
    """Also in the first step of a resumed run, and ever since the first step, which overlaps nothing."""
    train(config(steps=2), tmp_path / "run", model=model)
    trace = train(config(steps=3), tmp_path / "run", resume=True)
    metrics = step_metrics(trace).set_index("step")
    generated_s = trace.rollouts.groupby("step")["end_s"].max()
    phases_s = (trace.allocations.groupby("step")["end_s"].max() - generated_s).shift(fill_value=0.0)
    assert (phases_s.loc[1:] > 0).all()
    assert (metrics["planning_s"] > 0).all()
    expected = np.maximum(0.0, metrics["planning_s"] - phases_s)
    assert metrics["planning_delay_s"].to_numpy() == pytest.approx(expected.to_numpy())


@pytest.mark.full
def test_a_model_with_dropout_resumes_exactly_too(tmp_path: Path, model: Path, dropping_model: Path) -> None:
    for name, start in (("whole", dropping_model), ("dry", model)):
        train(config(steps=3), tmp_path / name, model=start)
    train(config(steps=1), tmp_path / "parts", model=dropping_model)
    torch.rand(1)
    train(config(steps=3), tmp_path / "parts", resume=True)
    assert same_weights(tmp_path / "parts", tmp_path / "whole")
    assert not same_weights(tmp_path / "dry", tmp_path / "whole"), "dropout drew nothing"


def train_long(charging: str, out: str, model: str) -> None:
    """A run that is killed long before its end."""
    ArithmeticTask.reward = variety  # type: ignore[method-assign]
    train(config(steps=1000, charging=charging), out, model=model)


@pytest.mark.parametrize("charging", ["profile", pytest.param("measured", marks=pytest.mark.full)])
def test_a_killed_run_goes_on(tmp_path: Path, model: Path, charging: str) -> None:
    """SIGKILL somewhere in the run: the trace holds whole steps, and resuming gives the rollouts of an undisturbed run."""
    out = tmp_path / "killed"
    process = started(train_long, charging, str(out), str(model))
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.is_alive():
        if len(store.unmerged_steps(out, ())) >= 2:
            break
        time.sleep(0.02)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    kept = read_trace(out).steps
    assert kept == list(range(len(kept)))
    assert len(kept) >= 2
    steps = len(kept) + 1
    train(config(steps=steps, charging=charging), out, resume=True)
    train(config(steps=steps, charging=charging), tmp_path / "whole", model=model)
    same = ["step", "epoch", "prompt_id", "sample", "response", "response_tokens", "finish_reason", "reward", "weights_version"]
    ours, theirs = (read_trace(folder).rollouts[same] for folder in (out, tmp_path / "whole"))
    pd.testing.assert_frame_equal(ours, theirs)
    assert same_weights(out, tmp_path / "whole")


def test_a_trace_can_be_continued_in_memory(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    trace = train(config(steps=2), out, model=model)
    before = (out / "meta.json").read_bytes()
    trainer = Trainer.continue_from(trace, out / "warm", progress=False, cluster={"gpus": 8})
    step = trainer.step()
    assert step.step == 2
    assert step.trace.steps == [2]
    assert len(step.trace.plans) == 1
    assert step.trace.allocations["start_s"].min() > trace.allocations["start_s"].max()
    assert (out / "meta.json").read_bytes() == before


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_engines_log_probabilities_are_those_of_the_temperature(model: Path, algorithm: str) -> None:
    """Ratios are to them, what they are off by is measured, and it can be corrected, as at temperature 1."""
    options = {"temperature": 0.5, "algorithm": algorithm}
    own = Trainer(config(**options), model=model, progress=False)
    corrected = Trainer(
        config(**options, old_logprobs_from="recomputed", importance_ratio_cap=2.0), model=model, progress=False
    )
    for _ in range(2):
        steps = own.step(), corrected.step()
        for step in steps:
            assert 0 < step.metrics["learn_mismatch_max"] < 1e-4
        assert abs(steps[0].metrics["learn_kl_old"]) < 1e-4
        assert steps[1].metrics["learn_importance_mean"] == pytest.approx(1, abs=1e-4)


def test_memory_decides_the_slots_of_planner_and_engines(tmp_path: Path, model: Path) -> None:
    roomy, tight = (Trainer(config(memory_gib=gib), model=model) for gib in (1.0, 0.0002))
    assert roomy.latency.max_batch == Trainer(config(), model=model).latency.max_batch
    assert 1 <= tight.latency.max_batch < 32
    done = tight.step()
    decoding = [row for row in done.record.spans if row["phase"] == "decode"]
    assert {row["slots"] for row in decoding} == {tight.latency.max_batch}
    with refused(TrainError, "0.000"):
        Trainer(config(memory_gib=1e-6), model=model)


def test_measured_charging_takes_this_machines_time(tmp_path: Path, model: Path) -> None:
    by_profile = Trainer(config(), model=model, progress=False).step()
    measured = Trainer(config(charging="measured"), model=model, progress=False).step()
    assert measured.rollouts["response"].tolist() == by_profile.rollouts["response"].tolist()
    assert measured.record.makespan_s != by_profile.record.makespan_s
    assert measured.record.makespan_s > 0


@pytest.mark.full
def test_actors_in_processes_write_the_same_texts(tmp_path: Path, model: Path) -> None:
    """Every actor decodes with the weights of its step, the successor of a killed one too. As noise earns no reward, the test
    changes the weights after every step itself."""

    def trained(name: str, executor: str, changing: bool = True, killing: bool = False) -> Trace:
        options = config(gpus=2, gpus_per_node=2, max_response_tokens=48, executor=executor)

        def after(done: TrainedStep) -> None:
            if changing:
                torch.manual_seed(done.step)
                with torch.no_grad():
                    for parameter in trainer.model.parameters():
                        parameter += 0.1 * torch.randn_like(parameter)
            if killing and done.step == 0:
                assert trainer.actor_pool is not None
                next(iter(trainer.actor_pool.idle.values())).kill()

        with Trainer(options, tmp_path / name, model=model, progress=False) as trainer:
            for done in trainer:
                after(done)
        return read_trace(tmp_path / name)

    expected = trained("virtual", "virtual")
    trained("stale", "virtual", changing=False)
    for step in (1, 2):
        fresh, stale = (set(texts(tmp_path / name)[12 * step : 12 * step + 12]) for name in ("virtual", "stale"))
        assert len(fresh & stale) < 6
    trace = trained("local", "local", killing=True)
    assert texts(tmp_path / "local") == texts(tmp_path / "virtual")
    assert (trace.meta["clock"], trace.meta["charging"]) == ("wall", "measured")
    assert expected.meta["clock"] == "virtual"
    assert step_metrics(trace)["gpu_seconds"].gt(0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_gib": 0.0}, ("memory_gib", "0.0")),
        ({"memory_gib": math.nan}, ("memory_gib", "nan")),
        ({"memory_gib": math.inf}, ("memory_gib", "inf")),
        ({"tau": math.nan}, ()),
        ({"steps": math.nan}, ()),
        ({"algorithm": "dpo"}, ("'dpo'",)),
        ({"executor": "cloud"}, ("'cloud'",)),
        ({"samples_per_prompt": 1}, ()),
        ({"engine": "abacus"}, ("'abacus'",)),
        (
            {"engine": "vllm", "drafts": True},
            ("drafts", "'vllm'", "'local'"),
        ),
        ({"steps": 0}, ()),
        ({"prompts_per_step": 9}, ("prompts_per_step", "9", "8")),
        ({"gpus": 12}, ("12",)),
        ({"temperature": 0.0}, ("0.0",)),
        ({"temperature": math.nan}, ()),
        ({"learning_rate": math.nan}, ("learning_rate",)),
        ({"learning_rate": math.inf}, ("learning_rate",)),
        ({"algorithm": "ppo", "critic_learning_rate": -1.0}, ("critic_learning_rate", "-1.0")),
        ({"algorithm": "ppo", "critic_learning_rate": math.nan}, ("critic_learning_rate",)),
        ({"memory_gib": 1.0, "engine": "vllm", "executor": "local"}, ("memory_gib", "1.0", "'vllm'", "'torch'")),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, object], message: tuple[str, ...]) -> None:
    with refused(TrainError, *message):
        config(**changes)


def test_a_clairvoyant_policy_cannot_train(model: Path) -> None:
    with refused(TrainError, "'oracle'"):
        Trainer(config(policy="oracle"), model=model)


def test_other_options_cannot_resume(tmp_path: Path, model: Path) -> None:
    train(config(steps=1), tmp_path / "run", model=model)
    with refused(TrainError):
        train(config(samples_per_prompt=4), tmp_path / "run", resume=True)
