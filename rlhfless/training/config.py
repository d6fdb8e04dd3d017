"""Options of a training run: task, algorithm, learner, planning and cluster. The defaults reproduce the shipped trace.

Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from rlhfless.old_names import current_options
from rlhfless.training.option_types import as_annotated
from solver.model.plurals import counted

if TYPE_CHECKING:
    from rlhfless.trace.limits import Limits

ALGORITHMS = ("grpo", "ppo")
CRITIC_OPTIONS = ("critic", "critic_learning_rate", "gamma", "lam", "value_clip", "vf_coef", "whiten")
OPTIMIZERS = ("adamw", "sgd", "adafactor")
SCHEDULES = ("constant", "linear", "cosine")
PRECISIONS = ("float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
CHARGING = ("profile", "measured")
EXECUTORS = ("virtual", "local", "ray")
ENGINES = ("torch", "vllm")
PREPARATION = ("after", "overlap")
PREWARM = ("none", "shortest", "forecast")
MAY_CHANGE = (  # options that may differ when a run is resumed
    "steps", "save_total_limit", "learner_processes", "device", "ray_address", "idle_timeout_s", "prewarm", "gpus",
    "gpus_per_node", "memory_gib",
    "preparation_actors", "max_line_mib", "max_rows", "max_unpacked_gib",
)  # fmt: skip


class TrainError(ValueError):
    """A training option is wrong, or a run cannot be resumed."""


class ReproducibilityWarning(UserWarning):
    """A run continues on another device or cluster, where it is not the same bit for bit."""


class LearnerError(RuntimeError):
    """A learner process died or failed, so a step was not learned from; a resumed run repeats that step."""


@dataclass(frozen=True)
class TrainConfig:
    """Options of one training run.

    Attributes:
        task: ``arithmetic``, ``gsm8k``, ``gsm8k:FILE``, or a data set with ``prompt_column`` and ``answer_column``. All but
            ``arithmetic`` need a ``model``.
        max_line_mib, max_rows, max_unpacked_gib: limits of reading the data file of ``task``; None takes those of
            ``trace.Limits``. A run may be resumed with others.
        algorithm: ``grpo`` or ``ppo``. steps: number of steps of the whole run, resumed ones included.
        prompts: number of training prompts; an epoch visits each once. prompts_per_step, samples_per_prompt: size of a batch.
        max_response_tokens: longest response, in tokens; longer ones are truncated.
        rewards: names of rewards with weights, see ``rewards.registry.make_rewards``.
        learning_rate: of the policy. num_updates, clip_ratio_low, clip_ratio_high, loss_aggregation, mask_truncated, kl_coef,
            old_logprobs_from, importance_ratio_cap, max_tokens_per_micro_batch, max_grad_norm, precision: see
            ``algorithms.base.UpdateOptions``.
        advantage_std: divisor of GRPO's advantages, see ``algorithms.advantages.group_advantages``.
        critic, critic_learning_rate, gamma, lam, value_clip, vf_coef, whiten: options of PPO, see ``algorithms.ppo`` and
            ``algorithms.critic``.
        optimizer, weight_decay: see ``algorithms.optimizer.make_optimizer``.
        lr_scheduler_type, warmup_steps, lr_scheduler_steps: schedule of the learning rates, see
            ``algorithms.optimizer.make_schedule``.
            ``lr_scheduler_steps`` is ``steps`` if None.
        learner_processes: number of learner processes. Above 1 they shard weights, gradients and optimizer state (FSDP2), with
            one GPU per process if the model is on a GPU. A run may be resumed with another number.
        device: device of policy, critic, reference and reward models, and of torch engines on the virtual clock: ``cpu``,
            ``cuda`` or ``auto``. ``auto`` is ``cuda`` if torch finds a GPU and no actors of a pool use it. A model passed as
            an object stays on its device. A run may be resumed on another device, but not bit for bit.
        temperature: sampling temperature.
        gpus, gpus_per_node: size of the cluster. A run may be resumed with other numbers: completed steps are kept, and later
            ones are planned for the new cluster. With the torch engine on CPUs, weights and responses are bit for bit those
            of a run without the change. On GPUs and with vLLM only the distribution of responses is the same.
        profile: latency profile, which also sets the number of GPUs per actor.
        memory_gib: memory per (emulated) GPU in GiB, which sets slots and KV tokens of plans and torch engines; None takes
            those of the profile.
        executor: where actors run. ``virtual``: all emulated in this process, on the virtual clock. ``local``: each in its own
            process on this machine's GPUs (without any, on its CPU), on the wall clock. ``ray``: like ``local``, but as Ray
            actors on one machine or many.
        ray_address: address of a running Ray cluster, as for ``ray.init``; None starts one of one node on this machine.
        idle_timeout_s: seconds after which an actor without work stops; 0 stops it at once.
        prewarm: forecast by which actors of a pool are started before the next step (see ``Lifecycle``). ``shortest``: the next
            step comes as soon as after the shortest step so far. ``forecast``: after the plan's makespan and the other phases.
            ``none`` starts no actors early.
        engine: inference engine, ``torch`` or ``vllm``. ``vllm`` runs in its own process per actor, so not on the virtual
            clock.
        charging: source of durations on the virtual clock. ``profile``: the latency profile. ``measured``: plans use the
            profile, but each actor's iterations are replayed alone on this machine and take their measured time.
        policy, time_weight, time_limit_s, tau: scheduling policy and its parameters; ``time_limit_s`` are counted seconds of
            work per plan, so that a resumed run makes the same plans.
        preparation: when rewards, reference log-probabilities and values are computed: ``after`` generation, or ``overlap``,
            as soon as each response is complete, on GPUs in addition to the cluster. Results are the same.
        preparation_actors: largest number of actors that prepare at the same time on the virtual clock, each on the GPUs of
            one actor.
        reward_s_per_response: seconds that the virtual clock charges for the reward of one response, without passes of models.
            The default is the time of the arithmetic task's rule on the machine of the default profile.
        save_total_limit: number of checkpoints to keep, the latest ones.
        window: number of past epochs that the length predictor uses. scenarios: length samples per plan.
        seed: seed of the task, the model, the warm-up, the order of prompts and every response.

    Raises:
        TrainError: an option has the wrong type, is outside its range, or does not fit the others.
    """

    task: str = "arithmetic"
    algorithm: str = "grpo"
    steps: int = 60
    prompts: int = 128
    prompts_per_step: int = 32
    samples_per_prompt: int = 8
    max_response_tokens: int = 320
    learning_rate: float = 6e-5
    num_updates: int = 1
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    max_tokens_per_micro_batch: int = 4096
    prompt_column: str | None = None
    answer_column: str | None = None
    max_line_mib: float | None = None
    max_rows: int | None = None
    max_unpacked_gib: float | None = None
    rewards: tuple[str, ...] = ("task",)
    loss_aggregation: str = "token"
    mask_truncated: bool = False
    kl_coef: float = 0.0
    old_logprobs_from: str = "engine"
    importance_ratio_cap: float | None = None
    advantage_std: str = "population"
    critic: str = "head"
    critic_learning_rate: float | None = None
    gamma: float = 1.0
    lam: float = 1.0
    value_clip: float | None = 0.2
    vf_coef: float = 0.1
    whiten: bool = True
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "constant"
    warmup_steps: int = 0
    lr_scheduler_steps: int | None = None
    precision: str = "float32"
    learner_processes: int = 1
    device: str = "auto"
    temperature: float = 1.0
    gpus: int = 16
    gpus_per_node: int = 8
    profile: str = "cpu-tiny-qwen2"
    memory_gib: float | None = None
    executor: str = "virtual"
    ray_address: str | None = None
    idle_timeout_s: float = 60.0
    prewarm: str = "none"
    engine: str = "torch"
    charging: str = "profile"
    policy: str = "solver"
    time_weight: float = 0.7
    time_limit_s: float = 0.3
    tau: float = 0.7
    preparation: str = "after"
    preparation_actors: int = 1
    reward_s_per_response: float = 2e-5
    save_total_limit: int = 1
    window: int = 1
    scenarios: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            try:
                object.__setattr__(self, option.name, as_annotated(value, str(option.type)))
            except TypeError as error:
                raise TrainError(f"{option.name} is {value!r}; {error}") from None
        if self.algorithm == "grpo" and self.samples_per_prompt == 1:
            raise TrainError(
                "samples_per_prompt is 1, but GRPO compares responses to one prompt; give 2 or more, or algorithm 'ppo'"
            )
        for name, choices in (
            ("algorithm", ALGORITHMS), ("charging", CHARGING), ("executor", EXECUTORS), ("engine", ENGINES),
            ("optimizer", OPTIMIZERS), ("lr_scheduler_type", SCHEDULES), ("precision", PRECISIONS),
            ("preparation", PREPARATION), ("device", DEVICES), ("prewarm", PREWARM),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise TrainError(f"{name} {getattr(self, name)!r} is unknown; choose from {', '.join(choices)}")
        for name in (
            "steps",
            "prompts",
            "prompts_per_step",
            "samples_per_prompt",
            "window",
            "scenarios",
            "max_response_tokens",
            "num_updates",
            "gpus",
            "gpus_per_node",
            "preparation_actors",
            "save_total_limit",
            "learner_processes",
        ):
            if not getattr(self, name) >= 1:
                raise TrainError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        if self.engine == "vllm" and self.executor == "virtual":
            raise TrainError(
                "engine 'vllm' needs its own processes and does not run on the virtual clock; choose executor 'local' or 'ray'"
            )
        if self.ray_address is not None and self.executor != "ray":
            raise TrainError(
                f"ray_address is {self.ray_address!r}, but executor {self.executor!r} uses no Ray cluster; choose 'ray'"
            )
        if not self.idle_timeout_s >= 0:
            raise TrainError(f"idle_timeout_s is {self.idle_timeout_s}; a number of seconds of 0 or more is needed")
        if self.prewarm != "none" and (self.executor == "virtual" or self.idle_timeout_s == math.inf):
            never = (
                "emulated actors start at once"
                if self.executor == "virtual"
                else "with an infinite idle_timeout_s actors never stop"
            )
            raise TrainError(
                f"prewarm is {self.prewarm!r}, but {never}, so there is nothing to prewarm; choose prewarm 'none', or executor "
                "'local' or 'ray' with a finite idle_timeout_s"
            )
        if self.memory_gib is not None and (not 0 < self.memory_gib < math.inf or self.engine == "vllm"):
            raise TrainError(
                f"memory_gib is {self.memory_gib} with engine {self.engine!r}; it must be above 0 and finite, and needs engine "
                "'torch', because the slots of vLLM come from the profile"
            )
        if self.prompts % self.prompts_per_step:
            raise TrainError(
                f"prompts_per_step is {self.prompts_per_step}, which does not divide prompts={self.prompts}"
                "; an epoch must be a whole number of steps"
            )
        if self.gpus % self.gpus_of_node:
            raise TrainError(f"gpus is {self.gpus}, but a node has {counted(self.gpus_of_node, 'GPU')}; give whole nodes")
        in_range = 0 <= self.time_weight <= 1 and 0 < self.tau <= 1 and 0 <= self.time_limit_s < math.inf and self.seed >= 0
        if not in_range:
            raise TrainError(
                f"time_weight ({self.time_weight}) must be in 0..1, tau ({self.tau}) above 0 and at most 1, time_limit_s "
                f"({self.time_limit_s}) finite and 0 or more, and seed ({self.seed}) 0 or more"
            )
        if self.executor != "virtual" and (self.preparation != "after" or self.preparation_actors != 1):
            raise TrainError(
                f"preparation is {self.preparation!r} with {counted(self.preparation_actors, 'actor')}, but executor "
                f"{self.executor!r} prepares after generation, with 1 actor; choose executor 'virtual'"
            )
        if not 0 <= self.reward_s_per_response < math.inf:
            raise TrainError(f"reward_s_per_response is {self.reward_s_per_response}; finite seconds of 0 or more are needed")
        for name in ("temperature", "learning_rate", "max_line_mib", "max_rows", "max_unpacked_gib"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise TrainError(f"{name} is {getattr(self, name)}; it must be above 0 and finite")
        if self.critic_learning_rate is not None and not 0 <= self.critic_learning_rate < math.inf:
            raise TrainError(
                f"critic_learning_rate is {self.critic_learning_rate}; it must be finite and above 0, or 0 for a critic that "
                "does not change"
            )

    @property
    def gpus_of_node(self) -> int:
        """Return the GPUs of one node. A Ray cluster that the run starts itself is one node."""
        alone = self.executor == "ray" and self.ray_address is None
        return self.gpus if alone else min(self.gpus, self.gpus_per_node)

    @property
    def data_limits(self) -> Limits:
        """Return the limits of reading the task's data file."""
        from rlhfless.trace.limits import Limits

        return Limits.of_options(self.max_line_mib, self.max_rows, self.max_unpacked_gib)

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps that visit every prompt once."""
        return self.prompts // self.prompts_per_step

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return {**asdict(self), "rewards": list(self.rewards)}

    def columns(self) -> dict[str, str]:
        """Return the options that name columns of the data set, where they are set."""
        columns = {"prompt_column": self.prompt_column, "answer_column": self.answer_column}
        return {name: column for name, column in columns.items() if column is not None}

    def learner_options(self) -> dict[str, Any]:
        """Return the options for ``make_learner``."""
        names = [
            "learning_rate",
            "num_updates",
            "clip_ratio_low",
            "clip_ratio_high",
            "loss_aggregation",
            "max_response_tokens",
            "mask_truncated",
        ]
        names += ["kl_coef", "old_logprobs_from", "importance_ratio_cap", "temperature", "max_tokens_per_micro_batch"]
        names += ["optimizer", "weight_decay", "max_grad_norm", "lr_scheduler_type", "warmup_steps", "precision"]
        names += ["advantage_std"] if self.algorithm == "grpo" else CRITIC_OPTIONS
        ends = None if self.lr_scheduler_type == "constant" else self.lr_scheduler_steps or self.steps
        return {**{name: getattr(self, name) for name in names}, "lr_scheduler_steps": ends}

    def check_resume(self, earlier: Mapping[str, Any]) -> None:
        """Check that a run may be resumed with these options.

        Only options in ``MAY_CHANGE`` may differ, and ``steps`` only if no learning-rate schedule ends with it. An option that
        did not exist when the run was started counts as its default.

        Args:
            earlier: the options that the run was started with, as in ``meta.json``.

        Raises:
            TrainError: other options differ; the message names them with both values.
        """
        ends = self.lr_scheduler_type != "constant" and self.lr_scheduler_steps is None
        may_change = [name for name in MAY_CHANGE if not (ends and name == "steps")]
        ours = {name: value for name, value in self.to_dict().items() if name not in may_change}
        recorded = {**TrainConfig().to_dict(), **current_options(earlier)}
        if different := differences(ours, {name: recorded[name] for name in ours}):
            raise TrainError(f"the run was started with {different}; resume it with the options that it was started with")


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return the differing options as ``name theirs, not ours, and ...``: the first four, and the number of further ones."""
    names = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
    words = [f"{name} {theirs.get(name)!r}, not {ours.get(name)!r}" for name in names[:4]]
    return ", and ".join(words + ([f"{len(names) - 4} more"] if len(names) > 4 else []))
