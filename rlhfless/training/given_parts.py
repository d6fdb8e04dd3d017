"""What a user passes to ``Trainer``, as a configuration and the objects that replace what the configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.config.names import check_names
from rlhfless.training.config.section import Section
from rlhfless.training.factory import TrainerOverrides
from rlhfless.training.rewards import as_rewards
from rlhfless.training.rewards.user_function import check_weights
from rlhfless.training.tasks.given_rows import GivenRows
from rlhfless.training.tasks.rows import read_rows
from solver.model.errors import as_given


class Given(NamedTuple):
    """Arguments of ``Trainer``, which documents them."""

    task: Any = None
    model: Any = None
    algorithm: Any = None
    planner: Any = None
    executor: Any = None
    predictor: Any = None
    rewards: Any = None
    reward_weights: Any = None
    dataset: Any = None
    eval_dataset: Any = None
    drafting: Any = None
    step_plan: Any = None


OTHER_NAMES = (*Given._fields, "folder", "callbacks", "resume", "progress")
"""Arguments that are no keys of the configuration."""


def parts_of(config: TrainConfig | None, given: Given, options: Mapping[str, Any]) -> tuple[TrainConfig, TrainerOverrides]:
    """Return the configuration of a run, and the objects that replace what it names.

    Args:
        options: keys of the configuration, by their plain names or in sections.

    Raises:
        TrainError: an option is unknown or wrong, or arguments do not fit each other.
        InputError, TraceError, MissingExtra: a data set or a reward cannot be used.
    """
    if config is not None and not isinstance(config, TrainConfig):
        raise TrainError(f"config is {as_given(config)}; a TrainConfig is needed, and a model is given as model=...")
    check_names(options, OTHER_NAMES)
    named = {"task": str, "algorithm": str, "executor": str, "planner": None}  # a policy may be a name, too
    keys = {name: given_as for name, text in named.items() if _is_key(given_as := getattr(given, name), text)}
    names = _reward_names(given.rewards, given.reward_weights)
    if names is not None:
        keys["rewards"] = names
    model = given.model
    if isinstance(model, str | Path):
        keys["model"] = str(model)
    elif model is not None and not (isinstance(model, tuple) and len(model) == 2):
        raise TrainError(
            f"model is of type {type(model).__name__}; a folder, a name on the hub, or model=(model, tokenizer) is needed"
        )
    if isinstance(model, tuple):
        model = model[0], PretrainedTokenizer.of(model[1])
    config = (config or TrainConfig()).replace(**{**options, **keys})
    if given.task is not None and given.dataset is not None:
        raise TrainError("task and dataset are given together; choose one of them")
    objects = given._replace(**dict.fromkeys(keys))
    rewards = None if objects.rewards is None else as_rewards(objects.rewards, given.reward_weights)
    if given.reward_weights is not None and given.rewards is None:
        raise TrainError("reward_weights is given without rewards; give as many rewards, or leave it out")
    overrides = TrainerOverrides(
        objects.task, config.model if model is None else model, objects.algorithm, objects.planner, objects.executor,
        objects.predictor, rewards, _rows(given.dataset), objects.drafting, objects.step_plan, _rows(given.eval_dataset),
    )  # fmt: skip
    return config, overrides


def _is_key(value: Any, text: Any) -> bool:
    """Return whether an argument is a value of the configuration: a section, or a name where one is taken."""
    return isinstance(value, (Mapping, Section)) or (text is not None and isinstance(value, text))


def _reward_names(rewards: Any, weights: Any) -> tuple[str, ...] | None:
    """Return rewards that are given by their names, with their weights as the configuration has them; None for others."""
    names = [rewards] if isinstance(rewards, str) else rewards
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        return None
    if weights is None:
        return tuple(names)
    check_weights(weights, len(names))
    return tuple(
        f"{np.format_float_positional(float(weight), trim='-')}*{name}" for weight, name in zip(weights, names, strict=True)
    )


def _rows(dataset: Any) -> GivenRows | None:
    return None if dataset is None else GivenRows(*read_rows(dataset))
