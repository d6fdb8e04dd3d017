"""A log or a trace, what limits the run by arithmetic on it, and all that can be planned and simulated where GPUs are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.analysis import Assumptions, OwnTimes, complete, own_times
from rlhfless.diagnosis import Diagnosis, Stated, diagnose
from rlhfless.diagnosis.next_gpu import next_gpu
from rlhfless.errors import InputError
from rlhfless.predict import Predictor
from rlhfless.report.notebook import LogSource
from rlhfless.report.stated import stated_of, stated_phases_of
from rlhfless.report.study import Findings, study
from rlhfless.report.write import write_report
from rlhfless.run.capacity import SIZES, search_capacity
from rlhfless.run.hardware import Hardware
from rlhfless.run.planned_step import PlannedStep
from rlhfless.run.planned_whole_step import PlannedWholeStep, costs_of_calls, drafts_of, graph_of
from rlhfless.run.split import Split, from_waits, split_run
from rlhfless.run.sweeps import sweep
from rlhfless.run.what_ifs import run_to_change, ways_of_log
from rlhfless.scheduling import PolicyFunction, SchedulingPolicy, policy_names
from rlhfless.simulate import Aim, Comparison, SimulatedDrafts, SimulationConfig, logged_steps, simulate, step_of_calls
from rlhfless.trace import ImportedLog, LogWithoutResponses, OpenedLog, Trace
from solver.model.errors import as_given, is_whole
from solver.model.latency import LatencyModel
from solver.model.objective import Objective

if TYPE_CHECKING:
    from rlhfless.widgets import Explorer, Settings

POLICIES = policy_names("dispatch", "simple", "published", "ours", typical=True)


def _check_max_steps(max_steps: object) -> None:
    """Refuse what is no number of steps (an InputError)."""
    if not is_whole(max_steps, 1):
        raise InputError(f"max_steps is {as_given(max_steps)}; a whole number above 0 is needed")


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A log or a trace with the GPUs that it is studied on; ``rlhfless.load`` makes it.

    ``diagnosis`` is arithmetic on what was logged, and needs no more. What is planned and simulated needs responses and a
    number of GPUs: it is refused of an ``ImportedLog``, which has no responses, and where neither user nor trace states GPUs.

    Attributes:
        log: the responses, and what else was logged; an ``ImportedLog`` where the log has no responses.
        hardware: GPUs, latency profile and price, as stated or else as the trace recorded them; ``gpus`` is None where their
            number is not known. objective: what plans minimise. assumptions: about a logged run.
        max_response_tokens: the longest response that the run allowed; None: the longest of the log. admission: of requests on
            simulated engines. read_from: the file of the log and how it was read; None where it was given as an object.
    """

    log: OpenedLog | ImportedLog
    hardware: Hardware
    objective: Objective
    assumptions: Assumptions
    max_response_tokens: int | None = None
    admission: str = "reserve"
    known: Stated = field(default_factory=Stated)
    read_from: LogSource | None = None

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
        derived = replace(derived, **stated_phases_of(self.assumptions, self.log.framework))
        return replace(derived, **{name: value for name, value in vars(self.known).items() if value is not None})

    @property
    def assumed(self) -> tuple[str, ...]:
        """What neither the log nor the user states, and is assumed in what is planned and simulated, one sentence each."""
        return tuple(self.assumptions.not_stated.values())

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
    def times(self) -> OwnTimes:
        """The run's own times, where it has some, and the profile that is scaled to them; computed once.

        Raises:
            LogWithoutResponses: the log has none.
            InputError: an assumption makes no sense, or nobody stated the number of GPUs.
            PlanningError: the responses fit on no actor.
        """
        return own_times(self.opened, self.setting, self.assumptions)

    @property
    def sizes(self) -> tuple[LatencyModel, ...]:
        """Latency models of actors of other sizes that the plan of a step may start, with the speed of the run; none where the
        user states the GPUs per actor.

        Raises:
            LogWithoutResponses, InputError, PlanningError: as ``times``.
        """
        return () if self.hardware.gpus_per_actor is not None else self.times.scale.sizes_of(self.profile)

    @property
    def calibrated(self) -> SimulationConfig:
        """``setting`` with the profile scaled to the run's own ``times``: what everything that is computed of the run uses.

        Raises:
            LogWithoutResponses, InputError, PlanningError: as ``times``.
        """
        return self.times.setting

    def complete(self, *, steps: Collection[int] | None = None) -> tuple[Trace, ...]:
        """Return the run as traces with all GPUs that it held: as executed, or simulated by its own dispatch from its log.

        A log has one for each dispatch that the run may have used, the likeliest first; every plot takes them.

        Args:
            steps: only these; all when None.

        Raises:
            LogWithoutResponses, InputError, PlanningError: as ``times``.
            TraceError: the log lacks one of the steps.

        Example:
            >>> import pandas as pd, rlhfless as rl
            >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": range(100, 740, 10)})
            >>> likeliest, *others = rl.load(log, gpus=16, profile="l40s-qwen2.5-3b-tp2", verbose=False).complete()
            >>> sum(map(len, likeliest.allocations["gpu_ids"]))
            16
        """
        return complete(self.opened, self.setting, self.assumptions, steps=steps)

    def findings(self, *, max_steps: int = 8) -> Findings:
        """Return what the report says beside the diagnosis, as tables with ``.to_frame()``, ``.to_json()`` and ``.plot()``.

        They are computed even where a report leaves them out, because the engine is slow.

        Args:
            max_steps: at most so many steps are simulated, evenly chosen.

        Raises:
            LogWithoutResponses: the log has none.
            InputError: ``max_steps`` or an assumption makes no sense, or nobody stated the number of GPUs.
            PlanningError: the responses cannot be planned on these GPUs.
            TraceError: the log holds several runs, or a response above the limit.

        Example:
            >>> import rlhfless as rl
            >>> found = rl.load(rl.example(), verbose=False).findings(max_steps=1)
            >>> found.to_frame()["gpus"].unique().tolist()
            ['held', 'released']
        """
        _check_max_steps(max_steps)
        return study(self.opened, self.setting, self.assumptions, int(max_steps))

    def report(self, out: str | Path, *, max_steps: int = 8, verbose: bool = True) -> Path:
        """Write the report of this run, and return its path; it simulates where GPUs and responses are known.

        Args:
            out: a page (``.html``, ``.htm``), diagnosis and ``findings`` as JSON (``.json``), or a notebook that reads the log
                again (``.ipynb``); replaced atomically.
            max_steps: at most so many steps are simulated, evenly chosen.
            verbose: print a line before the work, which can take a minute.

        Raises:
            TraceError: the file cannot be written.
            InputError: an argument makes no sense, or a notebook cannot read the log again.
            PlanningError: the responses cannot be planned on these GPUs.
        """
        if not isinstance(out, str | Path):
            raise InputError(f"out is {as_given(out)}; the path of the file to write is needed, such as 'report.html'")
        _check_max_steps(max_steps)
        simulates = not isinstance(self.log, ImportedLog) and self.hardware.gpus is not None
        if verbose:
            print(f"writing {out}{' (about a minute)' if simulates else ''} ...", flush=True)
        setting = self.setting if simulates else None
        return write_report(
            self.log, out, setting, self.assumptions, read_from=self.read_from, profile=self.profile, said=self.diagnosis(),
            max_steps=max_steps,
        )  # fmt: skip

    def what_ifs(self) -> Comparison:
        """Return other ways to generate and to learn on the run's last steps: time, cost, and changes of the data.

        The run itself is the first variant: ``as logged``, simulated on GPUs that are all held throughout, or ``as executed``,
        what an executed run took by its trace. ``means()`` has one row per way, with the shares of the run's time and cost that
        it saves (negative: it takes more), and ``knobs`` the ways with a knob at every setting.

        Raises:
            InputError: an assumption makes no sense, no step of an executed run generated anything, or it ran on GPUs of
                another kind than the profile's.
            PlanningError: a response fits on no actor.

        Example:
            >>> import pandas as pd, rlhfless as rl
            >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": range(100, 740, 10)})
            >>> run = rl.load(log, gpus=16, profile="l40s-qwen2.5-3b-tp2", verbose=False)
            >>> ways = run.what_ifs().means().set_index("way")
            >>> bool(ways.loc["partial rollout", "on_policy"]), bool(ways.loc["deferred dispatch", "on_policy"])
            (False, True)
        """
        return ways_of_log(self.opened, self.times, self.assumptions)

    def split(
        self,
        *,
        staleness: int | None = 1,
        gpus: int | Sequence[int] | None = None,
        actor_sizes: Sequence[int] | None = None,
        batches: str | None = None,
        lend_idle: bool = False,
        learn_s: float | None = None,
        efficiency: float = 1.0,
    ) -> Split:
        """Return how many GPUs should generate and how many train: every division, in steady state, beside a lower bound.

        Generation is simulated on the run's last steps for every number and size of actors; learning takes the run's own
        seconds, in proportion to its GPUs. All GPUs of the run are divided anew, those of its learner included. Of a log
        without responses, the waits alone say which side the next GPU belongs to.

        Args:
            staleness: most updates that the weights of a batch lack when it is learned: 0 takes turns, 1 is one step off, None
                is any. All GPUs shared in turns are compared at every bound.
            gpus: numbers of GPUs to divide; all of the run when None. actor_sizes: GPUs per actor; all that have a latency
                profile when None.
            batches: ``apart``: a batch begins when the one before it is complete; ``together``: all that may start run at the
                same time, and updates interrupt them; as the run's framework does when None.
            lend_idle: also let generating GPUs that wait for new weights help to learn.
            learn_s: seconds of preparation and learning of a step on the run's own learner GPUs; as logged when None.
            efficiency: how much of a doubled speed doubling the learner's GPUs gives, 0.5 to 1.

        Raises:
            InputError: an argument makes no sense, nobody knows the seconds or GPUs of learning, or a log without responses has
                no waits either.
            PlanningError: a response fits on no actor.

        Example:
            >>> import pandas as pd, rlhfless as rl
            >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": range(100, 740, 10)})
            >>> run = rl.load(log, gpus=8, profile="h100-qwen2.5-3b-tp1", verbose=False)
            >>> best = run.split(staleness=1, learn_s=5.0, actor_sizes=[1]).best
            >>> best["way"], best["gpus_generate"], best["gpus_train"]
            ('divided', 1, 7)
        """
        waits = next_gpu(self.diagnosis())
        if isinstance(self.log, ImportedLog):
            return from_waits(waits, str(self.log.source))
        run = run_to_change(self.log, self.times)
        sizes = (
            model
            for model in self.times.scale.sizes_of(self.profile)
            if model.gpus_per_actor <= run.setting.cluster.gpus_per_node
        )
        return split_run(
            run, (run.setting.latency, *sizes), self.objective, waits, staleness=staleness, gpus=gpus, actor_sizes=actor_sizes,
            batches=batches, lend_idle=lend_idle, learn_s=learn_s, efficiency=efficiency,
        )  # fmt: skip

    def simulate(
        self,
        policies: Sequence[str | SchedulingPolicy | PolicyFunction] = POLICIES,
        *,
        steps: Collection[int] | None = None,
        predictor: Predictor | None = None,
    ) -> Comparison:
        """Plan and run the steps under every policy in the ``calibrated`` setting, on simulated engines, beside a lower bound.

        Args:
            policies: names (``rlhfless.scheduling.POLICIES``), objects with a method ``plan``, or functions ``(problem,
                options) -> Plan``. steps: all when None.
            predictor: of response lengths; the prompt's last visit when None.

        Raises:
            PolicyError: a policy is unknown, or there is none.
            TraceError: the log lacks one of the steps.
            PlanningError: a step cannot be planned on these GPUs.

        Example:
            >>> import rlhfless as rl
            >>> run = rl.load(rl.example(), verbose=False)
            >>> run.simulate(["static", "solver"], steps=run.steps[-2:]).table["policy"].tolist()
            ['static', 'solver', 'static', 'solver']
        """
        found = simulate(self.rollouts, self.calibrated, policies, predictor, steps)
        return replace(found, assumed=self.assumed)

    def plan(
        self,
        step: int = -1,
        policy: str | SchedulingPolicy | PolicyFunction = "solver",
        *,
        predictor: Predictor | None = None,
    ) -> PlannedStep:
        """Plan one step with lengths predicted from all earlier steps, in the ``calibrated`` setting.

        Policy ``solver`` also chooses the GPUs per actor where there are latency profiles of several ``sizes``, unless
        ``Hardware.gpus_per_actor`` states them. Other policies start actors of the run's own size.

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
            >>> planned.compare("static").table["policy"].tolist()
            ['static', 'solver']
        """
        number, setting = self._step(step), replace(self.calibrated, sizes=self.sizes)
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
            aim: what is minimised; ``T^w C^(1-w)`` with the run's time weight when None.
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

    def sweep(
        self,
        *,
        gpus: Sequence[int] | None = None,
        gpus_per_actor: Sequence[int] | None = None,
        time_weight: Sequence[float] | None = None,
        policies: Sequence[str | SchedulingPolicy | PolicyFunction] | None = None,
        steps: Collection[int] | None = None,
    ) -> Comparison:
        """Plan and run steps on every number of GPUs, with every size of actor, at every time weight, under every policy.

        What is None stays as in the run; the policy is ``solver`` then. ``.front()`` of the result has the combinations that no
        other one beats, and ``.plot()`` draws time against cost. Every profile is scaled as the run's own is to its times.
        Bounds are the closed form, which takes no time and may lie far below the bound of ``simulate``.

        Args:
            gpus: numbers of GPUs, in nodes of the run's size. gpus_per_actor: sizes that have a latency profile of the run's
                model and kind of GPU. time_weight: values of w in ``T^w C^(1-w)``, from 0 (cost only) to 1 (time only).
            policies: names, objects or functions, as of ``simulate``.
            steps: of the log; the last ones, with about 2,000 responses, when None.

        Raises:
            InputError: an argument is no list of such values, or has one twice, or there is no profile of a size.
            PolicyError: a policy is unknown.
            TraceError: the log lacks one of the steps.
            PlanningError: a time weight is none, or no combination can run the steps.

        Example:
            >>> import rlhfless as rl
            >>> run = rl.load(rl.example(), verbose=False)
            >>> found = run.sweep(gpus=[8, 16], time_weight=[0.3, 0.9], steps=run.steps[-1:])
            >>> found.means()["variant"].tolist()
            ['8 GPUs, w=0.3', '8 GPUs, w=0.9', '16 GPUs, w=0.3', '16 GPUs, w=0.9']
            >>> len(found.front().means()) <= 4
            True
        """
        return sweep(self, gpus=gpus, gpus_per_actor=gpus_per_actor, time_weight=time_weight, policies=policies, steps=steps)

    def search(
        self,
        *,
        gpu_kinds: Sequence[str] | None = None,
        gpus: Sequence[int] = SIZES,
        gpus_per_actor: Sequence[int] | None = None,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
    ) -> Comparison:
        """Rank GPU kinds, numbers of GPUs and actor sizes for the lengths of the last steps, the best first, with their plans.

        Every profile is scaled as the run's own is to the run's times (``times``); where the number of GPUs that the run had is
        not known, profiles stay as they are.

        Args:
            gpu_kinds, gpus_per_actor: only these; all that have a latency profile of the run's model when None.
            gpus: numbers of GPUs to try.
            deadline_s: seconds of a step's generation; candidates that keep it are ranked by cost.
            budget_usd: cost of a step's generation; candidates that keep it are ranked by time. Only one limit is possible;
                without one, ``T^w C^(1-w)`` ranks, w being the run's time weight.

        Raises:
            InputError: no profile has such a kind and size.
            PlanningError: a limit is no number above 0, both are given, or no candidate can run the steps.

        Example:
            >>> import pandas as pd, rlhfless as rl
            >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": range(100, 740, 10)})
            >>> run = rl.load(log, gpus=16, profile="l40s-qwen2.5-3b-tp2", verbose=False)
            >>> found = run.search(gpu_kinds=["l40s"], gpus=[8, 16])
            >>> sorted(found.means()["gpus"].tolist())
            [8, 16]
        """
        objective = Objective(self.objective.time_weight, deadline_s, budget_usd=budget_usd)
        return search_capacity(self, objective, gpu_kinds=gpu_kinds, gpus=gpus, gpus_per_actor=gpus_per_actor)

    def explore(self, step: int = -1, settings: Settings | None = None, **changes: Any) -> Explorer:
        """Show sliders over the GPUs, the price and the objective of one step; every move plans the step again.

        It begins with the plan of ``plan(step)``. Each plan and its numbers are those of ``plan(step)`` and its ``compare`` in
        the same settings.

        Args:
            step: its number in the log; a negative one counts from the end.
            settings: initial ones; those of this run when None. changes: single initial settings.

        Raises:
            InputError: the log has no such step, there is no such setting, one is of another type or out of its range, or
                nobody states the number of GPUs.
            MissingExtra: the extra ``notebook`` is not installed.
        """
        from rlhfless.widgets import Explorer, Settings, WhatIf

        what_if = WhatIf(self, self._step(step))
        if settings is None:
            cluster, weight = self.setting.cluster, self.setting.objective.time_weight
            settings = Settings.of_nodes(
                self.profile, cluster.nodes, cluster.gpus_per_node,
                usd_per_gpu_hour=cluster.usd_per_gpu_hour, time_weight=weight, tau=self.setting.tau,
                any_size=self.hardware.gpus_per_actor is None,
            )  # fmt: skip
        return Explorer(what_if, settings, **changes)

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
