"""Options that are gone: stored configurations are read without them where they were off, and refused where they were on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.gone_options import GONE
from rlhfless.trace import read_trace
from rlhfless.training.config import TrainConfig, TrainError

SHIPPED = Path(__file__).parents[1] / "data" / "traces" / "arithmetic-grpo"


def test_a_run_without_them_is_read_and_resumed_as_before() -> None:
    today = TrainConfig()
    assert TrainConfig.from_options(**today.to_options(), **GONE) == today
    today.check_resume({**today.to_options(), **GONE})
    assert TrainConfig.from_options(tensor_parallel=1) == today  # which every run had
    today.check_resume({**today.to_options(), "tensor_parallel": 1})
    with refused(TrainError, "tensor_parallel 2"):
        today.check_resume({**today.to_options(), "tensor_parallel": 2})


@pytest.mark.parametrize("name", GONE)
def test_what_was_on_is_refused_by_its_name(name: str) -> None:
    stored = {**TrainConfig().to_options(), name: "on"}
    with refused(TrainError, name, "'on'"):
        TrainConfig.from_options(**stored)
    with refused(TrainError, name, "'on'"):
        TrainConfig().check_resume(stored)


def test_a_trace_is_read_without_what_was_off_and_tells_what_was_on(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / "run")
    meta = json.loads((folder / "meta.json").read_text())
    name = next(iter(GONE))
    for value, told in ((GONE[name], {}), ("on", {name: "on"})):
        meta["config"][name] = value
        (folder / "meta.json").write_text(json.dumps(meta))
        config = read_trace(folder).meta["config"]
        assert {option: config[option] for option in GONE if option in config} == told
