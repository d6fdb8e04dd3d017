"""A model of transformers with its tokenizer, passed as objects, does what the folder with both does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from byte_tokenizer import byte_tokenizer
from error_messages import refused
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhfless.training import Trainer
from rlhfless.training.config import TrainError
from rlhfless.training.models.tiny_model import tiny_qwen2

QUESTIONS = ["1 and 1?", "2 and 1?", "1 and 3?", "4 and 1?"]
TEXTS = [{"prompt": question} for question in QUESTIONS]
CONVERSATIONS = [{"prompt": [{"role": "user", "content": question}]} for question in QUESTIONS]
OPTIONS: dict[str, Any] = {
    "prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 8, "steps": 1, "learning_rate": 1e-2,
}  # fmt: skip


def variety(response: Any) -> float:
    return len(set(response.text)) / max(1, len(response.text))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a tiny model, written by transformers alone, with a chat template."""
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = byte_tokenizer()
    model = tiny_qwen2(tokenizer, seed=3, hidden=32, layers=1, intermediate=64).to(getattr(torch, request.param))
    model.save_pretrained(folder)
    tokenizer.wrapped.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("rows", [TEXTS, CONVERSATIONS], ids=["texts", "conversations"])
def test_objects_do_what_their_folder_does(saved: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    objects = AutoModelForCausalLM.from_pretrained(saved, dtype="auto"), AutoTokenizer.from_pretrained(saved)
    seen = []
    for name, model in (("folder", saved), ("objects", objects)):
        with Trainer(model=model, rewards=variety, dataset=rows, folder=tmp_path / name, progress=False, **OPTIONS) as trainer:
            prompts = [request.prompt_ids.tolist() for request in trainer.requests(trainer.problems_of(0), 0)]
            texts = trainer.step().rollouts["response"].tolist()
            trainer.save_model(tmp_path / name / "mine")
            seen.append((prompts, texts, trainer.model.state_dict()))
    assert seen[0][:2] == seen[1][:2]
    assert objects[1].decode(seen[0][0][0]).endswith("<me>")
    assert all(torch.equal(ours, seen[1][2][name]) for name, ours in seen[0][2].items())
    for name in ("folder", "objects"):
        again = AutoModelForCausalLM.from_pretrained(tmp_path / name / "mine", dtype="auto")
        assert again.dtype == AutoModelForCausalLM.from_pretrained(saved, dtype="auto").dtype
        assert AutoTokenizer.from_pretrained(tmp_path / name / "mine").chat_template == objects[1].chat_template


def test_a_run_of_objects_is_resumed_with_them(saved: Path, tmp_path: Path) -> None:
    def trainer(**changes: Any) -> Trainer:
        objects = AutoModelForCausalLM.from_pretrained(saved, dtype="auto"), AutoTokenizer.from_pretrained(saved)
        given = {"model": objects, "rewards": variety, "dataset": TEXTS, "folder": tmp_path / "run", "progress": False}
        return Trainer(**{**given, **OPTIONS, **changes})

    with trainer() as run:
        run.train()
    with trainer(steps=2, resume=True) as run:
        run.train()
    assert run.next_step == 2


def test_what_trl_calls_with_other_arguments_is_answered(saved: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": saved, "rewards": variety, "dataset": TEXTS, "progress": False, **OPTIONS}
    with Trainer(folder=tmp_path / "run", **given) as trainer:
        with refused(TrainError, "'resume_from_checkpoint'", "resume='auto'"):
            trainer.train(resume_from_checkpoint=True)
        with refused(TrainError, "'trial'", "Trainer"):
            trainer.train(trial=None)
        trainer.save_model()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model") is not None
    with Trainer(**given) as trainer, refused(TrainError, "no folder", "save_model(FOLDER)"):
        trainer.save_model()
