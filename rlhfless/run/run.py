"""A log or a trace, what limits the run by arithmetic on it, and all that can be planned and simulated where GPUs are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.analysis import ExecutedTimes, LoggedTimes, ProfileScale
from rlhfless.diagnosis import Diagnosis, Stated, diagnose
from rlhfless.errors import InputError
from rlhfless.predict import Predictor
from rlhfless.report.not_stated import PRICE
from rlhfless.report.stated import stated_of
from rlhfless.report.study import Assumptions, times_of_run
from rlhfless.report.write import write_report
from rlhfless.run.capacity import SIZES, CapacityLimits, CapacityResults, search_capacity
from rlhfless.run.hardware import NODE_GPUS, Hardware
from rlhfless.run.planned_step import PlannedStep
from rlhfless.run.planned_whole_step import PlannedWholeStep, costs_of_calls, drafts_of, graph_of
from rlhfless.run.what_ifs import ways_of_log
from rlhfless.scheduling import PolicyFunction, SchedulingPolicy
from rlhfless.simulate import Aim, SimulatedDrafts, Simulation, SimulationConfig, logged_steps, simulate, step_of_calls
from rlhfless.trace import ImportedLog, LogWithoutResponses, OpenedLog, Trace
from solver.model.objective import Objective

if TYPE_CHECKING:
    from rlhfless.analysis.what_ifs.compare import WaysCompared
    from rlhfless.widgets import Settings
    from rlhfless.widgets.explorer import Explorer

SEARCHED_RESPONSES = 2_000  # of the last steps, in the capacity search
POLICIES = ("static", "random", "fold", "rlhfless", "solver")


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A log or a trace with the GPUs that it is studied on; ``rlhfless.load`` makes it.

    ``diagnosis`` is arithmetic on what was logged, and needs no more. What is planned and simulated needs responses and a
    number of GPUs: it is refused of an ``ImportedLog``, which has no responses, and where neither user nor trace states GPUs.

    Attributes:
        log: the responses, and what else was logged; an ``ImportedLog`` where the log has no responses.
        hardware: GPUs, latency profile and price, as stated or else as the trace recorded them; ``gpus`` is None where their
            number is not known. objective: weighs time and cost. assumptions: about a logged run.
        max_response_tokens: the longest response that the run allowed; None: the longest of the log. admission: of requests on
            simulated engines.
    """

    log: OpenedLog | ImportedLog
    hardware: Hardware
    objective: Objective
    assumptions: Assumptions
    max_response_tokens: int | None = None
    admission: str = "reserve"
    known: Stated = field(default_factory=Stated)

    def diagnosis(self) -> Diagnosis:
        """Return what limits the run, by arithmetic on what was logged; computed once, in less than a second.

        Example:
            >>> import pandas as pd, rlhfless as rl
            >>> lengths = [100] * 63 + [1000]
            >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": lengths})
            >>> rl.load(log, verbose=False).diagnosis().findings[0].kind
            'tail'
        """
        return self._diagnosis

    @cached_property
    def _diagnosis(self) -> Diagnosis:
        return diagnose(self.log, self.stated)

    @property
    def stated(self) -> Stated:
        """What is known of the run's GPUs and limit beside the log: as stated or as the trace recorded it, nothing assumed."""
        given = self.hardware
        derived = stated_of(
            gpus=given.gpus, learner_gpus=self.assumptions.learner_gpus, gpus_per_actor=given.gpus_per_actor,
            profile=self.profile, usd_per_gpu_hour=given.usd_per_gpu_hour, max_response_tokens=self.max_response_tokens,
            assumed=self.assumptions.not_stated,
        )  # fmt: skip
        return replace(derived, **{name: value for name, value in vars(self.known).items() if value is not None})

    @property
    def assumed(self) -> tuple[str, ...]:
        """What neither the log nor the user states, and is assumed in what is planned and simulated, one sentence each."""
        return tuple(sentence for name, sentence in self.assumptions.not_stated.items() if name != PRICE)

    @property
    def opened(self) -> OpenedLog:
        """``log``, as one that has responses.

        Raises:
            LogWithoutResponses: it has none.
        """
        if isinstance(self.log, ImportedLog):
            raise LogWithoutResponses(self.log)
        return self.log

    @property
    def trace(self) -> Trace:
        """The trace; without allocations and spans where a framework logged responses only.

        Raises:
            LogWithoutResponses: the log has none.
        """
        return self.opened.trace

    @property
    def rollouts(self) -> pd.DataFrame:
        """One row per response.

        Raises:
            LogWithoutResponses: the log has none.
        """
        return self.trace.rollouts

    @property
    def steps(self) -> list[int]:
        """The steps of the log, in order."""
        steps = self.log.scalars["step"] if isinstance(self.log, ImportedLog) else self.trace.steps
        return sorted({int(step) for step in steps})

    @property
    def profile(self) -> str:
        """Name or file of the latency profile."""
        return str(self.hardware.profile)

    @cached_property
    def setting(self) -> SimulationConfig:
        """GPUs, latency profile and objective of what is planned and simulated.

        Raises:
            InputError: neither the user nor the trace states the number of GPUs, or it is no multiple of the GPUs per node.
            ProfileError: there is no such profile, or its file is broken.
            PriceError: the GPU kind has no list price, and none is stated.
        """
        if self.hardware.gpus is None:
            source = self.log.source if isinstance(self.log, ImportedLog) else self.log.trace.source
            raise InputError(f"{source or 'the log'}: does not say how many GPUs the run had; rl.load(..., gpus=N) is needed")
        cluster, latency = self.hardware.cluster()
        return SimulationConfig(
            cluster, latency, self.objective, max_response_tokens=self.max_response_tokens, admission=self.admission
        )

    @cached_property
    def times(self) -> LoggedTimes | ExecutedTimes:
        """The run's own times, where it has some, and the profile that is scaled to them; computed once.

        Raises:
            LogWithoutResponses: the log has none.
            InputError: an assumption makes no sense, or nobody stated the number of GPUs.
            PlanningError: the responses fit on no actor.
        """
        return times_of_run(self.opened, self.setting, self.assumptions)

    @property
    def calibrated(self) -> SimulationConfig:
        """``setting`` with the profile scaled to the run's own ``times``: what everything that is computed of the run uses.

        Raises:
            LogWithoutResponses, InputError, PlanningError: as ``times``.
        """
        return self.times.setting

    def report(self, out: str | Path, *, max_steps: int = 8, verbose: bool = True) -> Path:
        """Write the interactive page about this run, and return its path; it simulates where GPUs and responses are known.

        Args:
            out: the HTML file; replaced atomically. max_steps: at most so many steps are simulated, evenly chosen.
            verbose: print a line before the work, which can take a minute.

        Raises:
            TraceError: the file cannot be written.
            PlanningError: the responses cannot be planned on these GPUs.
        """
        simulates = not isinstance(self.log, ImportedLog) and self.hardware.gpus is not None
        if verbose:
            print(f"writing {out}{' (about a minute)' if simulates else ''} ...", flush=True)
        setting = self.setting if simulates else None
        return write_report(self.log, out, setting, self.assumptions, said=self.diagnosis(), max_steps=max_steps)

    def what_ifs(self) -> WaysCompared:
        """Return other ways to generate and to learn on the run's last steps: time, cost, and changes of the data.

        Raises:
            InputError: an assumption makes no sense, or no step of an executed run generated anything.
            PlanningError: a response fits on no actor.

        Example:
            >>> import pandas as pd, rlhfless as rl
            >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": range(100, 740, 10)})
            >>> run = rl.load(log, gpus=16, profile="l40s-qwen2.5-3b-tp2", verbose=False)
            >>> ways = run.what_ifs().to_frame().set_index("way")
            >>> bool(ways.loc["partial rollout", "on_policy"]), bool(ways.loc["deferred dispatch", "on_policy"])
            (False, True)
        """
        return ways_of_log(self.opened, self.times, self.assumptions)

    def simulate(
        self,
        policies: Sequence[str | SchedulingPolicy | PolicyFunction] = POLICIES,
        *,
        steps: Collection[int] | None = None,
        predictor: Predictor | None = None,
    ) -> Simulation:
        """Plan and run the steps under every policy in the ``calibrated`` setting, on simulated engines, beside a lower bound.

        Args:
            policies: names (``rlhfless.scheduling.POLICIES``), objects with a method ``plan``, or functions ``(problem,
                options) -> Plan``. steps: all when None.
            predictor: of response lengths; the prompt's last visit when None.

        Raises:
            PolicyError: a policy is unknown, or there is none.
            TraceError: the log has none of the steps.
            PlanningError: a step cannot be planned on these GPUs.

        Example:
            >>> import rlhfless as rl
            >>> run = rl.load(rl.example(), verbose=False)
            >>> run.simulate(["static", "solver"], steps=run.steps[-2:]).steps["policy"].tolist()
            ['static', 'solver', 'static', 'solver']
        """
        return simulate(self.rollouts, self.calibrated, policies, predictor, steps)

    def plan(
        self,
        step: int = -1,
        policy: str | SchedulingPolicy | PolicyFunction = "solver",
        *,
        predictor: Predictor | None = None,
    ) -> PlannedStep:
        """Plan one step with lengths predicted from all earlier steps, in the ``calibrated`` setting.

        Args:
            step: its number in the log; a negative one counts from the end.
            policy: name, object or function. predictor: of response lengths; the prompt's last visit when None.

        Raises:
            InputError: the log has no such step.
            PolicyError: the policy is unknown.
            PlanningError: the step cannot be planned on these GPUs.

        Example:
            >>> import rlhfless as rl
            >>> planned = rl.load(rl.example(), verbose=False).plan(step=-1)
            >>> planned.compare("static").results["policy"].tolist()
            ['static', 'solver']
        """
        number, setting = self._step(step), self.calibrated
        (logged,) = logged_steps(self.rollouts, predictor, self.max_response_tokens, steps=[number])
        return PlannedStep(logged, setting, policy, self.assumed)

    def plan_step(
        self,
        step: int = -1,
        *,
        algorithm: str = "grpo",
        models: str | Mapping[str, str] | None = None,
        aim: Aim | None = None,
        drafts: str | SimulatedDrafts | None = None,
        levers: str | Collection[str] = "all",
        predictor: Predictor | None = None,
    ) -> PlannedWholeStep:
        """Plan one whole step with all levers, with lengths predicted from all earlier steps.

        Use ``solver.dataflow.plan_step`` instead to place every model call of steps that follow each other, with a proven
        bound; there only overlap, streaming and drafts are levers.

        Seconds of decoding, preparation and learning come from the shipped tables of measured operators. They are not scaled to
        the run's own times, so they differ from those of ``plan``, which has generation alone.

        Args:
            step: its number in the log; a negative one counts from the end. algorithm: ``grpo`` or ``ppo``.
            models: one name for every role, or role to name; that of the run's profile when None.
            aim: what is minimised; time and cost with the objective's weight when None.
            drafts: what drafted tokens are accepted: ``weak``, ``strong`` (a character task) or your own; nothing is drafted
                when None.
            levers: ``all``, ``none``, or names (``solver.model.step_levers``). predictor: of response lengths; the prompt's
                last visit when None.

        Raises:
            InputError: the log has no such step, or an argument names nothing.
            ProfileError: the GPUs or a model have no table of operators.
            PlanningError: the step cannot be planned on these GPUs.

        Example:
            >>> import rlhfless as rl
            >>> run = rl.load(rl.example(), gpus=8, profile="h100-qwen2.5-3b-tp1", verbose=False)
            >>> planned = run.plan_step(levers="assignment,overlap")
            >>> planned.savings["lever"].tolist()
            ['assignment', 'overlap']
        """
        graph, number, setting = graph_of(algorithm), self._step(step), self.setting
        (logged,) = logged_steps(self.rollouts, predictor, self.max_response_tokens, steps=[number])
        table = costs_of_calls(graph, logged, setting, self.profile, models)
        aim = Aim(time_weight=self.objective.time_weight) if aim is None else aim
        of_calls = step_of_calls(logged, setting, graph, table)
        return PlannedWholeStep(of_calls, aim, drafts_of(drafts), levers)

    def search(
        self,
        *,
        gpu_kinds: Sequence[str] | None = None,
        gpus: Sequence[int] = SIZES,
        gpus_per_actor: Sequence[int] | None = None,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
    ) -> CapacityResults:
        """Rank GPU kinds, numbers of GPUs and actor sizes for the lengths of the last steps, with a plan behind each.

        Every profile is scaled as the run's own is to the run's times (``times``); where the number of GPUs that the run had is
        not known, profiles stay as they are.

        Args:
            gpu_kinds, gpus_per_actor: only these; all that have a latency profile of the run's model when None.
            gpus: numbers of GPUs to try.
            deadline_s: seconds of a step's generation; candidates that keep it are ranked by cost.
            budget_usd: cost of a step's generation; candidates that keep it are ranked by time. Only one limit is possible;
                without one, the objective's weight ranks.

        Raises:
            InputError: a limit is no number above 0, or no profile has such a kind and size.

        Example:
            >>> import pandas as pd, rlhfless as rl
            >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": range(100, 740, 10)})
            >>> run = rl.load(log, gpus=16, profile="l40s-qwen2.5-3b-tp2", verbose=False)
            >>> found = run.search(gpu_kinds=["l40s"], gpus=[8, 16])
            >>> sorted(found.table["gpus"].tolist()), found.plans[0].plan.gpu_seconds > 0
            ([8, 16], True)
        """
        limits = CapacityLimits(deadline_s, budget_usd)
        last = max(1, SEARCHED_RESPONSES * len(self.steps) // len(self.rollouts))
        logged = list(logged_steps(self.rollouts, None, self.max_response_tokens, steps=self.steps[-last:]))
        if self.hardware.gpus is None:  # candidates bring their own number
            one_node = replace(self.hardware, gpus=self.hardware.gpus_per_node or NODE_GPUS)
            setting = replace(self, hardware=one_node).setting
            scale = ProfileScale(setting.latency.name)
        else:
            setting, scale = self.calibrated, self.times.scale
        found = search_capacity(
            logged, setting, self.profile, scale, gpu_kinds=gpu_kinds, gpus=gpus, gpus_per_actor=gpus_per_actor, limits=limits
        )
        return replace(found, assumed=self.assumed)

    def explore(self, step: int = -1, settings: Settings | None = None, **changes: Any) -> Explorer:
        """Show sliders over the GPUs, the price and the objective of one step; see ``rlhfless.widgets.explore``.

        It begins with the plan of ``plan(step)``.

        Args:
            step: its number in the log; a negative one counts from the end.
            settings: initial ones; those of this run when None. changes: single initial settings.

        Raises:
            InputError: the log has no such step, or there is no such setting.
        """
        from rlhfless.widgets import Settings, explore

        trace = self.trace
        if settings is None:
            cluster, weight = self.setting.cluster, self.setting.objective.time_weight
            settings = Settings.of_nodes(
                self.profile, cluster.nodes, cluster.gpus_per_node,
                usd_per_gpu_hour=cluster.usd_per_gpu_hour, time_weight=weight, tau=self.setting.tau,
            )  # fmt: skip
        given = {"max_response_tokens": self.max_response_tokens, "scale": self.times.scale, **changes}
        return explore(trace, self._step(step), settings, **given)

    def _step(self, step: int) -> int:
        steps = [int(step) for step in self.trace.steps]
        whole = isinstance(step, int) and not isinstance(step, bool)
        if not whole or (step not in steps if step >= 0 else -step > len(steps)):
            raise InputError(f"step is {step!r:.80}; one of {steps[0]} to {steps[-1]}, or -1 for the last one, is needed")
        return steps[step] if step < 0 else step

    def __repr__(self) -> str:
        return str(self.diagnosis())

    def _repr_html_(self) -> str:
        return self.diagnosis()._repr_html_()
