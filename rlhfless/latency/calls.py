"""Defines ``CallTable``: what the model calls of a training step take, from measured operators.

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
from typing import Any

import numpy as np

from rlhfless.latency.call_tables import KindTables, ModelTables, ModelTimes, load_call_tables
from rlhfless.latency.gpus import NODE_GPUS
from rlhfless.latency.step_batch import CostOptions, StepBatch
from solver.layouts import Call, CallMemory, Layout, Strategy, missing_share
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given
from solver.model.plurals import counted

WEIGHT_BYTES = 2  # of a number in bf16
TRAINED_BYTES = 4  # weights and gradients
STATE_BYTES = 20  # optimizer state per weight, over the copies
LAYER_BYTES = 34  # activations of a layer per token and hidden unit, without attention scores (arXiv:2205.05198, table 2)
LOGIT_BYTES = 6  # fp32 and bf16
HOP_BASE_S = 10e-6
ANY_KIND = "gpu"  # of a cluster whose kind is not stated
PASSES = {True: 4, False: 3}  # of a training step, with and without recomputation


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
            known = cut.tp in model.times and self._parts(call, cut) <= self.batch.responses
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
            tokens = self._pass(self._sequences(cut), self.batch.tokens)[1] * self.batch.tokens
            return CallMemory(0.0, self._layer_bytes(model, cut, tokens) + self._logit_bytes(call, model, cut, tokens), copy)
        of_copy = -(-self.batch.responses // cut.dp)
        kv = of_copy * self.batch.tokens * model.kv_bytes_per_token(cut.tp) / cut.pp
        sequences = self._sequences(cut)
        prefilled = self._pass(sequences, self.batch.prompt_tokens)[1] * self.batch.prompt_tokens
        return CallMemory(
            0.0, kv + self._layer_bytes(model, cut, prefilled) + self._logit_bytes(call, model, cut, sequences), copy
        )

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

    def _parts(self, call: Call, cut: Strategy) -> int:
        """Return the number of parts that copies, stages, micro- and mini-batches cut the batch into."""
        if call.kind == "train":
            return cut.dp * self._micro_batches(cut) * self.batch.mini_batches
        return cut.dp * cut.pp

    def _micro_batches(self, cut: Strategy) -> int:
        return 2 * cut.pp if cut.pp > 1 else 1

    def _sequences(self, cut: Strategy) -> int:
        """Return the most sequences that a stage has at once where a copy's responses follow each other in pp parts."""
        return -(-self.batch.responses // (cut.dp * cut.pp))

    def _pass(self, sequences: int, tokens: int) -> tuple[int, int]:
        """Return into how many passes so many sequences are split to keep within the tokens of one, and sequences of each."""
        passes = min(sequences, math.ceil(sequences * tokens / self.options.micro_batch_tokens))
        return passes, -(-sequences // passes)

    def _hop_s(self, model: ModelTables, cut: Strategy, tokens: float) -> float:
        """Return the seconds of sending activations to the next stage; stages of a copy that fits into a node are inside it."""
        if cut.pp == 1:
            return 0.0
        link = self.node_bytes_per_s if cut.tp * cut.pp <= self.gpus_per_node else self.network_bytes_per_s
        return HOP_BASE_S + tokens * model.hidden * WEIGHT_BYTES / link

    def _forward_s(self, model: ModelTables, cut: Strategy, tokens: int, all_reduce_share: float) -> float:
        """Return the seconds of a pass of all responses through all stages, in pp parts."""
        passes, sequences = self._pass(self._sequences(cut), tokens)
        stage_s = model.times[cut.tp].prefill_s(sequences, tokens, all_reduce_share) / cut.pp
        return passes * (2 * cut.pp - 1) * (stage_s + self._hop_s(model, cut, sequences * tokens))

    def _inference_s(self, model: ModelTables, cut: Strategy) -> float:
        return self._forward_s(model, cut, self.batch.tokens, self.options.all_reduce_share)

    def _generate_s(self, model: ModelTables, cut: Strategy) -> float:
        sequences = self._sequences(cut)
        iteration_s = max(self._decode_s(model.times[cut.tp], sequences), self.options.host_s_per_layer * model.layers)
        decode_s = (self.batch.response_tokens - 1) * (iteration_s + cut.pp * self._hop_s(model, cut, sequences))
        return self._forward_s(model, cut, self.batch.prompt_tokens, 1.0) + decode_s

    def _decode_s(self, times: ModelTimes, sequences: int) -> float:
        """Return the mean seconds of a decode iteration while contexts grow from the prompt to the whole response."""
        contexts = np.arange(self.batch.prompt_tokens + 1, max(self.batch.tokens, self.batch.prompt_tokens + 2))
        return float(times.decode_s(sequences, contexts).mean())

    def _train_s(self, model: ModelTables, cut: Strategy) -> float:
        options, tokens = self.options, self.batch.tokens
        micro = self._micro_batches(cut)
        passes, sequences = self._pass(-(-self.batch.responses // (cut.dp * micro * self.batch.mini_batches)), tokens)
        pass_s = model.times[cut.tp].prefill_s(sequences, tokens, options.all_reduce_share) / cut.pp
        hop_s = self._hop_s(model, cut, sequences * tokens)
        stages_s = passes * (cut.pp + micro - 1) * (PASSES[options.recompute] * pass_s + 2 * hop_s)
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
        micro = self._micro_batches(cut)
        sequences = -(-self.batch.responses // (cut.dp * micro * self.batch.mini_batches))
        tokens = self._pass(sequences, self.batch.tokens)[1] * self.batch.tokens
        layer = self._layer_bytes(model, cut, tokens)
        in_flight = min(micro, cut.pp) * model.layers / cut.pp
        inputs = WEIGHT_BYTES * tokens * model.hidden / cut.tp
        activations = in_flight * inputs + layer if self.options.recompute else in_flight * layer
        return activations + self._logit_bytes(call, model, cut, tokens)

    def _layer_bytes(self, model: ModelTables, cut: Strategy, tokens: int) -> float:
        return LAYER_BYTES * tokens * model.hidden / cut.tp

    def _logit_bytes(self, call: Call, model: ModelTables, cut: Strategy, tokens: int) -> float:
        return 0.0 if call.role in self.options.scalar_roles else LOGIT_BYTES * tokens * model.vocabulary / cut.tp
