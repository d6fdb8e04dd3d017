"""Options of a run are of the types that they are annotated with, and a run that is refused leaves nothing behind."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from training_samples import config

from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.loop import Trainer

WRONG: dict[str, tuple[str, list[Any]]] = {
    "int": ("a whole number", [2.5, 2.0, "3", True, None, float("nan"), [3]]),
    "float": ("a number", ["1", True, None, 1j, [1.0]]),
    "bool": ("True or False", [1, "yes", None]),
    "str": ("a text", [5, None, ("task",), Path("x")]),
    "tuple[str, ...]": ("a list of texts", ["exact", 5, None, ("task", 5)]),
}


@pytest.mark.parametrize("option", fields(TrainConfig), ids=lambda option: option.name)
def test_an_option_of_another_type_is_refused_in_a_sentence(option: Any) -> None:
    kind, _, optional = option.type.partition(" | ")
    needed, values = WRONG[kind]
    for value in values:
        if value is None and optional:
            continue
        sentence = f"{option.name} is {value!r}; {needed}{', or None,' if optional else ''} is needed"
        with refused(TrainError, str(sentence)):
            TrainConfig(**{option.name: value})


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
        ({"rewards": "exact"}, ("'exact'",)),
        ({"rewards": ["prettiness"]}, ("'prettiness'",)),
        ({"policy": "statik"}, ("'statik'",)),
        ({"policy": "oracle"}, ("'oracle'",)),
        ({"profile": "nowhere"}, ()),
        ({"loss_aggregation": "median"}, ()),
        ({"preparation_actors": 99}, ("preparation_actors", "99")),
        ({"memory_gib": 1e-6}, ()),
        ({"max_rows": 0}, ("max_rows is 0",)),
        ({"max_line_mib": float("nan")}, ("max_line_mib is nan",)),
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
