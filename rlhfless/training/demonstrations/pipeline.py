"""Executes planned pipelines of an actor and its critic (RLHFuse, arXiv:2409.13221, section 5) on processes of this machine.

A device of the plan is a process. It runs the forward and backward passes of its stages in the plan's order. Hidden states and
their gradients go from process to process (gloo). The losses are PPO's, on random tokens.

The models are too small to take time. So a pass sleeps until it has taken its planned time: what is measured is the schedule
with its messages, not the speed of models. Gradients are compared with those that whole models have in this process.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.training.algorithms.batch import Part
from rlhfless.training.algorithms.builtin.ppo import PpoConfig
from rlhfless.training.algorithms.critic import Critic, PolicyAndCritic, make_critic
from rlhfless.training.algorithms.policy_gradient import critic_loss, policy_loss
from rlhfless.training.demonstrations.processes import run_on_ranks
from rlhfless.training.logprobs import logits_to_logprobs
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver.pipeline import ExecutedPlan, PipelinePlan

MODELS = ("llama", "qwen2")
"""Model types of transformers whose stages are tested."""
FORWARD, BACKWARD, INPUTS, WEIGHTS = "F", "B", "I", "W"
PPO, TEMPERATURE = PpoConfig(vf_coef=0.5), 1.0
ROWS, WIDTHS, TOKENS = 2, (16, 32), 20  # of micro-batches: responses, tokens of each in turn, and token ids that occur


@dataclass(frozen=True, eq=False)
class PipelineRun:
    """A plan that processes have executed.

    Attributes:
        executed: the plan with the measured time of every pass.
        in_flight: (devices,) most micro-batches that each device held at once.
        gradients, whole_gradients: by weight, summed over micro-batches: those of the stages, and those of whole models.
    """

    executed: ExecutedPlan
    in_flight: tuple[int, ...]
    gradients: Mapping[str, Tensor]
    whole_gradients: Mapping[str, Tensor]

    @property
    def in_planned_order(self) -> bool:
        """Whether every device ran its passes in the plan's order."""
        columns = ["operation", "chain", "stage", "micro_batch"]
        ours, planned = (
            {device: rows.sort_values("start")[columns].values.tolist() for device, rows in table.groupby("device")}
            for table in (self.executed.passes, self.executed.plan.table())
        )
        return bool(ours == planned)

    @property
    def over_plan(self) -> float:
        """Measured latency beyond the planned one, as a share of the latter."""
        return self.executed.latency / self.executed.plan.latency - 1

    @property
    def differences(self) -> dict[str, float]:
        """By weight, the largest difference to the gradient of whole models, relative to the gradient's largest entry."""
        return {
            name: float((self.gradients[name] - whole).abs().max() / whole.abs().max())
            for name, whole in self.whole_gradients.items()
        }


def run_pipelines(
    plans: Mapping[str, PipelinePlan], actor: Any = None, *, unit_s: float = 0.02, repeats: int = 1
) -> dict[str, list[PipelineRun]]:
    """Execute pipeline plans one after another in the same processes; return the measurements by name and repeat.

    The first chain of a plan is the actor's; the others are copies of the critic, which share the actor's micro-batches. A
    first run, which opens connections, is not counted.

    Args:
        actor: a causal language model of transformers without dropout, of a type in ``MODELS``, on the CPU. The critic is a
            copy of it with a value head. None: a tiny Qwen2 of as many blocks as the plans have stages.
        unit_s: seconds that a pass takes at least per unit of its planned time.
        repeats: executions of every plan.

    Raises:
        InputError: there is no plan, or the model cannot be split into the stages of one.
        PlanningError: ``unit_s`` is not above 0.
        LearnerError: a process died, and the others were ended.

    Example:
        >>> from solver.pipeline import fused, schedule_pipeline
        >>> plan = schedule_pipeline(fused(actor=(2, 2, 4), critic=(2, 1, 4)))
        >>> (run,) = run_pipelines({"fused": plan}, unit_s=0.01)["fused"]
        >>> run.in_planned_order, max(run.differences.values()) < 1e-5
        (True, True)
    """
    if not plans:
        raise InputError("plans is empty; at least one plan is needed")
    if actor is None:
        blocks = max(chain.stages for plan in plans.values() for chain in plan.problem.chains)
        actor = tiny_qwen2(CharTokenizer(), hidden=16, layers=blocks, heads=2, kv_heads=1, intermediate=32)
    critic = make_critic(actor, "model")
    head: Any = critic.head.weight
    nn.init.normal_(head, std=0.1, generator=torch.Generator().manual_seed(1))  # with 0 no gradient reaches the layers
    given = {name: _micro_batches(plan) for name, plan in plans.items()}
    whole = {name: _whole_gradients(actor, critic, plans[name], parts) for name, parts in given.items()}
    for plan in plans.values():
        for chain, model in zip(plan.problem.chains, _models(plan, actor, critic), strict=True):
            split_model(model, chain.stages)  # refuses here what processes would refuse
    devices = max(plan.problem.devices for plan in plans.values())
    orders = [(plans[name], given[name]) for name in plans]
    reports = run_on_ranks("pipeline", devices, _run, _Work(actor, critic, orders, unit_s, repeats))
    found: dict[str, list[PipelineRun]] = {name: [] for name in plans}
    for index in range(repeats * len(plans)):
        name = list(plans)[index % len(plans)]
        of_run = [report[index] for report in reports[: plans[name].problem.devices]]
        executed = ExecutedPlan(plans[name], _passes(plans[name], of_run), unit_s)
        in_flight = tuple(report.in_flight for report in of_run)
        found[name].append(PipelineRun(executed, in_flight, _summed(report.gradients for report in of_run), whole[name]))
    return found


def _micro_batches(plan: PipelinePlan) -> list[list[Part]]:
    """Return the micro-batches of each chain: random tokens of two widths, with what PPO's losses need.

    Raises:
        InputError: copies of the critic have not as many micro-batches together as the actor.
    """
    counts = [chain.micro_batches for chain in plan.problem.chains]
    if counts[1:] and sum(counts[1:]) != counts[0]:
        raise InputError(
            f"the plan has {counts[0]} micro-batches of the actor and {sum(counts[1:])} of the critic; equally many are needed"
        )
    generator = torch.Generator().manual_seed(0)
    widths = [WIDTHS[k % len(WIDTHS)] for k in range(counts[0])]
    found = []
    for width in widths:
        ids = torch.randint(2, TOKENS, (ROWS, width), generator=generator)
        drawn = {name: torch.randn((ROWS, width - 1), generator=generator) for name in ("advantages", "values", "returns")}
        mask = torch.ones((ROWS, width - 1), dtype=torch.bool)
        found.append(Part(list(range(ROWS)), ids, mask, {**drawn, "old": drawn["values"] - 3, "weight": torch.ones((ROWS, 1))}))
    ends = np.cumsum(counts[1:]).tolist()
    return [found, *(found[end - count : end] for end, count in zip(ends, counts[1:], strict=True))]


def _tokens(parts: list[list[Part]]) -> float:
    """Return the tokens of all micro-batches of the actor, which the losses are divided by."""
    return float(sum(part.mask.sum() for part in parts[0]))


def _models(plan: PipelinePlan, actor: Any, critic: Critic) -> list[Any]:
    """Return the model of each chain."""
    return [actor, *[critic] * (len(plan.problem.chains) - 1)]


def _whole_gradients(actor: Any, critic: Critic, plan: PipelinePlan, parts: list[list[Part]]) -> dict[str, Tensor]:
    """Return the gradients of whole models, micro-batch after micro-batch."""
    both = PolicyAndCritic(copy.deepcopy(actor), copy.deepcopy(critic))
    trains_critic, tokens = len(plan.problem.chains) > 1, _tokens(parts)
    for each in parts[0]:
        logprobs, values = both(each.input_ids, TEMPERATURE)
        loss, _ = policy_loss(PPO, each, logprobs, divisor=tokens)
        if trains_critic:
            loss = loss + critic_loss(PPO, each, values, divisor=tokens)[0]
        loss.backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in both.named_parameters() if parameter.grad is not None}


def _passes(plan: PipelinePlan, reports: Sequence[_Report]) -> pd.DataFrame:
    """Return the measured passes as ``ExecutedPlan`` needs them, in seconds from the start of the first one."""
    first_s = min(each.start_s for report in reports for each in report.passes)
    rows = [
        (
            each.task.kind, plan.problem.chains[each.task.chain].name, each.task.stage, each.task.micro_batch, device,
            each.start_s - first_s, each.end_s - first_s,
        )
        for device, report in enumerate(reports)
        for each in report.passes
    ]  # fmt: skip
    columns = ["operation", "chain", "stage", "micro_batch", "device", "start", "end"]
    return pd.DataFrame(rows, columns=columns).sort_values(["start", "device"], kind="stable", ignore_index=True)


def _summed(found: Any) -> dict[str, Tensor]:
    """Return gradients added by name: a tied weight has one of the first and one of the last stage, and a critic's copies one
    each.
    """
    summed: dict[str, Tensor] = {}
    for gradients in found:
        for name, gradient in gradients:
            summed[name] = summed[name] + gradient if name in summed else gradient
    return summed


class Stage(nn.Module):
    """Consecutive blocks of a model, with its embedding if they are the first and its head if they are the last.

    A stage runs the model's own code, and its weights are the model's own objects. So a chain of stages computes the model bit
    for bit.

    Args:
        backbone: transformers model without a head that has these blocks only.
        head: of the last stage: hidden states (B, T, H) to the output.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module | None, *, first: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.first = backbone, head, first

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden states (B, T, H), or the output of the last stage.

        Args:
            x: (B, T) tokens at the first stage, hidden states at the others.
        """
        given = {"input_ids": x} if self.first else {"inputs_embeds": x}
        hidden: Tensor = self.backbone(**given, use_cache=False).last_hidden_state
        return hidden if self.head is None else self.head(hidden)


class _ValueHead(nn.Module):
    """The head of a critic with a backbone: hidden states (B, T, H) to values (B, T - 1)."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.critic = Critic(head)

    def forward(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.critic(None, hidden)
        return values


def split_model(model: Any, stages: int) -> list[Stage]:
    """Return the stages of a model, in order; their blocks differ by at most one, and later stages have more.

    Args:
        model: a causal language model of transformers, whose last stage returns logits (B, T, V); or a ``Critic`` with a
            backbone, whose last stage returns values (B, T - 1).

    Raises:
        InputError: the model is of another kind, or has fewer blocks than stages.

    Example:
        >>> from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
        >>> [len(stage.backbone.layers) for stage in split_model(tiny_qwen2(CharTokenizer(), layers=5), 2)]
        [2, 3]
    """
    if isinstance(model, Critic):
        backbone: Any = model.backbone
        head: Any = _ValueHead(model.head)
    else:
        backbone, head = model.base_model, model.get_output_embeddings()
    config = backbone.config
    if config.model_type not in MODELS:
        raise InputError(f"model type {config.model_type!r} cannot be split into stages; one of {', '.join(MODELS)} is needed")
    if len(set(getattr(config, "layer_types", ()))) > 1 or config.attention_dropout:
        raise InputError("a model whose blocks differ, or with dropout, cannot be split into stages; give a plain one")
    blocks = list(backbone.layers)
    if not 1 <= stages <= len(blocks):
        raise InputError(
            f"the model has {len(blocks)} blocks, which cannot be split into {stages} stages; give 1 to {len(blocks)}"
        )
    cuts = [len(blocks) * stage // stages for stage in range(stages + 1)]
    found = []
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        part = copy.copy(backbone)
        part._modules = {**backbone._modules, "layers": nn.ModuleList(blocks[cuts[stage] : cuts[stage + 1]])}
        if not first:
            part._modules["embed_tokens"] = None
        if not last:
            part._modules["norm"] = nn.Identity()
        found.append(Stage(part, head if last else None, first=first))
    return found


# What follows runs in the processes.


class Task(NamedTuple):
    """One operation on one micro-batch; kinds as in ``PipelinePlan.table``. ``chain`` is the position of its chain."""

    chain: int
    kind: str
    stage: int
    micro_batch: int


def tasks_of(plan: PipelinePlan) -> list[list[Task]]:
    """Return each device's tasks in the plan's order."""
    found = []
    for order in plan.orders:
        done: dict[tuple[int, str, int], int] = defaultdict(int)
        row = []
        for op in order:
            key = (op.chain, op.kind, op.stage)
            row.append(Task(*key, done[key]))
            done[key] += 1
        found.append(row)
    return found


def following(task: Task, stages: int) -> Task | None:
    """Return the task of another stage that waits for what this one computes; None if there is none."""
    if task.kind == FORWARD:
        return task._replace(stage=task.stage + 1) if task.stage + 1 < stages else None
    return task._replace(stage=task.stage - 1) if task.kind != WEIGHTS and task.stage > 0 else None


@dataclass(frozen=True)
class _Work:
    """What every process gets: whole models, and plans with the micro-batches of each chain."""

    actor: Any
    critic: Critic
    orders: list[tuple[PipelinePlan, list[list[Part]]]]
    unit_s: float
    repeats: int


class _TimedPass(NamedTuple):
    """A task as it ran, in seconds of the machine's monotonic clock, without what it waited for its input."""

    task: Task
    start_s: float
    end_s: float


class _Report(NamedTuple):
    """What a device reports of a plan; gradients by weight, once for each chain."""

    passes: list[_TimedPass]
    in_flight: int
    gradients: list[tuple[str, Tensor]]


class _Held(NamedTuple):
    """A forward pass that waits for its backward pass: input, output, and the output's gradient once that of the input is
    computed.
    """

    x: Tensor
    output: Tensor
    gradient: Tensor | None = None


def _run(rank: int, work: _Work) -> list[_Report]:
    """Execute all plans in turn; the first once before, without sleep, and without a report."""
    reports = []
    for number, (plan, parts) in enumerate([work.orders[0], *work.orders * work.repeats]):
        dist.barrier()
        if rank < plan.problem.devices:
            device = _Device(rank, plan, _models(plan, work.actor, work.critic), parts, work.unit_s if number else 0.0)
            reports.append(device.run())
        else:
            reports.append(_Report([], 0, []))
    return reports[1:]


class _Device:
    """The stages of one device for one execution of a plan, with models of its own: a copy for each chain."""

    def __init__(self, rank: int, plan: PipelinePlan, models: Sequence[Any], parts: list[list[Part]], unit_s: float) -> None:
        self._rank, self._parts, self._chains = rank, parts, plan.problem.chains
        self._models = [copy.deepcopy(model) for model in models]
        self._stages = [split_model(model, chain.stages) for model, chain in zip(self._models, self._chains, strict=True)]
        tokens = _tokens(parts)
        of_critic = partial(critic_loss, PPO, divisor=tokens)
        self._losses: list[Any] = [partial(policy_loss, PPO, divisor=tokens), *[of_critic] * (len(models) - 1)]
        ops = plan.operations
        self._least_s = {
            (op.chain, op.kind, op.stage): unit_s * duration * ops.unit
            for op, duration in zip(ops.types, ops.duration, strict=True)
        }
        self._tasks = tasks_of(plan)
        self._held: dict[tuple[int, int, int], _Held] = {}  # by chain, stage and micro-batch
        self._local: dict[Task, Tensor] = {}  # what this device has computed for its own later tasks
        self._sends: list[tuple[Any, Tensor]] = []
        self._open_receives()

    def _open_receives(self) -> None:
        """Begin to receive all messages of the plan. All devices know all orders, so a message's number is its tag."""
        self._tag: dict[Task, int] = {}
        self._received: dict[Task, tuple[Any, Tensor]] = {}
        for sender, order in enumerate(self._tasks):
            for task in order:
                then = following(task, self._chains[task.chain].stages)
                if then is None or (receiver := self._chains[then.chain].route[then.stage]) == sender:
                    continue
                self._tag[then] = len(self._tag)
                if receiver == self._rank:
                    config: Any = self._stages[then.chain][then.stage].backbone.config
                    ids = self._parts[then.chain][then.micro_batch].input_ids
                    buffer = torch.empty(*ids.shape, config.hidden_size)
                    self._received[then] = (dist.irecv(buffer, sender, tag=self._tag[then]), buffer)

    def run(self) -> _Report:
        """Run the plan's order of this device."""
        passes, most = [], 0
        for task in self._tasks[self._rank]:
            given = self._input(task)
            began = time.monotonic()
            computed = self._compute(task, given)
            time.sleep(max(0.0, began + self._least_s[task[:3]] - time.monotonic()))
            passes.append(_TimedPass(task, began, time.monotonic()))
            self._pass_on(task, computed)
            most = max(most, len(self._held))
        for sending, _ in self._sends:
            sending.wait()
        gradients = [
            (f"{'critic' if chain else 'policy'}.{name}", parameter.grad)
            for chain, model in enumerate(self._models)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        ]
        return _Report(passes, most, gradients)

    def _input(self, task: Task) -> Tensor | None:
        """Return what a task needs of another one: tokens, hidden states, or the gradient of its output."""
        if task.kind == FORWARD and task.stage == 0:
            return self._parts[task.chain][task.micro_batch].input_ids
        if task.kind == WEIGHTS or (task.kind != FORWARD and task.stage == self._chains[task.chain].stages - 1):
            return None
        if task in self._local:
            return self._local.pop(task)
        receiving, buffer = self._received.pop(task)
        receiving.wait()
        return buffer

    def _compute(self, task: Task, given: Tensor | None) -> Tensor | None:
        """Run a task on what another stage has computed for it; return what the next one needs."""
        key = (task.chain, task.stage, task.micro_batch)
        stage = self._stages[task.chain][task.stage]
        if task.kind == FORWARD:
            assert given is not None
            x = given.requires_grad_() if task.stage else given
            output = self._with_loss(task, stage(x))
            self._held[key] = _Held(x, output)
            return output.detach()
        held = self._held.pop(key)
        if task.kind == BACKWARD:
            torch.autograd.backward(held.output, given)
            return held.x.grad
        if task.kind == INPUTS:
            self._held[key] = held._replace(gradient=given)
            return torch.autograd.grad(held.output, held.x, given, retain_graph=True)[0] if task.stage else None
        torch.autograd.backward(held.output, held.gradient, inputs=list(stage.parameters()))
        return None

    def _with_loss(self, task: Task, output: Tensor) -> Tensor:
        """Return the loss of the last stage's output; outputs of others as they are."""
        if task.stage + 1 < self._chains[task.chain].stages:
            return output
        each = self._parts[task.chain][task.micro_batch]
        found = output if task.chain else logits_to_logprobs(output, each.input_ids, TEMPERATURE)
        loss: Tensor = self._losses[task.chain](each, found)[0]
        return loss

    def _pass_on(self, task: Task, computed: Tensor | None) -> None:
        """Give what a task has computed to the one that waits for it, here or on another device."""
        then = following(task, self._chains[task.chain].stages)
        if then is None:
            return
        assert computed is not None
        receiver = self._chains[then.chain].route[then.stage]
        if receiver == self._rank:
            self._local[then] = computed
        else:
            computed = computed.contiguous()
            self._sends.append((dist.isend(computed, receiver, tag=self._tag[then]), computed))
