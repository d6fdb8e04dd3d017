"""All options of a training run in one configuration, and which of them may change when a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from rlhfless.gone_options import without_gone
from rlhfless.training.config.algorithm import USUAL, AlgorithmConfig, algorithm_named
from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.generation import RolloutConfig, TaskConfig
from rlhfless.training.config.learning import OptimizerConfig, check_sharded
from rlhfless.training.config.names import in_sections
from rlhfless.training.config.presets import preset
from rlhfless.training.config.scheduling import ClusterConfig, PlannerConfig
from rlhfless.training.config.section import ALGORITHMS, Count, Section, Whole
from rlhfless.training.config.their_names import value_of_others
from solver.model.errors import as_given
from solver.model.plurals import counted

SECTIONS: dict[str, type[Section]] = {
    "task": TaskConfig, "rollout": RolloutConfig, "algorithm": AlgorithmConfig, "optimizer": OptimizerConfig,
    "planner": PlannerConfig, "cluster": ClusterConfig,
}  # fmt: skip
"""Sections of every run; ``algorithm`` is a class of ``config.section.ALGORITHMS``."""
MAY_CHANGE = (  # keys that may differ when a run is resumed
    "model", "steps", "save_every", "save_total_limit", "eval_every", "task.eval_prompts", "task.offload_reward_models",
    "optimizer.gradient_checkpointing", "optimizer.offload_reference", "cluster.learner_processes",
    "cluster.learner_placement", "cluster.device", "cluster.ray_address", "cluster.idle_timeout_s",
    "cluster.heartbeat_timeout_s", "cluster.prewarm", "cluster.gpus", "cluster.gpus_per_node", "cluster.memory_gib",
    "cluster.learner_threads", "cluster.gpu_memory_utilization", "cluster.actor_threads", "cluster.drafts",
    "cluster.draft_length", "cluster.drafter", "cluster.preparation_actors", "cluster.learner_gpus", "cluster.learner_grows",
    "cluster.learner_start", "cluster.learner_load_s", "cluster.learner_loss_per_doubling", "cluster.usd_per_gpu_hour",
)  # fmt: skip

LEFT_OPEN: dict[str, Any] = {
    "task.prompts": None, "algorithm.old_logprobs_from": "auto", "algorithm.importance_ratio_cap": None,
    "optimizer.learner_dtype": "auto", "cluster.executor": "auto", "cluster.gpus": None, "cluster.profile": None,
    "cluster.memory_gib": None,
}  # fmt: skip
"""Key that a run chooses at its start -> the value with which a configuration leaves it open."""


def _algorithm(given: Any) -> Any:
    """Return the algorithm of a section's keys; those without a name are GRPO's."""
    if isinstance(given, AlgorithmConfig) and ALGORITHMS.get(given.name) is not type(given):
        raise TrainError(f"algorithm {type(given).__name__} is not registered; call register({type(given).__name__}) first")
    if not isinstance(given, Mapping):
        return given
    name = given.get("name", USUAL)
    if not isinstance(name, str) or name not in ALGORITHMS:
        answer = value_of_others("algorithm.name", name) or ""
        choice = "" if "here it is" in answer else f"; {' or '.join(map(repr, sorted(ALGORITHMS)))} is needed"
        raise TrainError(f"algorithm.name is {as_given(name)}{', ' * bool(answer)}{answer}{choice}")
    return algorithm_named(name)(**given)


class TrainConfig(Section):
    """Options of one training run, given by their plain names or in sections. ``preset="demo"`` has the values of the shipped
    run.

    Example:
        >>> config = TrainConfig(steps=10, samples_per_prompt=4, kl_coef=0.1)
        >>> config == TrainConfig(steps=10, rollout=RolloutConfig(samples_per_prompt=4), algorithm={"kl_coef": 0.1})
        True
        >>> config.replace(samples_per_prompt=8).rollout.samples_per_prompt, config.optimizer.learning_rate
        (8, 1e-06)

    Raises:
        TrainError: a key is unknown, or a value has the wrong type, is outside its range, or does not fit the others.
    """

    section: ClassVar[str | None] = ""

    steps: Count = 60
    """Number of steps in total, including those before a resume."""
    model: str | None = None
    """Model to train: a folder, or OWNER/NAME on the hub. A resumed run uses its own weights and refuses another model. Default
    with the task ``arithmetic``: a tiny model, warmed up first; required otherwise."""
    seed: Whole = 0
    """Seed of every random choice."""
    save_every: Count = 50
    """Steps between checkpoints; one is always written after the last step. A run that was killed, or interrupted while it
    learned, repeats the steps since the last checkpoint when it is resumed, with a warning."""
    save_total_limit: Count = 1
    """Number of latest checkpoints to keep."""
    eval_every: Count | None = None
    """Steps between evaluations on held-out prompts; also before the first step and after the last. Each prompt gets one
    sampled response, with the same random numbers every time, in this process. Default: off."""
    task: TaskConfig = Field(default_factory=TaskConfig)
    """Prompts with their answers, and rewards."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Responses that a step generates."""
    algorithm: Annotated[SerializeAsAny[AlgorithmConfig], BeforeValidator(_algorithm)] = Field(
        default_factory=lambda: _algorithm({})
    )
    """The algorithm that learns, with its options."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """The optimizer, and how a gradient is computed."""
    planner: PlannerConfig = Field(default_factory=PlannerConfig)
    """The scheduling policy, and the forecasts that it plans with."""
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    """GPUs, and what runs on them."""

    @model_validator(mode="before")
    @classmethod
    def _sectioned(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        options = in_sections(without_gone(given, "the configuration", TrainError))
        if "preset" not in options:
            return options
        values = preset(options.pop("preset"))
        return merged(values, {name: each.given() if isinstance(each, Section) else each for name, each in options.items()})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        prompts, rollout = self.task.prompts, self.rollout
        if self.algorithm.compares_responses and rollout.samples_per_prompt == 1:
            raise TrainError(
                f"rollout.samples_per_prompt is 1, but {self.algorithm.name.upper()} compares responses to one prompt; give 2 "
                "or more, or algorithm.name 'ppo'"
            )
        if prompts is not None and prompts < rollout.prompts_per_step and "prompts_per_step" not in rollout.model_fields_set:
            smaller = rollout.model_copy()  # as a smaller data set is one step, too; it stays a default
            smaller.__dict__["prompts_per_step"] = prompts
            self.__dict__["rollout"] = rollout = smaller
        if prompts is not None and prompts < rollout.prompts_per_step:
            raise TrainError(
                f"rollout.prompts_per_step is {rollout.prompts_per_step}, but task.prompts is {prompts}; a step needs as many "
                f"prompts, so give at most {prompts}"
            )
        mini_batches = self.optimizer.num_mini_batches
        if mini_batches > rollout.prompts_per_step:
            raise TrainError(
                f"optimizer.num_mini_batches is {mini_batches}, but a step has only "
                f"{counted(rollout.prompts_per_step, 'prompt')}; every mini-batch needs at least one"
            )
        if mini_batches > 1 and self.cluster.learning == "stream" and self.algorithm.recomputes:
            raise TrainError(
                f"algorithm.old_logprobs_from is 'recomputed' with optimizer.num_mini_batches {mini_batches} and "
                "cluster.learning 'stream', but there the first update replaces the weights that generated before all "
                "responses are complete; choose algorithm.old_logprobs_from 'engine', optimizer.num_mini_batches 1, or "
                "cluster.learning 'batch'"
            )
        for key, updates in (
            ("algorithm.num_updates", self.algorithm.num_updates), ("optimizer.num_mini_batches", mini_batches),
        ):  # fmt: skip
            if self.cluster.learner_gpus == "auto" and updates > 1:
                raise TrainError(
                    f"cluster.learner_gpus is 'auto', which plans one update per step, but {key} is {updates}; give a number "
                    f"of cluster.learner_gpus, or {key} 1"
                )
        if self.optimizer.offload_reference and not self.algorithm.kl_coef:
            raise TrainError(
                "optimizer.offload_reference is True, but with algorithm.kl_coef 0 there is no reference; give "
                "algorithm.kl_coef, or leave it out"
            )
        optimizer = self.optimizer
        ends = optimizer.lr_scheduler_type != "constant" and optimizer.lr_scheduler_steps is None
        if ends and self.steps <= optimizer.warmup_steps:
            raise TrainError(
                f"steps is {self.steps}, but optimizer.warmup_steps is {optimizer.warmup_steps}; a "
                f"{optimizer.lr_scheduler_type!r} learning rate falls after its warm-up, so give more steps, or fewer "
                "warmup_steps"
            )
        self._check_processes()
        self._check_lora()
        return self

    def _check_processes(self) -> None:
        processes = self.cluster.learner_processes
        check_sharded(self.optimizer.name, processes)
        if processes > 1 and type(self.algorithm).__module__ == "__main__":
            raise TrainError(
                f"cluster.learner_processes is {processes}, but they cannot import algorithm {self.algorithm.name!r}, which "
                "this program defines; put its class into a file of its own, or give cluster.learner_processes 1"
            )

    def _check_lora(self) -> None:
        rank, cluster = self.optimizer.lora_rank, self.cluster
        if rank is None:
            return
        if cluster.learner_processes > 1:
            raise TrainError(
                f"optimizer.lora_rank is {rank} with cluster.learner_processes {cluster.learner_processes}, but adapters are "
                "trained in one process; choose one of them"
            )
        if self.optimizer.offload_reference:
            raise TrainError(
                f"optimizer.offload_reference is True with optimizer.lora_rank {rank}, but the reference is the base model "
                "that adapters are trained on; leave it out"
            )

    def replace(self, **changes: Any) -> TrainConfig:
        """Return a copy with some keys changed. Keys of a section are given by their plain names, as a mapping, or as a whole
        section.

        Raises:
            TrainError: see the class.
        """
        return TrainConfig(**merged(self.given(), changes))

    def resuming(self, stored: Mapping[str, Any]) -> TrainConfig:
        """Return the configuration for resuming a run: keys that are not given here keep the values that the run was started
        with.

        So do keys with the value that leaves the choice to the run (``LEFT_OPEN``), because the run has chosen them.

        Args:
            stored: the configuration that the run was started with, as in ``meta.json``.

        Raises:
            TrainError: the run used an option that no longer exists, or see the class.
        """
        given = self.given()
        for key, left_open in LEFT_OPEN.items():
            section, _, name = key.partition(".")
            if name in given.get(section, {}) and given[section][name] == left_open:
                del given[section][name]
        return TrainConfig(**merged(TrainConfig.of_stored(stored).given(), given))

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> TrainConfig:
        """Return the configuration that a run stored. What it lacks is as in the preset ``demo``: the defaults of those runs.

        Raises:
            TrainError: the run used an option that no longer exists, or see the class.
        """
        return cls(**merged({"preset": "demo"}, without_gone(stored, "the run's meta.json", TrainError)))

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps of an epoch, which visits a prompt at most once; of a run whose data set is read."""
        prompts, size = self.task.prompts, self.rollout.prompts_per_step
        assert prompts is not None, "the trainer counts the prompts of its data set"
        return prompts // size if self.task.drop_last else -(-prompts // size)

    def learner_options(self) -> dict[str, Any]:
        """Return the options for ``make_learner``."""
        optimizer, rollout = self.optimizer, self.rollout
        ends = None if optimizer.lr_scheduler_type == "constant" else optimizer.lr_scheduler_steps or self.steps
        return {
            **self.algorithm.model_dump(mode="json", exclude={"name"}),
            **optimizer.model_dump(mode="json", exclude={"name"}),
            "optimizer": optimizer.name, "lr_scheduler_steps": ends, "seed": self.seed,
            "max_response_tokens": rollout.max_response_tokens, "temperature": rollout.temperature,
        }  # fmt: skip

    def check_resume(self, earlier: Mapping[str, Any]) -> None:
        """Check that a run may be resumed with this configuration.

        Only keys in ``MAY_CHANGE`` may differ, and ``steps`` only if no learning-rate schedule ends with it. A key that did not
        exist when the run was started counts as in ``of_stored``.

        Args:
            earlier: the configuration that the run was started with, as in ``meta.json``.

        Raises:
            TrainError: other keys differ; the message names them with both values. Or the run used an option that no longer
                exists.
        """
        ends = self.optimizer.lr_scheduler_type != "constant" and self.optimizer.lr_scheduler_steps is None
        may_change = [key for key in MAY_CHANGE if not (ends and key == "steps")]
        ours = {key: value for key, value in by_key(self.to_dict()).items() if key not in may_change}
        usual = by_key(TrainConfig.of_stored({"algorithm": {"name": self.algorithm.name}}).to_dict()) | {
            "algorithm.name": USUAL
        }
        recorded = {**usual, **by_key(without_gone(earlier, "the run's meta.json", TrainError))}
        if different := differences(ours, {key: recorded[key] for key in ours}):
            raise TrainError(f"the run was started with {different}; resume it with the options that it was started with")


def by_key(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a nested configuration by dotted key."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested configuration with changes, unchecked. Sections are mappings; other values replace what was there.

    Where the algorithm changes, keys that only the earlier one has are left out.

    Args:
        changes: in sections, or by plain names.
    """
    result = {**config}
    for name, value in in_sections(changes).items():
        section = result.get(name)
        result[name] = {**section, **value} if isinstance(section, Mapping) and isinstance(value, Mapping) else value
    before, now = config.get("algorithm"), result.get("algorithm")
    if isinstance(before, Mapping) and isinstance(now, Mapping) and (kind := ALGORITHMS.get(str(now.get("name", USUAL)))):
        given = changes.get("algorithm")
        asked = given if isinstance(given, Mapping) else {}
        others = {key for each in ALGORITHMS.values() if each is not kind for key in each.model_fields}
        gone = others - kind.model_fields.keys() - asked.keys() if before.get("name", USUAL) != now.get("name", USUAL) else ()
        result["algorithm"] = {key: value for key, value in now.items() if key not in gone}
    return result


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return the differing options as ``name theirs, not ours, and ...``: the first four, and the number of further ones."""
    names = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
    words = [f"{name} {theirs.get(name)!r}, not {ours.get(name)!r}" for name in names[:4]]
    return ", and ".join(words + ([f"{len(names) - 4} more"] if len(names) > 4 else []))
