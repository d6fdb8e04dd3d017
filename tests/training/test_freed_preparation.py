"""Preparation on GPUs that actors gave back, on the wall clock: real processes, and the numbers of preparation afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import refused
from learning_samples import noise_batch, small_model
from real_preparation import die_and_prepare
from training_samples import RaggedTrainer, config, farthest

from rlhfless.engine.torch.model import one_thread
from rlhfless.engine.torch.pretrained import load_model
from rlhfless.errors import InputError
from rlhfless.executor import StepFailed
from rlhfless.trace import Trace, read_trace
from rlhfless.training import freed_preparation
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.algorithms.grpo import Grpo
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.learner.learner import LocalLearner
from rlhfless.training.loop import Trainer

PPO: dict[str, Any] = {"algorithm": "ppo", "kl_coef": 0.05, "critic": "model", "learning_rate": 0.2, "whiten": True}
GRPO: dict[str, Any] = {"kl_coef": 0.05, "learning_rate": 0.5}
FREED: dict[str, Any] = {
    "preparation": "freed", "gpus": 2, "gpus_per_node": 2, "policy": "random", "max_response_tokens": 400, "optimizer": "sgd",
    "idle_timeout_s": 600.0, "max_tokens_per_micro_batch": 1,
}  # fmt: skip


def variety(completions: list[str], **_: Any) -> list[float]:
    """The share of characters that differ."""
    return [len(set(text)) / max(1, len(text)) for text in completions]


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.state.learner.algorithm.trained.state_dict().items()}  # type: ignore[attr-defined]


def looked_at(learner: LocalLearner, batch: Batch) -> Batch:
    """The batch, each response of which was prepared alone, in no order."""
    rows: dict[int, dict[str, Any]] = {i: learner.look(batch.take([i])) for i in reversed(range(len(batch.response_ids)))}
    return replace(batch, prepared={name: [rows[i][name][0] for i in sorted(rows)] for name in rows[0]})


@pytest.mark.parametrize(("algorithm", "together"), [("grpo", False), ("ppo", False), ("ppo", True)])
def test_a_batch_prepared_by_response_is_learned_from_as_any_other(algorithm: str, together: bool) -> None:
    """To the bit where a pass before the update has one response, too."""
    options = {"grpo": {"kl_coef": 0.1, "num_updates": 2}, "ppo": {"kl_coef": 0.1, "critic": "model", "num_updates": 2}}
    learned = {}
    for prepared in (False, True):
        learner = LocalLearner.make(
            algorithm,
            small_model(1),
            learning_rate=1e-2,
            max_tokens_per_micro_batch=200 if together else 1,
            **options[algorithm],
        )
        with one_thread(torch.device("cpu")):
            batch = noise_batch(small_model(), seed=5)
            numbers = learner.learn(looked_at(learner, batch) if prepared else batch)
        learned[prepared] = learner.algorithm.trained.state_dict(), numbers
    (ours, numbers), (theirs, expected) = learned[True], learned[False]
    assert farthest(ours, theirs) < (1e-5 if together else 1e-30)
    timed = ("seconds", "prepare_seconds")
    assert {k: v for k, v in numbers.items() if k not in timed} == pytest.approx(
        {k: v for k, v in expected.items() if k not in timed}, rel=1e-4, abs=1e-6, nan_ok=True
    )
    assert numbers["prepare_seconds"] == 0.0 < expected["prepare_seconds"], "the passes were not run again"


def test_prepared_numbers_of_other_responses_are_refused() -> None:
    with refused(InputError, "'reference'", "[2]", "[2, 1]"):
        Batch([[1], [2]], [[3, 4], [5]], [0.0, 1.0], [0, 0], prepared={"reference": [np.zeros(2)]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"executor": "local", "learner_processes": 2}, ("'freed'", "2 learner_processes", "FSDP2")),
        ({"executor": "local", "kl_coef": 0.0}, ("'freed'", "kl_coef 0")),
        ({"executor": "local", **PPO, "num_mini_batches": 2}, ("'freed'", "num_mini_batches 2")),
        ({"executor": "local", "lora_rank": 2}, ("'freed'", "lora_rank 2")),
        ({"executor": "local", "engine": "vllm"}, ("'freed'", "'vllm'", "'torch'")),
    ],
)
def test_what_freed_gpus_cannot_prepare_is_refused(changes: dict[str, Any], said: tuple[str, ...], model: Path) -> None:
    with refused(TrainError, *said):
        Trainer(config(**{**FREED, **GRPO, **changes}), model=model, progress=False)


def test_an_algorithm_object_is_prepared_by_nobody_else(model: Path) -> None:
    weights, tokenizer = load_model(model)
    algorithm = Grpo(weights, torch.optim.SGD(weights.parameters(), lr=0.1))
    with refused(TrainError, "'freed'", "algorithm object"):
        Trainer(config(**FREED, **GRPO, executor="local"), model=(weights, tokenizer), algorithm=algorithm, progress=False)


@contextmanager
def trainer_of(options: dict[str, Any], folder: Path | None = None, **more: Any) -> Iterator[RaggedTrainer]:
    given: TrainConfig = config(**options)
    with RaggedTrainer(given, folder, rewards=variety, progress=False, **more) as trainer:
        yield trainer


def afterwards(options: dict[str, Any], model: Path) -> tuple[dict[str, torch.Tensor], int]:
    """The weights after a run that prepares after generation, and how many weights its passes need."""
    with trainer_of({**options, "preparation": "after"}, model=model) as alone:
        start = weights_of(alone)
        alone.run()
        expected, sent = weights_of(alone), sum(p.numel() for p in alone.model.parameters())
        if "algorithm" in options:
            sent += sum(weight.numel() for weight in alone.state.learner.algorithm.trained.parameters())  # type: ignore[attr-defined]
    assert farthest(start, expected) > 1e-3, "something was learned"
    return expected, sent


def assert_prepared(trace: Trace, step: int, weights: int) -> None:
    """Every response was prepared once, on GPUs that had loaded so many weights and whose actor had given them back."""
    spans = trace.spans[trace.spans["step"] == step]
    rows = trace.rollouts[trace.rollouts["step"] == step]
    prepared = spans[(spans["phase"] == "prepare") & spans["holder"].str.startswith("prepare-") & (spans["call"] != "lost")]
    assert sum(json.loads(detail)["responses"] for detail in prepared["detail"]) == len(rows)
    tokens = int(rows["response_tokens"].sum())
    assert prepared["bytes"].sum() in (4 * tokens, 12 * tokens), "of the reference, or of all three"
    held = trace.allocations[trace.allocations["step"] == step]
    decoded = held[held["role"] == "decode"].set_index("holder")
    own = held[held["role"] == "prepare"]
    assert set(own["holder"]) >= set(prepared["holder"])
    for row in own[own["holder"].str.startswith("prepare-")].to_dict("records"):
        actor = decoded.loc[f"actor-{row['holder'].rsplit('-', 1)[1]}"]
        assert list(row["gpu_ids"]) == list(actor["gpu_ids"])
        assert row["start_s"] >= actor["end_s"] - 1e-9, "no GPU that still decodes"
    loads = spans[(spans["call"] == "load") & spans["holder"].isin(prepared["holder"])]
    assert len(loads) >= 1
    assert set(loads["bytes"]) == {4 * weights}
    learned = spans[spans["phase"] == "learn"]
    assert learned["start_s"].min() >= max(prepared["end_s"].max(), rows["end_s"].max())
    details = [json.loads(detail) for detail in learned["detail"]]
    assert details[-1]["preparing_s"] == pytest.approx((prepared["end_s"] - prepared["start_s"]).sum(), rel=1e-6)


@pytest.mark.full
def test_what_dies_twice_ends_the_step_and_a_resumed_run_has_the_bits_of_preparation_afterwards(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response's preparer dies three times: twice with the step, once when the resumed run repeats it."""
    options = {**FREED, **PPO, "steps": 2, "max_response_tokens": 40}
    expected, sent = afterwards(options, model)
    monkeypatch.setattr(freed_preparation, "prepare_response", partial(die_and_prepare, str(tmp_path / "marks"), 3))
    wall = {**options, "executor": "local"}
    with trainer_of(wall, tmp_path / "run", model=model) as trainer:
        trainer.step()
        before = weights_of(trainer)
        said = r"^work item 2 \(prepare\) was lost 2 times with its process, the last time because prepare-\d .*SIGKILL"
        with pytest.raises(StepFailed, match=said) as failed:
            trainer.step()
        assert "\n" not in str(failed.value)
        assert trainer.next_step == 1
        assert farthest(weights_of(trainer), before) == 0, "nothing is half learned"
    with trainer_of(wall, tmp_path / "run", resume=True) as resumed:
        resumed.step()
        assert farthest(weights_of(resumed), expected) == 0
    trace = read_trace(tmp_path / "run")  # which checks that no GPU is held twice
    for step in range(2):
        assert_prepared(trace, step, sent)
    lost = trace.events[trace.events["name"] == "work lost"]
    assert lost["step"].tolist() == [1]
    assert (tmp_path / "marks").read_text() == "dead\n" * 3


@pytest.mark.nightly
def test_prepared_beside_a_long_tail_weights_are_those_of_preparation_afterwards(tmp_path: Path, model: Path) -> None:
    """In the second step processes are there. Until the tail ends is many times what it takes to load and to prepare."""
    options = {**FREED, **GRPO, "steps": 2}
    expected, sent = afterwards(options, model)
    with trainer_of({**options, "executor": "local"}, tmp_path / "run", model=model) as trainer:
        trainer.run()
        assert farthest(weights_of(trainer), expected) == 0
    trace = read_trace(tmp_path / "run")
    for step in range(2):
        assert_prepared(trace, step, sent)
    prepared = trace.spans[(trace.spans["step"] == 1) & (trace.spans["phase"] == "prepare")]
    assert prepared["start_s"].min() < trace.rollouts["end_s"].max()


@pytest.mark.nightly
def test_with_ray_weights_are_those_of_preparation_afterwards(tmp_path: Path, model: Path) -> None:
    """In micro-batches of several responses, whose numbers differ within rounding."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    options = {**FREED, **PPO, "steps": 2, "max_tokens_per_micro_batch": 16384}
    expected, sent = afterwards(options, model)
    with trainer_of({**options, "executor": "ray"}, tmp_path / "run", model=model) as trainer:
        trainer.run()
        assert farthest(weights_of(trainer), expected) < 1e-5
    trace = read_trace(tmp_path / "run")
    for step in range(2):
        assert_prepared(trace, step, sent)
