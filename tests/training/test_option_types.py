"""Options of a run are of the types that they are annotated with, and a run that is refused leaves nothing behind."""

from __future__ import annotations

import json
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

    monkeypatch.setattr("rlhfless.training.factory.EwmaPredictor", no_predictor)
    monkeypatch.setattr("rlhfless.training.factory.make_pool", lambda *_: pytest.fail("a pool was made that nobody closes"))
    with refused(ValueError):
        Trainer(config(), tmp_path / "run", model=model, progress=False)
    assert list(tmp_path.iterdir()) == []
