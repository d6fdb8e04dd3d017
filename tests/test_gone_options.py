"""A stored option that no longer exists: read without it where it was off, refused in one sentence where it was on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.gone_options import FLAT, GONE_OPTIONS, INSTEAD, in_sections, without_gone
from rlhfless.trace import TraceError, read_trace
from rlhfless.training.config import ClusterConfig, TrainConfig, TrainError
from rlhfless.training.config.section import all_keys
from rlhfless.training.config.train import merged

TRACES = Path(__file__).parents[1] / "data" / "traces"


@pytest.fixture(autouse=True)
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GONE_OPTIONS, "spare_actors", (None, 0))
    monkeypatch.setitem(INSTEAD, "spare_actors", "actors start when they are needed")


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
    with refused(TraceError, str(folder / "meta.json"), "spare_actors", "2", "actors start when they are needed"):
        read_trace(folder)


def test_a_run_is_resumed_without_an_option_that_was_off_only() -> None:
    config = TrainConfig()
    stored = config.to_dict()
    config.check_resume({**stored, "cluster": {**stored["cluster"], "spare_actors": None}})
    with refused(TrainError, "spare_actors", "2"):
        config.check_resume({**stored, "cluster": {**stored["cluster"], "spare_actors": 2}})


def test_a_configuration_is_made_without_an_option_that_was_off_only() -> None:
    assert TrainConfig(steps=3, cluster={"spare_actors": 0}) == TrainConfig(steps=3)
    with refused(TrainError, "configuration", "spare_actors", "2"):
        TrainConfig(steps=3, cluster={"spare_actors": 2})


def test_an_option_of_one_engine_today_is_left_out_where_it_was_off() -> None:
    every_run_stored_once = {"steps": 3, "tensor_parallel": 1}
    assert without_gone(every_run_stored_once, "meta.json", TrainError) == {"steps": 3}
    hardware = ClusterConfig(engine="vllm", executor="local", tensor_parallel=1)
    assert TrainConfig(**TrainConfig(cluster=hardware).to_dict()).cluster == hardware  # asked for: the profile must have 1
    with refused(TrainError, "tensor_parallel 2"):
        TrainConfig(preset="demo").check_resume(in_sections({"tensor_parallel": 2}))


def test_no_option_of_today_is_gone() -> None:
    assert not {key.rpartition(".")[2] for key in all_keys()} & GONE_OPTIONS.keys()


def test_options_that_were_stored_without_sections_are_keys_of_today() -> None:
    assert {f"{section}.{name}" for section, names in FLAT.items() for name in names} <= set(all_keys())


def test_a_configuration_without_sections_is_read_as_that_of_today() -> None:
    config = TrainConfig(**in_sections({"task": "gsm8k", "algorithm": "ppo", "optimizer": "sgd", "draft_length": "4", "gpus": 2,
                                        "drafts": True, "gamma": 0.9}))  # fmt: skip
    assert (config.task.name, config.algorithm.name, config.optimizer.name) == ("gsm8k", "ppo", "sgd")
    assert (config.cluster.draft_length, config.cluster.gpus, config.algorithm.gamma) == (4, 2, 0.9)  # type: ignore[union-attr]
    assert in_sections(config.to_dict()) == config.to_dict()


@pytest.mark.parametrize("name", ["arithmetic-grpo", "arithmetic-grpo-drafts"])
def test_a_shipped_run_has_options_of_today_only(name: str) -> None:
    stored = read_trace(TRACES / name).meta["config"]
    completed = TrainConfig(**stored).to_dict()
    assert completed == merged(completed, stored)
    assert stored["rollout"]["max_response_tokens"] == 320


def test_a_stored_value_that_was_renamed_is_read_by_its_name_of_today() -> None:
    config = TrainConfig(cluster={"preparation": "released"})
    stored = config.to_dict()
    earlier = {**stored, "cluster": {**stored["cluster"], "preparation": "freed"}}
    assert TrainConfig.of_stored(earlier) == TrainConfig.of_stored(stored)
    config.check_resume(earlier)
