"""GRPO and PPO learn in stages what they learn in whole models: numbers, weights, several updates, penalties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import TOKENIZER, noise_batch  # noqa: E402
from pipeline_devices import ThreadGroup  # noqa: E402
from training_samples import config  # noqa: E402

from rlhfless.training.algorithms.batch import Batch  # noqa: E402
from rlhfless.training.algorithms.passes import WholePasses  # noqa: E402
from rlhfless.training.config import TrainError  # noqa: E402
from rlhfless.training.config.pipeline import PipelineOptions  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402
from rlhfless.training.models.tiny_model import tiny_qwen2  # noqa: E402
from rlhfless.training.pipeline.passes import PipelinePasses, pipeline_plan  # noqa: E402

OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"kl_coef": 0.1, "old_logprobs_from": "recomputed", "importance_ratio_cap": 1.2},
    "ppo": {"kl_coef": 0.1, "critic": "model", "critic_learning_rate": 2e-3},
}


class EqualParts(WholePasses):
    """Whole models on the micro-batches of a pipeline."""

    def parts(self, batch: Batch, rows: np.ndarray) -> list[Any]:
        return batch.equal_parts(rows, 4, "cpu")


def learner(name: str) -> LocalLearner:
    model = tiny_qwen2(TOKENIZER, 0, hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64)
    return LocalLearner.make(name, model, learning_rate=1e-3, num_updates=2, **OPTIONS[name])


@pytest.mark.parametrize(("name", "critic_stages"), [("grpo", None), ("ppo", 1)])
def test_in_stages_a_learner_learns_the_same(name: str, critic_stages: int | None) -> None:
    whole, staged = learner(name), learner(name)
    whole.algorithm.passes = EqualParts(whole.algorithm)  # type: ignore[attr-defined]
    passes = PipelinePasses(staged.algorithm, PipelineOptions(2, critic_stages, 4), ThreadGroup())  # type: ignore[arg-type]
    staged.algorithm.passes = passes  # type: ignore[attr-defined]
    for seed, unjudged in ((0, False), (1, True), (2, False)):
        batch = noise_batch(whole.algorithm.trained.policy if name == "ppo" else whole.algorithm.trained, seed=seed)
        if unjudged:
            batch = Batch(batch.prompt_ids, batch.response_ids, [np.nan] * 12, batch.group_of, batch.engine_logprobs)
        ours, theirs = whole.learn(batch), staged.learn(batch)
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - {"seconds", "prepare_seconds"}:
            assert theirs[key] == pytest.approx(ours[key], abs=1e-6, rel=1e-5, nan_ok=True), key
    for p, q in zip(whole.algorithm.trained.parameters(), staged.algorithm.trained.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=0)
    assert len(passes.steps) == 2, "one for each update"
    assert set(passes.steps[0].passes["chain"]) == ({"actor"} if name == "grpo" else {"actor", "critic 0", "critic 1"})
    staged.close()


def test_a_batch_becomes_as_many_micro_batches_of_as_many_rows() -> None:
    batch = noise_batch(tiny_qwen2(TOKENIZER, 0, hidden=32, layers=1, intermediate=64), prompts=3, samples=4)
    parts = batch.equal_parts(np.arange(12), 5, "cpu")
    assert sorted(row for part in parts for row in part.rows) == list(range(12))
    assert {len(part.rows) for part in parts} == {2, 3}
    assert batch.equal_parts(np.arange(0), 5, "cpu") == []
    few = batch.equal_parts(np.arange(2), 5, "cpu")
    assert [bool(part.mask.any()) for part in few].count(True) == 2


def test_plans_are_of_the_options() -> None:
    both = pipeline_plan(PipelineOptions(4, 2, 8), blocks=8, critic_blocks=6)
    assert [(chain.stages, chain.micro_batches, chain.forward[0]) for chain in both.problem.chains] == [(4, 8, 2)] + 2 * [
        (2, 4, 3)
    ]
    slower = pipeline_plan(PipelineOptions(4, 2, 8, "serial"), 8, 6)
    assert both.latency < slower.latency
    one = [pipeline_plan(PipelineOptions(3, None, 6, schedule), 5) for schedule in ("fused", "1f1b")]
    assert one[0].latency == one[0].latency_bound == one[1].latency


LOCAL: dict[str, Any] = {"executor": "local", "pipeline": 4}
PPO: dict[str, Any] = {"algorithm": "ppo", "critic": "model"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pipeline": 2}, ("pipeline", "2", "'virtual'", "'local'")),
        ({**LOCAL, "learning": "stream"}, ("pipeline", "learning", "'stream'", "'batch'")),
        ({**LOCAL, "learner_processes": 2}, ("pipeline", "learner_processes", "2", "1")),
        ({**LOCAL, "learner_dtype": "bfloat16"}, ("learner_dtype", "'bfloat16'", "float32")),
        ({**LOCAL, "pipeline_critic": 2}, ("pipeline_critic", "2", "'grpo'")),
        ({**LOCAL, "algorithm": "ppo"}, ("critic", "'head'", "'model'")),
        ({**LOCAL, **PPO, "pipeline_schedule": "1f1b"}, ("pipeline_schedule", "'1f1b'", "'fused'")),
        ({**LOCAL, **PPO, "pipeline_critic": 3}, ("pipeline_critic", "3", "4")),
        ({**LOCAL, **PPO, "pipeline_critic": 2, "micro_batches": 5}, ("micro_batches", "5", "2")),
        ({"pipeline_schedule": "serial"}, ("pipeline_schedule", "'serial'", "pipeline")),
        ({"micro_batches": 4}, ("micro_batches", "4", "pipeline")),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], named: tuple[str, ...]) -> None:
    with refused(TrainError, *named):
        config(**options)


def test_defaults_fill_what_is_not_given() -> None:
    assert config().pipeline_options() is None
    assert config(**LOCAL).pipeline_options() == PipelineOptions(4, None, 8)
    assert config(**LOCAL, **PPO, micro_batches=12).pipeline_options() == PipelineOptions(4, 4, 12)
