"""Forecasts of prompts that were not seen yet, and names of prompts, by which their random numbers are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.training import Trainer, factory
from rlhfless.training.tasks import DatasetTask

LIMIT = 24
PROMPTS = [f"{a}+{b}=" for a in range(1, 5) for b in range(1, 3)]


def longer(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def trainer_of(model: Path, dataset: Any, folder: Path | None = None, **options: Any) -> Trainer:
    sizes = {"prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": LIMIT, "steps": 4}
    return Trainer(model=model, rewards=longer, dataset=dataset, folder=folder, progress=False, **{**sizes, **options})


def rows_with(answers: list[str]) -> list[dict[str, str]]:
    return [{"prompt": prompt, "answer": answer} for prompt, answer in zip(PROMPTS, answers, strict=True)]


def test_first_visits_are_forecast_by_the_run_and_not_by_the_answers(untrained: Path) -> None:
    answers = [["7"] * len(PROMPTS), ["7" * 23] * len(PROMPTS)]
    forecasts = []
    for each in answers:
        with trainer_of(untrained, rows_with(each)) as trainer:
            first, second = trainer.step(), trainer.step()
        assert set(first.rollouts["predicted_tokens"]) == {LIMIT / 2}
        seen = first.rollouts["response_tokens"].median()
        assert second.rollouts["predicted_tokens"].tolist() == pytest.approx([seen] * 4, abs=LIMIT / 4)
        forecasts.append(second.rollouts["predicted_tokens"].tolist())
    assert forecasts[0] == forecasts[1]


@given(st.lists(st.text("0123456789+", min_size=1, max_size=40), min_size=len(PROMPTS), max_size=len(PROMPTS)))
def test_no_answer_is_a_reference_unless_a_column_is_named_as_one(answers: list[str]) -> None:
    task = DatasetTask(rows_with(answers), Letters())
    assert {problem.reference_answer_tokens for problem in task.problems} == {0}
    named = DatasetTask(rows_with(answers), Letters(), reference_column="answer")
    assert [problem.reference_answer_tokens for problem in named.problems] == [len(p.answer) + 1 for p in named.problems]


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str, *, eos: bool = False) -> list[int]:
        """Return the letters' numbers."""
        return [*map(ord, text), *([0] if eos else [])]


def test_the_same_rows_give_the_same_tokens_however_they_are_given(untrained: Path, tmp_path: Path) -> None:
    rows = rows_with(["7"] * len(PROMPTS))
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    texts = []
    for dataset in (rows, tmp_path / "mine.jsonl"):
        with trainer_of(untrained, dataset) as trainer:
            texts.append(trainer.step().rollouts[["prompt_id", "response"]].to_numpy().tolist())
    assert texts[0] == texts[1]


class AsBefore(DatasetTask):
    """The problems of a run that was started when prompts were named after the data set."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **{**named, "as_before": True})


def test_a_run_that_was_stored_before_keeps_its_names(untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_with(["7"] * len(PROMPTS))
    with monkeypatch.context() as patched:
        patched.setattr(factory, "DatasetTask", AsBefore)
        with trainer_of(untrained, rows) as whole:
            expected = [whole.step().rollouts for _ in range(2)]
        with trainer_of(untrained, rows, tmp_path / "run") as trainer:
            trainer.step()
    path = tmp_path / "run" / "meta.json"
    meta = json.loads(path.read_text("utf-8"))
    assert meta.pop("prompts_named")
    path.write_text(json.dumps(meta), encoding="utf-8")
    with trainer_of(untrained, rows, tmp_path / "run", resume=True) as trainer:
        done = trainer.step().rollouts
    assert done["prompt_id"].str.startswith("dataset-").all()
    assert done["response"].tolist() == expected[1]["response"].tolist()
    assert np.array_equal(done["predicted_tokens"], expected[1]["predicted_tokens"])
