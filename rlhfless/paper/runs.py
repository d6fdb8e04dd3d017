"""The grid behind most figures: a policy on the lengths of a data set, on a machine. Every run is computed once and kept.

Figures that need the same run share it. Runs are kept as parquet files in the folder of the figures, so a command that was
stopped continues where it was. What is kept belongs to its inputs and to the program's code: with another setting, other
logs or another version it is computed again. Runs of other settings and logs stay, those of another version are removed.
Seconds that a machine took are those of the run that was computed.

Policies plan generation alone, which is what schedules decide. Preparation and learning follow and are the same for all, with
two exceptions: GPUs that are held through them, and ``ELASTIC``, whose learner has all GPUs. So runs do not depend on the
algorithm, and PPO and GRPO share those of the same lengths.

There are two bounds of whole steps. That of the naive learner covers all schedules of generation, followed by preparation and
learning on as many GPUs as in the naive system. That of all GPUs is the same with a learner on up to all GPUs, at perfect
scaling at best. It needs less time and has the same least cost. Neither covers plans whose learning starts before generation is
over. Shares of the headroom are of the first. Sums are over the evaluated steps, ratios are of sums.
"""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

import rlhfless
import solver
from rlhfless.errors import InputError
from rlhfless.paper.facets import Look
from rlhfless.paper.machine import KEPT_PER_DOUBLING, Machine
from rlhfless.paper.workloads import LengthHistory, Sources
from rlhfless.plots.palette import BOUND, POLICY_STYLES, PURPLE
from rlhfless.predict import EwmaPredictor, Predictor
from rlhfless.scheduling import PlanningOptions, SchedulingPolicy, make_policy
from rlhfless.scheduling.assignments import Static
from rlhfless.scheduling.rlhfuse import RLHFuse
from rlhfless.simulate import Comparison, SimulationConfig, logged_steps, simulate
from rlhfless.trace import Trace
from rlhfless.trace.storage import write_parquet
from solver.bounds.bound import Bound, Curve
from solver.bounds.headroom import share_of_headroom, summed_bounds
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem

WEIGHT = 0.7  # lambda of the paper, and of our objective
SCOPES = ("step", "generation")
POLICIES = (
    "static", "static-generation", "random", "rlhfuse", "rlhfless", "solver", "solver+replan", "oracle", "oracle+replan",
)  # fmt: skip
ELASTIC = {"elastic": 1.0, "elastic-90": KEPT_PER_DOUBLING}
"""Elastic naive: the naive system's generation, whose actors give their GPUs back when it is over, then preparation and
learning on all GPUs. Name to what each GPU keeps of its work per doubling of the learner's GPUs (``Machine.on_all_gpus``)."""


@dataclass
class TimedPolicy:
    """Records the CPU seconds that a policy's plans take; a busy machine changes them less than elapsed seconds.

    Attributes:
        cpu_s: one entry per plan.
    """

    base: SchedulingPolicy
    cpu_s: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the wrapped policy."""
        return self.base.name

    @property
    def clairvoyant(self) -> bool:
        """Whether the wrapped policy plans with true lengths."""
        return self.base.clairvoyant

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        began = time.process_time()
        plan = self.base.plan(problem, options)
        self.cpu_s.append(time.process_time() - began)
        return plan


def _like(policy: str, label: str, symbol: str = "", colour: str = "") -> Look:
    """Return the look of a policy of the project's table, with the figures' words."""
    style = POLICY_STYLES[policy]
    return Look(label, colour or style.colour, symbol or style.symbol)


LOOKS = {
    "static": _like("static", "naive static, 3 actors, held through the step"),
    "static-generation": _like("static", "naive static, held through generation", "circle-open"),
    "elastic": _like("static", "elastic naive: naive static, then learning on all GPUs", "pentagon", PURPLE),
    "elastic-90": _like("static", "elastic naive, 10 % lost per doubling of the learner", "pentagon-open", PURPLE),
    "random": _like("random", "right-sized random, released when done"),
    "static-all": _like("static", "naive static, all actors that fit, held through the step", "square"),
    "rlhfuse": _like("rlhfuse", "RLHFuse's cut, 3 actors"),
    "rlhfuse-all": _like("rlhfuse", "RLHFuse's cut, all actors that fit"),
    "rlhfless": _like("rlhfless", "RLHFless (paper's rule)"),
    "rlhfless, 3 actors": _like("rlhfless", "RLHFless on 3 actors", "triangle-down-open"),
    "solver": _like("solver", "ours: solver"),
    "solver+replan": _like("solver+replan", "ours: solver, re-planning"),
    "oracle": _like("oracle", "oracle: true lengths"),
    "oracle+replan": _like("oracle+replan", "oracle, re-planning"),
    "bound": Look("bound: least time and cost together", BOUND, "line-ew", "dash"),
    "bound-on-all": Look("bound: the same with a learner on all GPUs", PURPLE, "line-ew", "dash"),
}
"""Policies as the figures run them, and bounds, in the order of legends."""
HELD = frozenset({"static", "static-all"})
"""Policies whose actors keep their GPUs until learning is over, but for those that the learner needs."""
COLUMNS = ["policy", "step", "actors", "moves", "generation_s", "generation_gpu_s", "generation_idle_gpu_s", "min_gpu_s",
           "planning_s", "cpu_s"]  # fmt: skip

KEPT = re.compile(r".+?(-(?P<code>[0-9a-f]{12}))?-[0-9a-f]{16}\.parquet")
"""Names of kept tables: what it is, the program's code (missing in tables of early versions), all that it is computed from."""


class Runs:
    """Tables that are computed once.

    Args:
        sources: of lengths. folder: where tables are kept; only in memory without one.
        on_line: called with one line after each named part that was computed.
    """

    def __init__(self, sources: Sources, folder: Path | None = None, on_line: Callable[[str], object] | None = None) -> None:
        self.sources, self.folder, self._on_line = sources, folder, on_line
        self._known: dict[str, pd.DataFrame] = {}

    def find(self, name: str, inputs: object) -> pd.DataFrame | None:
        """Return the table of these inputs; None where it was not computed, or its file is broken."""
        file = self._file(name, inputs)
        if file not in self._known and self.folder is not None and (self.folder / file).is_file():
            with suppress(OSError, ValueError):
                self._known[file] = pd.read_parquet(self.folder / file)
        return self._known.get(file)

    def keep(self, name: str, inputs: object, table: pd.DataFrame) -> pd.DataFrame:
        """Keep the table of these inputs, and return it.

        Raises:
            InputError: the folder cannot be made. TraceError: it cannot be written.
        """
        file = self._file(name, inputs)
        self._known[file] = table
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"{self.folder}: cannot be made ({error.strerror}); name a folder that can be written"
                ) from None
            write_parquet(self.folder / file, pa.Table.from_pandas(table, preserve_index=False))
        return table

    def kept(self, name: str, inputs: object, compute: Callable[[], pd.DataFrame], part: bool = False) -> pd.DataFrame:
        """Return the table of these inputs, computed where it is not kept.

        Args:
            name: of the file. inputs: all that the table is computed from, which ``repr`` shows in full. part: whether it takes
                so long that a line says when it is computed.
        """
        table = self.find(name, inputs)
        if table is not None:
            return table
        start_s = time.perf_counter()
        table = self.keep(name, inputs, compute())
        if part and self._on_line is not None:
            self._on_line(f"    {name}: {time.perf_counter() - start_s:.0f} s")
        return table

    def prune(self) -> None:
        """Remove the kept tables of other versions of the program, which this one never reads. Other files stay."""
        for path in [] if self.folder is None else self.folder.glob("*.parquet"):
            kept = KEPT.fullmatch(path.name)
            if kept is not None and kept["code"] != _code():
                with suppress(OSError):  # it is in nobody's way
                    path.unlink()

    @staticmethod
    def _file(name: str, inputs: object) -> str:
        digest = sha256(f"{name} {inputs!r}".encode()).hexdigest()[:16]
        return f"{re.sub('[^A-Za-z0-9.]+', '-', name)}-{_code()}-{digest}.parquet"


@cache
def _code() -> str:
    """Return a digest of the program's code, so that no run of another version is taken for one of this."""
    digest = sha256()
    for package in (rlhfless, solver):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, eq=False)
class _Grid:
    """Lengths, machine and all else that the runs of several policies have in common."""

    history: LengthHistory
    machine: Machine
    predictor: Predictor
    steps: tuple[int, ...]
    seed: int

    @property
    def setting(self) -> SimulationConfig:
        return SimulationConfig(
            self.machine.cluster, self.machine.latency, Objective(WEIGHT), max_response_tokens=self.history.max_response_tokens,
            admission=self.machine.admission, seed=self.seed,
        )  # fmt: skip

    @cached_property
    def inputs(self) -> tuple[object, ...]:
        """All that the runs are computed from, as text; read before anything is predicted."""
        lengths = sha256(pd.util.hash_pandas_object(self.history.rollouts, index=False).to_numpy().tobytes()).hexdigest()
        profile = sha256(pickle.dumps(self.machine.latency)).hexdigest()
        limit, predictor = self.history.max_response_tokens, _text(self.predictor)
        return lengths, limit, repr(self.machine), profile, predictor, self.steps, self.seed

    def simulated(self, policies: Sequence[SchedulingPolicy]) -> Comparison:
        return simulate(self.history.rollouts, self.setting, policies, self.predictor, self.steps)


def _text(value: object) -> str:
    """Return what an object is made of, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of policies for one history on one machine.

    Attributes:
        phases: preparation and learning of a step. learner_gpu_s: their cost. phases_on_all: the same on all GPUs, at perfect
            scaling.
        steps: one row per policy and step: ``COLUMNS`` and ``step_s, step_gpu_s, step_idle_gpu_s``. ``min_gpu_s`` are the least
            GPU-seconds of generation that any policy takes in the row's time.
        curves: step to the bound of its generation, as a curve.
    """

    runs: Runs
    grid: _Grid
    algorithm: str
    policies: Mapping[str, SchedulingPolicy]
    phases: NonGenerationPhases
    learner_gpu_s: float
    phases_on_all: NonGenerationPhases
    steps: pd.DataFrame
    curves: Mapping[int, Curve]
    _simulated: Comparison | None = field(default=None, repr=False)

    @property
    def planning(self) -> pd.DataFrame:
        """``policy, step, planning_s``, and ``cpu_s`` where it was timed: seconds that planning took on the machine that
        computed the run."""
        return self.steps[["policy", "step", "planning_s", "cpu_s"]].dropna(axis="columns", how="all")

    def of_trace(self, policy: str, facts: Callable[[Trace], pd.DataFrame]) -> pd.DataFrame:
        """Return what a function reads from the trace of a policy; kept as the run is."""

        def compute() -> pd.DataFrame:
            if self._simulated is not None and policy in self._simulated.traces:
                return facts(self._simulated.traces[policy])
            return facts(self.grid.simulated([self.policies[policy]]).traces[policy])

        name = f"{self.grid.history.name} {facts.__name__}"
        return self.runs.kept(name, (*self.grid.inputs, _text(self.policies[policy])), compute)

    def bounds(self) -> list[Bound]:
        """Return the bound of generation of every step."""
        grid = self.grid
        limit = grid.history.max_response_tokens
        return [step.bound(grid.setting) for step in logged_steps(grid.history.rollouts, None, limit, steps=list(grid.steps))]


def label_of(policy: str) -> str:
    """Return the name of a policy in legends and tables."""
    return LOOKS[policy].label if policy in LOOKS else policy


def policy_named(name: str, static_actors: int, tau: float = 0.7) -> SchedulingPolicy:
    """Return a policy of ``LOOKS``.

    Raises:
        PolicyError: the name is unknown.
    """
    policies_of_paper: dict[str, SchedulingPolicy] = {
        **{same: Static(static_actors, name=same) for same in ("static-generation", *ELASTIC)},
        "static-all": Static(name=name),
        "rlhfuse-all": RLHFuse(name=name),
    }
    if name in policies_of_paper:
        return policies_of_paper[name]
    return make_policy(name, tau=tau, static_actors=static_actors)


def compare(
    runs: Runs,
    history: LengthHistory,
    machine: Machine,
    algorithm: str,
    policies: Sequence[str | SchedulingPolicy] = POLICIES,
    *,
    held: frozenset[str] = HELD,
    predictor: Predictor | None = None,
    max_steps: int | None = None,
    seed: int = 0,
    timed: bool = False,
) -> Outcome:
    """Return the policies' runs on the history's steps, each predicted from all earlier ones.

    Args:
        algorithm: ``PPO`` or ``GRPO``: sets the time of preparation and learning.
        policies: names of ``LOOKS`` or policy objects.
        held: names of the policies whose actors keep their GPUs until learning is over; with the learner's GPUs they never
            exceed the cluster.
        max_steps: only the last so many steps with history. timed: whether CPU seconds of planning are measured.
    """
    steps = tuple(history.evaluated if max_steps is None else history.last(max_steps))
    grid = _Grid(history, machine, predictor or EwmaPredictor(), steps, seed)
    chosen = {p.name: p for p in (policy_named(p, machine.static_actors) if isinstance(p, str) else p for p in policies)}
    generated, bounds, simulated = _generated(runs, grid, chosen, timed)
    rows = history.rollouts[history.rollouts["step"].isin(steps)]
    tokens = float(rows["response_tokens"].sum()) + float(rows["prompt_tokens"].fillna(0).sum())
    phases = machine.phases(algorithm, tokens / len(steps))
    learner_gpu_s = machine.learner_gpus * phases.seconds
    table = generated.copy()
    free = machine.cluster.gpus - machine.learner_gpus  # a learner takes its GPUs from actors where no others are left
    holding = np.minimum(table["actors"].astype(float) * machine.latency.gpus_per_actor, free)
    waiting_gpu_s = np.where(table["policy"].isin(held), holding, 0.0) * phases.seconds
    elastic_s = {name: machine.on_all_gpus(phases, kept).seconds for name, kept in ELASTIC.items()}
    on_all_s = table["policy"].map(elastic_s)
    table["step_s"] = table["generation_s"] + on_all_s.fillna(phases.seconds)
    learning_gpu_s = (on_all_s * machine.gpus).fillna(learner_gpu_s)
    table["step_gpu_s"] = table["generation_gpu_s"] + waiting_gpu_s + learning_gpu_s
    table["step_idle_gpu_s"] = table["generation_idle_gpu_s"] + waiting_gpu_s
    curves = {
        int(step): Curve(of["shortest_s"].iloc[0], of["min_gpu_s"].iloc[0], of["time_s"].to_numpy(), of["gpu_s"].to_numpy())
        for step, of in bounds.groupby("step", sort=False)
    }
    return Outcome(runs, grid, algorithm, chosen, phases, learner_gpu_s, machine.on_all_gpus(phases), table, curves, simulated)


def _generated(
    runs: Runs, grid: _Grid, policies: Mapping[str, SchedulingPolicy], timed: bool
) -> tuple[pd.DataFrame, pd.DataFrame, Comparison | None]:
    """Return ``COLUMNS`` of the policies, the bound of every step as a curve, and what had to be simulated for them."""
    name = f"{grid.history.name} {grid.machine.model}"
    known = runs.find(name, (*grid.inputs, timed))
    keys = {policy: _text(of) for policy, of in policies.items()}
    missing = [policies[policy] for policy, key in keys.items() if known is None or key not in set(known["run"])]
    simulated = None
    if missing:
        given = [TimedPolicy(policy) for policy in missing] if timed else missing
        simulated = grid.simulated(given)
        of_step = dict(zip((step.step for step in simulated.logged), simulated.bounds, strict=True))
        rows = simulated.table.rename(
            columns={"time_s": "generation_s", "gpu_seconds": "generation_gpu_s", "idle_gpu_seconds": "generation_idle_gpu_s"}
        )
        rows["min_gpu_s"] = [
            of_step[step].gpu_seconds(time_s * (1 + 1e-9))
            for step, time_s in zip(rows["step"], rows["generation_s"], strict=True)
        ]
        cpu_s = {policy.name: iter(policy.cpu_s) for policy in given if isinstance(policy, TimedPolicy)}
        rows["cpu_s"] = [next(cpu_s[policy]) if timed else np.nan for policy in rows["policy"]]
        rows = rows[COLUMNS].assign(run=rows["policy"].map(keys))
        runs.kept(f"bound {name}", grid.inputs, lambda: _curves(of_step))
        known = runs.keep(name, (*grid.inputs, timed), rows if known is None else pd.concat([known, rows], ignore_index=True))
    assert known is not None
    order = known[known["run"].isin(keys.values())]
    place = order["step"].map({step: i for i, step in enumerate(grid.steps)}) * len(keys)
    place += order["run"].map({key: i for i, key in enumerate(keys.values())})
    table = order.iloc[np.argsort(place.to_numpy(), kind="stable")][COLUMNS].reset_index(drop=True)
    bounds = runs.find(f"bound {name}", grid.inputs)
    if bounds is None:  # its file was removed or damaged, and all policies are kept
        again = grid.simulated([next(iter(policies.values()))])
        of_step = dict(zip((step.step for step in again.logged), again.bounds, strict=True))
        bounds = runs.keep(f"bound {name}", grid.inputs, _curves(of_step))
    return table, bounds, simulated


def _curves(bounds: Mapping[int, Bound]) -> pd.DataFrame:
    """Return ``step, shortest_s, min_gpu_s, time_s, gpu_s``: the bound of every step at the times of a grid."""
    tables = []
    for step, bound in bounds.items():
        curve = bound.curve()
        points = pd.DataFrame({"time_s": curve.time_s, "gpu_s": curve.gpu_s})
        tables.append(points.assign(step=step, shortest_s=curve.shortest_s, min_gpu_s=curve.min_gpu_s))
    return pd.concat(tables, ignore_index=True)


def totals(outcome: Outcome, weight: float = WEIGHT, naive: str = "static") -> pd.DataFrame:
    """Return one row per scope and policy, and the bound's.

    Args:
        naive: the policy that all others are compared with.

    Returns:
        ``scope, policy, steps, time_s, gpu_s, idle_gpu_s, bound_gpu_s`` (the least in the policy's own time of generation),
        ``speedup`` and ``cost_saved`` (against ``naive``), ``value`` (``T^w C^(1-w)`` over that of ``naive``), ``share`` (of
        the headroom with the naive learner, so it may be above 1 for ``ELASTIC``), ``most_speedup`` (of any schedule with the
        naive learner, at any cost), ``most_speedup_on_all`` (the same with a learner on all GPUs), ``most_cost_saved`` (of
        both, at any time).
    """
    curves, rows, value = list(outcome.curves.values()), [], Objective(weight).value
    for scope in SCOPES:
        phases_s, phases_gpu_s = (outcome.phases.seconds, outcome.learner_gpu_s) if scope == "step" else (0.0, 0.0)
        best = summed_bounds(curves, weight, phases_s, phases_gpu_s)
        on_all_s = best.shortest_s - len(curves) * (phases_s - (outcome.phases_on_all.seconds if scope == "step" else 0.0))
        of = dict(iter(outcome.steps.groupby("policy", sort=False)))
        naive_s, naive_gpu_s = float(of[naive][f"{scope}_s"].sum()), float(of[naive][f"{scope}_gpu_s"].sum())
        start = value(naive_s, naive_gpu_s)
        most_gained = {
            "most_speedup": naive_s / best.shortest_s, "most_speedup_on_all": naive_s / on_all_s,
            "most_cost_saved": 1 - best.min_gpu_s / naive_gpu_s,
        }  # fmt: skip
        for name, of_policy in of.items():
            time_s, gpu_s = float(of_policy[f"{scope}_s"].sum()), float(of_policy[f"{scope}_gpu_s"].sum())
            rows.append(
                {
                    "scope": scope, "policy": name, "steps": len(of_policy), "time_s": time_s, "gpu_s": gpu_s,
                    "idle_gpu_s": float(of_policy[f"{scope}_idle_gpu_s"].sum()),
                    "bound_gpu_s": sum(least + phases_gpu_s for least in of_policy["min_gpu_s"]),
                    "speedup": naive_s / time_s, "cost_saved": 1 - gpu_s / naive_gpu_s, "value": value(time_s, gpu_s) / start,
                    "share": share_of_headroom(value(time_s, gpu_s), start, best.value), **most_gained,
                }
            )  # fmt: skip
        rows.append(
            {
                "scope": scope, "policy": "bound", "steps": len(curves), "time_s": best.time_s, "gpu_s": best.gpu_s,
                "idle_gpu_s": np.nan, "bound_gpu_s": best.gpu_s, "speedup": naive_s / best.time_s,
                "cost_saved": 1 - best.gpu_s / naive_gpu_s, "value": best.value / start, "share": 1.0, **most_gained,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def tabulated(
    outcomes: Iterable[tuple[Mapping[str, object], Outcome]], rows: Callable[[Outcome], pd.DataFrame] = totals
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of several outcomes below each other, and the seconds that planning took, as ``Numbers`` has them.

    Args:
        outcomes: each with the columns that name it, which come first. rows: what the table says of an outcome.
    """
    parts = [
        [part.assign(**names)[[*names, *part.columns]] for part in (rows(outcome), outcome.planning)]
        for names, outcome in outcomes
    ]
    table, planning = (pd.concat(of_all, ignore_index=True) for of_all in zip(*parts, strict=True))
    return table, planning
