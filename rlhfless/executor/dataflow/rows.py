"""Rows of a trace for steps of a step plan: its calls and reallocations as work items, and its rollouts.

A call holds the GPUs of its mesh, with an allocation for each node of them. A reallocation holds the GPUs of both its meshes:
the call that receives the weights has those of its own mesh, and the call that trained them has the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhfless.executor.step.record import HeldGpus, Row, StepRecord
from rlhfless.executor.step.step_trace import rollout_rows
from rlhfless.executor.step.work_items import Gpus, WorkItem, bought_as
from rlhfless.executor.step.work_rows import place_work, write_work
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


def call_item(call: PlannedCall, from_s: float, seconds: float, detail: Mapping[str, Any] | None = None) -> WorkItem:
    """Return the work item of a call that holds the GPUs of its mesh.

    Args:
        from_s: when it runs, in seconds from the start of the step.
    """
    gpus = Gpus(call.name, tuple(_gpus(call)), from_s=from_s)
    return WorkItem(PHASES[call.kind], seconds, gpus=gpus, call=call.name, role=holder_role(call), detail=detail or {})


def reallocation_items(call: PlannedCall, trained: PlannedCall, from_s: float, seconds: float) -> list[WorkItem]:
    """Return the work items of sending a role's weights from where they were ``trained`` to a call.

    The call receives them on its mesh, and the call that trained them sends them from its other GPUs.
    """
    role = "prepare" if call.kind == GENERATE else holder_role(call)  # it is no actor that decodes
    received = {"bytes": round(call.reallocate_bytes), "from_actor": trained.name}
    receives = Gpus(call.name, tuple(_gpus(call)), from_s=from_s)
    items = [WorkItem("transfer", seconds, gpus=receives, call=call.name, role=role, detail=received)]
    if others := tuple(gpu for gpu in _gpus(trained) if gpu not in _gpus(call)):
        sends, sent = Gpus(trained.name, others, from_s=from_s), {"from_actor": trained.name}
        items.append(WorkItem("transfer", seconds, gpus=sends, call=call.name, role=holder_role(trained), detail=sent))
    return items


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
        work: list[WorkItem] = []
        for task, (begins_s, ends_s) in enumerate(zip(start_s, end_s, strict=True)):
            name = self.plan.dataflow.calls[task].name if task < len(self.plan.dataflow.calls) else ""
            if name in self.generated:
                self._generation(record, self.calls[name], begins_s, samples)
            else:
                work += self._items(task, begins_s - record.start_s, ends_s - begins_s, reallocated)
        write_work(record, *place_work(work, record), self.cluster, max(end_s))
        if not self.generated and self.responses is not None:
            self._fixed_responses(step, start_s, end_s)
        self.allocations += record.allocations
        self.spans += record.spans

    def _items(self, task: int, from_s: float, seconds: float, reallocated: Sequence[int]) -> list[WorkItem]:
        """Return the work items of a whole call, or of a reallocation."""
        graph = self.plan.dataflow
        if task < len(graph.calls):
            return [call_item(self.calls[graph.calls[task].name], from_s, seconds)]
        call = reallocated[task - len(graph.calls)]
        train = graph.trained_by[call]
        assert train is not None, "only trained roles are reallocated"
        sent, trained = (self.calls[graph.calls[one].name] for one in (call, train))
        return reallocation_items(sent, trained, from_s, seconds)

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
