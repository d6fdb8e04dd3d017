"""A run whose cluster has become smaller goes on: on fewer GPUs, after its last completed step, with the weights of the run
that kept all of them; and what fails names the options with which it does."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from command_line import Result, run_rlhfless
from error_messages import refusal_line, refused, refused_command, warned

torch = pytest.importorskip("torch")
from training_samples import config, same_weights  # noqa: E402

from rlhfless.executor import RayPool, StepFailed, StepRecord, run_step  # noqa: E402
from rlhfless.executor.distributed.ray.placement import RayNode, place_nodes  # noqa: E402
from rlhfless.trace import read_trace  # noqa: E402
from rlhfless.trace.metrics.phase_costs import step_costs  # noqa: E402
from rlhfless.training import engines  # noqa: E402
from rlhfless.training.config import ReproducibilityWarning, TrainError  # noqa: E402
from rlhfless.training.engines import same_bits  # noqa: E402
from rlhfless.training.loop import Trainer, train  # noqa: E402

TEXTS = ["step", "prompt_id", "sample", "response", "reward"]
LOST_IN = 1  # this step
SMALL = [
    "preset=demo",
    "task.prompts=8", "rollout.prompts_per_step=4", "rollout.samples_per_prompt=3", "rollout.max_response_tokens=24",
    "planner.policy=static", "steps=3", "optimizer.learning_rate=0.01",
]  # fmt: skip
ON = ["cluster.executor=ray", "cluster.ray_address=10.0.0.1:6379"]


class PretendedNodes(RayPool):
    """A Ray pool without Ray: steps are emulated, and nodes are what a test says."""

    there: ClassVar[list[RayNode]] = []
    loses: ClassVar[str] = ""  # when a node is lost: between steps, or in one

    def __init__(self, address: str | None = None, **_: Any) -> None:
        self._nodes = {}
        self.cluster = SimpleNamespace(started_here=False, ray=SimpleNamespace(nodes=list))

    @property
    def meta(self) -> dict[str, str]:
        return {"clock": "wall", "charging": "measured", "device": "pretended"}

    def check(self, cluster: Any) -> None:
        self._nodes = place_nodes(cluster, self.there, self._nodes)

    def run_step(self, plan: Any, requests: Any, engines: Any, latency: Any, cluster: Any, **given: Any) -> StepRecord:
        if given["step"] == LOST_IN and self.loses:
            type(self).there = self.there[1:]
        if given["step"] == LOST_IN and self.loses == "in a step":
            raise StepFailed(
                StepRecord(given["run"], LOST_IN, plan, 0.0),
                "actor-0 died: its node is gone; 12 responses are unfinished, but no actor is left",
            )
        self.check(cluster)
        kept = {name: given[name] for name in ("run", "step", "start_s", "on_progress")}
        return run_step(plan, requests, engines, latency, cluster, **kept)

    def finalise_allocations(self, record: StepRecord) -> None:
        """Nothing waits."""

    def release(self) -> None:
        """Nothing waits."""

    def close(self, record: StepRecord | None = None) -> None:
        """Nothing is open."""


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> type[PretendedNodes]:
    """Two nodes of two GPUs."""
    monkeypatch.setattr(engines, "RayPool", PretendedNodes)
    PretendedNodes.there = [RayNode(str(i), f"10.0.0.{i}", 2.0) for i in (1, 2)]
    PretendedNodes.loses = ""
    return PretendedNodes


def command(*given: object) -> Result:
    return run_rlhfless("train", *map(str, (*SMALL, *ON, *given)))


def test_a_resumed_run_may_have_fewer_gpus(model: Path, tmp_path: Path) -> None:
    """Weights, texts and rewards are those of the run that kept all; steps say on which cluster they were."""
    whole = train(config(gpus=16, policy="static"), tmp_path / "whole", model=model)
    train(config(gpus=16, policy="static", steps=1), tmp_path / "run", model=model)
    fewer = {"gpus": 2, "gpus_per_node": 2, "policy": "static"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReproducibilityWarning)
        train(config(**fewer, steps=2), tmp_path / "run", resume=True)
        run = train(config(**fewer, preparation_actors=2), tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run", tmp_path / "whole")
    assert run.rollouts[TEXTS].equals(whole.rollouts[TEXTS])
    used = run.allocations.groupby("step")["gpu_ids"].agg(lambda ids: max(max(one) for one in ids) + 1)
    assert used.tolist() == [4, 2, 2]
    assert [(was["nodes"], was["gpus_per_node"], was["before_step"]) for was in run.meta["earlier_clusters"]] == [(2, 8, 1)]
    assert (run.meta["cluster"]["nodes"], run.meta["cluster"]["gpus_per_node"], run.meta["config"]["cluster"]["gpus"]) == (
        1,
        2,
        2,
    )
    assert run.meta["run_id"] == read_trace(tmp_path / "run").meta["run_id"]
    costs = step_costs(run).groupby("step")[["time_s", "serverful_gpu_s"]].sum()
    assert (costs["serverful_gpu_s"] / costs["time_s"]).tolist() == pytest.approx([16, 2, 2])


def test_where_bits_may_differ_it_is_said(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(config(gpus=16, policy="static", steps=1), tmp_path / "run", model=model)
    monkeypatch.setattr("rlhfless.training.factory.same_bits", lambda *_, **__: False)
    with warned(ReproducibilityWarning, "16"):
        Trainer(config(gpus=1, policy="static"), tmp_path / "run", resume=True, progress=False).close()


def test_only_the_torch_engine_on_the_cpu_is_sure_of_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "cuda_devices", lambda: [])
    assert same_bits(config(), "cpu", "float32", custom_pool=False)
    assert same_bits(config(executor="local"), "cpu", "float32", custom_pool=False)
    assert not same_bits(config(), "cuda", "float32", custom_pool=False)
    assert not same_bits(config(generation_dtype="bfloat16"), "cpu", "float32", custom_pool=False)
    assert not same_bits(config(), "cpu", "bfloat16", custom_pool=False)
    assert not same_bits(config(), "cpu", "float32", custom_pool=True)
    assert not same_bits(config(executor="local", engine="vllm"), "cpu", "float32", custom_pool=False)
    assert not same_bits(config(executor="ray", ray_address="auto"), "cpu", "float32", custom_pool=False)
    monkeypatch.setattr(engines, "cuda_devices", lambda: ["cuda:0"])
    assert not same_bits(config(executor="local"), "cpu", "float32", custom_pool=False)


def test_what_weights_depend_on_may_not_change(model: Path, tmp_path: Path) -> None:
    train(config(policy="static", steps=1), tmp_path / "run", model=model)
    with refused(TrainError, "'cpu-tiny-qwen2'"):
        Trainer(config(policy="static", profile="l40s-qwen2.5-3b-tp2"), tmp_path / "run", resume=True)


@pytest.mark.parametrize("loses", ["between steps", "in a step"])
def test_a_lost_node_is_survived_with_the_options_that_the_sentence_names(
    nodes: type[PretendedNodes], model: Path, tmp_path: Path, loses: str
) -> None:
    full = ["cluster.gpus=4", "cluster.gpus_per_node=2"]
    assert command(*full, f"model={model}", "-o", tmp_path / "whole").exit_code == 0
    nodes.loses, out = loses, tmp_path / "run"
    said = refusal_line(command(*full, f"model={model}", "-o", out), began=True)
    options = re.search(r"--resume last (cluster.gpus=\d+ cluster.gpus_per_node=\d+) ", said)
    assert options, said
    assert read_trace(out).steps == [0]
    nodes.loses = ""
    refused_command(command(*full, "--resume", "last", "-o", out), f"--resume last {options[1]}")
    done = command(*options[1].split(), "--resume", "last", "-o", out)
    assert done.exit_code == 0, done.stderr
    assert read_trace(out).steps == [0, 1, 2]
    assert same_weights(out, tmp_path / "whole")


def test_without_any_gpus_no_options_are_named(nodes: type[PretendedNodes], model: Path, tmp_path: Path) -> None:
    out, full = tmp_path / "run", ["cluster.gpus=4", "cluster.gpus_per_node=2"]
    assert command(*full, "steps=1", f"model={model}", "-o", out).exit_code == 0
    nodes.there = []
    refused_command(command(*full, "--resume", "last", "-o", out), "(none)", "`ray status`")
