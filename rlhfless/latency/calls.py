"""Defines ``CallTable``: what the model calls of a training step take, from measured operators.

``StepBatch`` is the work of a step and ``CostOptions`` what is assumed of its costs. ``generation_latency`` makes latency
models of actors from the same tables, so that a step plan has one source of seconds.

A batch has B responses of s tokens with their prompts, g of them generated. P is the time of a pass over sequences, D that of a
decode iteration, both of the whole model on tp GPUs. A stage takes 1/pp of them, and ``hop`` sends activations to the next one.
As in the estimate of ReaL (arXiv:2406.14088):

- generate: r (2 pp - 1) (P / pp + hop) + (g - 1) (max(mean D, host) + pp hop), with B / (dp pp) responses at once.
- inference: r (2 pp - 1) (P / pp + hop), with B / (dp pp) sequences.
- train: M mini-batches of m = 2 pp micro-batches (one without stages), each
  r (pp + m - 1) (4 P / pp + 2 hop) + gradients over the link + optimizer. The 4 are forward, two for backward, recomputation.

Where sequences have more than ``micro_batch_tokens`` tokens together, they go through in r rounds, and P and hop are of one
round; else r is 1. A part that is not whole counts as the largest one. Backward and optimizer are assumed, not measured.

Activations are divided by tp. That assumes sequence parallelism, which also cuts layer norms and dropouts over the tp GPUs
(arXiv:2205.05198, section 4.2.2). Without it, 10 of the 34 bytes per token and hidden unit of a layer stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rlhfless.latency.call_tables import KindTables, ModelTables, load_call_tables
from rlhfless.latency.fit import fit_table
from rlhfless.latency.gpus import NODE_GPUS
from solver.layouts import Call, CallMemory, Layout, Strategy, missing_share
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, check_flags, is_number, is_whole
from solver.model.iteration_table import IterationTable
from solver.model.latency import LatencyModel
from solver.model.plurals import counted

WEIGHT_BYTES = 2  # of a number in bf16
TRAINED_BYTES = 4  # weights and gradients
STATE_BYTES = 20  # optimizer state per weight, over the copies
LAYER_BYTES = 34  # activations of a layer per token and hidden unit, without attention scores (arXiv:2205.05198, table 2)
LOGIT_BYTES = 6  # fp32 and bf16
HOP_BASE_S = 10e-6
ANY_KIND = "gpu"  # of a cluster whose kind is not stated
PASSES = {True: 4, False: 3}  # of a training step, with and without recomputation
MAX_BATCH = 256  # slots of an actor
FITTED_CONTEXT = 8192.0  # tokens of a response up to which the affine fit is made
PREFILLED = (1, 8)  # sequences between which prefill is read
MOST_TOKENS = 100_000_000
"""Of a prompt with its response; decoding is timed token by token."""
MOST_TRIED = 1_000_000
"""Numbers of mini-batches that are tried for one that divides the responses."""


@dataclass(frozen=True)
class StepBatch:
    """The responses of a step, all of the same length.

    Attributes:
        responses: number of responses per step.
        prompt_tokens, response_tokens: tokens of each prompt and response.
        mini_batches: number of updates of a training call (PPO).

    Raises:
        PlanningError: a number is below 1 or not whole, or mini-batches do not divide the responses.

    Example:
        >>> from rlhfless.latency import StepBatch
        >>> StepBatch(responses=256, prompt_tokens=128, response_tokens=384).tokens
        512
    """

    responses: int
    prompt_tokens: int
    response_tokens: int
    mini_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("responses", "prompt_tokens", "response_tokens", "mini_batches"):
            value = getattr(self, name)
            if not is_whole(value, 1):
                raise PlanningError(f"{name} is {as_given(value)}; a whole number of 1 or more is needed")
            object.__setattr__(self, name, int(value))
        if self.tokens > MOST_TOKENS:
            raise PlanningError(
                f"a prompt of {counted(self.prompt_tokens, 'token')} with a response of {self.response_tokens:,} is longer "
                f"than any model's context; at most {MOST_TOKENS:,} tokens together are needed"
            )
        if self.responses % self.mini_batches:
            most = min(self.mini_batches, self.responses)
            fits = next((n for n in range(most, max(0, most - MOST_TRIED), -1) if self.responses % n == 0), None)
            raise PlanningError(
                f"{self.mini_batches:,} mini-batches do not divide {counted(self.responses, 'response')}; "
                + ("a number that does is needed" if fits is None else f"the next smaller number that does is {fits:,}")
            )

    @property
    def tokens(self) -> int:
        """Tokens of a prompt with its response."""
        return self.prompt_tokens + self.response_tokens


@dataclass(frozen=True)
class CostOptions:
    """Assumptions behind the costs of model calls.

    Attributes:
        recompute: recompute activations in the backward pass (gradient checkpointing).
        host_s_per_layer: minimum seconds per layer of a decode iteration, for an engine without CUDA graphs, whose host
            launches kernels one by one; 0 with CUDA graphs.
        all_reduce_share: share of the measured all-reduce time that is not overlapped with computation, such as 0.4.
        micro_batch_tokens: largest number of tokens of a pass; larger passes are split, which bounds the memory of activations.
        offload_bytes_per_s: bandwidth from host memory to a GPU; None: loading offloaded weights takes no time.
        offloaded_roles: roles whose weights are in host memory between calls.
        scalar_roles: roles whose models output one number per token instead of logits.
        node_bytes_per_s, network_bytes_per_s: bandwidth between GPUs of a node and between nodes; None: those of the tables.

    Raises:
        PlanningError: a number is out of range.

    Example:
        >>> from rlhfless.latency import CostOptions
        >>> CostOptions(host_s_per_layer=0.4e-3, offload_bytes_per_s=25e9).recompute
        True
    """

    recompute: bool = True
    host_s_per_layer: float = 0.0
    all_reduce_share: float = 1.0
    micro_batch_tokens: int = 16384
    offload_bytes_per_s: float | None = None
    offloaded_roles: tuple[str, ...] = ("reference", "reward")
    scalar_roles: tuple[str, ...] = ("critic", "reward")
    node_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        check_flags(recompute=self.recompute)
        if not is_number(self.host_s_per_layer, 0):
            raise PlanningError(f"host_s_per_layer is {as_given(self.host_s_per_layer)}; 0 or more seconds are needed")
        if not is_number(self.all_reduce_share, 0) or self.all_reduce_share > 1:
            raise PlanningError(f"all_reduce_share is {as_given(self.all_reduce_share)}; a share of 0 to 1 is needed")
        if not is_whole(self.micro_batch_tokens, 1):
            raise PlanningError(
                f"micro_batch_tokens is {as_given(self.micro_batch_tokens)}; a whole number of 1 or more is needed"
            )
        for name in ("offload_bytes_per_s", "node_bytes_per_s", "network_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not (is_number(value, 0) and value > 0):
                raise PlanningError(f"{name} is {as_given(value)}; a number of bytes per second above 0, or None, is needed")
        for name in ("offloaded_roles", "scalar_roles"):
            roles = getattr(self, name)
            if isinstance(roles, str) or not all(isinstance(role, str) for role in roles):
                raise PlanningError(f"{name} are {as_given(roles)}; a tuple of names is needed")
            object.__setattr__(self, name, tuple(roles))


class _Pass(NamedTuple):
    """What goes through a stage at once where the calls of a batch are cut into parts.

    Attributes:
        rounds: passes that a part is split into, to keep within ``micro_batch_tokens`` each.
        sequences, tokens: of one pass, and of each of its sequences.
    """

    rounds: int
    sequences: int
    tokens: int

    @property
    def all_tokens(self) -> int:
        """Tokens of the pass."""
        return self.sequences * self.tokens


@dataclass(frozen=True)
class CallTable:
    """Seconds and bytes of model calls, computed from measured operators; input of ``solver.layouts.plan_step``.

    Attributes:
        kind: kind of GPU, one of ``list_call_kinds()``.
        models: role -> model, such as ``{"actor": "llama2-7b"}``.
        batch: responses, their lengths and mini-batches.
        options: see ``CostOptions``.
        gpus_per_node: GPUs per node; calls on more GPUs use the network between nodes.

    Raises:
        ProfileError: the GPU kind or a model has no table; the message lists those that have. PlanningError: another argument
            makes no sense.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import grpo, plan_step
        >>> from rlhfless.latency import CallTable, StepBatch
        >>> models = {"actor": "llama2-7b", "reference": "llama2-7b", "reward": "llama2-7b"}
        >>> costs = CallTable("h100", models, StepBatch(responses=256, prompt_tokens=128, response_tokens=384))
        >>> plan = plan_step(grpo(), Cluster(1, 8, 1), costs, memory_bytes=costs.gpu_memory_bytes)
        >>> plan.status
        'optimal'
    """

    kind: str
    models: Mapping[str, str]
    batch: StepBatch
    options: CostOptions = field(default_factory=CostOptions)
    gpus_per_node: int = NODE_GPUS
    _seconds: dict[Any, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.models, Mapping) or not self.models:
            raise PlanningError(f"models are {as_given(self.models)}; a mapping of roles to models is needed")
        for name, given, kind in (("batch", self.batch, StepBatch), ("options", self.options, CostOptions)):
            if not isinstance(given, kind):
                raise PlanningError(f"{name} is {as_given(given)}; a {kind.__name__} is needed")
        if self.gpus_per_node not in (1, 2, 4, 8):
            raise PlanningError(f"gpus_per_node is {as_given(self.gpus_per_node)}; 1, 2, 4 or 8 is needed")
        for name in self.models.values():
            self.tables.model(name)

    @cached_property
    def tables(self) -> KindTables:
        """The measured tables of the GPU kind, with their origin and assumptions."""
        return load_call_tables(self.kind)

    @property
    def gpu_memory_bytes(self) -> float:
        """Memory of a GPU, as its driver reports it."""
        return self.tables.memory_bytes_per_gpu

    def model(self, role: str) -> ModelTables:
        """Return the tables of a role's model.

        Raises:
            PlanningError: the role has no model.
        """
        if role not in self.models:
            raise PlanningError(f"role {as_given(role)} has no model; models are given for {', '.join(sorted(self.models))}")
        return self.tables.model(self.models[role])

    def check_cluster(self, cluster: Cluster) -> None:
        """Check that these costs are for the nodes and GPUs of a cluster; the kind ``gpu`` (the default) fits any GPU.

        Raises:
            PlanningError: the message names both.
        """
        if cluster.gpus_per_node != min(self.gpus_per_node, cluster.gpus):
            raise PlanningError(
                f"costs are of nodes of {counted(self.gpus_per_node, 'GPU')}, but the cluster's nodes have "
                f"{cluster.gpus_per_node}; give CallTable gpus_per_node={cluster.gpus_per_node}"
            )
        if cluster.kind not in (ANY_KIND, self.kind) and not cluster.kind.startswith(f"{self.kind}-"):
            raise PlanningError(
                f"costs are of GPU kind {self.kind!r}, but the cluster has {cluster.kind!r}; give one kind to both"
            )

    def seconds(self, call: Call, layout: Layout) -> float:
        """Return the seconds of a call.

        It is infinite if the tensor-parallel size has no table, or if the batch has fewer responses than data-parallel copies
        times stages.

        Raises:
            PlanningError: the role has no model.

        Example:
            >>> from solver.layouts import Call, Layout, Mesh, Strategy
            >>> from rlhfless.latency import CallTable, StepBatch
            >>> costs = CallTable("a100", {"reward": "llama2-7b"}, StepBatch(256, 128, 384))
            >>> layouts = [Layout(Mesh(0, gpus), Strategy(gpus, 1, 1)) for gpus in (1, 8)]
            >>> [round(costs.seconds(Call("reward", "reward", "inference"), layout), 2) for layout in layouts]
            [6.96, 0.87]
        """
        key = call.kind, call.role, layout.strategy
        if key not in self._seconds:
            model, cut = self.model(call.role), layout.strategy
            known = cut.tp in model.times and self._parts(call.kind, cut) <= self.batch.responses
            of_kind = {"generate": self._generate_s, "inference": self._inference_s, "train": self._train_s}[call.kind]
            self._seconds[key] = of_kind(model, cut) + self._fetch_s(call, model, cut) if known else math.inf
        return self._seconds[key]

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        """Return the bytes of a call on each of its GPUs.

        Training keeps weights, gradients and optimizer state, sharded over data-parallel copies. While it runs it needs the
        layer inputs of every micro-batch in flight and one recomputed layer, or all activations without recomputation. Other
        calls need their weights while they run; generation also needs the KV cache of all responses. Logits of a language model
        count in fp32 and bf16.

        Example:
            >>> from solver.layouts import Call, Layout, Mesh, Strategy
            >>> from rlhfless.latency import CallTable, StepBatch
            >>> costs = CallTable("a100", {"actor": "llama2-7b"}, StepBatch(256, 128, 384))
            >>> training = costs.memory(Call("train", "actor", "train"), Layout(Mesh(0, 8), Strategy(4, 2, 1)))
            >>> round(training.kept / 1e9, 2)
            30.32
        """
        model, cut = self.model(call.role), layout.strategy
        parts = cut.tp * cut.pp
        if call.kind == "train":
            kept = TRAINED_BYTES * model.parameters / parts + STATE_BYTES * model.parameters / parts / cut.dp
            return CallMemory(kept, self._training_bytes(call, model, cut))
        copy = WEIGHT_BYTES * model.parameters / parts
        if call.kind == "inference":
            tokens = self._pass(call.kind, cut, self.batch.tokens).all_tokens
            return CallMemory(0.0, self._layer_bytes(model, cut, tokens) + self._logit_bytes(call, model, cut, tokens), copy)
        of_copy = -(-self.batch.responses // cut.dp)
        kv = of_copy * self.batch.tokens * model.kv_bytes_per_token(cut.tp) / cut.pp
        prefilled = self._pass(call.kind, cut, self.batch.prompt_tokens).all_tokens
        logits = self._logit_bytes(call, model, cut, self._sequences(call.kind, cut))
        return CallMemory(0.0, kv + self._layer_bytes(model, cut, prefilled) + logits, copy)

    def updates(self, call: Call, layout: Layout) -> tuple[int, float]:
        """Return the number of optimizer updates of a training call per step, and the seconds of each (gradient reduction and
        optimizer).

        ``seconds`` includes them; the rest of it is proportional to the tokens of the responses.

        Example:
            >>> from solver.layouts import Call, Layout, Mesh, Strategy
            >>> from rlhfless.latency import CallTable, StepBatch
            >>> costs = CallTable("a100", {"actor": "llama2-7b"}, StepBatch(256, 128, 384))
            >>> steps, seconds = costs.updates(Call("train", "actor", "train"), Layout(Mesh(0, 8), Strategy(4, 2, 1)))
            >>> steps, round(seconds, 3)
            (4, 0.153)
        """
        return self.batch.mini_batches, self._update_s(self.model(call.role), layout.strategy)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        """Return the seconds and bytes of sending a role's weights from one layout to another.

        Every GPU receives what it lacks of its shard: over the node's link where a GPU of its node holds it, else over the
        network. The slowest GPU decides.

        Example:
            >>> from solver.layouts import Layout, Mesh, Strategy
            >>> from rlhfless.latency import CallTable, StepBatch
            >>> costs = CallTable("a100", {"actor": "llama2-7b"}, StepBatch(256, 128, 384))
            >>> trained, generates = Layout(Mesh(0, 8), Strategy(1, 8, 1)), Layout(Mesh(0, 8), Strategy(8, 1, 1))
            >>> seconds, sent = costs.reallocate("actor", trained, generates)
            >>> round(seconds, 3), round(sent / 1e9, 1)
            (0.069, 94.3)
        """
        near, far = missing_share(source, destination, self.gpus_per_node)
        weights = WEIGHT_BYTES * self.model(role).parameters
        seconds = float(np.max(near / self.node_bytes_per_s + far / self.network_bytes_per_s)) * weights
        return seconds, float((near + far).sum()) * weights

    @property
    def node_bytes_per_s(self) -> float:
        """Bandwidth between two GPUs of a node."""
        return self.options.node_bytes_per_s or self.tables.node_bytes_per_s

    @property
    def network_bytes_per_s(self) -> float:
        """Bandwidth of a GPU to other nodes."""
        return self.options.network_bytes_per_s or self.tables.network_bytes_per_s

    def _parts(self, kind: str, cut: Strategy) -> int:
        """Return the number of parts that copies, stages, micro- and mini-batches cut the batch into."""
        if kind == "train":
            return cut.dp * self._micro_batches(cut) * self.batch.mini_batches
        return cut.dp * cut.pp

    def _micro_batches(self, cut: Strategy) -> int:
        return 2 * cut.pp if cut.pp > 1 else 1

    def _sequences(self, kind: str, cut: Strategy) -> int:
        """Return the sequences of the largest part."""
        return -(-self.batch.responses // self._parts(kind, cut))

    def _pass(self, kind: str, cut: Strategy, tokens: int) -> _Pass:
        """Return the passes of the largest part, of sequences of so many tokens each."""
        sequences = self._sequences(kind, cut)
        rounds = min(sequences, math.ceil(sequences * tokens / self.options.micro_batch_tokens))
        return _Pass(rounds, -(-sequences // rounds), tokens)

    def _hop_s(self, model: ModelTables, cut: Strategy, tokens: float) -> float:
        """Return the seconds of sending activations to the next stage; stages of a copy that fits into a node are inside it."""
        if cut.pp == 1:
            return 0.0
        link = self.node_bytes_per_s if cut.tp * cut.pp <= self.gpus_per_node else self.network_bytes_per_s
        return HOP_BASE_S + tokens * model.hidden * WEIGHT_BYTES / link

    def _stage_s(self, model: ModelTables, cut: Strategy, one: _Pass, all_reduce_share: float) -> float:
        """Return the seconds of a pass in one stage."""
        return model.times[cut.tp].prefill_s(one.sequences, one.tokens, all_reduce_share) / cut.pp

    def _forward_s(self, kind: str, model: ModelTables, cut: Strategy, tokens: int, all_reduce_share: float) -> float:
        """Return the seconds of a pass of all responses through all stages, in pp parts."""
        one = self._pass(kind, cut, tokens)
        stage_s = self._stage_s(model, cut, one, all_reduce_share)
        return one.rounds * (2 * cut.pp - 1) * (stage_s + self._hop_s(model, cut, one.all_tokens))

    def _inference_s(self, model: ModelTables, cut: Strategy) -> float:
        return self._forward_s("inference", model, cut, self.batch.tokens, self.options.all_reduce_share)

    def _generate_s(self, model: ModelTables, cut: Strategy) -> float:
        """Return the seconds of prefill and of decode iterations, whose contexts grow from the prompt to the whole response."""
        sequences, batch = self._sequences("generate", cut), self.batch
        contexts = np.arange(batch.prompt_tokens + 1, max(batch.tokens, batch.prompt_tokens + 2))
        mean_s = float(model.times[cut.tp].decode_s(sequences, contexts).mean())
        iteration_s = max(mean_s, self.options.host_s_per_layer * model.layers)
        decode_s = (batch.response_tokens - 1) * (iteration_s + cut.pp * self._hop_s(model, cut, sequences))
        return self._forward_s("generate", model, cut, batch.prompt_tokens, 1.0) + decode_s

    def _train_s(self, model: ModelTables, cut: Strategy) -> float:
        one = self._pass("train", cut, self.batch.tokens)
        stage_s = self._stage_s(model, cut, one, self.options.all_reduce_share)
        hop_s = self._hop_s(model, cut, one.all_tokens)
        stages = cut.pp + self._micro_batches(cut) - 1
        stages_s = one.rounds * stages * (PASSES[self.options.recompute] * stage_s + 2 * hop_s)
        return self.batch.mini_batches * (stages_s + self._update_s(model, cut))

    def _update_s(self, model: ModelTables, cut: Strategy) -> float:
        link = self.node_bytes_per_s if cut.gpus <= self.gpus_per_node else self.network_bytes_per_s
        of_gpu = model.parameters / (cut.tp * cut.pp)
        gradients_s = 2 * WEIGHT_BYTES * of_gpu * (cut.dp - 1) / cut.dp / link
        optimizer_s = 2 * STATE_BYTES * of_gpu / cut.dp / self.tables.memory_bytes_per_s
        return gradients_s + optimizer_s

    def _fetch_s(self, call: Call, model: ModelTables, cut: Strategy) -> float:
        """Return the seconds of fetching the weights of an offloaded role from host memory."""
        if self.options.offload_bytes_per_s is None or call.role not in self.options.offloaded_roles:
            return 0.0
        return WEIGHT_BYTES * model.parameters / (cut.tp * cut.pp) / self.options.offload_bytes_per_s

    def _training_bytes(self, call: Call, model: ModelTables, cut: Strategy) -> float:
        tokens = self._pass("train", cut, self.batch.tokens).all_tokens
        layer = self._layer_bytes(model, cut, tokens)
        in_flight = min(self._micro_batches(cut), cut.pp) * model.layers / cut.pp
        inputs = WEIGHT_BYTES * tokens * model.hidden / cut.tp
        activations = in_flight * inputs + layer if self.options.recompute else in_flight * layer
        return activations + self._logit_bytes(call, model, cut, tokens)

    def _layer_bytes(self, model: ModelTables, cut: Strategy, tokens: int) -> float:
        return LAYER_BYTES * tokens * model.hidden / cut.tp

    def _logit_bytes(self, call: Call, model: ModelTables, cut: Strategy, tokens: int) -> float:
        return 0.0 if call.role in self.options.scalar_roles else LOGIT_BYTES * tokens * model.vocabulary / cut.tp


def generation_latency(costs: CallTable, role: str = "actor", memory_share: float = 0.9) -> dict[int, LatencyModel]:
    """Return the latency model of an actor for each tensor-parallel size that has a table and memory for a KV cache.

    The iteration table and its affine fit are those of the measured decode operators. Prefill is linear between passes over 1
    and 8 prompts of the batch's length.

    Args:
        costs: costs of the step's calls.
        role: the role that generates.
        memory_share: share of a GPU's memory that weights and KV cache may use.

    Raises:
        PlanningError: the role has no model, the share is out of range, or no size has enough memory.

    Example:
        >>> from rlhfless.latency import CallTable, StepBatch, generation_latency
        >>> costs = CallTable("h100", {"actor": "qwen2.5-7b"}, StepBatch(256, 128, 384))
        >>> sorted(generation_latency(costs))
        [1, 2, 4, 8]
    """
    if not (is_number(memory_share, 0) and 0 < memory_share <= 1):
        raise PlanningError(f"memory_share is {as_given(memory_share)}; a share above 0 and up to 1 is needed")
    model, prompt, found = costs.model(role), costs.batch.prompt_tokens, {}
    host_s = costs.options.host_s_per_layer * model.layers
    for tp, times in model.times.items():
        free_bytes = memory_share * costs.gpu_memory_bytes - WEIGHT_BYTES * model.parameters / tp
        capacity = int(free_bytes // model.kv_bytes_per_token(tp))
        if capacity < costs.batch.tokens:
            continue
        table = IterationTable(
            times.decode.batch, times.decode.context_tokens, np.maximum(times.decode.iteration_s, max(host_s, 1e-12))
        )
        max_batch = int(min(MAX_BATCH, table.batch[-1]))
        fit = fit_table(table, max_batch, capacity, max_context=FITTED_CONTEXT)
        few_s, many_s = (times.prefill_s(sequences, prompt) for sequences in PREFILLED)
        per_token_s = max(0.0, many_s - few_s) / (PREFILLED[1] - PREFILLED[0]) / prompt
        found[tp] = LatencyModel(
            f"{model.name} tp{tp} on {costs.kind}", tp, fit.base_s, fit.per_response_s, fit.per_kv_token_s, table,
            prefill_base_s=max(0.0, few_s - per_token_s * prompt), prefill_per_token_s=per_token_s, max_batch=max_batch,
            kv_capacity_tokens=capacity, kind=costs.kind, fit_mean_error=fit.mean_relative_error,
            fit_max_error=fit.max_relative_error, kv_bytes_per_token=float(model.kv_bytes_per_token(tp) * tp),
            weight_bytes=float(WEIGHT_BYTES * model.parameters),
        )  # fmt: skip
    if not found:
        raise PlanningError(
            f"model {model.name!r} has no room for the KV cache of one response on {costs.kind!r} GPUs; a smaller model, or "
            "GPUs with more memory, are needed"
        )
    return found
