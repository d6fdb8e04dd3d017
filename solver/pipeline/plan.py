"""Plans of pipelines: the order of operations on every device, with latency, peak memory and the lower bounds of both.

``schedule_pipeline`` searches for the fastest schedule first, then for one with little memory that is as fast. ``serial`` is
the schedule to compare with, and ``ExecutedPlan`` a plan with its measured times.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given, is_number
from solver.model.html_tables import facts_table
from solver.pipeline.bounds import latency_bound, memory_bound
from solver.pipeline.kernels import is_compiled
from solver.pipeline.listing import (
    ListScheduler,
    Orders,
    PipelineTimes,
    Rule,
    evaluate_orders,
    held_memory,
    one_at_a_time,
    peaks,
)
from solver.pipeline.memory import MemorySearch
from solver.pipeline.problem import Chain, Operation, Operations, PipelineProblem, items, whole
from solver.pipeline.search import Work, earlier, find_fastest

if TYPE_CHECKING:
    import pandas as pd

OBJECTIVES = ("latency", "latency_then_memory", "memory_within")
RULES_SHARE = 0.5  # of the time limit, for the fastest schedule by rules; compiled changes of orders have the rest
TOLERANCE = 1e-9  # relative, of sums of activations

FORMAT = "pipeline plan 1"
NUMBERS = ("latency", "latency_bound", "peak_memory", "memory_bound")
WRITTEN = re.compile(r"(\d+)([FBIW])(\d+)")  # an operation in JSON: chain, kind and stage, as in 0F3
COLUMNS = ["operation", "chain", "stage", "micro_batch", "device"]  # of tables, that name an operation


def schedule_pipeline(
    problem: PipelineProblem,
    memory: ArrayLike | None = None,
    objective: str = "latency",
    deadline: float | None = None,
    time_limit_s: float = 5.0,
    seed: int = 0,
    workers: int = 1,
) -> PipelinePlan:
    """Return a schedule of a pipeline problem with the shortest latency found, and lower bounds on latency and memory.

    Args:
        memory: capacity of each device, or one number for all; the problem's when None. No plan exceeds it.
        objective: ``latency``; ``latency_then_memory``: also minimise peak memory, without making the schedule slower;
            ``memory_within``: minimise peak memory with a latency of at most ``deadline``.
        deadline: latest latency, in the problem's time.
        time_limit_s: of the search, in counted seconds of the reference machine, so that the plan is always the same.
        seed: of random changes. workers: threads of CP-SAT, which take turns; one was fastest.

    Raises:
        PlanningError: an argument is out of range, the deadline is below the bound, or no schedule within it was found.

    Example:
        >>> from solver.pipeline import fused, schedule_pipeline
        >>> plan = schedule_pipeline(fused(actor=(8, 5, 32), critic=(8, 2, 32)))
        >>> plan.latency, plan.status
        (702.0, 'optimal')
    """
    if not isinstance(problem, PipelineProblem):
        raise PlanningError(f"problem is {as_given(problem)}; a PipelineProblem is needed")
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise PlanningError(f"objective is {as_given(objective)}; choose one of {', '.join(OBJECTIVES)}")
    if not is_number(time_limit_s, 0):
        raise PlanningError(f"time_limit_s is {as_given(time_limit_s)}; a finite number of seconds of 0 or more is needed")
    whole("seed", seed, 0)
    whole("workers", workers, 1)
    problem = problem if memory is None else problem.with_memory(memory)
    ops = Operations.of(problem)
    bound = latency_bound(ops)
    latest = _latest(deadline, objective, bound, ops.unit)
    goal = bound if objective != "memory_within" else max(bound, latest)
    work = Work(time_limit_s * (RULES_SHARE if is_compiled((1 - RULES_SHARE) * time_limit_s) else 1.0))
    found = find_fastest(problem, work, int(seed), goal)
    work.most_s = time_limit_s
    orders = earlier(ops, found.orders if found.latency is not None else one_at_a_time(ops), goal, work, int(seed))
    latency_s, compiled, stopped = work.spent_s, False, work.over
    if objective != "latency" and not work.over:
        latest = max(latest, evaluate_orders(ops, orders).latency)
        lower = MemorySearch(ops, orders, latest, work, int(seed), int(workers))
        lower.run()
        orders, compiled, stopped = lower.orders, lower.compiled, not lower.finished
    report = SearchReport(objective, float(time_limit_s), latency_s, work.spent_s - latency_s, compiled, stopped)
    plan = _judged(problem, ops, orders, report)
    if deadline is not None and plan.latency > deadline:
        raise PlanningError(
            f"no schedule within the deadline of {deadline:g} was found in {time_limit_s:g} s; the bound is "
            f"{plan.latency_bound:g} and the best schedule takes {plan.latency:g}"
        )
    return plan


def _latest(deadline: float | None, objective: str, bound: int, unit: float) -> int:
    """Return the deadline in units of time; the bound where there is none."""
    if deadline is None:
        if objective == "memory_within":
            raise PlanningError("objective memory_within needs a deadline; give the latest latency")
        return bound
    if not is_number(deadline, 0):
        raise PlanningError(f"deadline is {as_given(deadline)}; a finite number is needed")
    latest = math.floor(deadline / unit * (1 + 1e-12))
    if latest < bound:
        raise PlanningError(f"the deadline is {deadline:g}, but no schedule ends before {bound * unit:g}; give at least that")
    return latest


def serial(problem: PipelineProblem) -> PipelinePlan:
    """Return the schedule that runs one chain after the other with 1F1B, as trainers without fusion do.

    A stage runs a backward pass as soon as it can. Stage s of S has at most S - s micro-batches in flight, the least that keeps
    equal stages busy. A device begins the next chain as soon as it has finished the one before. Chains on other devices run at
    the same time.

    Raises:
        PlanningError: too little memory for this schedule.

    Example:
        >>> from solver.pipeline import Chain, PipelineProblem, serial
        >>> serial(PipelineProblem([Chain("actor", range(4), 8, forward=1, backward=2)])).latency
        33.0
    """
    ops = Operations.of(problem)
    orders: Orders = [[] for _ in ops.on_device]
    for chain in range(len(problem.chains)):
        for order, more in zip(orders, _one_forward_one_backward(problem, ops, chain), strict=True):
            order += more
    if ops.memory is not None:
        for d, (most, limit) in enumerate(zip(peaks(ops, orders), ops.memory, strict=True)):
            if most > limit * (1 + 1e-12):
                raise PlanningError(
                    f"1F1B holds {most:g} on device {d}, whose memory is {limit:g}; at least {most:g} is needed"
                )
    return _judged(problem, ops, orders, SearchReport())


def _one_forward_one_backward(problem: PipelineProblem, ops: Operations, chain: int) -> Orders:
    """Return the 1F1B orders of a chain as if it were alone, in types of the whole problem."""
    alone = Operations.of(replace(problem, chains=(problem.chains[chain],), memory=None))
    stages = problem.chains[chain].stages
    rule = Rule([0] * len(alone), [-float(head) for head in alone.heads], [stages - op.stage for op in alone.types])
    scheduler = ListScheduler(alone)
    latency = scheduler.schedule(rule)
    assert latency is not None, "1F1B has no limit that blocks it: every stage may hold one micro-batch"
    number = {op: i for i, op in enumerate(ops.types)}
    return [[number[alone.types[i]._replace(chain=chain)] for i in order] for order in scheduler.orders()]


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
        orders = [" ".join(f"{op.chain}{op.kind}{op.stage}" for op in order) for order in self.orders]
        numbers = {name: getattr(self, name) for name in NUMBERS}
        search = asdict(self.search)
        return json.dumps({"format": FORMAT, "problem": asdict(self.problem), **numbers, "search": search, "orders": orders})

    @classmethod
    def from_json(cls, text: str) -> PipelinePlan:
        """Return the plan of ``to_json``.

        Raises:
            PlanningError: the text is no such plan, or its numbers are not those of its orders.
        """
        try:
            found = json.loads(text)
            if (format := found["format"]) != FORMAT:
                if not re.fullmatch(r"pipeline plan \d+", str(format)):
                    raise KeyError
                raise PlanningError(
                    f"the text is {format!r}, and this version reads {FORMAT!r}; use the version of RLHFless that wrote it"
                )
            numbers = {name: float(found[name]) for name in NUMBERS}
            problem, search = _problem_of(found["problem"]), dict(found["search"])
            orders = [_order_of(line) for line in found["orders"]]
        except PlanningError:
            raise
        except (TypeError, KeyError, ValueError, AttributeError):
            raise PlanningError("the text is not a pipeline plan; the JSON of PipelinePlan.to_json is needed") from None
        plan = evaluate_pipeline(problem, orders)
        for name in ("latency", "latency_bound", "peak_memory"):
            if getattr(plan, name) != numbers[name]:
                raise PlanningError(f"the plan says {name} {numbers[name]:g}, but its orders give {getattr(plan, name):g}")
        if not plan.memory_bound <= numbers["memory_bound"] <= plan.peak_memory * (1 + TOLERANCE):
            raise PlanningError(
                f"the plan says memory_bound {numbers['memory_bound']:g}; {plan.memory_bound:g} to {plan.peak_memory:g} "
                "is possible"
            )
        known = {one.name for one in fields(SearchReport)}
        if set(search) != known:
            raise PlanningError(f"the plan's search has other fields than {', '.join(sorted(known))}; those are needed")
        return cls(problem, plan.orders, search=SearchReport(**search), **numbers)

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
    return _judged(problem, ops, _numbered(ops, orders), SearchReport())


def _judged(problem: PipelineProblem, ops: Operations, orders: Orders, search: SearchReport) -> PipelinePlan:
    """Return the plan of orders in numbers of types, with its bounds."""
    times = evaluate_orders(ops, orders)
    named = tuple(tuple(ops.types[i] for i in order) for order in orders)
    latency, bound = times.latency * ops.unit, latency_bound(ops) * ops.unit
    return PipelinePlan(problem, named, latency, bound, times.peak_memory, memory_bound(ops, times.latency), search)


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


def _problem_of(found: dict[str, Any]) -> PipelineProblem:
    chains = [Chain(**chain) for chain in found["chains"]]
    options = {name: found[name] for name in ("transfer", "memory", "split_backward", "kept_for_weights")}
    return PipelineProblem(chains, found["devices"], **options)


def _order_of(line: str) -> list[Operation]:
    found = [WRITTEN.fullmatch(word) for word in line.split()]
    return [Operation(int(match[1]), match[2], int(match[3])) for match in found]  # type: ignore[index]


@dataclass(frozen=True, eq=False)
class ExecutedPlan:
    """The measured times of a plan's operations; has what ``rlhfless.plots.plot_pipeline`` draws of a plan.

    Args:
        plan: what was executed.
        passes: one row per operation: ``operation, chain, stage, micro_batch, device`` as in ``PipelinePlan.table``, and
            ``start``, ``end`` in seconds.
        unit_s: seconds of one unit of the plan's time.

    Raises:
        PlanningError: the operations are others than the plan's, or ``unit_s`` is not above 0.
    """

    plan: PipelinePlan
    passes: pd.DataFrame
    unit_s: float

    def __post_init__(self) -> None:
        if not is_number(self.unit_s, 0) or self.unit_s == 0:
            raise PlanningError(f"unit_s is {as_given(self.unit_s)}; a number above 0 is needed")
        ours, theirs = (set(rows[COLUMNS].itertuples(index=False, name=None)) for rows in (self.passes, self.plan.table()))
        if ours != theirs or len(self.passes) != len(theirs):
            raise PlanningError(
                f"passes has {len(self.passes)} rows, but the plan has {len(theirs)} operations; each is needed once"
            )

    @property
    def problem(self) -> PipelineProblem:
        """What the plan schedules."""
        return self.plan.problem

    @property
    def latency(self) -> float:
        """When the last operation ended, in the plan's time."""
        return float(self.passes["end"].max()) / self.unit_s

    @property
    def latency_bound(self) -> float:
        """The plan's."""
        return self.plan.latency_bound

    @property
    def peak_memory(self) -> float:
        """The plan's, as devices kept its order."""
        return self.plan.peak_memory

    @property
    def memory_bound(self) -> float:
        """The plan's."""
        return self.plan.memory_bound

    def table(self) -> pd.DataFrame:
        """Return ``PipelinePlan.table`` with the measured ``start`` and ``end``, in the plan's time."""
        measured = self.passes[[*COLUMNS, "start", "end"]].assign(
            start=self.passes["start"] / self.unit_s, end=self.passes["end"] / self.unit_s
        )
        merged = measured.merge(self.plan.table()[[*COLUMNS, "memory"]], on=COLUMNS)
        return merged.sort_values(["start", "device"], kind="stable", ignore_index=True)
