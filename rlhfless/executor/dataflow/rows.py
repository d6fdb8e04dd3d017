"""Rows of a trace for steps of a step plan: rollouts, allocations and spans.

A call holds the GPUs of its mesh, with an allocation for each node of them. A reallocation holds the GPUs of both its meshes:
the call that receives the weights has those of its own mesh, and the call that trained them has the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlhfless.executor.step.record import HeldGpus, Row, StepRecord
from rlhfless.executor.step.step_trace import rollout_rows
from rlhfless.executor.step.work_items import bought_as
from solver.layouts.graph import GENERATE, INFERENCE, TRAIN
from solver.layouts.plan import PlannedCall, StepPlan
from solver.model.cluster import Cluster
from solver.model.plan import Plan
from solver.model.workload import Workload

PHASES = {GENERATE: "decode", INFERENCE: "prepare", TRAIN: "learn"}  # of a call's span, by its kind
ROLES = {GENERATE: "decode", INFERENCE: "prepare", TRAIN: "learner"}  # of a call's holder, by its kind
MODEL_ROLES = ("reference", "reward", "critic")  # that are roles of holders, too


def holder_role(call: PlannedCall) -> str:
    """Return the role in the trace of the holder of a call's GPUs."""
    return call.role if call.role in MODEL_ROLES else ROLES[call.kind]


def write_call(
    record: StepRecord,
    call: PlannedCall,
    cluster: Cluster,
    start_s: float,
    end_s: float,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Write allocations and the span of a call that holds the GPUs of its mesh."""
    _allocate(record, call, holder_role(call), cluster, _gpus(call), (start_s, end_s))
    record.span(call.name, PHASES[call.kind], start_s, end_s, call=call.name, **(detail or {}))


def write_reallocation(
    record: StepRecord, call: PlannedCall, trained: PlannedCall, cluster: Cluster, start_s: float, end_s: float
) -> None:
    """Write allocations and the span of sending a role's weights from where they were ``trained`` to a call."""
    own, others = _gpus(call), [gpu for gpu in _gpus(trained) if gpu not in _gpus(call)]
    role = "prepare" if call.kind == GENERATE else holder_role(call)  # it is no actor that decodes
    _allocate(record, call, role, cluster, own, (start_s, end_s))
    _allocate(record, trained, holder_role(trained), cluster, others, (start_s, end_s))
    sent = round(call.reallocate_bytes)
    record.span(call.name, "transfer", start_s, end_s, call=call.name, bytes=sent, from_actor=trained.name)


def _allocate(
    record: StepRecord, call: PlannedCall, role: str, cluster: Cluster, gpus: Iterable[int], between_s: tuple[float, float]
) -> None:
    """Add an allocation for the GPUs of each node."""
    if between_s[1] <= between_s[0]:
        return
    of_node: dict[int, list[int]] = {}
    for gpu in gpus:
        of_node.setdefault(bought_as(gpu, cluster)[0], []).append(gpu)
    pool = cluster.pools[0]
    for node, ids in of_node.items():
        held = HeldGpus(pool.kind, node, tuple(ids), pool.market, pool.usd_per_gpu_s)
        record.allocate(call.name, role, held, *between_s)


class PlannedStepRows:
    """Rows of the steps so far.

    Args:
        generated: a step of each generate call that was decoded, which began at time 0.
        responses: of a step where nothing was decoded.
    """

    def __init__(
        self, plan: StepPlan, cluster: Cluster, run: str, generated: Mapping[str, StepRecord], responses: Workload | None
    ) -> None:
        self.plan, self.cluster, self.run = plan, cluster, run
        self.generated, self.responses = generated, responses
        self.calls = {call.name: call for call in plan.calls}
        self.rollouts: list[Row] = []
        self.allocations: list[Row] = []
        self.spans: list[Row] = []
        self.plans: list[Row] = []

    def add(self, step: int, start_s: Sequence[float], end_s: Sequence[float], reallocated: Sequence[int]) -> None:
        """Add a step.

        Args:
            start_s, end_s: (T,) of its tasks: the graph's calls, then the reallocations for the calls ``reallocated``.
        """
        record = StepRecord(self.run, step, NO_GENERATION, min(start_s))
        samples: Counter[str] = Counter()
        for task, between_s in enumerate(zip(start_s, end_s, strict=True)):
            self._task(record, task, between_s, reallocated, samples)
        if not self.generated and self.responses is not None:
            self._fixed_responses(step, start_s, end_s)
        self.allocations += record.allocations
        self.spans += record.spans

    def _task(
        self,
        record: StepRecord,
        task: int,
        between_s: tuple[float, float],
        reallocated: Sequence[int],
        samples: Counter[str],
    ) -> None:
        """Add a whole call, or a reallocation."""
        graph, (begins_s, ends_s) = self.plan.dataflow, between_s
        if task >= len(graph.calls):
            call = reallocated[task - len(graph.calls)]
            train = graph.trained_by[call]
            assert train is not None, "only trained roles are reallocated"
            sent, trained = (self.calls[graph.calls[one].name] for one in (call, train))
            write_reallocation(record, sent, trained, self.cluster, begins_s, ends_s)
        elif graph.calls[task].name in self.generated:
            self._generation(record, self.calls[graph.calls[task].name], begins_s, samples)
        else:
            write_call(record, self.calls[graph.calls[task].name], self.cluster, begins_s, ends_s)

    def _generation(self, record: StepRecord, call: PlannedCall, start_s: float, samples: Counter[str]) -> None:
        """Add a decoded step at its time and on its GPUs."""
        decoded, first = self.generated[call.name], call.layout.mesh.first
        prefix = f"{call.name}-" if len(self.generated) > 1 else ""
        about = {"run": self.run, "step": record.step}
        for row in rollout_rows(decoded).to_dict("records"):
            sample = samples[row["prompt_id"]]
            samples[row["prompt_id"]] += 1
            moved = {name: row[name] + start_s for name in ("start_s", "first_token_s", "end_s")}
            self.rollouts.append({**row, **about, "sample": sample, "actor": prefix + row["actor"], **moved})
        for row in decoded.allocations:
            ids = tuple(first + gpu for gpu in row["gpu_ids"])
            node, pool = bought_as(ids[0], self.cluster)
            held = HeldGpus(pool.kind, node, ids, pool.market, pool.usd_per_gpu_s)
            record.allocate(prefix + row["holder"], row["role"], held, start_s + row["start_s"], start_s + row["end_s"])
        for row in decoded.spans:
            times = {"start_s": start_s + row["start_s"], "end_s": start_s + row["end_s"]}
            self.spans.append({**row, **about, "holder": prefix + row["holder"], **times})
        if not self.plans or self.plans[-1]["step"] != record.step:
            self.plans.append({"step": record.step, **decoded.plan.to_dict()})

    def _fixed_responses(self, step: int, start_s: Sequence[float], end_s: Sequence[float]) -> None:
        """Add the responses of a step that the first generate call, if any, produces as a whole."""
        assert self.responses is not None
        at = next((at for at, call in enumerate(self.plan.dataflow.calls) if call.kind == GENERATE), None)
        times: dict[str, Any] = {}
        if at is not None:
            times = {"actor": self.plan.dataflow.calls[at].name, "start_s": start_s[at], "end_s": end_s[at]}
        samples: Counter[int] = Counter()
        for prompt, tokens in zip(self.responses.prompt_of.tolist(), self.responses.response_tokens.tolist(), strict=True):
            row = {"run": self.run, "step": step, "prompt_id": str(prompt), "sample": samples[prompt]}
            lengths = {"prompt_tokens": int(self.responses.prompt_tokens[prompt]), "response_tokens": tokens}
            self.rollouts.append({**row, **lengths, **times})
            samples[prompt] += 1


NO_GENERATION = Plan((), "step plan", 0.0, 0.0, 0.0)


def _gpus(call: PlannedCall) -> range:
    return range(call.layout.mesh.first, call.layout.mesh.last)
