"""TRL's trainer state under any name: old keys, numbers as texts, facts, and steps that generated nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

from rlhfless.trace import ImportedLog, TraceError, import_log
from rlhfless.trace.importers import recognise

LENGTHS = {"completions/max_length": 64.0, "completions/min_length": 3.0, "completions/clipped_ratio": 0.125}


def state(folder: Path, *history: dict[str, Any], name: str = "trainer_state.json", **more: Any) -> ImportedLog:
    (folder / name).write_text(json.dumps({"global_step": len(history), **more, "log_history": list(history)}))
    return import_log(folder / name)


def entries(*means_and_tokens: tuple[float, int | None]) -> list[dict[str, Any]]:
    found = [{"step": step, "completions/mean_length": mean, "num_tokens": tokens, "step_time": 9.0, **LENGTHS}
             for step, (mean, tokens) in enumerate(means_and_tokens, start=1)]  # fmt: skip
    return [{name: value for name, value in one.items() if value is not None} for one in found]


@pytest.mark.parametrize("name", ["state.json", "log.txt", "STATE.JSON", "state"])
def test_the_state_is_recognised_by_what_it_has(name: str, tmp_path: Path) -> None:
    log = state(tmp_path, *entries((10, 500)), name=name, stateful_callbacks={"a": [1]})
    assert (log.framework, log.scalars["response_tokens_mean"].tolist()) == ("trl", [10])
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert recognise(tmp_path / "packed.json.gz").name == "trl-scalars"


@pytest.mark.parametrize(
    "content", ['{"step": 1, "text": "\\"log_history\\": ["}', '{"log_history": 3}', "[]", '{"a": {"b": 1}}']
)
def test_other_objects_are_no_state(content: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(content)
    try:
        assert recognise(tmp_path / "other.json").name != "trl-scalars"
    except TraceError as error:
        assert "other.json" in str(error)  # noqa: PT017 (it may be no log at all)


def test_old_names_and_numbers_as_texts_are_read(tmp_path: Path) -> None:
    log = state(tmp_path, {"step": "10", "completion_length": "827.975", "reward": "0.5", "loss": "nan"}, logging_steps=10)
    assert log.scalars[["step", "response_tokens_mean", "reward_mean"]].to_numpy().tolist() == [[10, 827.975, 0.5]]
    with refused(TraceError, "trainer_state.json", "completion_length", "a number"):
        state(tmp_path, {"step": 1, "completion_length": "many"})


def test_the_state_says_how_long_the_run_is_and_took(tmp_path: Path) -> None:
    end = {
        "step": 2,
        "train_runtime": 77.5,
        "train_samples_per_second": 0.31,
        "train_steps_per_second": 0.04,
        "train_loss": 1.0,
    }
    log = state(tmp_path, *entries((10, 500), (11, 1000)), end, max_steps=1562, logging_steps=1)
    assert log.facts == {
        "planned_steps": 1562, "steps_done": 3, "logging_steps": 1, "run_s": 77.5, "samples_per_s": 0.31, "steps_per_s": 0.04
    }  # fmt: skip
    assert "train_runtime" not in log.scalars.columns


def test_an_evaluation_and_the_end_of_the_run_are_no_steps(tmp_path: Path) -> None:
    log = state(tmp_path, *entries((10, 500)), {"step": 5, "eval_loss": 0.1}, {"step": 7, "train_runtime": 9.0})
    assert log.scalars["step"].tolist() == [1]


@pytest.mark.parametrize("steps", [-1, 0, 0.5, "many", None, True, float("inf")])
def test_counts_of_the_state_that_cannot_be_are_unknown(steps: Any, tmp_path: Path) -> None:
    log = state(tmp_path, *entries((10, 500)), max_steps=steps, logging_steps=steps)
    assert log.facts == {"steps_done": 1}


def test_generations_are_counted_and_not_entries(tmp_path: Path) -> None:
    history = entries((10, 500), (10, 500), (11, 1100), (11, 1100), (12, 1500), (12, 1500))
    for one in history:
        one["profiling/Time taken: GRPOTrainer.vllm_generate"] = 30.0
    log = state(tmp_path, *history)
    names = ["step", "generate_s", "step_s", "tokens_total"]
    assert log.scalars[names].to_numpy().tolist() == [[1, 30, 18, 500], [3, 30, 18, 600], [5, 30, 18, 400]]
    assert log.facts["steps_per_generation"] == 2
    assert any("6 entries, 3 generations (num_tokens stands still in the others)" in note for note in log.summary.notes)


def test_entries_before_the_first_generation_are_named(tmp_path: Path) -> None:
    log = state(
        tmp_path, {"step": 1, "loss": 0.1, "step_time": 4.0}, *({**one, "step": one["step"] + 1} for one in entries((10, 5)))
    )
    assert log.scalars["step"].tolist() == [2]
    assert any("before the log's first generation" in note for note in log.summary.notes)


def test_seconds_that_one_entry_lacks_are_unknown_for_its_generation(tmp_path: Path) -> None:
    history = entries((10, 500), (10, 500), (11, 1100), (11, 1100))
    del history[1]["step_time"]
    scalars = state(tmp_path, *history).scalars
    assert scalars["step_s"].isna().tolist() == [True, False]


def test_a_state_without_lengths_keeps_all_its_entries(tmp_path: Path) -> None:
    log = state(tmp_path, *({"step": step, "loss": 0.1, "step_time": 4.0} for step in (1, 2, 3)))
    assert log.scalars["step_s"].tolist() == [4, 4, 4]


def test_a_run_that_does_not_grow_its_counter_after_a_restart_is_a_generation(tmp_path: Path) -> None:
    """The counter begins again where the trainer did not restore it."""
    log = state(tmp_path, *entries((10, 500), (11, 500 + 400), (12, 300)))
    assert log.scalars["step"].tolist() == [1, 2, 3]
    assert log.scalars["tokens_total"].isna().tolist() == [False, False, True]
