"""A data set that a user passes to the trainer, and how many of its prompts a run and its steps have."""

from __future__ import annotations

from typing import NamedTuple

from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.problem import Task
from rlhfless.training.tasks.rows import Rows
from solver.model.plurals import counted


class GivenRows(NamedTuple):
    """Rows of a data set, and its name in traces."""

    name: str
    rows: Rows


def sized(config: TrainConfig, task: Task, left_out: str = "") -> TrainConfig:
    """Return the configuration with the number of prompts that a run is over.

    Where ``task.prompts`` is not given it is all of the task's problems, and a data set that is smaller than a usual step is
    one step. Where it is given, and too many of the data set's prompts are too long, it is as many whole steps as are left.

    Args:
        left_out: why prompts of the data set are left out; empty where none are.

    Raises:
        TrainError: there are fewer problems than a step needs.
    """
    found, asked, per_step = len(task.problems), config.task.prompts, config.rollout.prompts_per_step
    if asked is not None and (found >= asked or not left_out):
        return config
    if asked is None and not hasattr(task, "held_out") and config.eval_every is not None:
        found -= config.task.eval_prompts
    if asked is None and "prompts_per_step" not in config.rollout.model_fields_set:
        per_step = max(1, min(per_step, found))
    if found < per_step:
        held_back = config.task.eval_prompts if config.eval_every is not None and asked is None and found < 1 else 0
        if held_back:
            usual = "" if "eval_prompts" in config.task.model_fields_set else " (the default)"
            raise TrainError(
                f"task {task.name!r} has no prompt left to train on{left_out and ', as ' + left_out}, as eval_every holds "
                f"{counted(held_back, 'prompt')} back: eval_prompts is {held_back}{usual}; give a smaller eval_prompts, or "
                "eval_dataset in Python"
            )
        least = f"at most {found}" if found > 0 else "more prompts"
        raise TrainError(
            f"task {task.name!r} has {counted(max(0, found), 'prompt')} to train on{left_out and ', as ' + left_out}, but "
            f"rollout.prompts_per_step is {per_step}; give {least}"
        )
    whole = asked is not None and config.task.drop_last
    prompts = found // per_step * per_step if whole else found
    return config.replace(task={"prompts": prompts}, rollout={"prompts_per_step": per_step})
