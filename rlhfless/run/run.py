"""A log or a trace with the GPUs that it is studied on, and all that can be asked of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.analysis import ExecutedTimes, LoggedTimes
from rlhfless.errors import InputError
from rlhfless.predict import Predictor
from rlhfless.report.study import Assumptions, study_log, times_of_run
from rlhfless.report.write import write_report
from rlhfless.run.capacity import GPUS, CapacityLimits, CapacityResults, search_capacity
from rlhfless.run.planned_step import PlannedStep
from rlhfless.run.planned_whole_step import PlannedWholeStep, costs_of_calls, drafts_of, graph_of
from rlhfless.run.verdict import Verdict, verdict_of
from rlhfless.run.what_ifs import ways_of_log
from rlhfless.scheduling import PolicyFunction, SchedulingPolicy
from rlhfless.simulate import Aim, SimulatedDrafts, Simulation, SimulationConfig, logged_steps, simulate, step_of_calls
from rlhfless.trace import OpenedLog, Trace

if TYPE_CHECKING:
    from rlhfless.analysis.what_ifs.compare import WaysCompared
    from rlhfless.run.log_study import LogStudy
    from rlhfless.widgets import Settings
    from rlhfless.widgets.explorer import Explorer

SEARCHED_RESPONSES = 2_000  # of the last steps, in the capacity search
POLICIES = ("static", "random", "fold", "rlhfless", "solver")


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A log or a trace with the GPUs that it is studied on; ``rlhfless.load`` makes it.

    Attributes:
        log: the responses, and what else was logged. setting: GPUs, latency profile and objective. profile: the profile's name
            or file. assumptions: about a logged run.
    """

    log: OpenedLog
    setting: SimulationConfig
    profile: str
    assumptions: Assumptions

    @property
    def trace(self) -> Trace:
        """The trace; without allocations and spans where a framework logged responses only."""
        return self.log.trace

    @property
    def rollouts(self) -> pd.DataFrame:
        """One row per response."""
        return self.trace.rollouts

    @property
    def steps(self) -> list[int]:
        """The steps of the log, in order."""
        return [int(step) for step in self.trace.steps]

    @cached_property
    def times(self) -> LoggedTimes | ExecutedTimes:
        """The run's own times, where it has some, and the profile that is scaled to them; computed once.

        Raises:
            InputError: an assumption makes no sense.
            PlanningError: the responses fit on no actor.
        """
        return times_of_run(self.log, self.setting, self.assumptions)

    @property
    def calibrated(self) -> SimulationConfig:
        """``setting`` with the profile scaled to the run's own ``times``: what everything that is computed of the run uses.

        Raises:
            InputError, PlanningError: as ``times``.
        """
        return self.times.setting

    @cached_property
    def verdict(self) -> Verdict:
        """What the GPUs did, what to do, and what this would have saved, in a few sentences; computed once, in seconds."""
        return verdict_of(self.log, self.times, self.assumptions)

    def report(self, out: str | Path, *, max_steps: int = 8, verbose: bool = True) -> Path:
        """Write the interactive page about this run, and return its path.

        Args:
            out: the HTML file; replaced atomically. max_steps: at most so many steps are simulated, evenly chosen.
            verbose: print a line before the work, which can take a minute.

        Raises:
            TraceError: the file cannot be written.
            PlanningError: the responses cannot be planned on these GPUs.
        """
        if verbose:
            print(f"writing {out} (about a minute) ...", flush=True)
        return write_report(self.log, out, self.setting, self.assumptions, max_steps=max_steps)

    def study(self, *, max_steps: int = 8) -> LogStudy:
        """Return what a logged run wasted, what schedules would have saved, and what to change: the report, finding by finding.

        Args:
            max_steps: at most so many steps are simulated, evenly chosen.

        Raises:
            InputError: the log is the trace of an executed run, which has a report only.
            PlanningError: the responses cannot be planned on these GPUs.
        """
        from rlhfless.run.log_study import LogStudy

        if len(self.trace.allocations):
            raise InputError(f"{self.trace.source or 'the trace'}: is the trace of an executed run; use run.report(PAGE)")
        return LogStudy(self.log, study_log(self.log, self.setting, self.assumptions, max_steps), self.assumptions)

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
        return ways_of_log(self.log, self.times, self.assumptions)

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
        number = self._step(step)
        (logged,) = logged_steps(self.rollouts, predictor, self.setting.max_response_tokens, steps=[number])
        return PlannedStep(logged, self.calibrated, policy)

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
        graph, number = graph_of(algorithm), self._step(step)
        (logged,) = logged_steps(self.rollouts, predictor, self.setting.max_response_tokens, steps=[number])
        table = costs_of_calls(graph, logged, self.setting, self.profile, models)
        aim = Aim(time_weight=self.setting.objective.time_weight) if aim is None else aim
        of_calls = step_of_calls(logged, self.setting, graph, table)
        return PlannedWholeStep(of_calls, aim, drafts_of(drafts), levers)

    def search(
        self,
        *,
        gpu_kinds: Sequence[str] | None = None,
        gpus: Sequence[int] = GPUS,
        gpus_per_actor: Sequence[int] | None = None,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
    ) -> CapacityResults:
        """Rank GPU kinds, numbers of GPUs and actor sizes for the lengths of the last steps, with a plan behind each.

        Every profile is scaled as the run's own is to the run's times (``times``).

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
        logged = list(logged_steps(self.rollouts, None, self.setting.max_response_tokens, steps=self.steps[-last:]))
        return search_capacity(
            logged, self.calibrated, self.profile, self.times.scale, gpu_kinds=gpu_kinds, gpus=gpus,
            gpus_per_actor=gpus_per_actor, limits=limits,
        )  # fmt: skip

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

        if settings is None:
            cluster, weight = self.setting.cluster, self.setting.objective.time_weight
            settings = Settings.of_nodes(
                self.profile, cluster.nodes, cluster.gpus_per_node,
                usd_per_gpu_hour=cluster.usd_per_gpu_hour, time_weight=weight, tau=self.setting.tau,
            )  # fmt: skip
        given = {"max_response_tokens": self.setting.max_response_tokens, "scale": self.times.scale, **changes}
        return explore(self.trace, self._step(step), settings, **given)

    def _step(self, step: int) -> int:
        steps = self.steps
        whole = isinstance(step, int) and not isinstance(step, bool)
        if not whole or (step not in steps if step >= 0 else -step > len(steps)):
            raise InputError(f"step is {step!r:.80}; one of {steps[0]} to {steps[-1]}, or -1 for the last one, is needed")
        return steps[step] if step < 0 else step

    def __repr__(self) -> str:
        return str(self.verdict)
