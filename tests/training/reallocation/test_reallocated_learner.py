"""A learner whose passes before the update run in copies of tensor-parallel parts learns what the usual one learns.

Tolerances are those of ``test_learner_processes.py``: sums are taken in another order.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import TOKENIZER, noise_batch  # noqa: E402
from training_samples import config  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.trace import read_trace  # noqa: E402
from rlhfless.trace.metrics.phase_costs import step_costs  # noqa: E402
from rlhfless.training.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from rlhfless.training.config import LearnerError, TrainError  # noqa: E402
from rlhfless.training.learner.process_group import LearnerProcesses, make_learner  # noqa: E402
from rlhfless.training.loop import train  # noqa: E402
from rlhfless.training.models.tiny_model import tiny_qwen2  # noqa: E402

OPTIONS: dict[str, Any] = {
    "learning_rate": 1e-3, "num_updates": 2, "max_tokens_per_micro_batch": 64, "old_logprobs_from": "recomputed",
    "kl_coef": 0.1,
}  # fmt: skip


def two_heads(seed: int = 0) -> Any:
    """A small model whose attention can be cut in two."""
    return tiny_qwen2(TOKENIZER, seed, hidden=32, layers=2, heads=4, kv_heads=2, intermediate=50)


@pytest.fixture(scope="module")
def ppo() -> Iterator[dict[str, Any]]:
    """PPO with a critic of its own in this process, and in four with dp 2 x tp 2 for reference, old ones and values."""
    models = {"one": two_heads(), "four": two_heads()}
    options = {**OPTIONS, "critic": "model"}
    one = make_learner("ppo", models["one"], **options)
    four = make_learner("ppo", models["four"], processes=4, preparation_tp=2, **options)
    yield {"models": models, "one": one, "four": four}
    four.close()


def learn_the_same(ppo: dict[str, Any], seed: int) -> dict[str, float]:
    batch = noise_batch(two_heads(), seed=seed)
    ours, theirs = ppo["one"].learn(batch), ppo["four"].learn(batch)
    for name in ours.keys() - {"seconds", "prepare_seconds"}:
        assert theirs[name] == pytest.approx(ours[name], abs=1e-5, rel=1e-4, nan_ok=True), name
    for p, q in zip(ppo["models"]["one"].parameters(), ppo["models"]["four"].parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=0)
    return dict(theirs)


@pytest.mark.nightly
def test_four_processes_learn_what_one_learns_and_a_kill_in_a_move_loses_nothing(ppo: dict[str, Any], tmp_path: Path) -> None:
    """One process is stopped, so that others wait in the move, and killed: one sentence, and the checkpoint goes on."""
    four = ppo["four"]
    assert isinstance(four, LearnerProcesses)
    numbers = [learn_the_same(ppo, seed) for seed in range(2)]
    assert numbers[0]["reallocated_bytes"] == numbers[1]["reallocated_bytes"] > 0
    assert 0 < numbers[0]["reallocate_seconds"] <= numbers[0]["prepare_seconds"]
    save_checkpoint(tmp_path, 2, four)
    before = [p.detach().clone() for p in ppo["models"]["four"].parameters()]
    victim = four.pids[1]
    os.kill(victim, signal.SIGSTOP)
    threading.Timer(2.0, os.kill, (victim, signal.SIGKILL)).start()
    with refused(LearnerError, "process 1", "SIGKILL", "'learn'", "resume"):
        four.learn(noise_batch(two_heads()))
    assert all(torch.equal(p, q) for p, q in zip(before, ppo["models"]["four"].parameters(), strict=True))
    load_checkpoint(tmp_path, 2, four)
    learn_the_same(ppo, 2)


@pytest.mark.full
def test_grpo_learns_the_same_weights_and_its_trace_has_the_transfers(model: Path, tmp_path: Path) -> None:
    """Two steps of a run with the reference in two parts; without a reallocated pass the responses are the same."""
    options = {"steps": 2, "kl_coef": 0.1, "learner_processes": 2}
    train(config(**options), tmp_path / "usual", model=model)
    train(config(**options, preparation_tp=2), tmp_path / "moved", model=model)
    usual, moved = (read_trace(tmp_path / name) for name in ("usual", "moved"))
    assert moved.rollouts["response"].tolist() == usual.rollouts["response"].tolist()
    weights = [_weights(tmp_path / name) for name in ("usual", "moved")]
    assert max(float((weights[0][name] - value).abs().max()) for name, value in weights[1].items()) < 1e-4
    assert not (usual.spans["call"] == "reallocate").any()
    spans = moved.spans[moved.spans["call"] == "reallocate"]
    assert spans["step"].tolist() == [0, 1]
    assert (spans["phase"] == "transfer").all()
    assert spans["bytes"].nunique() == 1
    assert (spans["bytes"] > 0).all()
    assert all(json.loads(detail)["seconds"] > 0 for detail in spans["detail"])
    for name in ("elastic_gpu_s", "time_s"):  # it is part of preparation, not a phase of its own
        phases = [step_costs(trace).groupby("phase")[name].sum() for trace in (usual, moved)]
        assert phases[1].to_dict() == pytest.approx(phases[0].to_dict())


def _weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model" / "model.safetensors")


def test_parts_that_do_not_fit_are_refused_before_a_process_starts() -> None:
    model = two_heads()
    with refused(InputError, "preparation_tp is 4", "2 key-value heads", "'qwen2'"):
        make_learner("ppo", model, processes=4, preparation_tp=4, **OPTIONS)
    with refused(InputError, "preparation_tp is 3", "processes 4"):
        make_learner("ppo", model, processes=4, preparation_tp=3, **OPTIONS)
    model._tp_plan = {}
    with refused(InputError, "preparation_tp is 2", "'qwen2'", "no tensor-parallel plan"):
        make_learner("ppo", model, processes=2, preparation_tp=2, **OPTIONS)


def test_options_that_do_not_fit_are_refused() -> None:
    with refused(TrainError, "preparation_tp is 2", "1 learner process"):
        config(preparation_tp=2, kl_coef=0.1)
    with refused(TrainError, "preparation_tp is 2", "3 learner processes"):
        config(preparation_tp=2, kl_coef=0.1, learner_processes=3)
    with refused(TrainError, "preparation_tp is 2", "kl_coef 0"):
        config(preparation_tp=2, learner_processes=2)
    with refused(TrainError, "preparation_tp is 2", "'stream'"):
        config(preparation_tp=2, learner_processes=2, kl_coef=0.1, learning="stream")
    assert config(preparation_tp=1, learner_processes=2, kl_coef=0.1).cluster.preparation_tp == 1
