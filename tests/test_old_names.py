"""Options under the names of earlier versions: the shipped trace has them, and is read under today's."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from error_messages import refused

from rlhfless.old_names import OPTIONS, current_options
from rlhfless.trace import Trace, read_trace
from rlhfless.training.config import TrainConfig, TrainError

SHIPPED = Path(__file__).parents[1] / "data" / "traces" / "arithmetic-grpo"


def test_the_shipped_trace_is_read_under_todays_names(tmp_path: Path) -> None:
    stored = json.loads((SHIPPED / "meta.json").read_text())["config"]
    trace = read_trace(SHIPPED)
    config = trace.meta["config"]
    assert len(stored.keys() & OPTIONS.keys()) >= 5
    assert list(config) == [OPTIONS.get(name, name) for name in stored]
    assert list(config.values()) == list(stored.values())
    assert TrainConfig(**config).samples_per_prompt == stored["samples"]
    Trace(trace.rollouts, trace.allocations, trace.spans, trace.events, meta=trace.meta).save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "meta.json").read_text())["config"] == config


def test_every_old_name_stands_for_an_option_of_today() -> None:
    today = {option.name for option in fields(TrainConfig)}
    assert set(OPTIONS.values()) <= today
    assert not set(OPTIONS) & today
    assert len(set(OPTIONS.values())) == len(OPTIONS)


def test_names_of_today_stay_as_they_are() -> None:
    config = TrainConfig().to_dict()
    assert current_options(config) == config


def test_a_run_with_old_names_is_resumed_with_the_same_options_only() -> None:
    TrainConfig().check_resume({"samples": 8, "response_limit": 320, "updates": 1, "keep": 7})
    with refused(TrainError, "samples_per_prompt", "4", "8"):
        TrainConfig().check_resume({"samples": 4})
