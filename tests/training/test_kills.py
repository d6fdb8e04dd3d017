"""A run that is killed again and again, or whose actors are killed, ends as the run that nobody disturbed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from busy_machine import Gate, gate_last
from safetensors.torch import load_file
from training_samples import config, started, variety

from rlhfless.executor.step.progress import StepProgress
from rlhfless.trace import read_trace, store
from rlhfless.training.callbacks import Callback
from rlhfless.training.loop import Trainer
from rlhfless.training.tasks.arithmetic import ArithmeticTask

OPTIONS: dict[str, Any] = {
    "save_total_limit": 2,
    "policy": "solver+replan",
    "preparation": "overlap",
    "lr_scheduler_type": "linear",
}


class Says(Callback):
    """Says after every step that it is done. After the last one that it may make it waits to be killed."""

    def __init__(self, connection: Any, most: int | None) -> None:
        self.connection, self.most = connection, most

    def on_step(self, trainer: Any, step: Any) -> None:
        self.connection.send(step.step)
        if self.most is not None:
            self.most -= 1
            if not self.most:
                time.sleep(3600)


LEVERS: dict[str, Any] = {
    "save_total_limit": 2,
    "policy": "solver+replan",
    "drafts": True,
    "learning": "stream",
    "learner_gpus": "auto",
}


def run(out: str, model: str, algorithm: str, steps: int, options: dict[str, Any], most: int | None, connection: Any) -> None:
    """What is killed: the run from its beginning, or from where it stands; it makes so many steps at most."""
    ArithmeticTask.reward = variety  # type: ignore[method-assign]
    resume = (Path(out) / "meta.json").is_file()
    given = config(algorithm=algorithm, steps=steps, **options)
    with Trainer(given, out, model=model, resume=resume, callbacks=[Says(connection, most)], progress=False) as trainer:
        connection.send("begins")
        trainer.train()


class Life:
    """A process that runs, and what it says."""

    def __init__(
        self, out: Path, model: Path, algorithm: str, steps: int, options: dict[str, Any], most: int | None = None
    ) -> None:
        self.heard, theirs = multiprocessing.Pipe(duplex=False)
        self.process = started(run, str(out), str(model), algorithm, steps, options, most, theirs)
        theirs.close()

    def hears(self, count: int) -> list[float]:
        """Waits until it said so much; returns the seconds between."""
        times = [time.monotonic()]
        for _ in range(count):
            self.heard.recv()
            times.append(time.monotonic())
        return np.diff(times).tolist()

    def ends(self) -> int | None:
        """Waits until it is over."""
        self.process.join()
        return self.process.exitcode


def without_timings(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without what its planning took here."""
    return {name: value for name, value in plan.items() if name not in ("solve_s", "history", "planning_s", "planning_delay_s")}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("algorithm", "kills", "steps", "options"),
    [
        pytest.param("ppo", 5, 10, OPTIONS, marks=pytest.mark.full),
        pytest.param("grpo", 20, 40, OPTIONS, marks=pytest.mark.nightly),
        pytest.param("ppo", 20, 40, OPTIONS, marks=pytest.mark.nightly),
        pytest.param("grpo", 20, 40, LEVERS, marks=pytest.mark.nightly),
    ],
    ids=["ppo-5", "grpo-20", "ppo-20", "all levers-20"],
)
def test_kills_change_nothing(
    tmp_path: Path, untrained: Path, algorithm: str, kills: int, steps: int, options: dict[str, Any]
) -> None:
    """Each life is killed within its first two steps, so that none reaches the end; every third has said before that a step is
    done."""
    whole = Life(tmp_path / "whole", untrained, algorithm, steps, options)
    begins_s, *steps_s = whole.hears(1 + steps)
    assert whole.ends() == 0

    rng, reached = np.random.default_rng(7), [0]
    for heard in rng.permutation(np.arange(kills) % 3).tolist():  # it dies while it begins, in its first step, or in its second
        life = Life(tmp_path / "killed", untrained, algorithm, steps, options, most=2)
        life.hears(heard)
        time.sleep(rng.uniform(0.0, begins_s if heard == 0 else 1.2 * np.median(steps_s)))
        life.process.kill()
        assert life.ends() == -signal.SIGKILL, "it was over before it was killed"
        reached.append(len(store.unmerged_steps(tmp_path / "killed", ())))
    assert Life(tmp_path / "killed", untrained, algorithm, steps, options).ends() == 0
    assert reached == sorted(reached), "a completed step was lost"
    assert len(set(reached)) > kills / 3, "the kills fell beside the run"

    ours, theirs = (read_trace(tmp_path / name) for name in ("killed", "whole"))
    pd.testing.assert_frame_equal(ours.rollouts, theirs.rollouts)
    pd.testing.assert_frame_equal(ours.allocations, theirs.allocations)
    pd.testing.assert_frame_equal(ours.spans.drop(columns="detail"), theirs.spans.drop(columns="detail"))
    assert [without_timings(plan) for plan in ours.plans] == [without_timings(plan) for plan in theirs.plans]
    for file in ("model.safetensors", "optimizer.safetensors"):
        last = Path("checkpoints") / f"after-{steps:06d}" / file
        mine, other = (load_file(tmp_path / name / last) for name in ("killed", "whole"))
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in other)
    mine, other = (json.loads((tmp_path / name / last.with_name("state.json")).read_text()) for name in ("killed", "whole"))
    assert mine == other, "the schedule of the rates, and all else that the learner knows"
    left = sorted(path.name for path in (tmp_path / "killed" / "checkpoints").iterdir())
    assert left == [f"after-{steps - 1:06d}", f"after-{steps:06d}"]


class LongTailTrainer(Trainer):
    """One response to each prompt has all tokens of the limit, the others an eighth."""

    def requests(self, problems: Any, step: int) -> list[Any]:
        most, samples = self.config.rollout.max_response_tokens, self.config.rollout.samples_per_prompt
        requests = super().requests(problems, step)
        return [replace(one, target_tokens=most if i % samples == 0 else most // 8) for i, one in enumerate(requests)]


class KillsActors(Callback):
    """Kills one actor of each step when as many responses are complete as is drawn for it, and only then opens the gate behind
    which every actor keeps its long responses.
    """

    def __init__(self, gate: Gate, seed: int) -> None:
        self.gate, self.rng = gate, np.random.default_rng(seed)
        self.pool: Any = None
        self.due: dict[int, int] = {}
        self.killed: dict[int, int] = {}

    def on_progress(self, progress: StepProgress) -> None:
        step = progress.record.step
        due = self.due.setdefault(step, int(self.rng.integers(progress.of // 2)))
        if step not in self.killed and progress.completed >= due:
            self.killed[step] = int(self.rng.choice(sorted(self.pool.working)))
            os.kill(self.killed[step], signal.SIGKILL)
            self.gate.open()

    def on_step(self, trainer: Any, step: Any) -> None:
        self.gate.close()


@pytest.mark.full
def test_killed_actors_change_no_weight(tmp_path: Path, model: Path) -> None:
    """Two actors in processes of this machine decode, and one is killed in each step; on the virtual clock nobody is killed."""
    kills, weights = KillsActors(Gate(tmp_path / "gate"), seed=3), {}
    options = {"gpus": 2, "gpus_per_node": 2, "policy": "static", "steps": 2, "max_response_tokens": 64}
    with LongTailTrainer(config(**options), tmp_path / "whole", model=model, progress=False) as trainer:
        trainer.train()
        weights["whole"] = trainer.model.state_dict()
    given = config(**options, executor="local")
    with LongTailTrainer(given, tmp_path / "killed", model=model, callbacks=[kills], progress=False) as trainer:
        kills.pool, trainer.on_progress = trainer.actor_pool, kills.on_progress
        gate_last(trainer, kills.gate, last=2)
        trainer.train()
        weights["killed"] = trainer.model.state_dict()

    whole, killed = (read_trace(tmp_path / name) for name in ("whole", "killed"))
    for name in ("lost", "retry"):
        assert set(killed.events[killed.events["name"] == name]["step"]) == set(kills.killed) == {0, 1}, name
    same = ["step", "prompt_id", "sample", "response", "response_tokens", "reward"]
    pd.testing.assert_frame_equal(killed.rollouts[same], whole.rollouts[same])
    before = load_file(model / "model.safetensors")
    assert not all(torch.equal(weights["whole"][name], before[name]) for name in before), "the steps learn"
    assert all(torch.equal(weights["killed"][name], weights["whole"][name]) for name in weights["whole"])
