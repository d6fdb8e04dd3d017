"""All options of a training run: nested for Python, flat for the command line and stored files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from annotated_types import Ge

from rlhfless.gone_options import without_gone
from rlhfless.old_names import current_options
from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.generation import RolloutConfig, TaskConfig
from rlhfless.training.config.learning import GrpoConfig, OptimizerConfig, PpoConfig
from rlhfless.training.config.options import Count, Options
from rlhfless.training.config.scheduling import ClusterConfig, PlannerConfig
from solver.model.plurals import counted

ALGORITHMS: dict[str, type[GrpoConfig | PpoConfig]] = {kind.name: kind for kind in (GrpoConfig, PpoConfig)}
SECTIONS: dict[str, type[Options]] = {
    "task": TaskConfig, "rollout": RolloutConfig, "optimizer": OptimizerConfig, "planner": PlannerConfig,
    "cluster": ClusterConfig,
}  # fmt: skip
"""Sections of every run; the algorithm's is of ``ALGORITHMS``."""
MAY_CHANGE = (  # options that may differ when a run is resumed
    "steps", "save_every", "save_total_limit", "learner_processes", "learner_placement", "device", "ray_address",
    "idle_timeout_s", "heartbeat_timeout_s", "prewarm", "gpus", "gpus_per_node", "memory_gib", "learner_threads",
    "gpu_memory_utilization", "actor_threads", "weight_sync", "drafts", "draft_length", "levers", "preparation_actors",
    "learner_gpus", "learner_grows", "learner_start", "learner_load_s", "learner_loss_per_doubling", "eval_every",
    "eval_prompts", "gradient_checkpointing", "offload_reference", "offload_reward_models", "max_line_mib", "max_rows",
    "max_unpacked_gib",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Options):
    """Options of one training run. The defaults reproduce the shipped trace.

    Example:
        >>> config = TrainConfig(steps=10, rollout=RolloutConfig(samples_per_prompt=4), algorithm=GrpoConfig(kl_coef=0.1))
        >>> config.rollout.samples_per_prompt, config.cluster.gpus
        (4, 16)
        >>> TrainConfig.from_options(steps=10, samples_per_prompt=4, kl_coef=0.1) == config
        True

    Raises:
        TrainError: an option has the wrong type, is outside its range, or does not fit the others.
    """

    steps: Count = 60
    """Train for this many steps, resumed ones included."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed every random choice with this number."""
    save_every: Count = 1
    """Write a checkpoint after every so many steps, and after the last. A run that is killed, or interrupted while it learns,
    repeats the steps since the last checkpoint, and warns of it."""
    save_total_limit: Count = 1
    """Keep this many of the latest checkpoints."""
    eval_every: Count | None = None
    """Evaluate the weights on held-out prompts before the first step, after every so many, and after the last. Each prompt gets
    one sampled response, with the same random numbers every time. It computes in this process. Default: off."""
    task: TaskConfig = field(default_factory=TaskConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: GrpoConfig | PpoConfig = field(default_factory=GrpoConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        prompts, rollout = self.task.prompts, self.rollout
        if self.algorithm.name == "grpo" and rollout.samples_per_prompt == 1:
            raise TrainError(
                "samples_per_prompt is 1, but GRPO compares responses to one prompt; give 2 or more, or algorithm 'ppo'"
            )
        if prompts % rollout.prompts_per_step:
            raise TrainError(
                f"prompts_per_step is {rollout.prompts_per_step}, which does not divide prompts={prompts}"
                "; an epoch must be a whole number of steps"
            )
        mini_batches = self.optimizer.num_mini_batches
        if mini_batches > rollout.prompts_per_step:
            raise TrainError(
                f"num_mini_batches is {mini_batches}, but a step has only {counted(rollout.prompts_per_step, 'prompt')}; every "
                "mini-batch needs at least one"
            )
        if mini_batches > 1 and self.algorithm.old_logprobs_from == "recomputed":
            raise TrainError(
                f"old_logprobs_from is 'recomputed' with num_mini_batches {mini_batches}, but the first update replaces the "
                "weights that generated; choose old_logprobs_from 'engine', or num_mini_batches 1"
            )
        for name, updates in (("num_updates", self.algorithm.num_updates), ("num_mini_batches", mini_batches)):
            if self.cluster.learner_gpus == "auto" and updates > 1:
                raise TrainError(
                    f"learner_gpus is 'auto', which plans one update per step, but {name} is {updates}; give a number of "
                    f"learner_gpus, or {name} 1"
                )
        if self.optimizer.offload_reference and not self.algorithm.kl_coef:
            raise TrainError(
                "offload_reference is True, but with kl_coef 0 there is no reference; give kl_coef, or leave it out"
            )
        if self.planner.levers == "measured" and self.cluster.executor == "virtual":
            raise TrainError(
                "levers is 'measured', but on the virtual clock there is nothing to measure; choose executor 'local' or 'ray', "
                "or levers 'given'"
            )
        self._check_lora()

    def _check_lora(self) -> None:
        rank, cluster = self.optimizer.lora_rank, self.cluster
        if rank is None:
            return
        if cluster.learner_processes > 1:
            raise TrainError(
                f"lora_rank is {rank} with {cluster.learner_processes} learner_processes, but adapters are trained in one "
                "process; choose one of them"
            )
        joined = {
            "learner_grows": cluster.learner_grows,
            "learner_gpus": cluster.learner_gpus == "auto" and cluster.executor != "virtual",
        }
        for name in (name for name, joins in joined.items() if joins and cluster.executor != "virtual"):
            raise TrainError(
                f"{name} is {getattr(cluster, name)!r} with lora_rank {rank}, but processes that join a learner hold no "
                "adapters; leave one of them out"
            )
        if self.optimizer.offload_reference:
            raise TrainError(
                f"offload_reference is True with lora_rank {rank}, but the reference is the base model that adapters are "
                "trained on; leave it out"
            )

    @classmethod
    def from_options(cls, **options: Any) -> TrainConfig:
        """Return the configuration with flat options: those of the command line, and of ``meta.json`` in a run's folder.

        Raises:
            TrainError: an option is unknown, is another algorithm's or no longer exists, or has a wrong value.
        """
        given, algorithm = without_gone(options, "the configuration", TrainError), options.get("algorithm", "grpo")
        if algorithm not in tuple(ALGORITHMS):
            raise TrainError(f"algorithm is {algorithm!r}; {' or '.join(map(repr, ALGORITHMS))} is needed")
        sections = {**SECTIONS, "algorithm": ALGORITHMS[given.pop("algorithm", "grpo")]}
        made = {section: kind(**_taken(given, option_names(section, kind))) for section, kind in sections.items()}
        own = _taken(given, {name: name for name in OWN})
        if given:
            raise TrainError(_unknown(next(iter(given)), algorithm))
        return cls(**own, **made)  # type: ignore[arg-type]

    def to_options(self) -> dict[str, Any]:
        """Return all options as flat ones, ready for JSON; ``from_options`` reads them."""
        flat: dict[str, Any] = {name: getattr(self, name) for name in OWN}
        for section in (*SECTIONS, "algorithm"):
            options = getattr(self, section)
            flat |= {option: getattr(options, name) for name, option in option_names(section, type(options)).items()}
        lists = {name: list(value) for name, value in flat.items() if isinstance(value, tuple)}
        return {**flat, "algorithm": self.algorithm.name, **lists}

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps that visit every prompt once."""
        return self.task.prompts // self.rollout.prompts_per_step

    def learner_options(self) -> dict[str, Any]:
        """Return the options for ``make_learner``."""
        options, optimizer, rollout = self.to_options(), self.optimizer, self.rollout
        names = [*option_names("algorithm", type(self.algorithm)), *option_names("optimizer", OptimizerConfig).values()]
        ends = None if optimizer.lr_scheduler_type == "constant" else optimizer.lr_scheduler_steps or self.steps
        lengths = {"max_response_tokens": rollout.max_response_tokens, "temperature": rollout.temperature}
        return {**{name: options[name] for name in names}, **lengths, "lr_scheduler_steps": ends, "seed": self.seed}

    def check_resume(self, earlier: Mapping[str, Any]) -> None:
        """Check that a run may be resumed with these options.

        Only options in ``MAY_CHANGE`` may differ, and ``steps`` only if no learning-rate schedule ends with it. An option that
        did not exist when the run was started counts as its default.

        Args:
            earlier: the flat options that the run was started with, as in ``meta.json``.

        Raises:
            TrainError: other options differ; the message names them with both values.
        """
        ends = self.optimizer.lr_scheduler_type != "constant" and self.optimizer.lr_scheduler_steps is None
        may_change = [name for name in MAY_CHANGE if not (ends and name == "steps")]
        ours = {name: value for name, value in self.to_options().items() if name not in may_change}
        usual = TrainConfig(algorithm=type(self.algorithm)()).to_options() | {"algorithm": "grpo"}
        recorded = {**usual, **without_gone(current_options(earlier), "the run's meta.json", TrainError)}
        if different := differences(ours, {name: recorded[name] for name in ours}):
            raise TrainError(f"the run was started with {different}; resume it with the options that it was started with")


OWN = tuple(option.name for option in fields(TrainConfig) if option.name not in (*SECTIONS, "algorithm"))
"""Options of a run that stand in no section."""


def option_names(section: str, kind: type[Options]) -> dict[str, str]:
    """Return the flat option of every field of a section. The field ``name`` has the option of its section: ``task``."""
    return {each.name: section if each.name == "name" else each.name for each in fields(kind)}


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return the differing options as ``name theirs, not ours, and ...``: the first four, and the number of further ones."""
    names = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
    words = [f"{name} {theirs.get(name)!r}, not {ours.get(name)!r}" for name in names[:4]]
    return ", and ".join(words + ([f"{len(names) - 4} more"] if len(names) > 4 else []))


def _taken(options: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Take the named options out; return them by field."""
    return {name: options.pop(option) for name, option in names.items() if option in options}


def _unknown(name: str, algorithm: str) -> str:
    """Return what is wrong with an option that a run with this algorithm does not have."""
    for other, kind in ALGORITHMS.items():
        if name in option_names("algorithm", kind):
            return f"{name} is an option of algorithm {other!r}, not of {algorithm!r}; choose {other!r}, or leave it out"
    known = TrainConfig(algorithm=ALGORITHMS[algorithm]()).to_options()
    close = difflib.get_close_matches(name, known, 1, 0.0)
    return f"{name} is no option of a training run; {close[0]} is the closest"
