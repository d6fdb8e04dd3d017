"""The problems that the planner is measured on, by row of its table (``planner_table.py``, ``solver_moves.py``).

A row yields (name, problem). Deadlines and budgets are relative to the fastest and the cheapest plan of their problem, so rows
with limits take ``Limits``, which plans these two or is told them. What is measured plays no part here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import predictor_logs
from mixed_clusters import gsm8k, lognormal, six_offers
from planning_speed import CLUSTER, SIZES, latency, workload

from rlhfless.latency import load_profile
from rlhfless.simulate import logged_steps
from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, Plan, PlanningProblem, Workload

WITHOUT_SLOTS = 1 << 30
PROFILES = ("l40s-qwen2.5-3b-tp2", "h100-qwen2.5-3b-tp1")
GPUS, SCENARIOS, TAIL = 16, 8, 0.25
PAIRS = {
    "MGSM Thai": "mgsm th 8192 reproduce_openrs_rs2_123_mgsm",
    "MGSM English": "mgsm en 8192 a2_vi_123_mgsm",
    "AMC-23": "amc23 en 8192 openrs2_public",
}
"""Answers before RL and after it, by how the rows name them: 250 prompts of MGSM, 40 of AMC-23."""


class Case(NamedTuple):
    """One problem.

    Attributes:
        truth: the true lengths, where the problem has scenarios of a log.
    """

    name: str
    problem: PlanningProblem
    truth: Workload | None = None


@dataclass
class Limits:
    """Makespan of the fastest plan and GPU-seconds of the cheapest, by name of the problem.

    Args:
        plan: plans those that are not ``known``.
    """

    plan: Callable[[PlanningProblem], Plan]
    known: dict[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, name: str, problem: PlanningProblem) -> tuple[float, float]:
        """Return both numbers of a problem."""
        if name not in self.known:
            fastest, cheapest = (
                self.plan(replace(problem, objective=replace(problem.objective, time_weight=w))) for w in (1.0, 0.0)
            )
            self.known[name] = fastest.makespan_s, cheapest.gpu_seconds
        return self.known[name]

    def cases(self, base: Case, later: tuple[float, ...], dearer: tuple[float, ...]) -> Iterator[Case]:
        """Yield a problem with deadlines and budgets that are these shares above its fastest and its cheapest plan."""
        fastest_s, cheapest_gpu_s = self.of(base.name, base.problem)
        limits = [(f"deadline +{share}", Objective(deadline_s=fastest_s * (1 + share))) for share in later]
        limits += [(f"budget +{share}", Objective(budget_gpu_s=cheapest_gpu_s * (1 + share))) for share in dearer]
        for name, objective in limits:
            yield Case(f"{base.name} {name}", replace(base.problem, objective=objective), base.truth)


# --- lengths that are given ------------------------------------------------------------------------------------------------


def of_size(size: tuple[int, int], slots: bool, together: bool, weight: float = 0.7) -> PlanningProblem:
    """A step of ``planning_speed.py``."""
    return PlanningProblem(workload(*size), CLUSTER, latency(slots), Objective(weight), keep_together=together)


def large(limits: Limits) -> Iterator[Case]:
    """The steps of ``planning_speed.py``: one kind, 80 actors."""
    for size, slots, together in itertools.product(SIZES, (False, True), (False, True)):
        prompts, samples = size
        name = f"{prompts}x{samples} {'256' if slots else 'none'} {'tog' if together else 'split'}"
        yield Case(name, of_size(size, slots, together))


def six(work: Workload) -> Iterator[Case]:
    """The clusters of ``mixed_clusters.py`` under weights."""
    for slots, cost, weight in itertools.product((None, 1024), ("gpu_s", "usd"), (0.3, 0.5, 0.7)):
        cluster, models = six_offers(slots)
        yield Case(f"{slots} {cost} {weight}", PlanningProblem(work, cluster, models, Objective(weight, cost=cost)))


def six_log(limits: Limits) -> Iterator[Case]:
    """Six offers, lognormal lengths."""
    yield from six(lognormal())


def six_gsm(limits: Limits) -> Iterator[Case]:
    """Six offers, the second visit of GSM8K."""
    if (work := gsm8k()) is None:
        print("six_gsm: skipped, the public log is not beside this checkout")
        return
    yield from six(work)


def options(limits: Limits) -> Iterator[Case]:
    """Every option of a problem: 300 responses, one kind and six offers."""
    rng = np.random.default_rng(5)
    mean = rng.lognormal(5.6, 0.6, 75)
    tokens = np.clip(mean[:, None] * rng.lognormal(0, 0.35, (75, 4)), 1, 2048).astype(int)
    work = Workload.grid(rng.integers(50, 300, 75), tokens)
    begun = Workload(work.prompt_tokens, work.prompt_of, work.response_tokens, np.minimum(work.response_tokens // 2, 100))
    cluster, prewarmed = Cluster(20, 8, 2), Cluster(20, 8, 2, prewarmed=3)
    slots, free = latency(True), replace(latency(False), start_s=5.0, sync_s=1.0)
    apart = replace(slots.affine, prefill="separate", token_budget=None, prefill_base_s=0.01)
    few, kv = replace(slots.affine, max_batch=32), replace(slots, kv_capacity_tokens=40000)
    one_kind: dict[str, dict[str, Any]] = {
        "prewarmed": {"cluster": prewarmed}, "min": {"min_actors": 12}, "max": {"max_actors": 2},
        "generation": {"release": "generation"}, "step": {"release": "step", "phases": NonGenerationPhases(2, 10)},
        "learner": {"phases": NonGenerationPhases(2, 10, 4)}, "together": {"keep_together": True},
        "shared": {"keep_together": True, "share_prefill": True}, "shared apart": {"share_prefill": True},
        "kv reserve": {"latency": kv}, "kv preempt": {"latency": kv, "admission": "preempt"}, "32 slots": {"latency": few},
        "32 slots sep": {"latency": replace(apart, max_batch=32)}, "no start": {"latency": replace(free, start_s=0, sync_s=0)},
        "generated": {"workload": begun},
    }  # fmt: skip
    for (name, changed), weight in itertools.product(one_kind.items(), (0.3, 0.7)):
        yield Case(f"{name} {weight}", replace(PlanningProblem(work, cluster, free, Objective(weight)), **changed))
    pools, models = six_offers(None)
    several: dict[str, dict[str, Any]] = {
        "min": {"min_actors": 9}, "max": {"max_actors": 2}, "generation": {"release": "generation"},
        "together": {"keep_together": True}, "shared": {"keep_together": True, "share_prefill": True},
        "preempt": {"admission": "preempt"}, "shared apart": {"share_prefill": True},
    }  # fmt: skip
    for (name, changed), weight in itertools.product(several.items(), (0.3, 0.7)):
        yield Case(f"six {name} {weight}", replace(PlanningProblem(work, pools, models, Objective(weight)), **changed))


def few_responses(responses: int, slots: bool, seed: int) -> tuple[Workload, LatencyModel]:
    """A toy step; with slots, an eighth of its responses fits into a batch."""
    tokens = np.clip(np.random.default_rng(seed).lognormal(5.6, 0.7, responses), 1, 2048).astype(int)
    batch = max(4, responses // 8) if slots else WITHOUT_SLOTS
    model = replace(latency(False), start_s=1.0, max_batch=batch, token_budget=WITHOUT_SLOTS)
    return Workload([50] * responses, range(responses), tokens), model


def small(limits: Limits) -> Iterator[Case]:
    """8 to 40 responses on up to 2 or 6 actors."""
    for n, actors, weight, slots, seed in itertools.product((8, 20, 40), (2, 6), (0.3, 0.7, 1.0), (False, True), (0, 1)):
        work, model = few_responses(n, slots, 100 + seed)
        problem = PlanningProblem(work, Cluster(actors, 2, 2), model, Objective(weight))
        yield Case(f"{n} {actors} {weight} {slots} {seed}", problem)


def limited() -> Iterator[Case]:
    """What gets limits: 512 prompts x 4 samples, and six offers."""
    yield Case("512 none", of_size((512, 4), False, False))
    yield Case("512 tog 256", of_size((512, 4), True, True))
    yield Case("512 256", of_size((512, 4), True, False))
    yield Case("six", PlanningProblem(lognormal(), *six_offers(None)))


def limits_(limits: Limits) -> Iterator[Case]:
    """Deadlines 2 and 30 % above the fastest plan, budgets 5 % above the cheapest."""
    for base in limited():
        yield from limits.cases(base, (0.02, 0.3), (0.05,))


def tight(limits: Limits) -> Iterator[Case]:
    """The same 0.5 and 0.2 % above."""
    for base in limited():
        yield from limits.cases(base, (0.005, 0.002), (0.005,))


def limits_small(limits: Limits) -> Iterator[Case]:
    """All these limits with 20 and 60 responses."""
    for n, slots, seed in itertools.product((20, 60), (False, True), (0, 1)):
        work, model = few_responses(n, slots, 200 + seed)
        base = Case(f"small {n} {slots} {seed}", PlanningProblem(work, Cluster(6, 2, 2), model, Objective()))
        yield from limits.cases(base, (0.002, 0.02, 0.3), (0.005, 0.05))


def fresh_one(limits: Limits) -> Iterator[Case]:
    """One kind, other seeds, sizes and spreads than those that the planner was set on."""
    for seed, (prompts, samples), spread, slots in itertools.product((11, 12), ((150, 6), (800, 3)), (0.4, 1.0), (None, 128)):
        rng = np.random.default_rng(seed)
        mean = rng.lognormal(5.8, spread, prompts)
        tokens = np.clip(mean[:, None] * rng.lognormal(0, 0.3, (prompts, samples)), 1, 4096).astype(int)
        work = Workload.grid(rng.integers(50, 300, prompts), tokens, max_response_tokens=4096)
        model = latency(False) if slots is None else replace(latency(True).affine, max_batch=slots)
        name = f"{seed} {prompts}x{samples} {spread} {slots}"
        yield Case(name, PlanningProblem(work, CLUSTER, model, Objective(0.6)))


def fresh_six(limits: Limits) -> Iterator[Case]:
    """Six offers, other lengths, slots and weights than those that the planner was set on."""
    rng = np.random.default_rng(7)
    tokens = np.clip(rng.lognormal(6.2, 0.8, (300, 4)), 1, 4096).astype(int)
    work = Workload.grid(rng.integers(50, 200, 300), tokens, max_response_tokens=4096)
    for slots, weight, cost in itertools.product((96, 192, 512), (0.2, 0.4, 0.6, 0.8), ("gpu_s", "usd")):
        yield Case(f"{slots} {weight} {cost}", PlanningProblem(work, *six_offers(slots), Objective(weight, cost=cost)))


# --- held-out steps of logs ------------------------------------------------------------------------------------------------


def logged(tail: float = 1.0) -> Iterator[Case]:
    """A step of every log, over scenarios of the default predictor, on two profiles; those of public logs where they are."""
    pairs = dict(predictor_logs.pairs())
    read: dict[str, predictor_logs.Log | None] = {
        "shipped": predictor_logs.shipped(), "GSM8K": predictor_logs.gsm8k(), "MATH-500": predictor_logs.math500(),
        **{name: pairs.get(pair) for name, pair in PAIRS.items()},
    }  # fmt: skip
    for name, log in read.items():
        if log is None:
            continue
        step = next(iter(logged_steps(log.rollouts, max_response_tokens=log.limit, steps=log.steps[-1:])))
        assert step.predicted.scenarios is not None
        work = replace(step.predicted, scenarios=step.predicted.scenarios[:SCENARIOS])
        for profile in PROFILES:
            model = load_profile(profile)
            cluster = Cluster(2, GPUS // 2, model.gpus_per_actor)
            problem = PlanningProblem(work, cluster, model, Objective(0.7, cvar_alpha=tail))
            yield Case(f"{name} {profile.split('-')[0]}", problem, step.truth)


def scenarios(limits: Limits) -> Iterator[Case]:
    """Held-out steps of logs, the mean over scenarios."""
    yield from logged()


def scenarios_tail(limits: Limits) -> Iterator[Case]:
    """The same, the mean of the worst quarter."""
    yield from logged(TAIL)


def scenarios_deadline(limits: Limits) -> Iterator[Case]:
    """The same, deadlines 5 and 20 % above the fastest plan."""
    for base in logged():
        yield from limits.cases(base, (0.05, 0.2), ())


ROWS: dict[str, Callable[[Limits], Iterator[Case]]] = {
    "large": large, "six_log": six_log, "six_gsm": six_gsm, "options": options, "small": small, "limits": limits_,
    "tight": tight, "limits_small": limits_small, "fresh_one": fresh_one, "fresh_six": fresh_six, "scenarios": scenarios,
    "scenarios_tail": scenarios_tail, "scenarios_deadline": scenarios_deadline,
}  # fmt: skip
