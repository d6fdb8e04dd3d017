"""Where models are: on the device that is asked for, told in the trace, and refused where there is none."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from error_messages import refused, warned

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from training_samples import config  # noqa: E402

from rlhfless.engine.torch.kernel_bits import kernel_bits  # noqa: E402
from rlhfless.engine.torch.pretrained import choose_device, load_model  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.config import ReproducibilityWarning, TrainError  # noqa: E402
from rlhfless.training.loop import Trainer, train  # noqa: E402
from rlhfless.training.models import tiny_model as models  # noqa: E402

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_a_model_is_loaded_to_its_device(untrained: Path) -> None:
    """``meta`` stands for any device that is not the CPU."""
    assert load_model(untrained)[0].device.type == "cpu"
    assert load_model(untrained, "meta")[0].device.type == "meta"


@pytest.mark.parametrize(
    ("name", "there", "emulated", "chosen"),
    [
        ("auto", True, True, "cuda"),
        ("auto", True, False, "cpu"),
        ("auto", False, True, "cpu"),
        ("cpu", True, True, "cpu"),
        ("cuda", True, False, "cuda"),
    ],
)
def test_auto_takes_a_gpu_that_no_actor_holds(
    monkeypatch: pytest.MonkeyPatch, name: str, there: bool, emulated: bool, chosen: str
) -> None:
    monkeypatch.setattr(models.torch.cuda, "is_available", lambda: there)
    assert choose_device(name, emulated=emulated).type == chosen


@without_gpu
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(untrained: Path, tmp_path: Path) -> None:
    with refused(InputError, "'cuda'", "'cpu'", "'auto'"):
        Trainer(config(device="cuda"), tmp_path / "run", model=untrained, progress=False)
    assert not (tmp_path / "run").exists()
    with refused(TrainError, "'tpu'"):
        config(device="tpu")


def test_a_run_on_another_device_is_resumed_with_a_warning(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trace = train(config(steps=1, device="cpu"), out, model=model)
    assert trace.meta["device"] == trace.meta["learner_device"]
    assert "CPU, torch" in trace.meta["device"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReproducibilityWarning)
        train(config(steps=2, device="cpu"), out, resume=True)
    meta = json.loads((out / "meta.json").read_text())
    meta["learner_device"] = "abacus, torch 1.0"
    (out / "meta.json").write_text(json.dumps(meta))
    with warned(ReproducibilityWarning, "1.0"):
        assert train(config(steps=3, device="cpu"), out, resume=True).steps == [0, 1, 2]


def test_a_run_whose_processor_has_other_kernels_is_resumed_with_a_warning(model: Path, tmp_path: Path) -> None:
    """Runs from before this was recorded are resumed without."""
    out = tmp_path / "run"
    bits = train(config(steps=1, device="cpu"), out, model=model).meta["kernel_bits"]
    assert bits == kernel_bits()
    meta = json.loads((out / "meta.json").read_text())
    (out / "meta.json").write_text(json.dumps({**meta, "kernel_bits": "tiles of 1 rows, 00000000"}))
    with warned(ReproducibilityWarning, "00000000", bits):
        train(config(steps=2, device="cpu"), out, resume=True)
    meta = json.loads((out / "meta.json").read_text())
    del meta["kernel_bits"]
    (out / "meta.json").write_text(json.dumps(meta))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReproducibilityWarning)
        train(config(steps=3, device="cpu"), out, resume=True)


@with_gpu
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_run_on_a_gpu_learns_and_says_so(model: Path, tmp_path: Path, algorithm: str) -> None:
    trace = train(config(steps=2, device="cuda", algorithm=algorithm, kl_coef=0.1), tmp_path / "run", model=model)
    assert trace.meta["device"].startswith(torch.cuda.get_device_name())
    with Trainer(config(steps=3, device="cuda", algorithm=algorithm, kl_coef=0.1), tmp_path / "run", resume=True) as trainer:
        assert trainer.model.device.type == "cuda"
        assert trainer.step().metrics["learn_grad_norm"] > 0
