"""Training with actors that decode with real vLLM."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from busy_machine import PATIENT
from torch_wall_samples import until
from training_samples import run_config

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.trace import Trace, held_gpu_seconds, read_trace
from rlhfless.training.loop import TrainedStep, Trainer
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed; `make test-full` installs its CPU build"
)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: `make test-full` does it")
COMMAND = "train task.name=arithmetic cluster.engine=vllm cluster.executor=ray cluster.gpus=1"


def trained(out: Path, *options: object) -> Trace:
    """What the command line writes; every process that it started has ended with it, and no weights are left in memory."""
    mark, before = f"RLHFLESS_RUN={secrets.token_hex(8)}", left_in_memory()
    name, value = mark.split("=")
    command = [sys.executable, "-m", "rlhfless", *COMMAND.split(), *map(str, options), "-o", str(out)]
    done = subprocess.run(command, env={**os.environ, name: value}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    until(lambda: not processes_with(mark), "every process has ended")
    assert left_in_memory() <= before
    return read_trace(out)


def processes_with(mark: str) -> list[str]:
    """Commands of the processes that have it in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def left_in_memory() -> set[Path]:
    return {*Path("/dev/shm").glob("rlhfless-carried-*"), *Path("/dev/shm").glob("rlhfless-weights-*")}


def check_trace(trace: Trace, steps: int) -> None:
    """vLLM starts with the run's first step, in every actor; each step is decoded with its own weights."""
    assert (trace.meta["engine"], trace.meta["clock"], trace.meta["config"]["cluster"]["executor"]) == ("vllm", "wall", "ray")
    assert trace.steps == list(range(steps))
    assert (trace.rollouts["weights_version"] == trace.rollouts["step"]).all()
    ready = trace.events[trace.events["name"] == "ready"]
    assert [json.loads(detail)["weights_version"] for detail in ready["detail"]] == ready["step"].tolist()
    pids = {json.loads(detail)["pid"] for detail in ready["detail"]}
    assert len(trace.spans[trace.spans["phase"] == "start"]) == len(pids) == 1
    held = held_gpu_seconds(trace)
    assert held["total"].sum() == pytest.approx(held[["start", "sync", "work", "hold"]].to_numpy().sum())


@needs_ray
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_command_and_its_resumption(tmp_path: Path) -> None:
    save_model(tiny_qwen2(CharTokenizer()), CharTokenizer(), tmp_path / "model")
    options = ["rollout.prompts_per_step=4", "rollout.samples_per_prompt=2", "planner.policy=static"]
    trace = trained(tmp_path / "run", "steps=2", f"model={tmp_path / 'model'}", *options)
    check_trace(trace, 2)
    assert trace.spans.loc[trace.spans["phase"] == "start", "holder"].tolist() == ["actor-0"], "once"
    resumed = trained(tmp_path / "run", "steps=3", "--resume", "last", *options)
    assert resumed.steps == [0, 1, 2]
    assert set(resumed.spans.loc[resumed.spans["phase"] == "start", "step"]) >= {0, 2}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_command_on_the_virtual_clock(tmp_path: Path) -> None:
    """Two emulated actors, charged as measured in one process, which sleeps while the learner learns."""
    save_model(tiny_qwen2(CharTokenizer()), CharTokenizer(), tmp_path / "model")
    options = ["cluster.charging=measured", "cluster.executor=virtual", "cluster.gpus=2", "cluster.gpus_per_node=2"]
    small = ["rollout.prompts_per_step=4", "rollout.samples_per_prompt=4", "rollout.max_response_tokens=24", "steps=2"]
    trace = trained(tmp_path / "run", *options, *small, "planner.policy=static", f"model={tmp_path / 'model'}")
    assert (trace.meta["engine"], trace.meta["clock"], trace.meta["charging"]) == ("vllm", "virtual", "measured")
    assert trace.steps == [0, 1]
    replays = trace.events[trace.events["name"] == "replay"]
    assert replays["holder"].tolist() == ["actor-0", "actor-1"] * 2
    assert not any("differing" in detail for detail in replays["detail"])


@pytest.mark.full
def test_every_step_is_decoded_with_its_own_weights(tmp_path: Path) -> None:
    """Log-probabilities from vLLM are those of the model as it was then; noise earns no reward, so the test changes the weights
    after every step itself. At the end neither processes nor weights are left."""
    save_model(tiny_qwen2(CharTokenizer()), CharTokenizer(), tmp_path / "model")
    options = run_config(
        steps=3, prompts=8, prompts_per_step=4, samples_per_prompt=3, max_response_tokens=32, gpus=2, gpus_per_node=2,
        executor="local",
        engine="vllm", policy="static",
    )  # fmt: skip
    starts: list[int] = []

    def after(done: TrainedStep) -> None:
        starts.append(sum(s["phase"] == "start" for s in done.record.spans))
        model, tokenizer = trainer.model, trainer.tokenizer
        with torch.no_grad():
            for i, one in done.record.completions.items():
                prompt = tokenizer.encode(done.rollouts["prompt"][i])
                logits = model(torch.tensor([[*prompt, *one.token_ids]])).logits[0, len(prompt) - 1 : -1]
                expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
                np.testing.assert_allclose(one.logprobs, expected, atol=1e-3)
            torch.manual_seed(done.step)
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)

    with Trainer(options, tmp_path / "run", model=tmp_path / "model", progress=False) as trainer:
        assert trainer.actor_pool is not None
        trainer.actor_pool.faults = PATIENT
        for done in trainer:
            after(done)
        trace = trainer.state.trace
        weights = trainer.engines._sync._folder.path
        assert not list(weights.iterdir()), "memory is given back while the learner learns"
    assert trace is not None
    assert (trace.meta["engine"], trace.meta["clock"]) == ("vllm", "wall")
    assert starts[0] > 0
    assert sum(starts[1:]) == 0, "vLLM starts once"
    assert not weights.exists()
    assert not multiprocessing.active_children()
