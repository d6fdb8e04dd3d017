"""Runs that learn while others decode: weights of a batch, a trace with learning beside decoding, and resumes bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from busy_machine import Gate, gate_last
from error_messages import refused
from training_samples import RaggedTrainer, config, farthest, same_weights

from rlhfless.engine.torch.pretrained import load_model
from rlhfless.executor import ProcessPool
from rlhfless.trace import Trace, read_trace
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.loop import Trainer, train
from solver import Workload

PPO = {"algorithm": "ppo", "kl_coef": 0.05, "critic": "model", "learning_rate": 1e-3}
GRPO = {"kl_coef": 0.05, "num_updates": 2, "learning_rate": 1e-3}
GRPO_PARTS = {**GRPO, "num_updates": 1, "num_mini_batches": 2}
PPO_PARTS = {**PPO, "num_mini_batches": 3}


def run(given: TrainConfig, folder: Path, model: Path) -> tuple[Trace, dict[str, torch.Tensor]]:
    """The trace of a run and its last weights, those of a critic included."""
    with Trainer(given, folder, model=model, progress=False) as trainer:
        trace = trainer.train()
        assert trace is not None
        return trace, {name: value.clone() for name, value in trainer.state.learner.algorithm.trained.state_dict().items()}


@pytest.mark.parametrize(
    ("options", "order"),
    [(GRPO, "canonical"), (PPO, "completion"), (GRPO_PARTS, "completion"), (PPO_PARTS, "canonical")],
    ids=["grpo", "ppo", "grpo-minibatches", "ppo-minibatches"],
)
def test_weights_are_those_of_a_batch(options: dict[str, Any], order: str, tmp_path: Path, model: Path) -> None:
    batch, learned = run(config(**options), tmp_path / "batch", model)
    stream, streamed = run(config(learning="stream", stream_order=order, **options), tmp_path / "stream", model)
    start = Trainer(config(**options), model=model, progress=False).state.learner.algorithm.trained.state_dict()
    assert farthest(learned, start) > 1e-3, "something was learned"
    assert farthest(learned, streamed) < 1e-4
    same = ["prompt_id", "sample", "response", "reward", "response_tokens"]
    pd.testing.assert_frame_equal(batch.rollouts[same], stream.rollouts[same])


@pytest.mark.full
@pytest.mark.parametrize("options", [GRPO, PPO], ids=["grpo", "ppo"])
def test_twenty_steps_end_where_those_of_a_batch_do(options: dict[str, Any], tmp_path: Path, model: Path) -> None:
    given = {**options, "steps": 20, "learning_rate": 1e-4, "save_every": 20, "policy": "static", "gpus": 2}
    _, learned = run(config(**given), tmp_path / "batch", model)
    _, streamed = run(config(learning="stream", **given), tmp_path / "stream", model)
    start = Trainer(config(**given), model=model, progress=False).state.learner.algorithm.trained.state_dict()
    assert farthest(learned, start) > 1e-3, "something was learned"
    assert farthest(learned, streamed) < 1e-4


def test_a_minibatch_is_learned_from_once_its_prompts_and_the_update_before_are_done(model: Path) -> None:
    """Prompts of the second half that complete first wait for the update of the first half."""
    given = config(learning="stream", steps=1, policy="static", gpus=1, reward_s_per_response=1e-3, **GRPO_PARTS)
    trainer = RaggedTrainer(given, model=model, progress=False)
    prompts = [problem.prompt_id for problem in trainer.problems_of(0)]
    step = trainer.step()
    work = step.record.work
    completed_s = step.rollouts.groupby("prompt_id")["end_s"].max()[prompts].tolist()
    assert [ran.item.call for ran in work] == [None, None, "optimizer", None, None, "optimizer"]
    assert [ran.item.responses for ran in work if ran.item.call is None] == [tuple(range(3 * p, 3 * p + 3)) for p in range(4)]
    first_update_s = work[2].end_s
    assert first_update_s >= max(ran.end_s for ran in work[:2])
    assert completed_s[2] < first_update_s <= work[3].start_s, "the third prompt waited for the first two to be learned from"
    assert all(ran.start_s >= complete_s for ran, complete_s in zip([*work[:2], *work[3:5]], completed_s, strict=True))
    assert step.learning["tokens"] == step.rollouts["response_tokens"].sum()


def test_the_learner_works_beside_decoding_and_the_step_ends_with_the_optimizer(tmp_path: Path, model: Path) -> None:
    given = config(learning="stream", learner_gpus=3, policy="static", gpus=1, reward_s_per_response=1e-3, **GRPO)
    with RaggedTrainer(given, tmp_path / "run", model=model, progress=False) as trainer:
        trace = trainer.train()
    assert trace is not None
    read_trace(tmp_path / "run")  # which checks it
    learning = trace.spans[trace.spans["phase"] == "learn"]
    held = trace.allocations[trace.allocations["role"] == "learner"].set_index("step")
    assert [*map(list, held["gpu_ids"])] == [[1, 2, 3]] * 3
    for step, rows in trace.rollouts.groupby("step"):
        spans = learning[learning["step"] == step].sort_values("start_s")
        groups = rows.groupby("prompt_id")["end_s"].max().sort_values()
        assert spans["start_s"].iloc[0] == groups.iloc[0], "the first group is learned from at once"
        assert spans["start_s"].iloc[0] < rows["end_s"].max()
        assert held["start_s"][step] == spans["start_s"].iloc[0]
        assert held["end_s"][step] == spans["end_s"].max()
        details = [json.loads(detail) for detail in spans["detail"]]
        assert sum(detail.get("responses", 0) for detail in details) == len(rows)
        assert spans["call"].iloc[-1] == "optimizer"
        assert details[-1]["learning"]["tokens"] == rows["response_tokens"].sum()
        ends = trace.allocations[trace.allocations["step"] == step]["end_s"]
        assert ends.max() == spans["end_s"].max()
    later = trace.rollouts.groupby("step")["start_s"].min()
    assert (later[1:].to_numpy() >= held["end_s"][:-1].to_numpy()).all()


def test_more_gpus_learn_in_proportion_sooner_by_the_profile(model: Path) -> None:
    took = {}
    for gpus in (1, 4):
        given = config(learning="stream", learner_gpus=gpus, reward_s_per_response=0.0, steps=1, **GRPO)
        step = Trainer(given, model=model, progress=False).step()
        took[gpus] = sum(span["end_s"] - span["start_s"] for span in step.record.spans if span["phase"] == "learn")
    assert took[1] == pytest.approx(4 * 0.9**2 * took[4]), "a tenth is lost at each doubling"
    assert step.metrics["learn_tokens"] == step.rollouts["response_tokens"].sum()


@pytest.mark.full
@pytest.mark.parametrize("order", ["completion", "canonical"])
def test_a_resumed_run_is_the_same_bit_for_bit(order: str, tmp_path: Path, dropping_model: Path) -> None:
    learner = {"learner_gpus": "auto"} if order == "completion" else {}
    options = {"learning": "stream", "stream_order": order, "kl_coef": 0.05, **learner}
    whole = train(config(**options), tmp_path / "whole", model=dropping_model)
    train(config(**options, steps=1), tmp_path / "halves", model=dropping_model)
    halves = train(config(**options), tmp_path / "halves", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "halves")
    pd.testing.assert_frame_equal(whole.rollouts, halves.rollouts)
    pd.testing.assert_frame_equal(whole.allocations, halves.allocations)


@pytest.mark.full
def test_on_the_wall_clock_a_resumed_canonical_run_has_the_same_bits_and_others_the_same_within_rounding(
    tmp_path: Path, model: Path
) -> None:
    """The canonical run is beside one of the virtual clock, the other beside it: its order depends on the machine."""
    options = {
        "learning": "stream", "gpus": 1, "gpus_per_node": 1, "policy": "static", "max_response_tokens": 60, "kl_coef": 0.05,
        "optimizer": "sgd", "learning_rate": 0.5,
    }  # fmt: skip
    _, expected = run(config(**options, steps=2, stream_order="canonical"), tmp_path / "virtual", model)
    start = Trainer(config(**options), model=model, progress=False).model.state_dict()
    assert farthest(expected, start) > 1e-3, "something was learned"
    wall = {**options, "executor": "local"}
    run(config(**wall, steps=1, stream_order="canonical"), tmp_path / "halves", model)
    with Trainer(
        config(**wall, steps=2, stream_order="canonical"), tmp_path / "halves", resume=True, progress=False
    ) as trainer:
        trainer.train()
        assert farthest(trainer.model.state_dict(), expected) == 0
    _, by_completion = run(config(**wall, steps=2), tmp_path / "completion", model)
    assert farthest(by_completion, expected) < 1e-5


def test_the_plan_chooses_the_learner_and_the_trace_says_what_it_expected(tmp_path: Path, model: Path) -> None:
    """The lengths are known, so what is left between plan and trace is the profile's fit."""

    class Foreseen(RaggedTrainer):
        def workload(self, problems: Any, forecast: Any) -> Workload:
            lengths = [request.target_tokens for request in self.requests(problems, self.next_step)]
            owner = np.repeat(np.arange(len(problems)), self.config.rollout.samples_per_prompt)
            return Workload(self._prompt_tokens(problems), owner, lengths, max_response_tokens=200)

    given = config(
        learning="stream", learner_gpus="auto", learner_load_s=0.01, gpus=4, gpus_per_node=4, max_response_tokens=200, steps=1,
        kl_coef=0.05, policy="solver",
    )  # fmt: skip
    with Foreseen(given, tmp_path / "run", model=model, progress=False) as trainer:
        step = trainer.step()
    trace = read_trace(tmp_path / "run")  # which checks it
    (said,) = [json.loads(detail) for name, detail in zip(trace.events["name"], trace.events["detail"], strict=True)
               if name == "learner"]  # fmt: skip
    assert said["learning"] == "stream"
    assert said["planned_step_s"] < said["batch_step_s"]
    assert step.record.end_s - step.record.start_s == pytest.approx(said["planned_step_s"], rel=0.15)
    assert step.metrics["gpu_seconds"] == pytest.approx(said["planned_gpu_s"], rel=0.15)


def test_a_learner_grows_onto_gpus_that_actors_gave_back_and_loads_there(tmp_path: Path, model: Path) -> None:
    given = config(
        learning="stream", learner_gpus=1, learner_grows=True, learner_load_s=0.05, gpus=2, gpus_per_node=2, policy="static",
        steps=1, max_response_tokens=100, reward_s_per_response=0.1, **GRPO,
    )  # fmt: skip
    with RaggedTrainer(given, tmp_path / "run", model=model, progress=False) as trainer:
        step = trainer.step()
    trace = read_trace(tmp_path / "run")  # which checks that no GPU is held twice
    actors = trace.allocations[trace.allocations["role"] == "decode"].set_index("holder")
    learner = trace.allocations[trace.allocations["role"] == "learner"].set_index("holder")
    assert set(learner.index) > {"learner-0"}, "released GPUs have joined it"
    loads = trace.spans[trace.spans["call"] == "load"].set_index("holder")
    for holder in set(learner.index) - {"learner-0"}:
        actor = actors.loc[f"actor-{holder.rsplit('-', 1)[1]}"]
        assert list(learner.loc[holder, "gpu_ids"]) == list(actor["gpu_ids"])
        assert learner.loc[holder, "start_s"] >= actor["end_s"] - 1e-9
        assert loads.loc[holder, "end_s"] - loads.loc[holder, "start_s"] == pytest.approx(0.05)
    learned = [span for span in step.record.spans if span["phase"] == "learn"]
    assert sum(json.loads(span["detail"]).get("responses", 0) for span in learned) == len(step.rollouts)
    updates = [span for span in learned if span["call"] == "optimizer"]
    assert len(updates) == 3, "each server takes its share of the second update"


def failing_once(calls: list[int], gate: Gate) -> Any:
    """A reward that raises in the third group that it sees, once. It opens the gate with the third group of each step."""

    def reward(completions: list[str], **_: Any) -> list[float]:
        calls.append(len(completions))
        if len(calls) in (3, 6):
            gate.open()
        if len(calls) == 3:
            raise ValueError("no mood")
        return [len(set(text)) / max(1, len(text)) for text in completions]

    return reward


@pytest.mark.parametrize("executor", ["virtual", pytest.param("local", marks=pytest.mark.full)])
def test_a_reward_that_fails_ends_the_step_which_is_learned_from_once(executor: str, tmp_path: Path, model: Path) -> None:
    """The error is the function's own; the repeated step learns from every group once.

    On the wall clock the responses to the last prompt end after three groups have come to the learner: if it waited for them,
    the step would hang.
    """
    calls: list[int] = []
    gate = Gate(tmp_path / "three groups")
    given = config(
        learning="stream",
        steps=1,
        executor=executor,
        gpus=1,
        gpus_per_node=1,
        policy="static",
        max_response_tokens=100,
    )
    with RaggedTrainer(given, tmp_path / "run", model=model, rewards=failing_once(calls, gate), progress=False) as trainer:
        if executor == "local":
            gate_last(trainer, gate, given.rollout.samples_per_prompt)
        with pytest.raises(ValueError, match="no mood"):
            trainer.step()
        assert trainer.next_step == 0
        gate.close()
        step = trainer.step()
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert calls == [3] * 7, "three groups, then all four"
    learning = [span for span in step.record.spans if span["phase"] == "learn"]
    assert sum(json.loads(span["detail"]).get("responses", 0) for span in learning) == len(step.rollouts)
    if executor == "local":
        read_trace(tmp_path / "run")  # which checks it
        last_s = step.rollouts["end_s"].max()
        assert sum(span["end_s"] < last_s for span in learning) >= 2, "learned from while others decode"
        held = [row for row in step.record.allocations if row["role"] == "learner"]
        assert held[0]["end_s"] >= max(span["end_s"] for span in learning)
    calls.clear()
    virtual = config(learning="batch", steps=1, gpus=1, gpus_per_node=1, policy="static", max_response_tokens=100)
    with RaggedTrainer(
        virtual,
        model=model,
        rewards=lambda completions, **_: [len(set(t)) / max(1, len(t)) for t in completions],
        progress=False,
    ) as trainer:
        batch = trainer.step()
        learned = trainer.model.state_dict()
    same = ["prompt_id", "sample", "response", "reward"]
    pd.testing.assert_frame_equal(batch.rollouts[same], step.rollouts[same])
    assert farthest(weights, learned) < 1e-3 * 1e-1
    assert step.learning["loss"] == pytest.approx(batch.learning["loss"], rel=1e-3, abs=1e-5)


def test_measured_seconds_are_those_of_each_group(tmp_path: Path, model: Path) -> None:
    trace, _ = run(config(learning="stream", charging="measured", steps=1), tmp_path / "run", model)
    learning = trace.spans[trace.spans["phase"] == "learn"]
    details = [json.loads(detail) for detail in learning["detail"]]
    assert {detail["clock"] for detail in details} == {"measured"}
    seconds = (learning["end_s"] - learning["start_s"]).sum()
    assert seconds >= details[-1]["learning"]["seconds"] * 0.9
    assert np.isfinite(seconds)


def test_failed_responses_are_told_of_once_for_all_groups(model: Path) -> None:
    with (
        Trainer(
            config(learning="stream", steps=1), model=model, rewards=lambda completions, **_: [None, 1.0, 0.0], progress=False
        ) as trainer,
        pytest.warns(UserWarning, match="returned None or NaN for 4 of 12 responses") as heard,
    ):
        step = trainer.step()
    assert len([one for one in heard if "returned None" in str(one.message)]) == 1
    assert step.metrics["reward_failures"] == pytest.approx(1 / 3)
    assert step.metrics["learn_unjudged"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("options", [{"learner_grows": True}, {"learner_gpus": "auto"}, {"preparation": "released"}])
def test_on_the_wall_clock_only_the_trainer_prepares_and_learns(options: dict[str, Any], model: Path) -> None:
    """Several servers, and GPUs that actors gave back, are of the virtual clock: elsewhere they are refused before a step."""
    ((name, value),) = options.items()
    given = {**options, "learning": "batch" if name == "preparation" else "stream", "gpus": 2, "gpus_per_node": 2}
    assert getattr(config(**given).cluster, name) == value
    for executor in ("local", "ray"):
        with refused(TrainError, name, repr(value), repr(executor), "'virtual'"):
            config(**given, executor=executor)
    with ProcessPool(["cpu"] * 2) as pool, refused(TrainError, name, repr(value), "a pool", "'virtual'"):
        Trainer(config(**given), model=model, executor=pool, progress=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learning": "steam"}, ("'steam'", "'stream'")),
        ({"learner_gpus": 2}, ("learner_gpus", "2", "'stream'")),
        ({"stream_order": "canonical"}, ("stream_order", "'canonical'")),
        ({"learning": "stream", "preparation": "overlap"}, ("'overlap'", "'stream'")),
        ({"learning": "stream", "preparation_actors": 2}, ("2 actors", "'stream'")),
        ({"learner_grows": True}, ("learner_grows", "True", "'stream'")),
        ({"learning": "stream", "learner_gpus": 0}, ("learner_gpus", "0", "at least 1", "'auto'")),
        ({"learning": "stream", "learner_gpus": "auto", "learner_grows": True}, ("learner_grows", "'auto'")),
        ({"learning": "stream", "learner_gpus": "auto", "num_updates": 2}, ("'auto'", "num_updates is 2")),
        ({"learning": "stream", "learner_gpus": "auto", "num_mini_batches": 2}, ("'auto'", "num_mini_batches is 2")),
        ({"num_mini_batches": 5}, ("num_mini_batches is 5", "4 prompts")),
        ({"num_mini_batches": 0}, ("num_mini_batches is 0", "at least 1")),
        ({"num_mini_batches": "two"}, ("num_mini_batches", "'two'", "whole number")),
        (
            {"num_mini_batches": 2, "old_logprobs_from": "recomputed", "learning": "stream"},
            ("'recomputed'", "'stream'", "'engine'", "'batch'"),
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(changes: dict[str, Any], said: tuple[str, ...]) -> None:
    with refused(TrainError, *said):
        config(**changes)


class OnlyBatches:
    """An algorithm that cannot learn in pieces."""

    def __init__(self, trained: torch.nn.Module) -> None:
        self.trained, self.optimizer = trained, torch.optim.SGD(trained.parameters(), lr=0.1)

    def learn(self, batch: Any) -> dict[str, float]:
        return {"seconds": 0.0}


def test_an_algorithm_that_learns_from_batches_only_is_refused(model: Path) -> None:
    weights, tokenizer = load_model(model)
    with refused(TrainError, "OnlyBatches", "begin"):
        Trainer(config(learning="stream"), model=(weights, tokenizer), algorithm=OnlyBatches(weights), progress=False)  # type: ignore[arg-type]
