"""The steps of a log as planning sees them: lengths predicted from earlier steps, and true lengths for clairvoyant policies.

Inputs are the rollouts of one run and a predictor; output is one ``LoggedStep`` per step, in order. ``SimulationConfig`` holds
what simulating the steps needs in addition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.requests import Requests
from rlhfless.errors import InputError
from rlhfless.latency.effects import Effects
from rlhfless.predict import EwmaPredictor, Predictor
from rlhfless.scheduling import PlanningOptions
from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.executions import Executions
from rlhfless.trace import TraceError
from rlhfless.trace.schema.validation import refuse_several_runs
from solver.bounds.configurations import DEFAULT_WORK as WORK_OF_ONE_BOUND
from solver.bounds.schedules import ScheduleBound
from solver.lengths.forecast import LengthForecast, check_forecast
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import as_given, is_whole
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import Latencies
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload
from solver.step.work import Learner, TokenWork

SCENARIOS = 8  # samples of lengths, around the predictions, that plans are timed with
LEARNER_STARTS = ("given", "needed")
MAX_NEW_PROMPTS = 0.5  # a step with a larger share of prompts that were never seen has no history


@dataclass(frozen=True)
class SimulationConfig:
    """Cluster, latency, objective and policy parameters of a simulated log.

    Attributes:
        max_response_tokens: the run's limit on response length, in tokens; None: the longest response of the log.
        reference_answer_tokens: lengths of reference answers by prompt id, for prompts without history.
        planned_latency: what policies plan with, if it differs from ``latency`` (an inaccurate profile, for example). Execution
            and bounds always use ``latency``.
        sizes: latency models of the same language model and GPUs for actors of other sizes, which policy ``solver`` may start,
            too; other policies start actors of ``cluster``'s size.
        tau, static_actors, hold: parameters of the policies that have them.
        migration: ``move``, ``recompute`` or ``cheaper``.
        effects: faults and delays of actors. Each step draws its own outages and delays. Plans do not account for them.
        drafts: which drafted tokens are accepted, for policies with speculative decoding; None: such policies are refused.
        work: preparation and learning per token, which run inside the step, in place of the constants of ``phases``.
        learner: where and when ``work`` runs. What overlaps with decoding is as it says under policies that do not decide that
            themselves.
        learner_start: when the learner's own GPUs are allocated; they are held to the end. At ``from_s`` of ``learner``
            (``given``), or when they are ``needed`` by the predicted lengths (``latest_start``).
        bound_work: limit on the counted work for the lower bound of each step (``solver.bounds.configurations``); 0: only
            the closed form.
        executions: cache of plans and executions that several comparisons on the same steps share; None: no cache.

    Raises:
        InputError: ``effects`` or ``drafts`` is of another type.
    """

    cluster: Cluster
    latency: LatencyModel
    objective: Objective = field(default_factory=Objective)
    phases: NonGenerationPhases = field(default_factory=NonGenerationPhases)
    max_response_tokens: int | None = None
    reference_answer_tokens: Mapping[str, int] | None = None
    sizes: tuple[LatencyModel, ...] = ()
    tau: float = 0.7
    static_actors: int | None = None
    hold: str = "generation"
    admission: str = "reserve"
    migration: str = "cheaper"
    seed: int = 0
    planned_latency: LatencyModel | None = None
    effects: Effects | None = None
    drafts: SimulatedDrafts | None = None
    work: TokenWork | None = None
    learner: Learner = field(default_factory=Learner)
    learner_start: str = "given"
    bound_work: int = WORK_OF_ONE_BOUND // 5  # results have dozens of steps
    executions: Executions | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.effects, Effects | None):
            raise InputError(f"effects is {self.effects!r}; Effects(...) or None is needed")
        if not isinstance(self.drafts, SimulatedDrafts | None):
            raise InputError(f"drafts is {as_given(self.drafts)}; DrawnDrafts(...), LogDrafts(...) or None is needed")
        self._check_work()

    def _check_work(self) -> None:
        """Refuse work beside decoding that has no place."""
        if not isinstance(self.work, TokenWork | None):
            raise InputError(f"work is {as_given(self.work)}; TokenWork(...) or None is needed")
        if not isinstance(self.learner, Learner):
            raise InputError(f"learner is {as_given(self.learner)}; a Learner (solver.step.work) is needed")
        if self.learner_start not in LEARNER_STARTS:
            raise InputError(
                f"learner_start {as_given(self.learner_start)} is unknown; choose one of {', '.join(LEARNER_STARTS)}"
            )
        if self.work is None and self.learner != Learner():
            raise InputError("learner is given, but there is no work to learn from; give seconds per token as work")
        if self.learner_start == "needed" and not self.learner.own:
            raise InputError("learner_start is 'needed', but no GPUs are the learner's alone; give a learner with own servers")
        if self.work is not None and self.phases != NonGenerationPhases():
            raise InputError("work and phases are given together; give seconds per token or constants of a step, not both")
        if (self.learner.overlaps or self.learner.streams) and self.hold == "step":
            raise InputError(
                "the learner overlaps with decoding, but policy static holds its GPUs until the end of the step, so none are "
                "released early; choose hold 'generation'"
            )

    @property
    def offered(self) -> tuple[Cluster | MixedCluster, Latencies]:
        """Cluster and latency models of all actors that policies may start, as executors take them."""
        if not self.sizes:
            return self.cluster, self.latency
        models = {(self.cluster.kind, model.gpus_per_actor): model for model in (self.latency, *self.sizes)}
        return MixedCluster(self.cluster.pools), models

    @property
    def each_size(self) -> list[SimulationConfig]:
        """The setting with actors of each size alone, its own first; sizes that no node holds are left out."""
        found = [replace(self, sizes=())]
        for latency in self.sizes:
            if latency.gpus_per_actor <= self.cluster.gpus_per_node:
                cluster = replace(self.cluster, gpus_per_actor=latency.gpus_per_actor)
                found.append(replace(self, cluster=cluster, latency=latency, sizes=()))
        return found

    def problem(self, workload: Workload) -> PlanningProblem:
        """Return the problem of planning, bounding or timing this workload with the latency of execution.

        Raises:
            PlanningError: the workload cannot be planned on this cluster; the message says why.
        """
        return PlanningProblem(workload, self.cluster, self.latency, self.objective, self.phases, admission=self.admission)


@dataclass(frozen=True, eq=False)
class LoggedStep:
    """One step of a log: lengths predicted from earlier steps, and the true lengths, which only clairvoyant policies see.

    ``forecast`` is the predictor's forecast of the step's lengths, ``new_prompts`` the share of prompts that no earlier step
    has.
    """

    step: int
    rows: pd.DataFrame
    predicted: Workload
    truth: Workload
    has_history: bool
    forecast: LengthForecast
    new_prompts: float = 0.0
    _bounds: dict[tuple[object, ...], ScheduleBound] = field(default_factory=dict, init=False, repr=False)

    @property
    def guess(self) -> str:
        """A sentence that says which predicted lengths are guesses; empty if most prompts were seen before."""
        if self.has_history:
            return ""
        if self.new_prompts >= 1:
            return f"All lengths of step {self.step} are a guess, because none of its prompts is in an earlier step."
        share = f"{self.new_prompts:.0%} of its prompts are"
        return f"Most lengths of step {self.step} are a guess, because {share} in no earlier step."

    def bound(self, setting: SimulationConfig) -> ScheduleBound:
        """Return the bound of any schedule that generates this step; computed once for settings that follow each other and
        have the same GPUs, profile and work.

        Raises:
            PlanningError: the step cannot be planned on this cluster; the message says why.
        """
        key = (setting.cluster, setting.latency, setting.admission, setting.phases, setting.bound_work)
        if key not in self._bounds:
            self._bounds.clear()
            self._bounds[key] = ScheduleBound(setting.problem(self.truth), lp_work=setting.bound_work)
        return self._bounds[key]

    def inputs(self, setting: SimulationConfig, clairvoyant: bool = False) -> tuple[PlanningProblem, PlanningOptions]:
        """Return what a policy plans this step with: ``policy.plan(*step.inputs(setting, policy.clairvoyant))``.

        Raises:
            PlanningError: the step cannot be planned on this cluster; the message says why.
        """
        problem = setting.problem(self.truth if clairvoyant else self.predicted)
        if setting.planned_latency is not None:
            problem = replace(problem, latency=setting.planned_latency)
        forecast, seed = None if clairvoyant else self.forecast, setting.seed + self.step
        acceptance = None if setting.drafts is None else setting.drafts.expected(self.step)
        return problem, PlanningOptions(
            seed=seed,
            forecast=forecast,
            acceptance=acceptance,
            work=setting.work,
            learner=setting.learner,
            sizes=setting.sizes,
        )

    def requests(self) -> Requests:
        """Return one request per response with its true length, for simulated engines."""
        finish = self.rows["finish_reason"].fillna("stop").tolist()
        limit = self.truth.max_response_tokens
        lengths, owners = self.truth.response_tokens.tolist(), self.truth.prompt_of.tolist()
        prompts = self.truth.prompt_tokens.tolist()
        return Requests(
            Request(i, prompts[owner], limit, target_tokens=tokens, target_finish=reason, prompt=owner)
            for i, (owner, tokens, reason) in enumerate(zip(owners, lengths, finish, strict=True))
        )


def checked_steps(steps: Any, known: Iterable[Any]) -> set[int] | None:
    """Return the steps that a user chose as a set; None means all.

    Args:
        steps: a collection of numbers, or None. known: steps of the log.

    Raises:
        InputError: it is no list of whole numbers.
        TraceError: the log lacks one of them.
    """
    if steps is None:
        return None
    if isinstance(steps, str | bytes) or not isinstance(steps, Collection) or not all(is_whole(step) for step in steps):
        raise InputError(f"steps is {as_given(steps)}; a list of steps of the log is needed, such as [1, 2]")
    chosen, of_log = {int(step) for step in steps}, sorted({int(step) for step in known})
    if missing := sorted(chosen - set(of_log)):
        raise TraceError(
            f"steps has {missing[0]}; the log has {counted(len(of_log), 'step')}, from {of_log[0]} to {of_log[-1]}"
        )
    return chosen


def logged_steps(
    rollouts: pd.DataFrame,
    predictor: Predictor | None = None,
    max_response_tokens: int | None = None,
    reference_answer_tokens: Mapping[str, int] | None = None,
    steps: Collection[int] | None = None,
) -> Iterator[LoggedStep]:
    """Return the steps of one run in order, each with lengths predicted from all steps before it.

    Args:
        steps: step numbers; all when None. Omitted steps still count as history.

    Raises:
        TraceError: the log holds no rows, several runs, or a response above the limit, or lacks one of ``steps``.
        InputError: ``steps`` is no list of whole numbers.
        PlanningError: the predictor returns no forecast, or one for another number of responses.
    """
    if not isinstance(rollouts, pd.DataFrame):
        raise TraceError(f"rollouts is of type {type(rollouts).__name__}; a DataFrame is needed, such as read_rollouts returns")
    if rollouts.empty:
        raise TraceError("the log has no rows; at least one response is needed")
    refuse_several_runs(rollouts["run"].unique())
    steps = checked_steps(steps, rollouts["step"].unique())
    predictor = predictor or EwmaPredictor()
    longest = int(rollouts["response_tokens"].max())
    limit = max(1, longest) if max_response_tokens is None else int(max_response_tokens)
    if longest > limit:
        raise TraceError(
            f"the log has a response of {longest} tokens, above max_response_tokens={limit}; a limit of at least "
            f"{longest} is needed"
        )
    for step, rows in rollouts.groupby("step", sort=True):
        if steps is not None and step not in steps:
            continue
        history = rollouts[rollouts["step"] < step]
        prompt_ids = rows["prompt_id"].astype(str)
        seen = set(history["prompt_id"].astype(str))
        names, owner = np.unique(prompt_ids, return_inverse=True)
        first = np.unique(owner, return_index=True)[1]
        order = np.argsort(np.argsort(first))  # prompts count in their order of appearance
        prompt_tokens = rows["prompt_tokens"].fillna(0).to_numpy(dtype=np.int64)[np.sort(first)]
        forecast = predictor.fit(history).forecast(
            prompt_ids.tolist(), reference_answer_tokens=reference_answer_tokens, max_response_tokens=limit,
            prompt_tokens=prompt_tokens[order[owner]], scenarios=SCENARIOS, seed=int(step),
        )  # fmt: skip
        check_forecast(forecast)
        lengths = rows["response_tokens"].to_numpy(dtype=np.int64)
        truth = Workload(prompt_tokens, order[owner], lengths, max_response_tokens=limit)
        new = sum(name not in seen for name in names) / len(names)
        predicted = forecast.workload(prompt_tokens, order[owner], limit)
        yield LoggedStep(int(step), rows, predicted, truth, new <= MAX_NEW_PROMPTS, forecast, new)
