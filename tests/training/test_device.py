"""Where models are: on the device that is asked for, told in the trace, and refused where there is none."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from command_line import run_rlhfless
from error_messages import check_message, refused, warned

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from training_samples import config  # noqa: E402

from rlhfless.engine.torch.kernel_bits import kernel_bits  # noqa: E402
from rlhfless.engine.torch.pretrained import SharedGpuWarning, load_model  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.executor import ProcessPool  # noqa: E402
from rlhfless.plots.step_fusion import plot_step_fusion  # noqa: E402
from rlhfless.plots.timeline import plot_timeline  # noqa: E402
from rlhfless.trace import read_trace  # noqa: E402
from rlhfless.trace.metrics.phase_costs import step_costs  # noqa: E402
from rlhfless.training.config import ReproducibilityWarning, TrainError  # noqa: E402
from rlhfless.training.first_line import first_line  # noqa: E402
from rlhfless.training.learner_device import learner_device, wall_gpus  # noqa: E402
from rlhfless.training.loop import Trainer, train  # noqa: E402
from solver import Cluster  # noqa: E402

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_a_model_is_loaded_to_its_device(untrained: Path) -> None:
    """``meta`` stands for any device that is not the CPU."""
    assert load_model(untrained)[0].device.type == "cpu"
    assert load_model(untrained, "meta")[0].device.type == "meta"


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Torch finds so many GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize("name", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("executor", "gpus", "there", "chosen"),
    [
        ("virtual", 16, 1, "cuda"),
        ("local", 2, 3, "cuda:2"),
        ("local", 1, 4, "cuda:3"),
        ("ray", 2, 3, "cuda:2"),
    ],
)
def test_the_learner_takes_a_gpu_that_no_actor_holds(
    monkeypatch: pytest.MonkeyPatch, name: str, executor: str, gpus: int, there: int, chosen: str
) -> None:
    with_gpus(monkeypatch, there)
    options = config(device=name, executor=executor, gpus=gpus, gpus_per_node=gpus).cluster
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(learner_device(options, None)) == chosen


@pytest.mark.parametrize("name", ["auto", "cuda"])
@pytest.mark.parametrize("executor", ["local", "ray"])
@pytest.mark.parametrize("there", [1, 2])
def test_where_actors_hold_every_gpu_the_learner_shares_the_first(
    monkeypatch: pytest.MonkeyPatch, name: str, executor: str, there: int
) -> None:
    with_gpus(monkeypatch, there)
    options = config(device=name, executor=executor, gpus=2, gpus_per_node=2).cluster
    with warned(SharedGpuWarning, "cuda:0", "gpus", "device 'cpu'"):
        assert str(learner_device(options, None)) == "cuda:0"


def test_the_devices_of_a_given_pool_are_those_that_actors_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 3)
    options = config(gpus=2, gpus_per_node=2).cluster
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(learner_device(options, ProcessPool(["cuda:2", "cuda:0"]))) == "cuda:1"
        assert str(learner_device(options, ProcessPool(["cpu", "cpu"]))) == "cuda"


@pytest.mark.parametrize("executor", ["virtual", "local", "ray"])
@pytest.mark.parametrize(("name", "there"), [("cpu", 2), ("auto", 0)])
def test_the_learner_is_on_the_cpu_if_asked_or_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, executor: str, name: str, there: int
) -> None:
    with_gpus(monkeypatch, there)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(learner_device(config(device=name, executor=executor).cluster, None)) == "cpu"


def test_processes_without_a_gpu_each_learn_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 1)
    with warned(UserWarning, "CPU", "2 processes", "1 GPU", "learner_processes"):
        assert str(learner_device(config(executor="local", gpus=1, learner_processes=2).cluster, None)) == "cpu"


@pytest.mark.parametrize(
    ("device", "gpus", "there", "beside_actors", "billed"),
    [
        ("cpu", 2, 0, False, ()),
        ("cpu", 2, 2, True, ()),
        ("cuda:2", 2, 3, False, (2,)),
        ("cuda:2", 2, 3, True, (2,)),
        ("cuda:0", 2, 2, False, (0,)),
        ("cuda:0", 2, 2, True, ()),
    ],
)
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_gpus_that_are_billed_for_the_learner_are_there(
    monkeypatch: pytest.MonkeyPatch, executor: str, device: str, gpus: int, there: int, beside_actors: bool, billed: Any
) -> None:
    """A GPU that actors hold is billed as theirs while they decode."""
    with_gpus(monkeypatch, there)
    options, cluster = config(executor=executor, gpus=gpus, gpus_per_node=gpus).cluster, Cluster(1, gpus, 1)
    pool = ProcessPool([f"cuda:{i}" for i in range(there)]) if executor == "local" and there else None
    learner = wall_gpus(torch.device(device), cluster, options, pool, beside_actors=beside_actors)
    assert (learner.ids, learner.node) == (billed, 0)


@pytest.mark.full
@pytest.mark.parametrize("learning", ["batch", "stream"])
def test_a_learner_on_the_cpu_of_a_pool_has_its_times_and_no_gpu(model: Path, tmp_path: Path, learning: str) -> None:
    options = config(steps=1, executor="local", gpus=2, gpus_per_node=2, device="cpu", learning=learning)
    with Trainer(options, tmp_path / "run", model=model, executor=ProcessPool(["cpu"] * 2), progress=False) as trainer:
        trainer.train()
        trainer.actor_pool.close()
    trace = read_trace(tmp_path / "run")
    held = trace.allocations
    assert {gpu for ids in held["gpu_ids"] for gpu in ids} == {0, 1}
    assert set(held["node"]) == {0}
    own = held[held["role"].isin(["learner", "prepare"])]
    assert "learner" in set(own["holder"])
    assert [list(ids) for ids in own["gpu_ids"]] == [[]] * len(own)
    learned = trace.spans[(trace.spans["holder"] == "learner") & (trace.spans["phase"] == "learn")]
    assert (learned["end_s"] - learned["start_s"]).sum() > 0
    costs = step_costs(trace).set_index("phase")
    assert costs.loc["learning", "time_s"] > 0
    assert costs["elastic_gpu_s"].sum() == pytest.approx(sum(len(r.gpu_ids) * (r.end_s - r.start_s) for r in held.itertuples()))
    for figure in (plot_timeline(trace), plot_step_fusion(trace)):
        assert "learner" in figure.to_json()


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


def line_of(stderr: str) -> str:
    """The line that a run begins with, once all options are checked: after the bar of loading a model, before that of steps."""
    return next(line for line in stderr.splitlines() if line.startswith("train: "))


LINE = ("learner on the CPU", "1 thread", "engine torch", "profile cpu-tiny-qwen2", "learning rate 0.01")


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": "cpu"}, (*LINE, "16 emulated GPUs")),
        ({"device": "cpu", "learner_threads": 3}, ("learner on the CPU with 3 threads",)),
        ({"device": "cpu", "learner_processes": 2}, ("2 processes with 1 thread each",)),
    ],
)
def test_a_run_begins_with_a_line_that_names_where_it_computes(
    model: Path, capfd: pytest.CaptureFixture[str], options: dict[str, Any], named: tuple[str, ...]
) -> None:
    Trainer(config(policy="static", **options), model=model, progress=True).close()
    check_message(line_of(capfd.readouterr().err), *named)
    Trainer(config(policy="static", **options), model=model, progress=False).close()
    assert "train: " not in capfd.readouterr().err


def test_the_line_names_real_gpus_and_a_cpu_in_place_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    options, cpu = config(executor="local", gpus=2, gpus_per_node=2), torch.device("cpu")
    check_message(first_line(options, cpu, ProcessPool([])), "generation on the CPU in place of 2 GPUs")
    check_message(first_line(options, cpu, ProcessPool(["cuda:0", "cuda:1"])), "generation on 2 GPUs of this machine")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    check_message(first_line(options, torch.device("cuda:2"), None), "learner on cuda:2 (H100)")
    check_message(first_line(options, cpu, None, given=True), "given algorithm")


def test_the_command_line_begins_with_it(untrained: Path, tmp_path: Path) -> None:
    keys = ["preset=demo", "steps=1", "task.prompts=4", "rollout.prompts_per_step=4", "rollout.samples_per_prompt=2"]
    keys += ["rollout.max_response_tokens=8", "cluster.device=cpu", "planner.policy=static", f"model={untrained}"]
    done = run_rlhfless("train", *keys, "-o", str(tmp_path / "run"))
    assert done.exit_code == 0, done.stderr
    check_message(line_of(done.stderr), "train: learner on the CPU with 1 thread", "16 emulated GPUs")


@with_gpu
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_run_on_a_gpu_learns_and_says_so(model: Path, tmp_path: Path, algorithm: str) -> None:
    trace = train(config(steps=2, device="cuda", algorithm=algorithm, kl_coef=0.1), tmp_path / "run", model=model)
    assert trace.meta["device"].startswith(torch.cuda.get_device_name())
    with Trainer(config(steps=3, device="cuda", algorithm=algorithm, kl_coef=0.1), tmp_path / "run", resume=True) as trainer:
        assert trainer.model.device.type == "cuda"
        assert trainer.step().metrics["learn_grad_norm"] > 0
