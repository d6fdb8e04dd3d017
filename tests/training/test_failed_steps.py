"""A step that cannot be finished: what was complete is kept beside the trace, and the run goes on as if it had never been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command
from training_samples import config, same_weights

from rlhfless.executor import StepFailed, StepRecord
from rlhfless.trace import read_trace
from rlhfless.training.loop import Trainer, train

STEP, COMPLETE = 1, 5
WHY = "actor-1 (process 7 on cpu) was killed by SIGKILL; 7 responses are unfinished, but no actor is left"
COLUMNS = ["step", "epoch", "prompt_id", "sample", "response", "response_tokens", "actor"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Actors are lost in step ``STEP`` when so many responses are complete as it says: first in it is taken away."""
    complete, generate = list[int](), Trainer.generate

    def lossy(self: Trainer, plan: Any, problems: Any, step: int, *more: Any) -> StepRecord:
        record = generate(self, plan, problems, step, *more)
        if step == STEP and complete:
            for response in list(record.completions)[complete.pop(0) :]:
                del record.completions[response]
            raise StepFailed(record, WHY)
        return record

    monkeypatch.setattr(Trainer, "generate", lossy)
    return complete


@pytest.mark.full
def test_what_was_complete_is_a_trace_of_its_own(failing: list[int], model: Path, tmp_path: Path) -> None:
    """Of every try; the step is decoded anew when the run goes on, and the run ends as the one in which nothing was lost."""
    whole = train(config(steps=3, policy="static"), tmp_path / "whole", model=model)
    out, failing[:] = tmp_path / "run", [COMPLETE, COMPLETE + 2]
    for resume in (False, True):
        with refused(StepFailed):
            train(config(steps=3, policy="static"), out, model=model, resume=resume)
        assert read_trace(out).steps == [0]
    run = train(config(steps=3, policy="static"), out, resume=True)
    assert same_weights(out, tmp_path / "whole")
    assert run.rollouts[COLUMNS].equals(whole.rollouts[COLUMNS]), "nothing of the tries is in the run's trace"

    tries = [read_trace(out / "unfinished" / f"step-{STEP:06d}-{n}") for n in (1, 2)]
    assert [len(left.rollouts) for left in tries] == [COMPLETE, COMPLETE + 2]
    step = whole.rollouts[whole.rollouts["step"] == STEP]
    for left in tries:
        found = left.rollouts[COLUMNS].merge(step[COLUMNS])
        assert len(found) == len(left.rollouts), "texts are those that the whole step has"
        assert left.rollouts["reward"].isna().all()
        assert left.steps == [plan["step"] for plan in left.plans] == [STEP]
        assert left.allocations["end_s"].max() > left.allocations["start_s"].min()
        assert len(left.spans) > 0
        assert left.meta["unfinished"] == WHY
        assert left.meta["run_id"] == run.meta["run_id"]


def test_a_try_without_a_complete_response_leaves_nothing(failing: list[int], model: Path, tmp_path: Path) -> None:
    failing[:] = [0]
    with pytest.raises(StepFailed) as error:
        train(config(policy="static"), tmp_path / "run", model=model)
    assert error.value.kept_in is None
    assert not (tmp_path / "run" / "unfinished").exists()


def test_without_a_trace_the_error_alone_has_what_was_complete(failing: list[int], model: Path) -> None:
    failing[:] = [COMPLETE]
    with Trainer(config(policy="static"), model=model, progress=False) as trainer:
        trainer.step()
        with pytest.raises(StepFailed) as error:
            trainer.step()
        assert len(error.value.record.completions) == COMPLETE
        assert trainer.step().step == STEP


def test_the_command_says_where_it_is(failing: list[int], model: Path, tmp_path: Path) -> None:
    out, failing[:] = tmp_path / "run", [COMPLETE]
    small = ["preset=demo", "steps=2", "task.prompts=8", "rollout.prompts_per_step=4", "rollout.samples_per_prompt=3"]
    given = [*small, "rollout.max_response_tokens=24", "planner.policy=static", f"model={model}", "-o", out]
    result = run_rlhfless("train", *map(str, given))
    kept = out / "unfinished" / f"step-{STEP:06d}-1"
    refused_command(result, WHY, str(out), str(kept), "--resume", began=True)
    assert json.loads((kept / "meta.json").read_text())["unfinished"] == WHY
