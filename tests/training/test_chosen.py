"""What a run chooses where its options leave it open, and that it says so once, and goes on with it."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from error_messages import refused

torch = pytest.importorskip("torch")

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.latency import ProfileError  # noqa: E402
from rlhfless.latency.profile import nearest_profile  # noqa: E402
from rlhfless.trace import read_trace  # noqa: E402
from rlhfless.training import TrainConfig, Trainer, chosen  # noqa: E402
from rlhfless.training.chosen import choose  # noqa: E402
from rlhfless.training.config import TrainError, read_config  # noqa: E402
from rlhfless.training.loop import train  # noqa: E402
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2  # noqa: E402

GIB = 2**30
ROWS = [{"prompt": f"{a}+{a}="} for a in range(4)]
QUICK: dict[str, Any] = {"samples_per_prompt": 2, "max_response_tokens": 8, "steps": 1}


def length(completions: list[str]) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two H100 as far as a choice looks at it."""
    devices = ["cuda:0", "cuda:1"]
    monkeypatch.setattr(chosen, "cuda_devices", lambda: devices)
    monkeypatch.setattr(chosen, "learner_device", lambda config, pool: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H100 80GB HBM3")
    memory = SimpleNamespace(total_memory=80 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "cuda_devices", lambda: [])
    monkeypatch.setattr(chosen, "learner_device", lambda config, pool: torch.device("cpu"))


@pytest.mark.usefixtures("no_gpus")
def test_without_a_gpu_gpus_are_emulated_and_the_learner_is_in_float32(untrained: Path) -> None:
    config, device, words = choose(TrainConfig(), untrained, None)
    assert (config.cluster.executor, config.cluster.gpus, config.cluster.profile) == ("virtual", 8, "cpu-tiny-qwen2")
    assert (config.optimizer.learner_dtype, config.algorithm.old_logprobs_from, device.type) == ("float32", "engine", "cpu")
    told = ", ".join(words)
    assert all(
        word in told
        for word in (
            "virtual clock",
            "gpus 8",
            "cpu-tiny-qwen2",
            "measured with 497,408 weights",
            "learner_dtype float32",
            "generation_dtype float32",
            "old_logprobs_from engine",
        )
    ), told


@pytest.mark.usefixtures("two_gpus")
def test_gpus_of_this_machine_are_taken_and_the_learner_computes_in_bfloat16(untrained: Path) -> None:
    config, _, words = choose(TrainConfig(), untrained, None)
    assert (config.cluster.executor, config.cluster.gpus) == ("local", 2)
    assert config.optimizer.learner_dtype == "bfloat16"
    assert config.cluster.memory_gib == pytest.approx(64, abs=0.1), "less what a learner on the same GPU takes"
    assert (config.algorithm.old_logprobs_from, config.algorithm.importance_ratio_cap) == ("recomputed", 2.0)
    assert "importance sampling" in ", ".join(words)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "options", [{"gpus": 4}, {"preparation": "released"}, {"charging": "measured"}, {"executor": "virtual"}]
)
def test_the_virtual_clock_is_taken_where_options_ask_for_it(options: dict[str, Any], untrained: Path) -> None:
    assert choose(TrainConfig(**options), untrained, None).config.cluster.executor == "virtual"


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize(
    ("options", "corrects"),
    [
        ({}, False), ({"engine": "vllm"}, True), ({"generation_dtype": "bfloat16"}, True),
        ({"learner_dtype": "bfloat16"}, True), ({"engine": "vllm", "num_mini_batches": 2}, True),
        ({"engine": "vllm", "num_mini_batches": 2, "learning": "stream"}, False),
        ({"engine": "vllm", "old_logprobs_from": "engine"}, False), ({"importance_ratio_cap": 3.0}, True),
    ],
)  # fmt: skip
def test_importance_sampling_is_on_where_engine_and_learner_differ(
    options: dict[str, Any], corrects: bool, untrained: Path
) -> None:
    algorithm = choose(TrainConfig(**options), untrained, None).config.algorithm
    assert algorithm.old_logprobs_from == ("recomputed" if corrects else "engine")
    assert algorithm.importance_ratio_cap == (options.get("importance_ratio_cap", 2.0) if corrects else None)


@pytest.mark.usefixtures("no_gpus")
def test_several_mini_batches_without_importance_sampling_are_warned_of(untrained: Path) -> None:
    with pytest.warns(UserWarning, match=r"num_mini_batches 2.*importance sampling"):
        words = choose(TrainConfig(engine="vllm", num_mini_batches=2, learning="stream"), untrained, None).words
    assert "num_mini_batches is 2" in ", ".join(words)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose(TrainConfig(num_mini_batches=2, learning="stream"), untrained, None)
        choose(TrainConfig(engine="vllm", num_mini_batches=2), untrained, None)
        choose(TrainConfig(engine="vllm", num_mini_batches=2, learning="stream", old_logprobs_from="engine"), untrained, None)


@pytest.mark.usefixtures("no_gpus")
def test_a_run_elsewhere_needs_the_number_of_its_gpus(untrained: Path) -> None:
    with refused(TrainError, "cluster.gpus", "ray_address"):
        choose(TrainConfig(executor="ray", ray_address="auto"), untrained, None)


def test_what_is_given_is_left_as_it_is(untrained: Path) -> None:
    config, _, words = choose(TrainConfig(preset="demo"), untrained, None)
    assert config == TrainConfig(preset="demo")
    assert words == ()


def test_the_nearest_profile_is_of_the_nearest_model() -> None:
    assert nearest_profile(5e5, [1, 2, 4]) == "cpu-tiny-qwen2"
    assert nearest_profile(1.5e9, [1, 2, 4]) == "h100-qwen2.5-3b-tp1"
    assert nearest_profile(3e9, [2, 4], "l40s") == "l40s-qwen2.5-3b-tp2"
    assert nearest_profile(7e10, [1, 2]) == "h100-llama2-70b-tp2"
    with refused(ProfileError, "3 GPUs"):
        nearest_profile(1e9, [3])


def test_defaults_are_of_a_real_run_and_the_demonstration_has_its_own() -> None:
    usual, demo = TrainConfig(), TrainConfig(preset="demo")
    assert (usual.optimizer.learning_rate, usual.save_every) == (1e-6, 50)
    assert (demo.optimizer.learning_rate, demo.save_every, demo.cluster.gpus) == (6e-5, 1, 16)
    assert demo.cluster.profile == "cpu-tiny-qwen2"
    assert TrainConfig(preset="demo", rollout={"temperature": 0.5}).rollout.samples_per_prompt == 8
    assert read_config(None, ["preset=demo", "learning_rate=1e-3"]).optimizer.learning_rate == 1e-3
    with refused(TrainError, "preset", "'toy'", "demo"):
        TrainConfig(preset="toy")


def test_what_was_chosen_is_printed_once(untrained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    given = {"model": untrained, "rewards": length, "dataset": ROWS, **QUICK}
    monkeypatch.setattr("rlhfless.training.first_line.vllm_is_installed", lambda: True)
    with Trainer(**given, device="cpu", executor="virtual") as trainer:
        trainer.step()
    told = capsys.readouterr().err
    for words in ("8 emulated GPUs", "gpus 8", "profile cpu-tiny-qwen2", "learning rate 1e-06", "4 prompts", "engine='vllm'"):
        assert words in told
    assert told.count("chosen") == 1
    with Trainer(**given, preset="demo", prompts=4, prompts_per_step=4, device="cpu"):
        assert "chosen" not in capsys.readouterr().err


def test_a_resumed_run_goes_on_with_what_was_chosen(tmp_path: Path, untrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where this machine would choose otherwise now."""
    given = {"rewards": length, "dataset": ROWS, "progress": False, "device": "cpu"}
    with Trainer(folder=tmp_path / "run", model=untrained, **given, **QUICK) as trainer:
        trainer.train()
        first = trainer.config
        choices = trainer.choices
    assert choices
    monkeypatch.setattr(chosen, "EMULATED_GPUS", 4)
    with Trainer(folder=tmp_path / "run", resume=True, steps=2, **given) as trainer:
        assert trainer.config == first.replace(steps=2)
        assert trainer.choices == choices
        trainer.train()
    assert tuple(read_trace(tmp_path / "run").meta["choices"]) == choices


def test_what_was_chosen_can_be_read_where_it_is_not_printed(
    tmp_path: Path, untrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"model": untrained, "rewards": length, "dataset": ROWS, "device": "cpu", "executor": "virtual", **QUICK}
    with Trainer(folder=tmp_path / "run", progress=False, **given) as trainer:
        assert "train: " not in capsys.readouterr().err
        assert any(choice.startswith("save_every 50") for choice in trainer.choices)
        assert any(choice.startswith("gpus 8") for choice in trainer.choices)
        trace = trainer.train()
        assert trace is not None
        assert trace.meta["choices"] == list(trainer.choices)
    with Trainer(folder=tmp_path / "printed", **given) as trainer:
        told = capsys.readouterr().err
        assert all(choice in told for choice in trainer.choices)
    with Trainer(folder=tmp_path / "given", progress=False, save_every=7, **given) as trainer:
        assert not any("save_every" in choice for choice in trainer.choices)
    with Trainer(progress=False, **given) as trainer:
        assert not any("save_every" in choice for choice in trainer.choices), "a run without a folder has no checkpoints"


def test_the_reward_is_among_what_was_chosen_where_none_is_given(
    tmp_path: Path, untrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As everything else that decides what is learned."""
    rows = [{**row, "answer": "2"} for row in ROWS]
    given = {"model": untrained, "dataset": rows, "device": "cpu", **QUICK}
    with Trainer(folder=tmp_path / "run", **given) as trainer:
        trainer.train()
        (choice,) = (choice for choice in trainer.choices if choice.startswith("rewards task"))
    assert choice in capsys.readouterr().err
    assert choice in read_trace(tmp_path / "run").meta["choices"]
    with Trainer(folder=tmp_path / "run", resume=True, progress=False, **{**given, "steps": 2}) as trainer:
        assert choice in trainer.choices
    with Trainer(preset="demo", progress=False, prompts=4, prompts_per_step=4, **given) as trainer:
        assert trainer.choices == (choice,), "the preset's options are given, and these rows have no rule of their own"
    for rewards in (length, "task", ["exact"]):
        with Trainer(rewards=rewards, progress=False, **given) as trainer:
            assert not any("rewards" in choice for choice in trainer.choices)
    with Trainer(model=untrained, task="arithmetic", progress=False, **QUICK) as trainer:
        assert not any("rewards" in choice for choice in trainer.choices), "the demonstration has its own rule"


def test_a_run_that_stored_fewer_options_goes_on_with_the_defaults_of_its_time(tmp_path: Path) -> None:
    tokenizer = CharTokenizer()
    save_model(tiny_qwen2(tokenizer, hidden=32, layers=1, intermediate=64), tokenizer, tmp_path / "model")
    stored = TrainConfig(preset="demo", **{**QUICK, "prompts": 4, "prompts_per_step": 4}).to_dict()
    for section, name in (("optimizer", "learner_dtype"), ("algorithm", "old_logprobs_from"), ("cluster", "executor")):
        del stored[section][name]
    resumed = TrainConfig(steps=9).resuming(stored)
    resumed.check_resume(stored)
    assert resumed == TrainConfig(preset="demo", **{**QUICK, "prompts": 4, "prompts_per_step": 4, "steps": 9})


def test_a_checkpoint_is_written_every_50_steps_and_at_the_end(tmp_path: Path, untrained: Path) -> None:
    config = TrainConfig(
        **{
            **QUICK,
            "task": "arithmetic",
            "steps": 2,
            "prompts": 4,
            "prompts_per_step": 4,
            "device": "cpu",
            "save_total_limit": 5,
        }
    )
    train(config, tmp_path / "run", model=untrained)
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert [name[-1] for name in saved] == ["0", "2"]
