"""Options of a run are of the types that they are annotated with, and a run that is refused leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from training_samples import config

from rlhfless.training.config import (
    ClusterConfig,
    GrpoConfig,
    OptimizerConfig,
    PlannerConfig,
    PpoConfig,
    RolloutConfig,
    TaskConfig,
    TrainConfig,
    TrainError,
)
from rlhfless.training.config.options import Options, allowed_values
from rlhfless.training.loop import Trainer

CLASSES = (TrainConfig, TaskConfig, RolloutConfig, GrpoConfig, PpoConfig, OptimizerConfig, PlannerConfig, ClusterConfig)
WRONG: dict[type, list[Any]] = {
    int: [2.5, 2.0, "3", True, None, float("nan"), [3], -1],
    float: ["1", True, None, 1j, [1.0], float("nan"), -0.5],
    bool: [1, "yes", None],
    str: [5, None, ("task",), Path("x")],
    tuple: ["exact", 5, None, ("task", 5)],
}
SENTENCES = [
    (TrainConfig, "steps", 0),
    (TrainConfig, "task", "arithmetic"),
    (TrainConfig, "algorithm", "grpo"),
    (TaskConfig, "rewards", "exact"),
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
def test_a_sentence_names_the_option_the_value_and_what_is_needed(kind: type[Options], option: str, value: object) -> None:
    with refused(TrainError, option, value):
        kind(**{option: value})


@pytest.mark.parametrize("kind", CLASSES)
def test_a_value_of_another_type_or_outside_its_range_is_refused(kind: type[Options]) -> None:
    for option, allowed in allowed_values(kind).items():
        for value in WRONG.get(allowed.kinds[0], ["arithmetic", None]):
            if value is None and allowed.optional:
                continue
            with pytest.raises(TrainError, match=f"^{option}[^;]* is .*; .* is needed$"):
                kind(**{option: value})
        for choice in allowed.choices:
            assert allowed.plain(choice) == choice
        if allowed.choices:
            with pytest.raises(TrainError, match=repr(allowed.choices[0])):
                kind(**{option: "another"})


def test_nested_and_flat_options_are_the_same_configuration() -> None:
    nested = TrainConfig(
        steps=4, task=TaskConfig(name="gsm8k", rewards=("exact",)), rollout=RolloutConfig(samples_per_prompt=4),
        algorithm=PpoConfig(kl_coef=0.1), optimizer=OptimizerConfig(name="sgd"),
    )  # fmt: skip
    flat = {"task": "gsm8k", "rewards": ["exact"], "samples_per_prompt": 4, "algorithm": "ppo", "kl_coef": 0.1}
    assert TrainConfig.from_options(steps=4, optimizer="sgd", **flat) == nested
    assert flat.items() <= nested.to_options().items()


@pytest.mark.parametrize("name", ["max_line_mib", "max_rows", "max_unpacked_gib"])
def test_a_stored_option_that_is_gone_is_left_out_where_it_was_off_and_refused_where_it_was_on(name: str) -> None:
    stored = TrainConfig().to_options()
    assert TrainConfig.from_options(**{**stored, name: None}) == TrainConfig()
    TrainConfig().check_resume({**stored, name: None})
    with refused(TrainError, name, "5"):
        TrainConfig.from_options(**{**stored, name: 5})


def test_numbers_of_numpy_and_lists_are_taken_as_they_are_written_to_json() -> None:
    given = config(steps=np.int64(4), temperature=np.float32(0.5), memory_gib=np.float64(2.0), rewards=["task", "exact"])
    assert given == config(steps=4, temperature=0.5, memory_gib=2.0, rewards=("task", "exact"))
    assert TrainConfig.from_options(**json.loads(json.dumps(given.to_options()))) == given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, ()),
        ({"window": 1.5}, ("1.5",)),
        ({"samples_per_prompt": 2.5}, ("2.5",)),
        ({"num_updates": 1.5}, ("1.5",)),
        ({"scenarios": 2.5}, ("2.5",)),
        ({"seed": -1}, ()),
        ({"rewards": "exact"}, ("'exact'",)),
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
