"""Defines ``PipelinePlan``: the order of operations on every device, with latency, peak memory and the lower bounds of both.

How a plan is found plays no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from solver.model.errors import PlanningError, as_given
from solver.model.html_tables import facts_table
from solver.pipeline.bounds import latency_bound, memory_bound
from solver.pipeline.evaluate import PipelineTimes, evaluate_orders, held_memory
from solver.pipeline.operations import Operation, Operations
from solver.pipeline.plan_json import NUMBERS, PlanParts, parts_from_json, parts_to_json
from solver.pipeline.problem import PipelineProblem, items

if TYPE_CHECKING:
    import pandas as pd

OBJECTIVES = ("latency", "latency_then_memory", "memory_within")
TOLERANCE = 1e-9  # relative, of sums of activations


@dataclass(frozen=True)
class SearchReport:
    """Effort of a search; seconds are counted work, converted by the speed of the reference machine, not measured time.

    Attributes:
        objective: one of ``OBJECTIVES``, or empty for a plan that was not searched for.
        time_limit_s: limit of both parts together. latency_s, memory_s: what each part used of it.
        compiled: the memory search ran compiled by numba.
        stopped: the limit ended the search before it had tried all that it can, or proven its result.
    """

    objective: str = ""
    time_limit_s: float = 0.0
    latency_s: float = 0.0
    memory_s: float = 0.0
    compiled: bool = False
    stopped: bool = False

    @property
    def memory_share(self) -> float:
        """Share of the time limit that the memory search used."""
        return self.memory_s / self.time_limit_s if self.time_limit_s else 0.0


@dataclass(frozen=True)
class PipelinePlan:
    """A schedule of a pipeline problem.

    Attributes:
        problem: what is scheduled.
        orders: per device, the operations (chain, kind, stage) in order; the micro-batch is the count of the operation so far.
        latency: when the last operation ends, in the problem's time. latency_bound: no schedule ends earlier.
        peak_memory: most memory that a device holds. memory_bound: no schedule that ends by ``latency`` needs less.
        search: what was spent on it.
    """

    problem: PipelineProblem
    orders: tuple[tuple[Operation, ...], ...]
    latency: float
    latency_bound: float
    peak_memory: float
    memory_bound: float
    search: SearchReport = SearchReport()

    @property
    def latency_gap(self) -> float:
        """Share by which the latency is above its bound."""
        return self.latency / self.latency_bound - 1

    @property
    def latency_is_optimal(self) -> bool:
        """Whether the latency is proven to be the least."""
        return self.latency <= self.latency_bound

    @property
    def memory_is_optimal(self) -> bool:
        """Whether the peak memory is proven to be the least of schedules that end by ``latency``."""
        return self.peak_memory <= self.memory_bound * (1 + TOLERANCE)

    @property
    def status(self) -> str:
        """Proof of the objective: ``optimal``, ``feasible`` (the search has ended without) or ``stopped`` (by its limit)."""
        wanted = self.latency_is_optimal
        if self.search.objective == "latency_then_memory":
            wanted = wanted and self.memory_is_optimal
        return "optimal" if wanted else "stopped" if self.search.stopped else "feasible"

    @cached_property
    def operations(self) -> Operations:
        """The problem's operations; orders name its ``types``."""
        return Operations.of(self.problem)

    @cached_property
    def times(self) -> PipelineTimes:
        """Starts of all operations in units of ``problem.unit``."""
        return evaluate_orders(self.operations, _numbered(self.operations, self.orders))

    def table(self) -> pd.DataFrame:
        """Return one row per operation, in order of start.

        Returns:
            Columns ``operation`` (F, B, I or W), ``chain`` (name), ``stage``, ``micro_batch``, ``device``, ``start``, ``end``,
            and ``memory`` that the device holds meanwhile.
        """
        import pandas as pd

        ops, unit, rows = self.operations, self.problem.unit, []
        for d, order in enumerate(_numbered(ops, self.orders)):
            done = [0] * len(ops)
            for i, start, memory in zip(order, self.times.starts[d], held_memory(ops, order), strict=True):
                op = ops.types[i]
                end = (start + ops.duration[i]) * unit
                rows.append((op.kind, ops.chains[op.chain], op.stage, done[i], d, start * unit, end, memory))
                done[i] += 1
        columns = ["operation", "chain", "stage", "micro_batch", "device", "start", "end", "memory"]
        return pd.DataFrame(rows, columns=columns).sort_values(["start", "device"], kind="stable", ignore_index=True)

    def actions(self, chain: str | None = None) -> list[list[str]] | list[list[tuple[str, str]]]:
        """Return each device's order in the notation of ``torch.distributed.pipelining``: stage, kind, micro-batch, as in
        ``0F3``.

        Args:
            chain: leave out all others. Torch's own runtime executes the order of one chain.

        Returns:
            A list per device, of texts for one chain, and of pairs (name of the chain, text) for several.

        Raises:
            PlanningError: there is no such chain.
        """
        names = [one.name for one in self.problem.chains]
        if chain is not None and chain not in names:
            raise PlanningError(f"chain is {as_given(chain)}; choose one of {', '.join(names)}")
        found = []
        for order in self.orders:
            done: dict[Operation, int] = {}
            row = []
            for op in order:
                number = done.get(op, 0)
                done[op] = number + 1
                if chain in (None, names[op.chain]):
                    row.append((names[op.chain], f"{op.stage}{op.kind}{number}"))
            found.append(row)
        return found if chain is None and len(names) > 1 else [[action for _, action in row] for row in found]

    def to_json(self) -> str:
        """Return the plan as JSON; ``from_json`` restores it bit for bit."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return parts_to_json(PlanParts(self.problem, self.orders, numbers, asdict(self.search)))

    @classmethod
    def from_json(cls, text: str) -> PipelinePlan:
        """Return the plan of ``to_json``.

        Raises:
            PlanningError: the text is no such plan, or its numbers are not those of its orders.
        """
        parts = parts_from_json(text)
        plan = evaluate_pipeline(parts.problem, parts.orders)
        for name in ("latency", "latency_bound", "peak_memory"):
            if getattr(plan, name) != parts.numbers[name]:
                raise PlanningError(
                    f"the plan says {name} {parts.numbers[name]:g}, but its orders give {getattr(plan, name):g}"
                )
        if not plan.memory_bound <= parts.numbers["memory_bound"] <= plan.peak_memory * (1 + TOLERANCE):
            raise PlanningError(
                f"the plan says memory_bound {parts.numbers['memory_bound']:g}; {plan.memory_bound:g} to {plan.peak_memory:g} "
                "is possible"
            )
        known = {one.name for one in fields(SearchReport)}
        if set(parts.search) != known:
            raise PlanningError(f"the plan's search has other fields than {', '.join(sorted(known))}; those are needed")
        return cls(parts.problem, plan.orders, search=SearchReport(**parts.search), **parts.numbers)

    def __repr__(self) -> str:
        return "PipelinePlan(" + ", ".join(f"{name}: {value}" for name, value in self._facts()) + ")"

    def _repr_html_(self) -> str:
        return facts_table("Pipeline schedule", self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        chains = ", ".join(f"{chain.name} ({chain.stages} x {chain.micro_batches})" for chain in self.problem.chains)
        proof = "proven optimal" if self.latency_is_optimal else f"at most {self.latency_gap:.2%} above optimal"
        memory = f"{self.peak_memory:g} (bound at this latency {self.memory_bound:g})"
        if self.search.objective == "latency" and not self.memory_is_optimal:
            memory += ", not minimised: pass memory=True to schedule_instance, or objective='latency_then_memory'"
        facts = [
            ("chains (stages x micro-batches)", chains),
            ("devices", str(self.problem.devices)),
            ("latency", f"{self.latency:g}, {proof} (bound {self.latency_bound:g})"),
            ("peak memory", memory),
            ("status", self.status if self.search.objective != "latency" else f"{self.status} latency"),
        ]
        if self.search.memory_s:
            engine = "compiled" if self.search.compiled else "plain Python"
            facts.append(("memory search", f"{self.search.memory_share:.0%} of the time limit, {engine}"))
        return facts


def evaluate_pipeline(problem: PipelineProblem, orders: Sequence[Sequence[Sequence[object]]]) -> PipelinePlan:
    """Return the plan that runs given orders, each operation as early as it can.

    Args:
        orders: per device, (chain, kind, stage) of each operation, the chain by position; see ``PipelinePlan.orders``.

    Raises:
        PlanningError: an operation is unknown, missing, doubled or on another device, or operations wait for each other.
    """
    ops = Operations.of(problem)
    return judged(problem, _numbered(ops, orders), SearchReport())


def judged(
    problem: PipelineProblem, orders: Sequence[Sequence[int]], search: SearchReport, proven_memory: float = 0.0
) -> PipelinePlan:
    """Return the plan of orders in numbers of types, with its bounds.

    Args:
        proven_memory: bound on memory at this latency that a search has proven, 0 for none.
    """
    ops = Operations.of(problem)
    times = evaluate_orders(ops, orders)
    bounds = latency_bound(ops) * ops.unit, max(proven_memory, memory_bound(ops, times.latency))
    named = tuple(tuple(ops.types[i] for i in order) for order in orders)
    return PipelinePlan(problem, named, times.latency * ops.unit, bounds[0], times.peak_memory, bounds[1], search)


def _numbered(ops: Operations, orders: Sequence[Sequence[Sequence[object]]]) -> list[list[int]]:
    """Return orders in numbers of types."""
    number = {tuple(op): i for i, op in enumerate(ops.types)}
    found = []
    for d, order in enumerate(items("orders", orders)):
        row = []
        for op in items(f"the order of device {d}", order) if not isinstance(order, tuple | list) else order:
            try:
                row.append(number[tuple(op)])
            except (TypeError, KeyError):
                raise PlanningError(
                    f"the order of device {d} has {as_given(op)}; chain, kind and stage of an operation are needed, "
                    f"such as {tuple(ops.types[0])}"
                ) from None
        found.append(row)
    return found
