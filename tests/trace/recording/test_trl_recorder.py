"""TrlRecorder on real runs of TRL's GRPOTrainer: the lengths that TRL's own log has as text, and a training that goes on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pandas as pd
import pytest

torch = pytest.importorskip("torch")
if find_spec("trl") is None:  # imported by the tests that use it, as that takes long
    pytest.skip("TRL, which is watched here, is not installed: pip install 'trl>=1.16'", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tokenizers import decoders  # noqa: E402

from rlhfless.engine.torch.pretrained import load_model  # noqa: E402
from rlhfless.trace import ImportOptions, import_log, read_trace  # noqa: E402
from rlhfless.trace.recording.trl_callback import TrlRecorder  # noqa: E402
from rlhfless.training.tasks.arithmetic import ArithmeticTask  # noqa: E402

if TYPE_CHECKING:
    from trl import GRPOTrainer

PAGE = Path(__file__).parents[3] / "docs" / "executing_and_training.md"
MODEL = Path(__file__).parents[3] / "data" / "models" / "arithmetic-grpo"
PROMPTS = [p.prompt for p in ArithmeticTask(seed=1, prompts=4).problems]
LIMIT = 60


def trainer_of(folder: Path, **options: Any) -> GRPOTrainer:
    """Two prompts with four completions a step, on the shipped model."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl_trainer import tokenizer_of

    model, ours = load_model(MODEL)
    tokenizer = tokenizer_of(ours)
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()  # texts as they were, so that they can be tokenised again
    arguments = GRPOConfig(
        str(folder), per_device_train_batch_size=8, num_generations=4, max_completion_length=LIMIT, max_steps=3, use_cpu=True,
        bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1, log_completions=True, seed=3,
        shuffle_dataset=False, gradient_checkpointing=False, **options,
    )  # fmt: skip
    return GRPOTrainer(
        model, args=arguments, train_dataset=Dataset.from_list([{"prompt": p, "name": f"p{i}"} for i, p in enumerate(PROMPTS)]),
        processing_class=tokenizer, reward_funcs=[by_length, constant],
    )  # fmt: skip


def by_length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(c)) for c in completions]


def constant(completions: list[str], **_: Any) -> list[float | None]:
    return [0.5 if len(c) % 2 else None for c in completions]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take long where others use the machine; nothing is looked up elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="module")
def learned(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The weights after a training that nobody watches."""
    trainer = trainer_of(tmp_path_factory.mktemp("plain"))
    trainer.train()
    return weights(trainer)


def weights(trainer: GRPOTrainer) -> list[Any]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def test_the_documented_lines_record_a_run_as_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model's folder, as TRL's users have it; nothing of TRL is replaced, whatever else is installed."""
    from datasets import Dataset
    from trl import GRPOConfig
    from trl_trainer import tokenizer_of

    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.S | re.M)
    (printed,) = [block for block in blocks if "GRPOTrainer" in block]
    assert "from trl import GRPOTrainer" in printed
    model, ours = load_model(MODEL)
    model.save_pretrained(tmp_path / "model")
    tokenizer_of(ours).save_pretrained(tmp_path / "model")
    arguments = GRPOConfig(
        str(tmp_path / "trl"), per_device_train_batch_size=2, num_generations=2, max_completion_length=8, max_steps=1,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip
    prompts = Dataset.from_list([{"prompt": p} for p in PROMPTS])
    monkeypatch.chdir(tmp_path)
    yours = {"model": str(tmp_path / "model"), "rewards": by_length, "arguments": arguments, "prompts": prompts}
    exec(compile(printed, str(PAGE), "exec"), yours)
    rows = read_trace(tmp_path / "out" / "run").rollouts
    assert rows["sample"].tolist() == [0, 1]
    assert rows["response_tokens"].between(1, 8).all()


@pytest.mark.full
def test_lengths_and_rewards_are_those_of_trls_own_log(tmp_path):
    trainer = trainer_of(tmp_path / "trl", reward_weights=[2.0, 3.0])
    TrlRecorder(tmp_path / "recorded", texts=True).attach(trainer)
    trainer.train()
    ours = read_trace(tmp_path / "recorded").rollouts
    files = sorted((tmp_path / "trl" / "completions").glob("*.parquet"))
    theirs = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    assert len(files) == 3
    assert ours["step"].tolist() == theirs["step"].tolist()
    assert ours["response"].tolist() == theirs["completion"].tolist()
    tokens = [len(ids) for ids in trainer.processing_class(theirs["completion"].tolist())["input_ids"]]
    stopped = (ours["finish_reason"] == "stop").to_numpy()
    assert (ours["response_tokens"] - stopped).tolist() == tokens, "their text lacks the end token"
    assert (ours.loc[~stopped, "response_tokens"] == LIMIT).all()
    assert 0 < stopped.sum() < len(ours)
    assert ours["prompt_tokens"].tolist() == [len(text) for text in theirs["prompt"]]
    assert ours["reward"].to_numpy() == pytest.approx(2 * theirs["by_length"] + 3 * theirs["constant"].fillna(0))
    mean = {int(log["step"]): log["completions/mean_length"] for log in trainer.state.log_history if "reward" in log}
    assert ours.groupby("step")["response_tokens"].mean().to_dict() == pytest.approx(mean)
    assert ours.groupby(["step", "prompt_id"])["sample"].apply(list).tolist() == [[0, 1, 2, 3]] * 6
    trainer.processing_class.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    trainer.save_state()
    for limit in (None, LIMIT):
        options = ImportOptions(tmp_path / "tokenizer.json", max_response_tokens=limit)
        imported = import_log(tmp_path / "trl", options).rollouts
        for column in ("step", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason"):
            assert imported[column].tolist() == ours[column].tolist(), column


@pytest.mark.full
def test_spans_of_a_step_follow_each_other(tmp_path):
    trainer = trainer_of(tmp_path / "trl", num_iterations=2)
    TrlRecorder(tmp_path / "recorded", prompt_id="name").attach(trainer)
    trainer.train()
    trace = read_trace(tmp_path / "recorded")
    assert trace.spans[["step", "phase"]].to_numpy().tolist() == [
        [1, "decode"], [1, "prepare"], [1, "learn"], [2, "learn"], [3, "decode"], [3, "prepare"], [3, "learn"],
    ]  # fmt: skip
    assert (trace.spans["start_s"].to_numpy()[1:] >= trace.spans["end_s"].to_numpy()[:-1] - 1e-6).all()
    assert set(trace.rollouts["prompt_id"]) == {"p0", "p1", "p2", "p3"}


@pytest.mark.full
@pytest.mark.parametrize("broken", ["folder", "watching", "methods"])
def test_a_broken_recorder_changes_nothing_of_the_training(tmp_path, broken, learned, caplog):
    watched = trainer_of(tmp_path / "watched")
    (tmp_path / "file").write_text("")
    recorder = TrlRecorder(tmp_path / ("file" if broken == "folder" else "recorded"))
    if broken == "methods":
        gone = AttributeError("gone")
        with mock.patch.object(type(watched), "_generate", new_callable=mock.PropertyMock, side_effect=gone):
            recorder.attach(watched)
    else:
        recorder.attach(watched)
    if broken == "watching":
        recorder._record = mock.Mock(side_effect=RuntimeError("unforeseen"))
    watched.train()
    assert all(torch.equal(a, b) for a, b in zip(learned, weights(watched), strict=True))
    said = [r.getMessage() for r in caplog.records if r.name == "rlhfless.trace.recording.recorder"]
    sentence = {"folder": "nothing is recorded", "watching": "TRL was not understood", "methods": "cannot be watched"}[broken]
    assert sum(sentence in text for text in said) == 1
