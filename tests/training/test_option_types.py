"""Options of a run are of the types that they are annotated with, and a run that is refused leaves nothing behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from training_samples import config

from rlhfless.training import GrpoConfig, PpoConfig
from rlhfless.training.config import (
    ClusterConfig,
    OptimizerConfig,
    PlannerConfig,
    RolloutConfig,
    TaskConfig,
    TrainConfig,
    TrainError,
)
from rlhfless.training.config.section import Section
from rlhfless.training.config.train import SECTIONS
from rlhfless.training.loop import Trainer

CLASSES = (TrainConfig, TaskConfig, RolloutConfig, GrpoConfig, PpoConfig, OptimizerConfig, PlannerConfig, ClusterConfig)
WRONG: list[Any] = [Path("x"), 1j, {"a": 1}, float("nan"), -1.5]  # no key takes one of these
SENTENCES = [
    (TrainConfig, "steps", 0),
    (TrainConfig, "rollout", "hot"),
    (TrainConfig, "algorithm", 5),
    (TaskConfig, "rewards", 5),
    (TaskConfig, "max_prompt_tokens", 2.5),
    (TaskConfig, "prompt_column", 5),
    (RolloutConfig, "temperature", float("inf")),
    (PpoConfig, "value_clip", 0),
    (PpoConfig, "whiten", 1),
    (OptimizerConfig, "name", "lion"),
    (PlannerConfig, "tau", 0.0),
    (PlannerConfig, "policy", None),
    (ClusterConfig, "idle_timeout_s", -1),
]


@pytest.mark.parametrize(("kind", "option", "value"), SENTENCES)
def test_a_sentence_names_the_option_the_value_and_what_is_needed(kind: type[Section], option: str, value: object) -> None:
    with refused(TrainError, option, value):
        kind(**{option: value})


@pytest.mark.parametrize("kind", CLASSES)
def test_a_value_of_another_type_is_refused_with_the_key(kind: type[Section]) -> None:
    for option in kind.model_fields.keys() - SECTIONS.keys():
        for value in WRONG:
            with refused(TrainError, ".".join(filter(None, (kind.section, option))), value):
                kind(**{option: value})


@pytest.mark.parametrize(("kind", "option", "value"), [
    (TrainConfig, "steps", "3"), (TrainConfig, "steps", 2.0), (TrainConfig, "steps", True), (ClusterConfig, "drafts", 1),
    (ClusterConfig, "drafts", "yes"), (RolloutConfig, "temperature", "1"), (RolloutConfig, "temperature", True),
    (RolloutConfig, "top_p", float("nan")), (ClusterConfig, "learner_gpus", 0), (ClusterConfig, "learner_gpus", "all"),
])  # fmt: skip
def test_nothing_is_converted(kind: type[Section], option: str, value: object) -> None:
    with refused(TrainError, f"{kind.section}.{option}".lstrip("."), value):
        kind(**{option: value})


def test_sections_are_classes_or_mappings() -> None:
    config = TrainConfig(
        steps=4, task=TaskConfig(name="gsm8k", rewards=("exact",)), rollout=RolloutConfig(samples_per_prompt=4),
        algorithm=PpoConfig(kl_coef=0.1), optimizer=OptimizerConfig(name="sgd"),
    )  # fmt: skip
    mappings = {
        "task": {"name": "gsm8k", "rewards": "exact"}, "rollout": {"samples_per_prompt": 4},
        "algorithm": {"name": "ppo", "kl_coef": 0.1}, "optimizer": {"name": "sgd"},
    }  # fmt: skip
    assert TrainConfig(steps=4, **mappings) == config
    assert TrainConfig(algorithm={"kl_coef": 0.1}) == TrainConfig(algorithm=GrpoConfig(kl_coef=0.1))


VLLM = {"engine": "vllm", "executor": "local"}
STREAM = {"learning": "stream"}
UNFIT: list[tuple[dict[str, Any], list[str]]] = [
    ({"rewards": ["exact", "2*prettiness"]}, ["task.rewards", "'prettiness'"]),
    ({"offload_reward_models": True}, ["task.offload_reward_models is True", "task.rewards"]),
    ({"max_model_len": 320}, ["rollout.max_model_len is 320", "rollout.max_response_tokens is 320"]),
    ({"algorithm": "grpo", "samples_per_prompt": 1}, ["rollout.samples_per_prompt is 1", "algorithm.name"]),
    ({"prompts": 4, "prompts_per_step": 8}, ["rollout.prompts_per_step is 8", "task.prompts is 4"]),
    ({"importance_ratio_cap": 2.0, "old_logprobs_from": "engine"}, ["importance_ratio_cap is 2.0", "old_logprobs_from"]),
    ({"lora_alpha": 8.0}, ["optimizer.lora_alpha is 8.0", "optimizer.lora_rank"]),
    ({"lora_targets": "q_proj"}, ["optimizer.lora_targets", "'q_proj'", "optimizer.lora_rank"]),
    ({"lora_rank": 4, "learner_processes": 2}, ["optimizer.lora_rank is 4", "cluster.learner_processes 2"]),
    ({"lora_rank": 4, "kl_coef": 0.1, "offload_reference": True}, ["optimizer.offload_reference", "optimizer.lora_rank 4"]),
    ({"offload_reference": True}, ["optimizer.offload_reference is True", "algorithm.kl_coef 0"]),
    (
        {"lr_scheduler_type": "cosine", "lr_scheduler_steps": 5, "warmup_steps": 5},
        ["optimizer.lr_scheduler_steps is 5", "optimizer.warmup_steps is 5", "'cosine'"],
    ),
    ({"lr_scheduler_type": "linear", "steps": 5, "warmup_steps": 9}, ["steps is 5", "optimizer.warmup_steps is 9", "'linear'"]),
    ({"optimizer": "adafactor", "learner_processes": 2}, ["optimizer.name is 'adafactor'", "cluster.learner_processes 2"]),
    ({"num_mini_batches": 64}, ["optimizer.num_mini_batches is 64", "32 prompts"]),
    (
        {**STREAM, "num_mini_batches": 2, "old_logprobs_from": "recomputed"},
        ["algorithm.old_logprobs_from is 'recomputed'", "optimizer.num_mini_batches 2", "cluster.learning"],
    ),
    ({**STREAM, "learner_gpus": "auto", "num_updates": 2}, ["cluster.learner_gpus is 'auto'", "algorithm.num_updates is 2"]),
    ({**STREAM, "learner_gpus": "auto", "num_mini_batches": 2}, ["learner_gpus is 'auto'", "num_mini_batches is 2"]),
    ({"policy": "statik"}, ["planner.policy 'statik'", "solver"]),
    ({"policy": "oracle"}, ["planner.policy 'oracle'", "true lengths"]),
    ({"policy": "spec"}, ["planner.policy 'spec'", "'random'", "cluster.drafts"]),
    ({"profile": "nowhere"}, ["cluster.profile is 'nowhere'", "cpu-tiny-qwen2"]),
    ({"engine": "vllm", "drafts": True}, ["cluster.drafts is True", "'vllm'", "cluster.executor"]),
    ({"draft_length": 4}, ["cluster.draft_length is 4", "cluster.drafts"]),
    ({"ray_address": "auto"}, ["cluster.ray_address is 'auto'", "cluster.executor 'ray'"]),
    ({"prewarm": "shortest"}, ["cluster.prewarm is 'shortest'", "emulated", "cluster.executor"]),
    ({"executor": "local", "prewarm": "shortest", "idle_timeout_s": float("inf")}, ["cluster.prewarm", "idle_timeout_s"]),
    ({**VLLM, "memory_gib": 8.0}, ["cluster.memory_gib is 8.0", "'vllm'"]),
    ({"tensor_parallel": 2, "engine": "vllm"}, ["cluster.tensor_parallel is 2", "'auto'", "cluster.executor"]),
    ({"tensor_parallel": 2, "executor": "local"}, ["cluster.tensor_parallel is 2", "'torch'", "cluster.engine"]),
    ({**VLLM, "actor_threads": 2}, ["cluster.actor_threads is 2", "'vllm'", "cluster.engine"]),
    ({"gpu_memory_utilization": 0.5}, ["cluster.gpu_memory_utilization is 0.5", "'torch'", "cluster.memory_gib"]),
    ({"gpus": 12}, ["cluster.gpus is 12", "8 GPUs"]),
    ({"learner_placement": "ray"}, ["cluster.learner_placement is 'ray'", "cluster.learner_processes"]),
    ({"preparation": "released", "preparation_actors": 2}, ["cluster.preparation_actors is 2", "'released'"]),
    ({"preparation": "released", "engine": "vllm"}, ["cluster.preparation is 'released'", "'vllm'"]),
    ({"preparation": "overlap", "executor": "local"}, ["cluster.preparation is 'overlap'", "'local'", "'virtual'"]),
    ({**STREAM, "learner_gpus": "auto", "executor": "local"}, ["cluster.learner_gpus is 'auto'", "'local'", "'virtual'"]),
    ({**STREAM, "learner_grows": True, "executor": "ray"}, ["cluster.learner_grows is True", "'ray'", "'virtual'"]),
    ({"stream_order": "canonical"}, ["cluster.stream_order is 'canonical'", "cluster.learning 'stream'"]),
    ({**STREAM, "learner_grows": True, "engine": "vllm"}, ["cluster.learner_grows is True", "'vllm'"]),
    ({**STREAM, "learner_gpus": "auto", "learner_grows": True}, ["cluster.learner_grows", "learner_gpus 'auto'"]),
    ({**STREAM, "learner_gpus": "auto", "learner_start": "step"}, ["cluster.learner_start is 'step'", "'auto'"]),
    ({**STREAM, "preparation": "overlap"}, ["cluster.preparation is 'overlap'", "cluster.learning 'batch'"]),
]


@pytest.mark.parametrize(("given", "named"), UNFIT, ids=[str(given) for given, _ in UNFIT])
def test_options_that_do_not_fit_are_refused_in_one_sentence_that_names_them(given: dict[str, Any], named: list[str]) -> None:
    with refused(TrainError, *named) as refusal:
        TrainConfig(**given)
    assert re.search(r"\n|\. [A-Z]|\.$", str(refusal.value)) is None, "it is one sentence"


UNKNOWN = [
    ({"rollout": {"temprature": 1.0}}, ["rollout.temprature", "rollout.temperature"]),
    ({"gpu": 2}, ["gpu", "cluster.gpus"]),
    ({"rollout": {"gpus": 2}}, ["rollout.gpus", "cluster.gpus"]),
    ({"algorithm": {"gamma": 0.9}}, ["algorithm.gamma", "'ppo'"]),
    ({"algorithm": {"name": "ppo", "advantage_std": "none"}}, ["algorithm.advantage_std", "'grpo'"]),
    ({"algorithm": {"name": "dpo"}}, ["algorithm.name", "'dpo'", "'grpo'", "'ppo'"]),
    ({"algorithm": "dpo"}, ["algorithm.name", "'dpo'", "'grpo'", "'ppo'"]),
    ({"algorithm": "gae"}, ["algorithm.name", "'gae'", "PPOTrainer", "'ppo'"]),
    ({"algorithm": {"name": "remax"}}, ["algorithm.name", "'remax'", "none here", "'grpo'", "'ppo'"]),
    ({"algorithm": "RLOO"}, ["algorithm.name", "'RLOO'", "RLOOTrainer", "'rloo'"]),
    ({"algorithm": "dapo"}, ["algorithm.name", "'dapo'", "'grpo'", "loss_aggregation"]),
    ({"planner": {"name": "x"}}, ["planner.name", "no key", "those of planner"]),
    ({"local_rank": 0}, ["local_rank", "launcher", "learner_processes"]),
    ({"cluster": 8}, ["cluster", "8", "section"]),
]


@pytest.mark.parametrize(("given", "named"), UNKNOWN, ids=[str(given) for given, _ in UNKNOWN])
def test_what_is_no_key_is_refused_with_the_nearest_one(given: dict[str, Any], named: list[str]) -> None:
    with refused(TrainError, *named):
        TrainConfig(**given)


@pytest.mark.parametrize(
    ("given", "unrelated"), [({"planner": {"name": "x"}}, "task.name"), ({"local_rank": 0}, "lora_rank")], ids=["name", "rank"]
)
def test_what_is_no_key_is_not_told_an_unrelated_one(given: dict[str, Any], unrelated: str) -> None:
    with pytest.raises(TrainError) as told:
        TrainConfig(**given)
    assert unrelated not in str(told.value)


def test_a_configuration_is_replaced_key_by_key() -> None:
    config = TrainConfig(rollout=RolloutConfig(samples_per_prompt=4), algorithm=GrpoConfig(kl_coef=0.1, advantage_std="none"))
    assert config.replace(steps=3, rollout={"temperature": 0.5}) == TrainConfig(
        steps=3, rollout=RolloutConfig(samples_per_prompt=4, temperature=0.5), algorithm=config.algorithm,
    )  # fmt: skip
    assert config.replace(cluster=ClusterConfig(gpus=8)).cluster == ClusterConfig(gpus=8)
    assert config.replace(algorithm={"name": "ppo", "gamma": 0.9}).algorithm == PpoConfig(kl_coef=0.1, gamma=0.9)
    with refused(TrainError, "rollout.temperature", "0"):
        config.replace(rollout={"temperature": 0})


@pytest.mark.parametrize("name", ["max_line_mib", "max_rows", "max_unpacked_gib"])
def test_a_stored_option_that_is_gone_is_left_out_where_it_was_off_and_refused_where_it_was_on(name: str) -> None:
    stored = TrainConfig().to_dict()
    assert TrainConfig(**{**stored, name: None}) == TrainConfig()
    TrainConfig().check_resume({**stored, name: None})
    with refused(TrainError, name, "5"):
        TrainConfig(**{**stored, name: 5})


def test_numbers_of_numpy_and_lists_are_taken_as_they_are_written_to_json() -> None:
    given = config(steps=np.int64(4), temperature=np.float32(0.5), memory_gib=np.float64(2.0), rewards=["task", "exact"])
    assert given == config(steps=4, temperature=0.5, memory_gib=2.0, rewards=("task", "exact"))
    assert TrainConfig(**json.loads(json.dumps(given.to_dict()))) == given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, ()),
        ({"window": 1.5}, ("1.5",)),
        ({"samples_per_prompt": 2.5}, ("2.5",)),
        ({"num_updates": 1.5}, ("1.5",)),
        ({"scenarios": 2.5}, ("2.5",)),
        ({"seed": -1}, ()),
        ({"rewards": ["prettiness"]}, ("'prettiness'",)),
        ({"policy": "statik"}, ("'statik'",)),
        ({"policy": "oracle"}, ("'oracle'",)),
        ({"profile": "nowhere"}, ()),
        ({"loss_aggregation": "median"}, ()),
        ({"preparation_actors": 99}, ("preparation_actors", "99")),
        ({"memory_gib": 1e-6}, ()),
    ],
)
def test_a_run_that_is_refused_leaves_no_folder_and_is_begun_there_when_it_is_right(
    tmp_path: Path, model: Path, changes: dict[str, object], message: tuple[str, ...]
) -> None:
    with refused(ValueError, *message):
        Trainer(config(**changes), tmp_path / "run", model=model, progress=False)
    assert list(tmp_path.iterdir()) == []
    with Trainer(config(), tmp_path / "run", model=model, progress=False) as trainer:
        assert trainer.next_step == 0


def test_a_predictor_that_cannot_be_made_leaves_neither_a_folder_nor_a_pool(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_predictor(window: int) -> Any:
        raise ValueError(f"no predictor looks back on {window} epochs")

    monkeypatch.setattr("rlhfless.training.loop.EwmaPredictor", no_predictor)
    monkeypatch.setattr("rlhfless.training.factory.make_pool", lambda *_: pytest.fail("a pool was made that nobody closes"))
    with refused(ValueError):
        Trainer(config(), tmp_path / "run", model=model, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_step_plan_that_is_refused_leaves_no_pool(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    pool = Pool()
    monkeypatch.setattr("rlhfless.training.factory.make_pool", lambda *_: pool)
    with refused(ValueError, "no plan"):
        Trainer(config(executor="local"), tmp_path / "run", model=model, step_plan="no plan", progress=False)  # type: ignore[arg-type]
    assert pool.closed == 1
    assert list(tmp_path.iterdir()) == []
