"""Training with drafts: tokens and weights are those without, also of a resumed run, and the trace counts what was accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from error_messages import refused
from training_samples import config, same_weights

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.trace import Trace
from rlhfless.training.config import ClusterConfig, TrainConfig, TrainError
from rlhfless.training.draft_history import earlier_responses
from rlhfless.training.loop import Trainer, train
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError

COUNTS = ["passes", "drafted_tokens", "accepted_tokens"]
DECODED = ["step", "prompt_id", "sample", "response", "response_tokens", "reward"]


def drafted(**changes: object) -> TrainConfig:
    """Four steps of responses that are alike: the last two visit each prompt a second time."""
    return config(**{"steps": 4, "max_response_tokens": 40, "temperature": 0.1, **changes})


def same_run(folder: Path, other: Path, ours: Trace, theirs: Trace) -> bool:
    return same_weights(folder, other) and ours.rollouts[DECODED].equals(theirs.rollouts[DECODED])


@pytest.mark.full
def test_drafts_change_neither_tokens_nor_weights_and_a_resumed_run_drafts_the_same(tmp_path: Path, model: Path) -> None:
    without = train(drafted(), tmp_path / "off", model=model)
    fixed = {"drafts": True, "draft_length": "3"}
    whole = train(drafted(**fixed), tmp_path / "on", model=model)
    assert same_run(tmp_path / "off", tmp_path / "on", without, whole)
    counts = whole.rollouts[COUNTS].astype(int)
    assert (counts["passes"] + counts["accepted_tokens"]).tolist() == whole.rollouts["response_tokens"].tolist()
    assert counts["drafted_tokens"].sum() > counts["accepted_tokens"].sum() > 0
    assert without.rollouts[[name for name in COUNTS if name in without.rollouts]].isna().all().all()
    assert whole.plans[0]["drafting"]["length"] == 3

    train(drafted(steps=3, **fixed), tmp_path / "twice", model=model)
    resumed = train(drafted(**fixed), tmp_path / "twice", resume=True)
    assert same_run(tmp_path / "on", tmp_path / "twice", whole, resumed)
    pd.testing.assert_frame_equal(resumed.rollouts[COUNTS], whole.rollouts[COUNTS])


@pytest.mark.full
def test_a_run_may_be_resumed_with_drafts(tmp_path: Path, model: Path) -> None:
    train(config(steps=2), tmp_path / "run", model=model)
    resumed = train(config(steps=3, drafts=True), tmp_path / "run", resume=True)
    assert resumed.rollouts.loc[resumed.rollouts["step"] == 2, "passes"].notna().all()
    whole = train(config(steps=3), tmp_path / "whole", model=model)
    assert same_run(tmp_path / "whole", tmp_path / "run", whole, resumed)


def test_requests_have_the_responses_of_the_last_visit_of_their_prompt(tmp_path: Path, model: Path) -> None:
    with Trainer(drafted(), model=model, drafting=Drafting(length=2), progress=False) as trainer:
        assert not any(request.history for request in trainer.requests(trainer.problems_of(0), 0))
        for _ in range(2):
            trainer.step()
        rollouts, problems = trainer.state.position.history, trainer.problems_of(2)
        for request in trainer.requests(problems, 2):
            assert request.prompt is not None
            texts = rollouts.loc[rollouts["prompt_id"] == problems[request.prompt].prompt_id, "response"]
            assert [trainer.tokenizer.decode(ids) for ids in request.history] == texts.tolist()
            assert len(texts) == 3
    with Trainer(drafted(), model=model, progress=False) as off:
        off.step()
        assert not any(request.history for request in off.requests(off.problems_of(2), 2))


def test_history_is_of_the_last_visit_of_all_visits_or_of_none() -> None:
    tokenizer = CharTokenizer()
    rows = [("p", 0, "12"), ("q", 0, "3"), ("p", 1, "45"), ("p", 1, None), ("r", 1, "6")]
    rollouts = pd.DataFrame(rows, columns=["prompt_id", "step", "response"])

    def texts(drafting: Drafting | None) -> dict[str, list[str]]:
        found = earlier_responses(rollouts, ["p", "q", "new"], tokenizer.encode, drafting)
        return {prompt: [tokenizer.decode(ids) for ids in each] for prompt, each in found.items()}

    assert texts(Drafting()) == {"p": ["45"], "q": ["3"]}
    assert texts(Drafting(history="all")) == {"p": ["12", "45"], "q": ["3"]}
    assert texts(Drafting(history="none")) == {} == texts(None)
    assert earlier_responses(pd.DataFrame(), ["p"], tokenizer.encode, Drafting()) == {}


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no number": ({"drafts": True, "draft_length": "long"}, ("draft_length", "'long'")),
    "too long": ({"drafts": True, "draft_length": 33}, ("cluster.draft_length", "33", "32")),
    "critical": ({"drafts": True, "draft_length": "critical"}, ("cluster.draft_length", "'critical'", "adaptive")),
    "a drafter, but nothing drafted": ({"drafter": "vllm-ngram"}, ("cluster.drafter", "cluster.drafts")),
    "a drafter of another engine": (
        {"drafts": True, "draft_length": 4, "drafter": "vllm-ngram"},
        ("cluster.drafter", "'torch'", "cluster.engine", "'suffix'"),
    ),
    "a drafter without adaptive lengths": (
        {"drafts": True, "drafter": "vllm-suffix", "engine": "vllm", "executor": "local"},
        ("cluster.drafter", "'vllm-suffix'", "cluster.draft_length"),
    ),
    "nothing drafted": ({"draft_length": 4}, ("cluster.draft_length", "cluster.drafts")),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lengths_are_refused(case: str) -> None:
    options, words = WRONG[case]
    with refused(TrainError, *words):
        ClusterConfig(**options)


def test_engines_of_a_training_run_need_no_predictor(tmp_path: Path, model: Path) -> None:
    for given, words in ((Drafting(length="critical"), ("'critical'", "'adaptive'")), (8, ("drafting is 8",))):
        with refused(TrainError, *words):
            Trainer(drafted(), tmp_path / "run", model=model, drafting=given, progress=False)  # type: ignore[arg-type]
    with refused(PlanningError, "'vllm-ngram'", "engine vllm", "'suffix'"):
        Trainer(drafted(), model=model, drafting=Drafting("vllm-ngram", length=4), progress=False)
    assert list(tmp_path.iterdir()) == []
