"""How a step is planned and where it runs: options of the planner and of the cluster."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StrictBool, model_validator

from rlhfless.system.piped_processes import HEARTBEAT_TIMEOUT_S
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
from solver.model.drafting import MAX_DRAFT_TOKENS, Drafting
from solver.model.plurals import counted

DraftTokens = Annotated[int, Field(strict=True, ge=1, le=MAX_DRAFT_TOKENS)]


class PlannerConfig(Section):
    """The scheduling policy, and the forecasts that it plans with."""

    section: ClassVar[str | None] = "planner"

    policy: str = "solver"
    """Plan generation by this policy, such as random or solver+replan."""
    time_weight: Share = 0.7
    """Minimise T^w C^(1-w) of time and cost with this w: 1 is time only, 0 cost only."""
    tau: ShareAboveZero = 0.7
    """Move responses when this share of them is done, with a policy that has a tau."""
    window: Count = 1
    """Predict lengths from this many past epochs."""
    scenarios: Count = 8
    """Plan with this many samples of every response's length."""


class ClusterConfig(Section):
    """GPUs, and what runs on them: actors with their engines, preparation, and the learner.

    A run may be resumed with other ``gpus`` and ``gpus_per_node``: completed steps are kept, and later ones are planned for the
    new cluster. With the torch engine on CPUs, weights and responses are bit for bit those of a run without the change. On GPUs
    and with vLLM only the distribution of responses is the same.
    """

    section: ClassVar[str | None] = "cluster"

    executor: Literal["auto", "virtual", "local", "ray"] = "auto"
    """Run actors emulated (virtual), as local processes, or on Ray. ``virtual`` is on the virtual clock. ``local`` takes this
    machine's GPUs, or its CPU, on the wall clock. ``ray`` is the same on one machine or many. ``auto`` is local where this
    machine has the GPUs, and virtual elsewhere or where another option asks for the virtual clock."""
    engine: Literal["torch", "transformers", "vllm"] = "torch"
    """Generate with this inference engine. ``torch`` is fast for llama, qwen2 and qwen3, and promises
    bits on the CPU. ``transformers`` takes nearly every decoder, by transformers' own forward pass."""
    drafts: StrictBool = False
    """Decode with speculative decoding, drafting from the prompt's earlier responses. Tokens of the torch engine stay the same,
    and so do the weights. With vLLM the distribution of responses stays the same."""
    draft_length: Literal["adaptive", "critical"] | DraftTokens = "adaptive"
    """Draft as many tokens as each response accepts (adaptive), or this many. See ``Drafting``."""
    gpus: Count | None = None
    """Generate on this many GPUs. Default: those of this machine, and 8 emulated ones where it has none."""
    gpus_per_node: Count = 8
    """Place this many GPUs on each node."""
    profile: str | None = None
    """Use this latency profile: a shipped name or a JSON file. It also sets the GPUs per actor, for all actors. Default: the
    shipped one whose model is nearest in size; ``rlhfless profile`` measures one."""
    tensor_parallel: Count | None = None
    """Decode each actor of engine vllm in this many tensor-parallel parts: the GPUs per actor of the profile, one part on each.
    Default: the profile's."""
    memory_gib: Positive | None = None
    """Limit a GPU's memory to this many GiB. It sets slots and KV tokens of plans and torch engines. Default: the profile's."""
    charging: Literal["profile", "measured"] = "profile"
    """Charge virtual time by the profile, or as measured here. ``measured``: each actor's iterations are replayed alone."""
    ray_address: str | None = None
    """Join the Ray cluster at HOST:PORT or auto. Default: start one here."""
    idle_timeout_s: NotNegativeOrInfinite | None = None
    """Stop an actor after this many idle seconds; 0 stops it at once. Default: as soon as waiting costs more than starting."""
    prewarm: Literal["none", "shortest", "forecast"] = "none"
    """Start actors early, by the plan's forecast or the shortest step. See ``Lifecycle``."""
    preparation: Literal["after", "overlap", "freed"] = "after"
    """Prepare responses after generation, or during it (overlap, freed), on the virtual clock. ``overlap`` uses further GPUs,
    ``freed`` those of actors that have completed their responses or were cut. Results are the same."""
    preparation_actors: Count = 1
    """Score responses on up to this many actors at once. Each is on the GPUs of one actor, on the virtual clock."""
    reward_s_per_response: NotNegative = 2e-5
    """Charge this many virtual seconds per reward. The default is the time of the arithmetic task's rule on the machine of the
    default profile. Passes of models are charged in addition."""
    learning: Literal["batch", "stream"] = "batch"
    """Learn after generation (batch), or from a prompt's responses once all are complete (stream). ``stream`` adds up gradients
    while others decode, and scores a prompt's responses before their gradient. The optimizer steps once, at the end. Weights
    are those of ``batch`` within rounding (about 1e-5)."""
    learner_gpus: Count | Literal["auto"] | None = None
    """Learn on this many GPUs beside the cluster, or on those that each step's plan chooses (auto). Needs learning stream.
    ``auto`` chooses by the forecast of lengths how many, from when, whether released GPUs join them, and whether to stream at
    all, on the virtual clock. On the wall clock the learner is where the option ``device`` puts it, and on the CPU it is billed
    no GPU. Default: as many as an actor has.
    """
    learner_start: Literal["first", "step", "needed"] = "first"
    """Allocate the learner's GPUs with its first complete prompt (first), or for the whole step (step). Or so late that the
    step is expected to end at most 0.5 % later (needed), by the forecast of lengths and the profile."""
    learner_grows: StrictBool = False
    """Learn also on GPUs that actors have given back, on the virtual clock."""
    learner_load_s: NotNegative = 0.0
    """Charge this many virtual seconds to load models on GPUs that join a learner."""
    learner_loss_per_doubling: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.1
    """Charge a learner this loss of speed for every doubling of its GPUs beyond an actor's, on the virtual clock. It is stated,
    not measured here. Seconds measured on this machine stay as they are."""
    stream_order: Literal["completion", "canonical"] = "completion"
    """Learn from prompts as they complete, or in their order (canonical). ``canonical`` holds prompts back until those before
    are learned from, so that weights are the same bit for bit whichever completes first. So are those of ``completion`` on the
    virtual clock charged by the profile; elsewhere a repeated or resumed step differs within rounding (about 1e-5)."""
    learner_processes: Count = 1
    """Shard the weights over this many processes. They share gradients and optimizer state, too (FSDP2), with one GPU per
    process if the model is on a GPU."""
    learner_placement: Literal["local", "ray"] = "local"
    """Start learner processes on this machine (local), or where Ray has room for them (ray). ``ray`` shards over the machines
    of a Ray cluster, with executor ray. The first process stays on this machine."""
    learner_threads: Count | Literal["auto"] | None = None
    """Learn with this many threads on the CPU, or on the cores that actors do not use (auto). Weights are the same within
    rounding (about 1e-5). Default: 1 with engine torch, which keeps weights bit for bit on every machine; else auto."""
    actor_threads: Count = 1
    """Decode with this many threads per actor of engine torch or transformers on the CPU. With more than 1, tokens are those of
    1 within rounding: they may depend on the batch and the machine."""
    gpu_memory_utilization: ShareAboveZero | None = None
    """Let vLLM take this share of each GPU's memory, less where the learner is on the same GPUs. Default: vLLM's own."""
    heartbeat_timeout_s: Annotated[float, Field(strict=True, ge=5, allow_inf_nan=False)] = HEARTBEAT_TIMEOUT_S
    """Count a process as lost after this many seconds without a sign of life. Actors have to report, and other processes send
    heartbeats while they compute. So none is lost because it computes for long, but a larger number helps on a machine that is
    so busy that processes stand still."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Put models on this device; auto takes a GPU where there is one. On the wall clock it is one that no actor holds. Where
    actors hold all of them the learner shares the first one, with a warning. A model that is passed as an object stays on its
    device. A run may be resumed on another device, but not bit for bit."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.engine == "vllm" and self.emulates and self.drafts:
            raise TrainError(
                "cluster.drafts is True, but on the virtual clock one replica of engine 'vllm' serves all actors and does "
                "not draft; leave cluster.drafts out, or choose cluster.executor 'local' or 'ray', or cluster.engine 'torch'"
            )
        if self.draft_length != "adaptive" and not self.drafts:
            raise TrainError(
                f"cluster.draft_length is {self.draft_length!r}, but nothing is drafted; give cluster.drafts as well"
            )
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
        if self.learner_placement == "ray" and (self.executor != "ray" or self.learner_processes == 1):
            raise TrainError(
                f"cluster.learner_placement is 'ray' with executor {self.executor!r} and learner_processes "
                f"{self.learner_processes}; cluster.executor 'ray' and several cluster.learner_processes are needed"
            )
        self._check_preparation()
        self._check_learning()
        return self

    def _check_preparation(self) -> None:
        if self.preparation == "freed" and self.preparation_actors != 1:
            raise TrainError(
                f"cluster.preparation_actors is {self.preparation_actors}, but preparation 'freed' takes the GPUs of every "
                "actor that has given them back; leave it out"
            )
        if self.preparation == "freed" and self.engine == "vllm":
            raise TrainError(
                "cluster.preparation is 'freed', but actors of engine 'vllm' keep their GPU memory when they are done; "
                "choose cluster.preparation 'after', or cluster.engine 'torch'"
            )
        if not self.emulates:
            self.check_wall_clock(f"executor {self.executor!r}")

    def check_wall_clock(self, where: str) -> None:
        """Refuse what only the virtual clock has: servers beside the trainer's own process that prepare or learn.

        Args:
            where: what runs actors on the wall clock, for the message.

        Raises:
            TrainError: the options ask for some.
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
        return Drafting.of_length(str(self.draft_length)) if self.drafts else None

    @property
    def emulates(self) -> bool:
        """Return whether actors are emulated on the virtual clock; before a run has chosen, whether they may be."""
        return self.executor in ("auto", "virtual")

    @property
    def gpu_count(self) -> int:
        """Return the GPUs of a run that has chosen how many, where they are not given."""
        assert self.gpus is not None, "the trainer chooses the GPUs"
        return self.gpus

    @property
    def gpus_of_node(self) -> int:
        """Return the GPUs of one node. A Ray cluster that the run starts itself is one node."""
        alone = self.executor == "ray" and self.ray_address is None
        return self.gpu_count if alone else min(self.gpu_count, self.gpus_per_node)
