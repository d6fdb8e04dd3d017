"""What a training run is: task, algorithm, cluster, schedule, all with defaults that reproduce the shipped trace.

Knows numbers and names only; needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from rlhfless.trace.old_names import current_options
from rlhfless.training.option_types import as_annotated
from solver.model.plurals import counted

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
MAY_CHANGE = (  # when a run is resumed
    "steps", "save_total_limit", "learner_processes", "device", "ray_address", "idle_timeout_s", "prewarm", "gpus",
    "gpus_per_node", "memory_gib",
    "preparation_actors",
)  # fmt: skip


class TrainError(ValueError):
    """A training option is wrong, or a run cannot be resumed; one sentence says what would be right."""


class DeviceWarning(UserWarning):
    """A run goes on where it is not the same bit for bit."""


class LearnerError(RuntimeError):
    """A process of the learner died or failed, so a step was not learned from; the run goes on at this step when resumed."""


@dataclass(frozen=True)
class TrainConfig:
    """One run.

    Attributes:
        algorithm: ``grpo`` or ``ppo``. steps: steps of the whole run, a resumed one included.
        pool: training prompts; an epoch visits each once. prompts_per_step, samples_per_prompt: the batch of a step.
        max_response_tokens: no response gets longer.
        task: ``arithmetic``, ``gsm8k``, ``gsm8k:FILE``, or a data set with ``prompt_column`` and ``answer_column``; all but the
            first need a ``model``.
        rewards: see ``rewards.named.make_rewards``.
        learning_rate, num_updates, clip_ratio_low, clip_ratio_high, loss_aggregation, mask_truncated, kl_coef,
        old_logprobs_from, importance_ratio_cap,
            max_tokens_per_micro_batch, max_grad_norm, precision: of the update, see ``algorithm.UpdateOptions``; advantage_std:
                of GRPO's advantages;
            critic, critic_learning_rate, gamma, lam, value_clip, vf_coef, whiten: of PPO.
        optimizer, weight_decay: see ``optimizing.make_optimizer``.
        schedule, warmup_steps, schedule_steps: of the rates, see ``optimizing.make_schedule``; None takes ``steps``.
        learner_processes: that share weights, gradients and the optimizer's state (FSDP2), on a GPU each where the model is on
            one; a run may be resumed with another number.
        device: of the policy, critic, reference and reward models that are loaded, and of torch engines on the virtual clock:
            ``cpu``, ``cuda``, or ``auto``: ``cuda`` where torch finds one and no actors of a pool hold it. A run may be resumed
            on another, not bit for bit. A model that is given as an object stays where it is.
        temperature: of sampling.
        gpus, gpus_per_node, profile: the cluster; ``profile`` also says how many GPUs an actor takes. A run may be resumed on
            another number of GPUs and nodes: completed steps are kept, and later ones are planned for what is there. With the
            torch engine on CPUs weights and texts are those of the run that stayed where it was, bit for bit; on GPUs and with
            vLLM the distribution of texts is.
        memory_gib: of every (emulated) GPU, which decides slots and KV tokens of plans and torch engines; None: the profile's.
        executor: where actors run: on the ``virtual`` clock, all emulated here, or ``local``, each in a process of its own on
            this machine's GPUs (without any, on its CPU) on the wall clock, every second measured, or ``ray``: the same as
            Ray actors, on one machine or many.
        ray_address: of a Ray cluster that is there, as for ``ray.init``; None starts one here, of one
            node. idle_timeout_s: seconds that an actor without work waits for the next step; 0 ends it at once.
        prewarm: whether actors of a pool are started ahead of the next step, which is expected after the ``shortest`` step so
            far, or by the plan's own ``forecast`` of its makespan and the rest of the step (see ``Lifecycle``).
        engine: what actors decode with; ``vllm`` runs in a process of its own per actor, so not on the virtual clock.
        charging: of the virtual clock: seconds of generation by the ``profile``, or ``measured``: decided with the profile's
            seconds, charged what each actor's iterations take here when they are replayed alone.
        policy, time_weight, time_limit_s, tau: how steps are planned.
        preparation: rewards, reference and values: ``after`` generation, or ``overlap``: of each response as soon as its
            generation ends, on GPUs beside the cluster. The results are the same.
        preparation_actors: most that prepare side by side on the virtual clock, each on the GPUs of an actor.
        reward_s_per_response: what the profile charges for judging one response, beside passes of models. The default is what
            the arithmetic task's own rule takes on the machine of the default profile.
        save_total_limit: how many checkpoints are kept, the latest ones.
        window: epochs that the length predictor looks back on; scenarios: samples of lengths that a plan is timed with.
        seed: of the task, the model, the warm-up, the order of prompts and every response.

    Raises:
        TrainError: an option is of another type than is said here, out of its range, or does not fit the others.
    """

    task: str = "arithmetic"
    algorithm: str = "grpo"
    steps: int = 60
    pool: int = 128
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
    schedule: str = "constant"
    warmup_steps: int = 0
    schedule_steps: int | None = None
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
                "samples_per_prompt is 1, and GRPO compares responses of one prompt; give 2 or more, or algorithm ppo"
            )
        for name, known in (
            ("algorithm", ALGORITHMS), ("charging", CHARGING), ("executor", EXECUTORS), ("engine", ENGINES),
            ("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("precision", PRECISIONS), ("preparation", PREPARATION),
            ("device", DEVICES), ("prewarm", PREWARM),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise TrainError(f"{name} {getattr(self, name)!r} is unknown; choose from {', '.join(known)}")
        for name in (
            "steps",
            "pool",
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
                "engine 'vllm' decodes in processes of its own, not on the virtual clock; choose executor 'local' or 'ray'"
            )
        if self.ray_address is not None and self.executor != "ray":
            raise TrainError(
                f"ray_address is {self.ray_address!r}, but executor {self.executor!r} uses no Ray cluster; choose 'ray'"
            )
        if not self.idle_timeout_s >= 0:
            raise TrainError(f"idle_timeout_s is {self.idle_timeout_s}; a number of seconds of 0 or more is needed")
        if self.prewarm != "none" and (self.executor == "virtual" or self.idle_timeout_s == math.inf):
            never = (
                "actors that are emulated start at once"
                if self.executor == "virtual"
                else "actors that wait for ever end never"
            )
            raise TrainError(
                f"prewarm is {self.prewarm!r}, but {never}, so none would be started ahead; choose prewarm 'none', or executor "
                "'local' or 'ray' with a finite idle_timeout_s"
            )
        if self.memory_gib is not None and (not 0 < self.memory_gib < math.inf or self.engine == "vllm"):
            raise TrainError(
                f"memory_gib is {self.memory_gib} with engine {self.engine!r}; it must be above 0 and finite, and it decides "
                "the slots of the torch engine only: those of vLLM come from the profile"
            )
        if self.pool % self.prompts_per_step:
            raise TrainError(
                f"prompts_per_step is {self.prompts_per_step}, which does not divide the pool of {counted(self.pool, 'prompt')}"
                "; an epoch must be a whole number of steps"
            )
        if self.gpus % self.gpus_of_node:
            raise TrainError(
                f"gpus is {self.gpus}, no multiple of the {counted(self.gpus_of_node, 'GPU')} of a node; give whole nodes"
            )
        in_range = 0 <= self.time_weight <= 1 and 0 < self.tau <= 1 and 0 <= self.time_limit_s < math.inf and self.seed >= 0
        if not in_range:
            raise TrainError(
                f"time_weight ({self.time_weight}) must lie in 0..1, tau ({self.tau}) above 0 and up to 1, time_limit_s "
                f"({self.time_limit_s}) and seed ({self.seed}) at 0 or above, and the time limit finite"
            )
        if self.executor != "virtual" and (self.preparation != "after" or self.preparation_actors != 1):
            raise TrainError(
                f"preparation is {self.preparation!r} with {counted(self.preparation_actors, 'actor')}, and executor "
                f"{self.executor!r}; on the wall clock it is done after generation, by this process alone: choose executor "
                "'virtual'"
            )
        if not 0 <= self.reward_s_per_response < math.inf:
            raise TrainError(f"reward_s_per_response is {self.reward_s_per_response}; seconds of 0 or more are needed")
        for name in ("temperature", "learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise TrainError(f"{name} is {getattr(self, name)}; it must be above 0 and finite")
        if self.critic_learning_rate is not None and not 0 <= self.critic_learning_rate < math.inf:
            raise TrainError(
                f"critic_learning_rate is {self.critic_learning_rate}; it must be above 0 and finite, or 0 for a critic that "
                "stays as it is"
            )

    @property
    def gpus_of_node(self) -> int:
        """GPUs of one node of the cluster: a Ray cluster that is started here is one node."""
        alone = self.executor == "ray" and self.ray_address is None
        return self.gpus if alone else min(self.gpus, self.gpus_per_node)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every prompt of the pool is visited once."""
        return self.pool // self.prompts_per_step

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return {**asdict(self), "rewards": list(self.rewards)}

    def columns(self) -> dict[str, str]:
        """The columns of a data set that differ from the task's own."""
        given = {"prompt_column": self.prompt_column, "answer_column": self.answer_column}
        return {name: column for name, column in given.items() if column is not None}

    def learner_options(self) -> dict[str, Any]:
        """What ``make_learner`` is given."""
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
        names += ["optimizer", "weight_decay", "max_grad_norm", "schedule", "warmup_steps", "precision"]
        names += ["advantage_std"] if self.algorithm == "grpo" else CRITIC_OPTIONS
        ends = None if self.schedule == "constant" else self.schedule_steps or self.steps
        return {**{name: getattr(self, name) for name in names}, "schedule_steps": ends}

    def check_resume(self, earlier: Mapping[str, Any]) -> None:
        """Refuse to continue a run that was started with other options; only ``MAY_CHANGE`` may differ, and ``steps`` only if
        no schedule ends with them. An option that the run did not know yet had its default.

        Raises:
            TrainError: naming the options and both their values.
        """
        ends = self.schedule != "constant" and self.schedule_steps is None
        may_change = [name for name in MAY_CHANGE if not (ends and name == "steps")]
        ours = {name: value for name, value in self.to_dict().items() if name not in may_change}
        known = {**TrainConfig().to_dict(), **current_options(earlier)}
        if different := differences(ours, {name: known[name] for name in ours}):
            raise TrainError(f"the run was started with {different}; resume it with what it was started with")


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """What differs, as ``name theirs, not ours, and ...``; the first four, and how many more."""
    names = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
    words = [f"{name} {theirs.get(name)!r}, not {ours.get(name)!r}" for name in names[:4]]
    return ", and ".join(words + ([f"{len(names) - 4} more"] if len(names) > 4 else []))
