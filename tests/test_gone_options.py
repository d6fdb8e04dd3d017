"""A stored option that no longer exists: read without it where it was off, refused in one sentence where it was on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.gone_options import GONE_OPTIONS
from rlhfless.trace import TraceError, read_trace
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.config.train import ALGORITHMS

TRACES = Path(__file__).parents[1] / "data" / "traces"


@pytest.fixture(autouse=True)
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GONE_OPTIONS, "spare_actors", (None, 0))


def stored_with(folder: Path, value: object) -> Path:
    shutil.copytree(TRACES / "arithmetic-grpo", folder)
    meta = json.loads((folder / "meta.json").read_text())
    meta["config"]["spare_actors"] = value
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.mark.parametrize("off", [None, 0])
def test_a_trace_is_read_without_an_option_that_was_off(off: object, tmp_path: Path) -> None:
    read = read_trace(stored_with(tmp_path / "run", off))
    assert read.meta["config"] == read_trace(TRACES / "arithmetic-grpo").meta["config"]


def test_a_trace_with_an_option_that_was_on_is_refused(tmp_path: Path) -> None:
    folder = stored_with(tmp_path / "run", 2)
    with refused(TraceError, str(folder / "meta.json"), "spare_actors", "2"):
        read_trace(folder)


def test_a_run_is_resumed_without_an_option_that_was_off_only() -> None:
    config = TrainConfig()
    config.check_resume({**config.to_options(), "spare_actors": None})
    with refused(TrainError, "spare_actors", "2"):
        config.check_resume({**config.to_options(), "spare_actors": 2})


def test_a_configuration_is_made_without_an_option_that_was_off_only() -> None:
    assert TrainConfig.from_options(steps=3, spare_actors=0) == TrainConfig(steps=3)
    with refused(TrainError, "configuration", "spare_actors", "2"):
        TrainConfig.from_options(steps=3, spare_actors=2)


def test_an_option_of_one_engine_today_is_left_out_where_it_was_off() -> None:
    today = TrainConfig()
    assert TrainConfig.from_options(tensor_parallel=1) == today  # which every run stored once
    today.check_resume({**today.to_options(), "tensor_parallel": 1})
    with refused(TrainError, "tensor_parallel 2"):
        today.check_resume({**today.to_options(), "tensor_parallel": 2})


def test_no_option_of_today_is_gone() -> None:
    today = {name for algorithm in ALGORITHMS for name in TrainConfig.from_options(algorithm=algorithm).to_options()}
    assert not today & GONE_OPTIONS.keys()


@pytest.mark.parametrize("name", ["arithmetic-grpo", "arithmetic-grpo-drafts"])
def test_a_shipped_run_has_options_of_today_only(name: str) -> None:
    stored = read_trace(TRACES / name).meta["config"]
    config = TrainConfig.from_options(**stored)
    assert {option: config.to_options()[option] for option in stored} == stored
