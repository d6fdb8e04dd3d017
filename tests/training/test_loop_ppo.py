"""The loop with everything but the defaults: PPO, a data set of texts, a sum of rewards, a reward that fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from error_messages import refused, warned

pytest.importorskip("torch")

from byte_tokenizer import byte_tokenizer
from training_samples import run_config

from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.loop import Trainer, train
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2
from rlhfless.training.rewards import RewardWarning

SMALL = {
    "steps": 3,
    "prompts": 8,
    "prompts_per_step": 4,
    "samples_per_prompt": 3,
    "max_response_tokens": 24,
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of bytes, and eight problems in GSM8K's form."""
    folder, tokenizer = tmp_path_factory.mktemp("texts"), byte_tokenizer()
    save_model(tiny_qwen2(tokenizer, 0, hidden=32, layers=1, intermediate=64, max_tokens=512), tokenizer, folder / "model")
    rows = [{"question": f"{i} and {i}?", "answer": f"{'so ' * i}\n#### {2 * i}"} for i in range(8)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def config(texts: Path, **changes: object) -> TrainConfig:
    return run_config(**{**SMALL, "task": f"gsm8k:{texts / 'sums.jsonl'}", **changes})


def test_ppo_on_texts_resumes_as_if_never_stopped(texts: Path, tmp_path: Path) -> None:
    options = {
        "algorithm": "ppo", "critic": "model", "kl_coef": 0.1, "num_updates": 2, "samples_per_prompt": 1,
        "rewards": ["exact", "0.1*length:24,8"],
    }  # fmt: skip
    whole = train(config(texts, **options), tmp_path / "whole", model=texts / "model")
    train(config(texts, **options, steps=2), tmp_path / "parts", model=texts / "model")
    parts = train(config(texts, **options), tmp_path / "parts", resume=True)
    assert parts.rollouts["response"].tolist() == whole.rollouts["response"].tolist()
    assert whole.rollouts["reward"].between(-0.1, 1).all()
    learned = json.loads(whole.spans.loc[whole.spans["phase"] == "learn", "detail"].iloc[-1])["learning"]
    assert learned["mismatch_max"] < 1e-3
    assert {"value_loss", "kl_reference", "explained_variance"} <= set(learned)


@pytest.mark.parametrize("changed", ["question", "answer"])
def test_a_run_does_not_go_on_with_a_data_set_that_changed_under_it(texts: Path, tmp_path: Path, changed: str) -> None:
    data, run = tmp_path / "sums.jsonl", tmp_path / "run"
    began = (texts / "sums.jsonl").read_text()
    data.write_text(began)
    train(config(tmp_path, steps=1), run, model=texts / "model")
    rows = [json.loads(line) for line in began.splitlines()]
    rows[0][changed] = {"question": "0 and none?", "answer": "#### 7"}[changed]
    data.write_text("\n".join(map(json.dumps, rows)))
    with refused(TrainError, f"gsm8k:{data}", "have changed"):
        train(config(tmp_path, steps=2), run, resume=True)
    meta = json.loads((run / "meta.json").read_text())
    del meta["problems"]  # as runs were recorded that did not know it yet
    (run / "meta.json").write_text(json.dumps(meta))
    assert train(config(tmp_path, steps=2), run, resume=True).steps == [0, 1]


def test_the_first_epoch_is_predicted_from_the_worked_solutions(texts: Path) -> None:
    trainer = Trainer(config(texts, max_response_tokens=40), model=texts / "model", progress=False)
    problems = trainer.problems_of(0)
    expected = [p.reference_answer_tokens for p in problems for _ in range(3)]
    assert trainer.forecast(problems).expected.tolist() == np.minimum(expected, 40).tolist()


def test_responses_that_nobody_could_judge_have_no_reward(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def picky(response):\n    return 1 / (int(response.answer) % 4)\n")
    trainer = Trainer(config(texts, rewards=[f"{tmp_path / 'mine.py'}:picky"]), model=texts / "model", progress=False)
    with warned(RewardWarning, "'picky'", "12", "ZeroDivisionError"):
        step = trainer.step()
    unjudged = step.rollouts["prompt_id"].map(lambda name: int(name.split("-")[1]) * 2 % 4 == 0)
    assert (step.rollouts["reward"].isna() == unjudged).all()
    assert step.learning["unjudged"] == pytest.approx(unjudged.mean())


def test_texts_need_a_model(texts: Path) -> None:
    with refused(TrainError):
        Trainer(config(texts), progress=False)
