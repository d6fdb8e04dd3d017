"""Runs that stored the options of pipelines and reallocation: read where they were off, else refused with the demonstration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

import rlhfless.training
from rlhfless.trace import TraceError, read_trace
from rlhfless.training.config import TrainConfig, TrainError

SHIPPED = Path(__file__).parents[3] / "data" / "traces" / "arithmetic-grpo"
OFF = {
    "pipeline": None, "pipeline_critic": None, "micro_batches": None, "pipeline_schedule": "fused", "preparation_tp": None,
}  # fmt: skip
ON = [
    ("pipeline", 4, "run_pipelines"),
    ("pipeline_critic", 2, "run_pipelines"),
    ("micro_batches", 8, "run_pipelines"),
    ("pipeline_schedule", "serial", "run_pipelines"),
    ("preparation_tp", 1, "reallocate"),
]


def stored(folder: Path, options: dict[str, Any]) -> Path:
    """A shipped run that was started with these options."""
    shutil.copytree(SHIPPED, folder)
    meta = json.loads((folder / "meta.json").read_text())
    meta["config"] |= options
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def test_a_run_is_read_and_resumed_without_options_that_were_off(tmp_path: Path) -> None:
    assert read_trace(stored(tmp_path / "run", OFF)).meta["config"] == read_trace(SHIPPED).meta["config"]
    config = TrainConfig()
    config.check_resume({**config.to_dict(), **OFF})
    assert TrainConfig(**config.to_dict(), **OFF) == config


@pytest.mark.parametrize(("name", "value", "demonstration"), ON)
def test_a_run_with_one_that_was_on_is_refused_with_the_demonstration(
    name: str, value: object, demonstration: str, tmp_path: Path
) -> None:
    named = (f"option {name} is {value!r}", f"rlhfless.training.{demonstration}")
    with refused(TraceError, str(tmp_path / "run" / "meta.json"), *named):
        read_trace(stored(tmp_path / "run", {**OFF, name: value}))
    config = TrainConfig()
    with refused(TrainError, "the run's meta.json", *named):
        config.check_resume({**config.to_dict(), name: value})
    with refused(TrainError, *named):
        TrainConfig(**{name: value})
    assert demonstration in dir(rlhfless.training)
