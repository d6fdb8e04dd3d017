"""How a step is planned and where it runs: options of the planner and of the cluster."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StrictBool, field_validator, model_validator

from rlhfless.engine.common.pool_engines import Capabilities
from rlhfless.engine.server.engine import ServerEngineFactory
from rlhfless.latency import list_profiles
from rlhfless.scheduling import PolicyError, SchedulingPolicy, make_policy
from rlhfless.scheduling.speculative import Speculative
from rlhfless.system.child import HEARTBEAT_TIMEOUT_S
from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.section import (
    Count,
    NotNegative,
    NotNegativeOrInfinite,
    Positive,
    Section,
    Share,
    ShareAboveZero,
)
from solver.model.drafting import MAX_DRAFT_TOKENS, VLLM_DRAFTERS, Drafting
from solver.model.objective import TIME_WEIGHT
from solver.model.plurals import counted

DraftTokens = Annotated[int, Field(strict=True, ge=1, le=MAX_DRAFT_TOKENS)]


def check_loads_weights(can: Capabilities) -> None:
    """Refuse engines for training that cannot load the weights of each step.

    Raises:
        TrainError: they cannot.
    """
    if not can.loads_weights:
        raise TrainError(
            f"{can.name} as cluster.engine cannot load the weights of each step; choose torch, transformers or vllm, or "
            "execute a plan on servers that run already: rlhfless plan LOG --engine server --server URL"
        )


class PlannerConfig(Section):
    """The scheduling policy and its length forecasts."""

    section: ClassVar[str | None] = "planner"

    policy: str = "solver"
    """Scheduling policy of generation, such as random or solver+replan; ``rlhfless.scheduling.policies()`` lists all."""
    time_weight: Share = TIME_WEIGHT
    """Weight w of time T against cost C: T^w C^(1-w) is minimised, so 1 is time only and 0 is cost only."""
    tau: ShareAboveZero = 0.7
    """Share of an actor's responses after which the rest migrate, for the policies rlhfless and random+tau."""
    window: Count = 1
    """Number of past epochs that length predictions average over."""
    scenarios: Count = 8
    """Number of length scenarios (samples of all response lengths) to plan with."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            check_policy(make_policy(self.policy, tau=self.tau))
        except PolicyError as error:
            raise TrainError(f"planner.{error}") from None
        return self


def check_policy(policy: SchedulingPolicy) -> None:
    """Check that a training run can plan its steps with a policy.

    Raises:
        TrainError: it needs true lengths, or drafts in simulations only.
    """
    if policy.clairvoyant:
        raise TrainError(
            f"planner.policy {policy.name!r} needs the true lengths, which are unknown before generation; choose another"
        )
    if isinstance(policy, Speculative):
        raise TrainError(
            f"planner.policy {policy.name!r} drafts in simulations only; a training run needs planner.policy "
            f"{policy.base.name!r} and cluster.drafts"
        )


class ClusterConfig(Section):
    """GPUs and what runs on them: actors (replicas of the engine), preparation, and the learner.

    A run may be resumed with other ``gpus`` and ``gpus_per_node``: completed steps are kept, and later ones are planned for the
    new cluster. With the torch engine on CPUs, weights and responses are then bit for bit the same as without the change. On
    GPUs and with vLLM only the distribution of responses is the same.
    """

    section: ClassVar[str | None] = "cluster"

    executor: Literal["auto", "virtual", "local", "ray"] = "auto"
    """Where actors run: emulated one after another (virtual), as processes of this machine (local), or on a Ray cluster (ray).
    ``virtual`` computes times on a virtual clock, from the latency profile. ``local`` and ``ray`` run on real GPUs, or the CPU,
    and measure times. ``auto`` is local if this machine has the GPUs, else virtual; it is also virtual if another option needs
    the virtual clock."""
    engine: Literal["torch", "transformers", "vllm"] = "torch"
    """Inference engine. ``torch`` runs llama, qwen2 and qwen3 fast; on the CPU it is reproducible bit for bit. ``transformers``
    runs nearly every decoder, with transformers' own forward pass."""
    drafts: StrictBool = False
    """Use speculative decoding, with drafts from earlier responses to the prompt. With the torch engine, tokens and weights
    stay the same. With vLLM the distribution of responses stays the same."""
    draft_length: Literal["adaptive"] | DraftTokens = "adaptive"
    """Tokens to draft: as each response's acceptance suggests (adaptive), or a fixed number. See ``Drafting``."""
    drafter: Literal["suffix", "vllm-ngram", "vllm-suffix"] = "suffix"
    """Where drafts come from: earlier responses to the prompt and those that are decoded beside it (suffix), or a speculative
    method of vLLM itself, with a fixed draft length: the response's own text (vllm-ngram), or all that the actor has decoded
    (vllm-suffix; needs the package arctic-inference)."""
    gpus: Count | None = None
    """GPUs that generate. Default: those of this machine; 8 emulated ones if it has none."""
    gpus_per_node: Count = 8
    """GPUs per node."""
    profile: str | None = None
    """Latency profile: a shipped name or a JSON file. It also sets the GPUs per actor. Default: the shipped profile whose model
    is nearest in size; ``rlhfless profile`` measures one."""
    tensor_parallel: Count | None = None
    """Tensor-parallel size of each actor of engine vllm; it must equal the GPUs per actor of the profile. Default: the
    profile's."""
    memory_gib: Positive | None = None
    """GiB of memory per GPU. It limits batch size and KV cache in plans and torch engines. Default: the profile's."""
    usd_per_gpu_hour: NotNegative | None = None
    """USD per GPU-hour, for the costs in the trace and the live view; 0 is no price. Default: the list price of the profile's
    kind of GPU; emulated GPUs on a CPU have none."""
    charging: Literal["profile", "measured"] = "profile"
    """Source of times on the virtual clock: the latency profile, or measured on this machine by replaying each actor's
    iterations alone (measured)."""
    ray_address: str | None = None
    """Address of the Ray cluster to join, HOST:PORT or auto. Default: start one here."""
    idle_timeout_s: NotNegativeOrInfinite | None = None
    """Idle seconds after which an actor is stopped; 0 stops it at once. Default: when waiting costs more than starting it
    again."""
    prewarm: Literal["none", "shortest", "forecast"] = "none"
    """Start actors before the next step: never (none), when the plan expects the step (forecast), or after the shortest step so
    far (shortest). See ``Lifecycle``."""
    preparation: Literal["after", "overlap", "released"] = "after"
    """When rewards and reference passes run: after generation, or during it on further GPUs (overlap), or on the GPUs of actors
    that have completed their responses or handed them over (released). The last two need the virtual clock. Results are the
    same."""
    preparation_actors: Count = 1
    """Servers that prepare responses in parallel, each on as many GPUs as an actor; on the virtual clock."""
    reward_s_per_response: NotNegative = 2e-5
    """Seconds per reward on the virtual clock. The default was measured for the rule of the arithmetic task on the machine of
    the default profile. Model passes are charged in addition."""
    learning: Literal["batch", "stream"] = "batch"
    """Learn from the whole batch after generation (batch), or from each prompt once its responses are complete (stream).
    ``stream`` accumulates partial gradients while other prompts still decode; the optimizer steps once, at the end. Weights are
    those of ``batch`` within rounding (about 1e-5)."""
    learner_gpus: Count | Literal["auto"] | None = None
    """GPUs of the learner, in addition to ``gpus``, or auto. Needs learning stream. ``auto`` (virtual clock only) chooses for
    each step, by the length forecast, how many there are, when they start, whether released GPUs join them, and whether to
    stream at all. With real actors the learner is on ``device``; on the CPU it is billed no GPU. Default: as many as an actor
    has."""
    learner_start: Literal["first", "step", "needed"] = "first"
    """When the learner's GPUs are allocated: with its first complete prompt (first), for the whole step (step), or as late as
    possible without lengthening the step by more than 0.5 % (needed), by the length forecast and the profile."""
    learner_grows: StrictBool = False
    """The learner also uses GPUs that actors have released; on the virtual clock."""
    learner_load_s: NotNegative = 0.0
    """Seconds on the virtual clock to load models on GPUs that join the learner."""
    learner_loss_per_doubling: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.1
    """Share of the learner's speed that is lost with every doubling of its GPUs beyond an actor's, on the virtual clock. This
    is an assumption, not a measurement. Seconds measured on this machine are not changed."""
    stream_order: Literal["completion", "canonical"] = "completion"
    """Order in which prompts are learned from: as they complete (completion), or in the order of the batch (canonical). With
    ``canonical``, weights are the same bit for bit whichever prompt completes first. ``completion`` is equally reproducible on
    the virtual clock with times of the profile; otherwise a repeated or resumed step differs within rounding (about 1e-5)."""
    learner_processes: Count = 1
    """Learner processes over which weights, gradients and optimizer state are sharded (FSDP2), with one GPU each if the model
    is on a GPU."""
    learner_placement: Literal["local", "ray"] = "local"
    """Where learner processes start: on this machine (local), or on the machines of a Ray cluster (ray; needs executor ray).
    The first process stays on this machine."""
    learner_threads: Count | Literal["auto"] | None = None
    """CPU threads of the learner; auto is the number of cores that actors do not use. Weights are the same within rounding
    (about 1e-5). Default: 1 with engine torch, so that weights are the same bit for bit on every machine; otherwise auto."""
    actor_threads: Count = 1
    """CPU threads per actor of engine torch or transformers. With more than 1, results are reproducible only within rounding:
    tokens may depend on the batch and the machine."""
    gpu_memory_utilization: ShareAboveZero | None = None
    """Share of each GPU's memory that vLLM may use; reduced if the learner is on the same GPUs. Default: vLLM's own."""
    heartbeat_timeout_s: Annotated[float, Field(strict=True, ge=5, allow_inf_nan=False)] = HEARTBEAT_TIMEOUT_S
    """Seconds without a report or heartbeat after which a process counts as lost. Processes send heartbeats while they compute,
    so a long computation is no problem. Use a larger number on a machine that is so busy that processes stall."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the learner's models; auto is a GPU if there is one. With real actors it is a GPU that no actor uses; if actors
    use all, the learner shares the first one, with a warning. A model that is passed as an object stays on its device. A run
    may be resumed on another device, but not bit for bit."""

    @field_validator("engine", mode="before")
    @classmethod
    def _loads_weights(cls, engine: Any) -> Any:
        if engine == "server":
            check_loads_weights(ServerEngineFactory.capabilities)
        return engine

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.engine == "vllm" and self.emulates and self.drafts:
            raise TrainError(
                "cluster.drafts is True, but on the virtual clock one replica of engine 'vllm' serves all actors and does "
                "not draft; leave cluster.drafts out, or choose cluster.executor 'local' or 'ray', or cluster.engine 'torch'"
            )
        for name, given, default in (("draft_length", self.draft_length, "adaptive"), ("drafter", self.drafter, "suffix")):
            if given != default and not self.drafts:
                raise TrainError(f"cluster.{name} is {given!r}, but nothing is drafted; give cluster.drafts as well")
        if self.drafter in VLLM_DRAFTERS and (self.engine != "vllm" or self.draft_length == "adaptive"):
            other = (
                f"engine {self.engine!r} cannot use it; choose cluster.engine 'vllm', or cluster.drafter 'suffix'"
                if self.engine != "vllm"
                else "it has no adaptive length; give cluster.draft_length a number of tokens, such as 4"
            )
            raise TrainError(f"cluster.drafter is {self.drafter!r}, but {other}")
        if self.ray_address is not None and self.executor != "ray":
            raise TrainError(
                f"cluster.ray_address is {self.ray_address!r}, but executor {self.executor!r} uses no Ray cluster; choose "
                "cluster.executor 'ray'"
            )
        if self.prewarm != "none" and (self.emulates or self.idle_timeout_s == math.inf):
            never = (
                "emulated actors start at once"
                if self.emulates
                else "with an infinite cluster.idle_timeout_s actors never stop"
            )
            raise TrainError(
                f"cluster.prewarm is {self.prewarm!r}, but {never}, so there is nothing to prewarm; choose cluster.prewarm "
                "'none', or cluster.executor 'local' or 'ray' with a finite cluster.idle_timeout_s"
            )
        if self.memory_gib is not None and self.engine == "vllm":
            raise TrainError(
                f"cluster.memory_gib is {self.memory_gib}, but the slots of engine 'vllm' come from the profile; leave it "
                "out, or choose cluster.engine 'torch' or 'transformers'"
            )
        if self.tensor_parallel is not None and (self.emulates or self.engine != "vllm"):
            emulated = self.engine == "vllm"
            why = (
                f"executor {self.executor!r} may emulate actors"
                if emulated
                else f"engine {self.engine!r} decodes an actor on one GPU"
            )
            raise TrainError(
                f"cluster.tensor_parallel is {self.tensor_parallel}, but {why}; leave it out, or choose cluster.engine "
                "'vllm' with cluster.executor 'local' or 'ray'"
            )
        if self.actor_threads > 1 and self.engine == "vllm":
            raise TrainError(
                f"cluster.actor_threads is {self.actor_threads}, but engine 'vllm' has no such option; leave it out, or "
                "choose cluster.engine 'torch' or 'transformers'"
            )
        if self.gpu_memory_utilization is not None and self.engine != "vllm":
            raise TrainError(
                f"cluster.gpu_memory_utilization is {self.gpu_memory_utilization:g}, but engine {self.engine!r} reserves no "
                "share of a GPU; limit it by cluster.memory_gib, or choose cluster.engine 'vllm'"
            )
        if self.gpus is not None and self.gpus % self.gpus_of_node:
            raise TrainError(
                f"cluster.gpus is {self.gpus}, but a node has {counted(self.gpus_of_node, 'GPU')}; give whole nodes"
            )
        if self.profile is not None and not self.profile.endswith(".json") and self.profile not in (known := list_profiles()):
            raise TrainError(f"cluster.profile is {self.profile!r}; a .json file or one of {', '.join(known)} is needed")
        if self.learner_placement == "ray" and (self.executor != "ray" or self.learner_processes == 1):
            raise TrainError(
                f"cluster.learner_placement is 'ray' with executor {self.executor!r} and learner_processes "
                f"{self.learner_processes}; cluster.executor 'ray' and several cluster.learner_processes are needed"
            )
        self._check_preparation()
        self._check_learning()
        return self

    def _check_preparation(self) -> None:
        if self.preparation == "released" and self.preparation_actors != 1:
            raise TrainError(
                f"cluster.preparation_actors is {self.preparation_actors}, but preparation 'released' uses the GPUs of every "
                "actor that has released them; leave it out"
            )
        if self.preparation == "released" and self.engine == "vllm":
            raise TrainError(
                "cluster.preparation is 'released', but actors of engine 'vllm' keep their GPU memory when they are done; "
                "choose cluster.preparation 'after', or cluster.engine 'torch'"
            )
        if not self.emulates:
            self.check_wall_clock(f"executor {self.executor!r}")

    def check_wall_clock(self, where: str) -> None:
        """Check that the options do not need the virtual clock, which alone has separate servers that prepare or learn.

        Args:
            where: what runs the actors, for the error message.

        Raises:
            TrainError: the options need the virtual clock.
        """
        if self.preparation != "after" or self.preparation_actors != 1:
            raise TrainError(
                f"cluster.preparation is {self.preparation!r} with {counted(self.preparation_actors, 'actor')}, but with "
                f"{where} the learner prepares responses after generation; choose cluster.preparation 'after' with 1 actor, "
                "or cluster.executor 'virtual'"
            )
        several = {"learner_gpus": self.learner_gpus == "auto", "learner_grows": self.learner_grows}
        if (name := next((name for name, given in several.items() if given), None)) is not None:
            raise TrainError(
                f"cluster.{name} is {getattr(self, name)!r}, but with {where} the trainer's learner is the only one; leave "
                "it out, or choose cluster.executor 'virtual'"
            )

    def _check_learning(self) -> None:
        usual = {
            "learner_gpus": None, "stream_order": "completion", "learner_grows": False, "learner_load_s": 0.0,
            "learner_start": "first",
        }  # fmt: skip
        given = next((name for name, default in usual.items() if getattr(self, name) != default), None)
        if self.learning == "batch" and given is not None:
            raise TrainError(
                f"cluster.{given} is {getattr(self, given)!r}, but learning 'batch' has no such option; choose "
                "cluster.learning 'stream'"
            )
        if self.learner_grows and self.engine == "vllm":
            raise TrainError(
                "cluster.learner_grows is True, but actors of engine 'vllm' keep their GPU memory when they are done; leave "
                "it out, or choose cluster.engine 'torch'"
            )
        if self.learner_gpus == "auto" and self.learner_grows:
            raise TrainError("cluster.learner_grows is given, but learner_gpus 'auto' chooses it for each step; leave it out")
        if self.learner_gpus == "auto" and self.learner_start != "first":
            raise TrainError(
                f"cluster.learner_start is {self.learner_start!r}, but learner_gpus 'auto' chooses it for each step; leave "
                "it out"
            )
        if self.learning == "stream" and (self.preparation != "after" or self.preparation_actors != 1):
            raise TrainError(
                f"cluster.preparation is {self.preparation!r} with {counted(self.preparation_actors, 'actor')}, but learning "
                "'stream' prepares a prompt's responses where their gradient is computed; leave it out, or choose "
                "cluster.learning 'batch'"
            )

    @property
    def drafting(self) -> Drafting | None:
        """Return the settings of speculative decoding; None without drafts."""
        return Drafting.of_length(str(self.draft_length), drafter=self.drafter) if self.drafts else None

    @property
    def emulates(self) -> bool:
        """Whether actors are emulated on the virtual clock; true for ``auto`` until the run has chosen."""
        return self.executor in ("auto", "virtual")

    @property
    def gpu_count(self) -> int:
        """Number of GPUs; needs a run that has chosen it, if it was not given."""
        assert self.gpus is not None, "the trainer chooses the GPUs"
        return self.gpus

    @property
    def gpus_of_node(self) -> int:
        """Return the GPUs of one node. A Ray cluster that the run starts itself is one node."""
        alone = self.executor == "ray" and self.ray_address is None
        return self.gpu_count if alone else min(self.gpu_count, self.gpus_per_node)
