"""What a user passes to ``Trainer``, as a configuration and the objects that replace what the configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from rlhfless.scheduling import as_policy
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.config.names import check_names
from rlhfless.training.config.scheduling import check_policy
from rlhfless.training.config.section import Section
from rlhfless.training.draft_history import check_drafting
from rlhfless.training.rewards import as_rewards
from rlhfless.training.rewards.user_function import check_weights
from rlhfless.training.tasks.given_rows import GivenRows
from rlhfless.training.tasks.rows import read_rows
from solver.model.errors import as_given


class Given(NamedTuple):
    """Objects that replace what the configuration names; None keeps the configured part. ``Trainer`` documents them."""

    task: Any = None
    model: Any = None
    algorithm: Any = None
    planner: Any = None
    executor: Any = None
    predictor: Any = None
    rewards: Any = None
    dataset: Any = None
    eval_dataset: Any = None
    drafting: Any = None
    step_plan: Any = None

    def names(self) -> dict[str, str]:
        """Return the class name of every passed object except the model; a resumed run must be given the same classes.

        The model is left out because a run keeps its own weights, and the data set because its problems are compared. Settings
        of drafts and the step plan are left out because they change no response.
        """
        left_out = ("model", "dataset", "eval_dataset", "drafting", "step_plan")
        objects = {name: given for name, given in self._asdict().items() if name not in left_out and given is not None}
        return {name: f"{type(given).__module__}.{type(given).__qualname__}" for name, given in objects.items()}

    def stored(self) -> dict[str, Any]:
        """Return what a run stores of the objects it was started with: see ``names``, rewards with their weights, and rows.

        A resumed run must be given the same rewards. Two functions of one name are not told apart.
        """
        stored: dict[str, Any] = {"given": self.names()}
        if self.rewards is not None:
            stored["rewards"] = {reward.name: float(weight) for reward, weight in self.rewards.parts}
        if self.dataset is not None:
            stored["dataset"] = self.dataset.name
        return stored

    def check(self, config: TrainConfig, *, new: bool) -> None:
        """Check that the objects fit the options of the run, after it has chosen what they leave open.

        Args:
            new: the run starts; a resumed one has its task already.

        Raises:
            TrainError: they do not, or a new run has nothing to train on; the message names the demonstration, which needs
                nothing.
        """
        if self.executor is not None:
            config.cluster.check_wall_clock("a pool as executor")
        if self.planner is not None:
            check_policy(self.planner)
        check_drafting(self.drafting)
        if self.algorithm is not None:
            self._check_algorithm(config)
        if new and self.task is None and self.dataset is None and config.task.name is None:
            model = "" if self.model is not None else "model=FOLDER and "
            what = "no data set" if self.model is not None else "neither a model nor a data set"
            raise TrainError(
                f"{what} is given; give {model}dataset=... (on the command line task.name=FILE), or preset='demo', which "
                "trains a tiny model on arithmetic"
            )

    def _check_algorithm(self, config: TrainConfig) -> None:
        if isinstance(self.algorithm, type):
            kind = self.algorithm.__name__
            raise TrainError(f"algorithm is the class {kind}; give algorithm={kind}(), or its name as a text")
        if not isinstance(self.model, tuple):
            raise TrainError("algorithm needs its model; give model=(model, tokenizer) as well")
        for key, value, usual, why in (
            ("cluster.learner_processes", config.cluster.learner_processes, 1, "learns in this process; give 1"),
            ("optimizer.num_mini_batches", config.optimizer.num_mini_batches, 1, "makes its own updates; give 1"),
            ("optimizer.lora_rank", config.optimizer.lora_rank, None, "decides what it trains; leave it out"),
        ):
            if value != usual:
                raise TrainError(f"{key} is {value}, but an algorithm object {why}")
        pieces = ("begin", "add", "finish")
        if config.cluster.learning == "stream" and not all(hasattr(self.algorithm, name) for name in pieces):
            raise TrainError(
                f"algorithm {type(self.algorithm).__name__} lacks some of the methods {', '.join(pieces)}, which "
                "cluster.learning 'stream' needs; add them, or choose cluster.learning 'batch'"
            )


OTHER_NAMES = (*Given._fields, "reward_weights", "folder", "callbacks", "resume", "progress")
"""Arguments that are no keys of the configuration."""


def parts_of(
    config: TrainConfig | None, given: Given, reward_weights: Any, options: Mapping[str, Any]
) -> tuple[TrainConfig, Given]:
    """Return the configuration of a run, and the objects that replace what it names: policy, rewards and rows are made of what
    was given in their place.

    Args:
        given: the arguments of ``Trainer``; names and sections among them become keys of the configuration.
        reward_weights: of the rewards; None weights all by 1.
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
    names = _reward_names(given.rewards, reward_weights)
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
    rewards = None if objects.rewards is None else as_rewards(objects.rewards, reward_weights)
    if reward_weights is not None and given.rewards is None:
        raise TrainError("reward_weights is given without rewards; give as many rewards, or leave it out")
    objects = objects._replace(
        model=config.model if model is None else model,
        planner=None if objects.planner is None else as_policy(objects.planner),
        rewards=rewards, dataset=_rows(given.dataset), eval_dataset=_rows(given.eval_dataset),
    )  # fmt: skip
    return config, objects


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
