"""Steps on the wall clock whose learner grows onto GPUs that actors gave back: real processes, and the bits of one learner."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import refused
from training_samples import RaggedTrainer, config, farthest

from rlhfless.engine.torch.pretrained import load_model
from rlhfless.trace import Trace, read_trace
from rlhfless.training.algorithms.grpo import Grpo
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.learner.replica import Joined
from rlhfless.training.loop import Trainer

GROWN: dict[str, Any] = {
    "learning": "stream", "learner_grows": True, "gpus": 2, "gpus_per_node": 2, "policy": "random", "max_response_tokens": 100,
    "kl_coef": 0.05, "optimizer": "sgd", "learning_rate": 0.5, "idle_timeout_s": 600.0, "prompts_per_step": 12, "prompts": 24,
    "samples_per_prompt": 4,
}  # fmt: skip


def variety(completions: list[str], **_: Any) -> list[float]:
    """The share of characters that differ."""
    return [len(set(text)) / max(1, len(text)) for text in completions]


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.state.learner.algorithm.trained.state_dict().items()}  # type: ignore[attr-defined]


def assert_shared(trace: Trace, step: int, steps_responses: int) -> set[str]:
    """Every response was learned from once, by holders that had their GPUs; returns the holders that learned."""
    learned = trace.spans[(trace.spans["phase"] == "learn") & (trace.spans["step"] == step)]
    done = learned[learned["call"] != "lost"]  # a lost item may have a span, which has no responses
    assert sum(json.loads(detail).get("responses", 0) for detail in done["detail"]) == steps_responses
    assert learned["call"].tolist().count("optimizer") == 1
    held = trace.allocations[trace.allocations["step"] == step]
    decoded = held[held["role"] == "decode"].set_index("holder")
    for holder in {h for h in learned["holder"] if "freed" in h}:
        (row,) = held[held["holder"] == holder].to_dict("records")[:1]
        actor = decoded.loc[f"actor-{holder.rsplit('-', 1)[1]}"]
        assert list(row["gpu_ids"]) == list(actor["gpu_ids"])
        assert row["start_s"] >= actor["end_s"] - 1e-9, "no GPU that still decodes"
        loads = trace.spans[(trace.spans["step"] == step) & (trace.spans["holder"] == holder) & (trace.spans["call"] == "load")]
        assert len(loads) >= 1
        assert loads["start_s"].iloc[0] >= row["start_s"] - 1e-9
    return set(learned["holder"])


class Patient(RaggedTrainer):
    """Its own learner waits with each step's second group until a replica has learned from one. It may kill one before.

    So the order of things does not depend on how busy the machine is.
    """

    kills = False

    def patience(self, piece: Any) -> Any:
        calls: list[int] = []

        def waits(joined: Joined, *given: Any) -> Any:
            if joined.here is None:
                return piece(joined, *given)
            calls.append(self.next_step)
            if calls.count(self.next_step) == 2:
                self._wait()
            return piece(joined, *given)

        return waits

    def _wait(self) -> None:
        ends_s = time.monotonic() + 600
        while time.monotonic() < ends_s:
            replicas = [s for s in self.actor_pool._step.work.servers if not s.here]  # type: ignore[union-attr]
            kills = self.kills and self.next_step == 1
            if kills and (there := [s for s in replicas if s.up and s.remote is not None]):
                self.kills = False
                os.kill(process_of(there[0]), signal.SIGKILL)
            elif not kills and any(s.done for s in replicas):
                return
            time.sleep(0.01)
        raise AssertionError("no replica has learned from a group")


def process_of(server: Any) -> int:
    """The process of a server."""
    remote = server.remote
    return int(remote._process.pid if hasattr(remote, "_process") else remote._member.up.pid)


def trained(given: TrainConfig, folder: Path | None, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """The weights after a run whose learner waits for a replica."""
    with Patient(given, folder, rewards=variety, progress=False, **options) as trainer, monkeypatch.context() as patched:
        trainer.kills = given.steps == 2
        patched.setattr(Joined, "piece", trainer.patience(Joined.piece))
        trainer.run()
        assert trainer.next_step == given.steps
        return weights_of(trainer)


@pytest.mark.full
def test_a_grown_learner_has_the_bits_of_one_that_learns_alone(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canonical order is beside the virtual clock's. A replica is killed in the second step. The run is resumed after it,
    and the third step's learner is the plan's choice."""
    canonical = {**GROWN, "stream_order": "canonical"}
    with RaggedTrainer(config(**canonical, steps=3), model=model, rewards=variety, progress=False) as alone:
        start = weights_of(alone)
        alone.run()
        expected = weights_of(alone)
    assert farthest(start, expected) > 1e-3, "something was learned"
    trained(config(**canonical, steps=2, executor="local"), tmp_path / "run", monkeypatch, model=model)
    chosen = {**canonical, "learner_gpus": "auto", "learner_grows": False, "steps": 3, "executor": "local"}
    with RaggedTrainer(config(**chosen), tmp_path / "run", rewards=variety, resume=True, progress=False) as resumed:
        step = resumed.step()
        assert farthest(weights_of(resumed), expected) == 0
    trace = read_trace(tmp_path / "run")  # which checks that no GPU is held twice
    for number in (0, 1):
        holders = assert_shared(trace, number, 48)
        assert {"learner", "learner-0"} < holders, holders
    assert set(trace.events[trace.events["name"] == "work lost"]["step"]) == {1}
    (said,) = [json.loads(event["detail"]) for event in step.record.events if event["name"] == "learner"]
    assert said["gpus"] >= 1, "the trainer's learner has GPUs of its own"
    assert {said["learning"]} <= {"batch", "stream"}


@pytest.mark.nightly
def test_with_ray_a_grown_learner_has_the_weights_of_a_batch(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By completion, with PPO, whose whitening and values need the whole batch, in two mini-batches."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    options = {
        **GROWN,
        "algorithm": "ppo",
        "critic": "model",
        "num_mini_batches": 2,
        "learning_rate": 0.05,
    }
    batch = {**options, "learning": "batch", "learner_grows": False}
    with RaggedTrainer(config(**batch, steps=1), model=model, rewards=variety, progress=False) as alone:
        start = weights_of(alone)
        alone.run()
        expected = weights_of(alone)
    learned = trained(config(**options, steps=1, executor="ray"), tmp_path / "run", monkeypatch, model=model)
    assert farthest(start, expected) > 1e-3, "something was learned"
    assert farthest(learned, expected) < 1e-5
    held = read_trace(tmp_path / "run").allocations
    assert any(holder.startswith("learner-freed") for holder in held["holder"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learner_processes": 2}, ("learner_grows", "2 learner_processes", "FSDP2")),
        ({"learner_processes": 2, "learner_grows": False, "learner_gpus": "auto"}, ("learner_gpus", "'auto'", "FSDP2")),
    ],
)
def test_a_learner_that_others_cannot_join_is_refused(changes: dict[str, Any], said: tuple[str, ...], model: Path) -> None:
    with refused(TrainError, *said):
        Trainer(config(**{**GROWN, "executor": "local", **changes}), model=model, progress=False)


def test_an_algorithm_object_cannot_be_joined(model: Path) -> None:
    weights, tokenizer = load_model(model)
    algorithm = Grpo(weights, torch.optim.SGD(weights.parameters(), lr=0.1))
    with refused(TrainError, "learner_grows", "algorithm object"):
        Trainer(config(**GROWN, executor="local"), model=(weights, tokenizer), algorithm=algorithm, progress=False)


def test_actors_of_vllm_give_no_gpus_back() -> None:
    with refused(TrainError, "learner_grows", "'vllm'", "'torch'"):
        config(**GROWN, executor="local", engine="vllm")
