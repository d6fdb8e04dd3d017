"""The learner of one process: optimizers, schedules and precision that do what they say, and checkpoints that go on exactly."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import TOKENIZER, gradient_of, noise_batch, small_model  # noqa: E402

from rlhfless.gone_options import GONE_OPTIONS, INSTEAD  # noqa: E402
from rlhfless.training.checkpoint import folder_of, load_checkpoint, save_checkpoint  # noqa: E402
from rlhfless.training.config import TrainError  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402
from rlhfless.training.logprobs import response_logprobs  # noqa: E402
from rlhfless.training.models.tiny_model import tiny_qwen2  # noqa: E402


def learner(name: str = "grpo", seed: int = 0, **options: Any) -> LocalLearner:
    return LocalLearner.make(name, small_model(seed), **{"learning_rate": 1e-3, **options})


def same_state(ours: LocalLearner, theirs: LocalLearner) -> bool:
    """Whether weights and the optimizer's state are the same, bit for bit."""
    pairs = list(zip(ours.algorithm.trained.parameters(), theirs.algorithm.trained.parameters(), strict=True))
    states = [(ours.algorithm.optimizer.state[p], theirs.algorithm.optimizer.state[q]) for p, q in pairs]
    return all(torch.equal(p, q) for p, q in pairs) and all(
        a.keys() == b.keys() and all(torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name])) for name in a)
        for a, b in states
    )


# --- optimizers, schedules, precision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "rate"), [("adamw", 3e-3), ("sgd", 0.3), ("adafactor", 3e-2)])
def test_every_optimizer_raises_what_was_rewarded(optimizer: str, rate: float) -> None:
    one = learner(optimizer=optimizer, learning_rate=rate, num_updates=3)
    batch = noise_batch(small_model(), off=0.0)
    before = response_logprobs(one.algorithm.trained, batch.prompt_ids, batch.response_ids)
    one.learn(batch)
    after = response_logprobs(one.algorithm.trained, batch.prompt_ids, batch.response_ids)
    gain = np.array([(a - b).mean() for a, b in zip(after, before, strict=True)])
    assert np.corrcoef(gain, batch.rewards)[0, 1] > 0.3


def test_weight_decay_pulls_every_weight_to_zero() -> None:
    """One step of gradient descent with and without it differs by rate x decay x weight."""
    kept, decayed = (learner(optimizer="sgd", learning_rate=0.1, weight_decay=decay) for decay in (0.0, 0.5))
    for one in (kept, decayed):
        one.learn(noise_batch(small_model()))
    for p, q, before in zip(
        *(one.algorithm.trained.parameters() for one in (kept, decayed)), small_model().parameters(), strict=True
    ):
        torch.testing.assert_close(p - q, 0.05 * before, atol=1e-6, rtol=1e-4)


def test_rates_follow_the_schedule_and_stay_after_its_end() -> None:
    batch = noise_batch(small_model())

    def rates(**options: Any) -> list[float]:
        one = learner(learning_rate=1.0e-3, **options)
        return [one.learn(batch)["learning_rate"] * 1e3 for _ in range(6)]

    assert rates() == [1] * 6
    assert rates(warmup_steps=2) == pytest.approx([0, 0.5, 1, 1, 1, 1])
    assert rates(lr_scheduler_type="linear", lr_scheduler_steps=4) == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0])
    cosine = rates(lr_scheduler_type="cosine", lr_scheduler_steps=4, warmup_steps=1)
    assert cosine == pytest.approx([0, 1, 0.75, 0.25, 0, 0], abs=1e-9)


def test_a_step_at_rate_zero_changes_nothing() -> None:
    one = learner(warmup_steps=2)
    one.learn(noise_batch(small_model()))
    assert all(torch.equal(p, q) for p, q in zip(one.algorithm.trained.parameters(), small_model().parameters(), strict=True))


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_bfloat16_keeps_weights_and_state_in_float32_and_gives_nearly_the_same_gradient(name: str) -> None:
    """Cosine of the gradients' angle above 0.99; that numbers differ at all shows that bfloat16 was used."""
    gradients = []
    for dtype in ("float32", "bfloat16"):
        one = learner(name, learner_dtype=dtype, kl_coef=0.1, max_grad_norm=1e9)
        numbers = one.learn(noise_batch(small_model(), off=0.0))
        gradients.append(gradient_of(one.algorithm.trained))
        assert {p.dtype for p in one.algorithm.trained.parameters()} == {torch.float32}
        moments = [v for state in one.algorithm.optimizer.state.values() for v in state.values()]
        assert {value.dtype for value in moments} == {torch.float32}
        assert (numbers["mismatch_max"] < 1e-4) == (dtype == "float32"), "what it costs is measured"
    exact, rough = gradients
    assert not torch.equal(exact, rough)
    assert float(torch.nn.functional.cosine_similarity(exact, rough, dim=0)) > 0.99


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lion"}, ("'lion'",)),
        ({"weight_decay": -1.0}, ("weight_decay", "-1.0")),
        ({"lr_scheduler_type": "step"}, ("'step'",)),
        ({"lr_scheduler_type": "linear"}, ("'linear'", "lr_scheduler_steps")),
        ({"lr_scheduler_type": "cosine", "lr_scheduler_steps": 3, "warmup_steps": 3}, ("lr_scheduler_steps is 3",)),
        ({"warmup_steps": -1}, ("warmup_steps",)),
        ({"learner_dtype": "float16"}, ("'float16'", "32", "16")),
        ({"max_grad_norm": 0.0}, ("max_grad_norm", "0.0")),
        ({"max_tokens_per_micro_batch": 0}, ("max_tokens_per_micro_batch",)),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: tuple[str, ...]) -> None:
    with refused(ValueError, *message):
        learner(**options)


# --- checkpoints ------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"num_updates": 2, "lr_scheduler_type": "cosine", "warmup_steps": 1, "lr_scheduler_steps": 5}),
    "adafactor": ("grpo", {"optimizer": "adafactor"}),
    "sgd": ("grpo", {"optimizer": "sgd", "learner_dtype": "bfloat16"}),
    "head": ("ppo", {"critic_learning_rate": 1e-2, "kl_coef": 0.1}),
    "model": ("ppo", {"critic": "model", "lr_scheduler_type": "linear", "lr_scheduler_steps": 5, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_that_was_read_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    name, options = KINDS[kind]
    batches = [noise_batch(small_model(), seed=seed) for seed in range(4)]
    whole, again = learner(name, **options), learner(name, **options)
    for batch in batches[:2]:
        whole.learn(batch)
    save_checkpoint(tmp_path, 2, whole)
    again.learn(batches[3])  # whatever it knew is forgotten
    load_checkpoint(tmp_path, 2, again)
    assert same_state(whole, again)
    for batch in batches[2:]:
        ours, theirs = ({**each.learn(batch), "seconds": 0, "prepare_seconds": 0} for each in (whole, again))
        assert ours == theirs
    assert same_state(whole, again)


def test_a_checkpoint_is_read_without_a_gone_option_that_was_off_and_refused_with_one_that_was_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GONE_OPTIONS, "block_attention", (False,))
    monkeypatch.setitem(INSTEAD, "block_attention", "the torch engine has one attention")
    one, again = learner(num_updates=2), learner(seed=1, num_updates=2)
    save_checkpoint(tmp_path, 1, one)
    path = folder_of(tmp_path, 1) / "state.json"
    state = json.loads(path.read_text())
    state["configuration"]["block_attention"] = False
    path.write_text(json.dumps(state))
    load_checkpoint(tmp_path, 1, again)
    assert same_state(one, again)
    state["configuration"]["block_attention"] = True
    path.write_text(json.dumps(state))
    with refused(TrainError, "state.json", "block_attention", "True"):
        load_checkpoint(tmp_path, 1, again)


def test_a_checkpoint_of_a_newer_version_is_refused_and_one_without_a_version_is_read(tmp_path: Path) -> None:
    """RLHFless 0.1.0 wrote none."""
    one, again = learner(), learner(seed=1)
    save_checkpoint(tmp_path, 1, one)
    path = folder_of(tmp_path, 1) / "state.json"
    state = json.loads(path.read_text())
    assert (state.pop("schema"), state.pop("version")) == ("rlhfless-checkpoint", 1)
    path.write_text(json.dumps(state))
    load_checkpoint(tmp_path, 1, again)
    assert same_state(one, again)
    path.write_text(json.dumps({**state, "version": 2}))
    with refused(TrainError, "-000001", "version 2", "reads version 1", "pip install --upgrade rlhfless"):
        load_checkpoint(tmp_path, 1, again)


def test_a_checkpoint_of_another_configuration_says_what_differs(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, learner())
    with refused(TrainError, "-000001", "learning_rate", "0.001", "0.5"):
        load_checkpoint(tmp_path, 1, learner(learning_rate=0.5, num_updates=3))
    with refused(TrainError, "'grpo'", "'ppo'"):
        load_checkpoint(tmp_path, 1, learner("ppo"))
    larger = LocalLearner.make("grpo", tiny_qwen2(TOKENIZER, hidden=64, layers=3, heads=2, kv_heads=1), learning_rate=1e-3)
    before = [p.clone() for p in larger.algorithm.trained.parameters()]
    vocabulary = TOKENIZER.vocab_size
    with refused(TrainError, f"embed_tokens.weight ({vocabulary}, 32), not ({vocabulary}, 64)"):
        load_checkpoint(tmp_path, 1, larger)
    assert all(torch.equal(p, q) for p, q in zip(before, larger.algorithm.trained.parameters(), strict=True))
    with refused(TrainError):
        load_checkpoint(tmp_path, 7, learner())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda state: {}, "'configuration'"),
        (lambda state: [], "'list' object"),
        (lambda state: {**state, "configuration": None}, "'NoneType' object is not a mapping"),
        (lambda state: {**state, "groups": []}, "zip() argument 2 is shorter than argument 1"),
        (lambda state: {**state, "groups": [5]}, "'int' object has no attribute 'items'"),
        (lambda state: {**state, "schedule": None}, "'NoneType' object"),
    ],
)
def test_a_state_that_no_learner_wrote_is_refused_in_a_sentence(tmp_path: Path, changed: Any, why: str) -> None:
    save_checkpoint(tmp_path, 1, learner())
    path = folder_of(tmp_path, 1) / "state.json"
    path.write_text(json.dumps(changed(json.loads(path.read_text()))))
    with refused(TrainError, "state.json", str(why)):
        load_checkpoint(tmp_path, 1, learner())


@pytest.mark.parametrize("name", ["another.weight/exp_avg", "lm_head.weight"])
def test_moments_of_weights_that_the_model_has_not_are_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    from safetensors.torch import save_file

    save_checkpoint(tmp_path, 1, learner())
    save_file({name: torch.zeros(2)}, folder_of(tmp_path, 1) / "optimizer.safetensors")
    with refused(TrainError, "optimizer.safetensors"):
        load_checkpoint(tmp_path, 1, learner())


def test_the_files_are_whole_tensors_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    one = learner("ppo")
    one.learn(noise_batch(small_model()))
    save_checkpoint(tmp_path, 3, one)
    weights = load_file(folder_of(tmp_path, 3) / "model.safetensors")
    moments = load_file(folder_of(tmp_path, 3) / "optimizer.safetensors")
    assert {"policy.model.embed_tokens.weight", "critic.head.weight"} <= set(weights)
    for name, value in weights.items():
        assert moments[f"{name}/exp_avg"].shape == moments[f"{name}/exp_avg_sq"].shape == value.shape
    state = json.loads((folder_of(tmp_path, 3) / "state.json").read_text())
    assert state["configuration"] == {
        "algorithm": "ppo", "lr_scheduler_type": "constant", "warmup_steps": 0, "lr_scheduler_steps": None,
        "learning_rate": 0.001,
    }  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not say which files are open")
def test_a_checkpoint_takes_its_place_when_the_disk_has_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, Path.rename

    def told_sync(descriptor: int) -> None:
        sync(descriptor)
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path).as_posix())

    def told_rename(path: Path, target: Path) -> Path:
        done.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", told_sync)
    monkeypatch.setattr(Path, "rename", told_rename)
    save_checkpoint(tmp_path / "kept", 2, learner())
    *before, folder, renamed, root = done
    files = {f"kept/.after-000002.tmp/{path.name}" for path in folder_of(tmp_path / "kept", 2).iterdir()}
    assert len(files) == 3
    assert set(before) == files
    assert [folder, renamed, root] == ["kept/.after-000002.tmp", "renamed", "kept"]
