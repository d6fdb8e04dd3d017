"""``Run``: a log or a trace, the diagnosis of what limits it, and all that can be planned and simulated with it."""

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
from rlhfless.report.stated import stated_of
from rlhfless.report.study import Findings, study
from rlhfless.report.write import write_report
from rlhfless.run.arguments import known_arguments
from rlhfless.run.capacity import SIZES, search_capacity
from rlhfless.run.hardware import Hardware
from rlhfless.run.planned_step import PlannedStep
from rlhfless.run.planned_whole_step import PlannedWholeStep, costs_of_calls, drafts_of, graph_of
from rlhfless.run.split import Split, from_waits, split_run
from rlhfless.run.sweeps import sweep
from rlhfless.run.what_ifs import run_to_change, ways_of_log
from rlhfless.scheduling import PolicyFunction, SchedulingPolicy, policy_names
from rlhfless.simulate import Comparison, SimulatedDrafts, SimulationConfig, logged_steps, simulate, step_of_calls
from rlhfless.trace import ImportedLog, LogWithoutResponses, OpenedLog, Trace
from rlhfless.trace.schema.prices import AS_STATED
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

    ``diagnosis`` needs nothing but the log. Everything that plans or simulates needs response lengths and a number of GPUs. It
    raises an error if the log is an ``ImportedLog``, which has no responses, or if neither the user nor the trace states the
    GPUs.

    Attributes:
        log: the responses and everything else that was logged; an ``ImportedLog`` if the log has no responses.
        hardware: GPUs, latency profile and price, as stated by the user, else as recorded in the trace; ``gpus`` is None if
            unknown.
        objective: what plans minimise.
        assumptions: what the user states about a logged run.
        max_response_tokens: the run's limit on response length, in tokens; None: the longest response of the log.
        admission: how simulated engines admit requests, ``reserve`` or ``preempt``.
        read_from: the log's file and how it was read; None if the log was passed as an object.
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
        """Return what limits the run, by arithmetic on the log; it is computed once and takes less than a second.

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
        """What the user states, or the trace records, about the run's GPUs and response limit; nothing is assumed."""
        given = self.hardware
        derived = stated_of(
            self.assumptions, self.log.framework, gpus=given.gpus, gpus_per_actor=given.gpus_per_actor, profile=self.profile,
            usd_per_gpu_hour=given.usd_per_gpu_hour, max_response_tokens=self.max_response_tokens,
        )  # fmt: skip
        return replace(derived, **{name: value for name, value in vars(self.known).items() if value is not None})

    @property
    def assumed(self) -> tuple[str, ...]:
        """What plans and simulations assume because neither the log nor the user states it; one sentence each.

        If the user states the price of an executed run, also that price and the recorded one.
        """
        price = "" if isinstance(self.log, ImportedLog) else self.log.trace.meta.get(AS_STATED, "")
        return (*self.assumptions.not_stated.values(), *([price] if price else []))

    @property
    def opened(self) -> OpenedLog:
        """The log, checked to have responses.

        Raises:
            LogWithoutResponses: it has none.
        """
        if isinstance(self.log, ImportedLog):
            raise LogWithoutResponses(self.log)
        return self.log

    @property
    def trace(self) -> Trace:
        """The trace; it has no allocations and spans if a framework logged only responses.

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
        """GPUs, latency profile and objective for plans and simulations.

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
        """The times that the run measured, if any, and the latency profile scaled to them; computed once.

        Raises:
            LogWithoutResponses: the log has none.
            InputError: an assumption makes no sense, or the number of GPUs is not stated.
            PlanningError: the responses fit on no actor.
        """
        return own_times(self.opened, self.setting, self.assumptions)

    @property
    def sizes(self) -> tuple[LatencyModel, ...]:
        """Latency models of the other actor sizes that a plan may choose, scaled to the speed of the run; empty if the user
        states the GPUs per actor.

        Raises:
            LogWithoutResponses, InputError, PlanningError: as ``times``.
        """
        return () if self.hardware.gpus_per_actor is not None else self.times.scale.sizes_of(self.profile)

    @property
    def calibrated(self) -> SimulationConfig:
        """``setting`` with the profile scaled to the run's own ``times``; plans and simulations use it.

        Raises:
            LogWithoutResponses, InputError, PlanningError: as ``times``.
        """
        return self.times.setting

    @property
    def useless_share(self) -> float | None:
        """Share of groups of responses with equal rewards, as the diagnosis has it; None if unknown."""
        return self.diagnosis().numbers.value("no_signal_share")

    @known_arguments
    def complete(self, *, steps: Collection[int] | None = None) -> tuple[Trace, ...]:
        """Return the run as full traces, with all GPUs that it held.

        An executed run has one trace, its own. A logged run is simulated under each dispatch (assignment of prompts to
        replicas) that it may have used; the likeliest comes first. Every plot takes these traces.

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

    @known_arguments
    def findings(self, *, max_steps: int = 8) -> Findings:
        """Return the simulated findings of the report, with ``.to_frame()``, ``.to_json()`` and ``.plot()``.

        They are computed even if the report leaves them out because the run's engine is slower than its profile.

        Args:
            max_steps: number of steps to simulate at most, evenly spaced.

        Raises:
            LogWithoutResponses: the log has none.
            InputError: ``max_steps`` or an assumption makes no sense, or the number of GPUs is not stated.
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

    @known_arguments
    def report(self, out: str | Path, *, max_steps: int = 8, verbose: bool = True) -> Path:
        """Write the report of this run and return its path. It includes simulations if GPUs and responses are known.

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

    @known_arguments
    def what_ifs(self) -> Comparison:
        """Simulate the run's last steps with other frameworks' methods, such as partial rollout and asynchronous learning.

        The first variant is the run itself: ``as logged`` (simulated, all GPUs held throughout) or ``as executed`` (the times
        of its trace). ``means()`` has one row per method: time, cost, the shares of the run's time and cost that it saves
        (negative: it takes more), and how it changes the training data. ``knobs`` has the methods with an adjustable setting at
        several values.

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
        return ways_of_log(self.opened, self.times, self.assumptions, self.useless_share)

    @known_arguments
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
        """Return how many GPUs should generate and how many should train: every division in steady state, with a lower bound.

        Generation is simulated on the run's last steps for every number and size of actors. Learning takes the run's own
        seconds, scaled by its number of GPUs. All GPUs of the run are divided again, including those of its learner. If the log
        has no responses, the logged waits alone tell which of the two should get the next GPU.

        Args:
            staleness: number of weight updates by which a batch may be old when it is learned. 0: generation and learning take
                turns; 1: one step off-policy; None: no limit. Sharing all GPUs in turns is always compared.
            gpus: total numbers of GPUs to try; the run's when None.
            actor_sizes: GPUs per actor to try; all that have a latency profile when None.
            batches: ``apart``: a batch starts when the one before it is complete; ``together``: all batches within the
                staleness limit generate at once, and weight updates interrupt them. None: as the run's framework does.
            lend_idle: generating GPUs that wait for new weights help to learn.
            learn_s: seconds per step of preparation and learning on the run's own learner GPUs; as logged when None.
            efficiency: parallel efficiency of the learner per doubling of its GPUs, 0.5 (no speed-up) to 1 (twice as fast).

        Raises:
            InputError: an argument makes no sense, the seconds or GPUs of learning are unknown, or a log without responses has
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

    @known_arguments
    def simulate(
        self,
        policies: Sequence[str | SchedulingPolicy | PolicyFunction] = POLICIES,
        *,
        steps: Collection[int] | None = None,
        predictor: Predictor | None = None,
    ) -> Comparison:
        """Plan the steps under every policy, execute the plans on simulated engines, and compare them with a lower bound.

        The latency profile is scaled to the run (``calibrated``).

        Args:
            policies: names (``rlhfless.scheduling.policies()`` lists them), objects with a method ``plan``, or functions
                ``(problem, options) -> Plan``.
            steps: step numbers; all when None.
            predictor: predicts response lengths; None: the prompt's mean length in the last epoch.

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

    @known_arguments
    def plan(
        self,
        step: int = -1,
        policy: str | SchedulingPolicy | PolicyFunction = "solver",
        *,
        predictor: Predictor | None = None,
    ) -> PlannedStep:
        """Plan the generation of one step, with lengths predicted from all earlier steps.

        The latency profile is scaled to the run (``calibrated``). Policy ``solver`` also chooses the GPUs per actor, if there
        are latency profiles of several ``sizes`` and ``Hardware.gpus_per_actor`` is not stated. Other policies start actors of
        the run's own size.

        Args:
            step: its number in the log; a negative one counts from the end.
            policy: name, object or function, as in ``simulate``.
            predictor: predicts response lengths; None: the prompt's mean length in the last epoch.

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

    @known_arguments
    def plan_step(
        self,
        step: int = -1,
        *,
        algorithm: str = "grpo",
        models: str | Mapping[str, str] | None = None,
        objective: Objective | None = None,
        drafts: str | SimulatedDrafts | None = None,
        levers: str | Collection[str] = "all",
        predictor: Predictor | None = None,
    ) -> PlannedWholeStep:
        """Plan one whole step: generation, preparation, learning and layouts, with lengths predicted from all earlier steps.

        Seconds come from the shipped tables of measured operators. They are not scaled to the run's own times, so they differ
        from those of ``plan``, which plans only generation.

        To place every model call of steps that follow each other, with a proven bound, use ``solver.layouts.plan_step``. It
        knows none of these optimisations.

        Args:
            step: its number in the log; a negative one counts from the end.
            algorithm: the name of a registered one, such as ``grpo``.
            models: one model name for every role, or a mapping of role to name; that of the run's profile when None.
            objective: what is minimised; the run's own when None, ``T^w C^(1-w)`` with its time weight.
            drafts: which drafted tokens are accepted in speculative decoding: ``weak``, ``strong`` (a character task) or an
                object of your own; None: no speculative decoding.
            levers: optimisations that the plan may use: ``all``, ``none``, or names (``solver.model.step_levers``).
            predictor: predicts response lengths; None: the prompt's mean length in the last epoch.

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
        of_calls = step_of_calls(logged, setting, graph, table)
        return PlannedWholeStep(of_calls, self.objective if objective is None else objective, drafts_of(drafts), levers)

    @known_arguments
    def sweep(
        self,
        *,
        gpus: Sequence[int] | None = None,
        gpus_per_actor: Sequence[int] | None = None,
        time_weight: Sequence[float] | None = None,
        policies: Sequence[str | SchedulingPolicy | PolicyFunction] | None = None,
        steps: Collection[int] | None = None,
    ) -> Comparison:
        """Plan and simulate steps for every combination of number of GPUs, actor size, time weight and policy.

        An argument that is None stays as in the run; the default policy is ``solver``, which chooses the GPUs per actor as in
        ``plan`` where ``gpus_per_actor`` is None. Policies that do not depend on the time weight, such as ``static``, have one
        row for all of its values; ``policies=["static", "solver"]`` adds that one. A long sweep prints its progress.
        ``.front()`` of the result has the combinations that no other one beats in both time and cost, and ``.plot()`` draws
        time against cost. All profiles are scaled by the factor that fits the run's own profile to its times. Lower bounds are
        in closed form: fast, but possibly far below those of ``simulate``.

        Args:
            gpus: numbers of GPUs, in nodes of the run's size.
            gpus_per_actor: GPUs per actor; each needs a latency profile of the run's model and GPU kind.
            time_weight: values of w in ``T^w C^(1-w)``, from 0 (cost only) to 1 (time only).
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

    @known_arguments
    def search(
        self,
        *,
        gpu_kinds: Sequence[str] | None = None,
        gpus: Sequence[int] = SIZES,
        gpus_per_actor: Sequence[int] | None = None,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
    ) -> Comparison:
        """Rank GPU kinds, numbers of GPUs and actor sizes for the lengths of the last steps, best first, with their plans.

        All profiles are scaled by the factor that fits the run's own profile to its ``times``; they are not scaled if the run's
        number of GPUs is unknown.

        Args:
            gpu_kinds, gpus_per_actor: candidates; all that have a latency profile of the run's model when None.
            gpus: numbers of GPUs to try.
            deadline_s: limit on the seconds of a step's generation; candidates within it are ranked by cost.
            budget_usd: limit on the cost of a step's generation; candidates within it are ranked by time. Give at most one of
                the two; without a limit, candidates are ranked by ``T^w C^(1-w)`` with the run's time weight w.

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
        """Show sliders for the GPUs, the price and the objective of one step; every move plans the step again.

        The first plan is that of ``plan(step)``. Every plan and its numbers equal those of ``plan(step)`` and its ``compare``
        in the same settings.

        Args:
            step: its number in the log; a negative one counts from the end.
            settings: initial settings; what is None is as in this run. changes: single initial settings that differ.

        Raises:
            InputError: the log has no such step, there is no such setting, one is of another type or out of its range, or
                the number of GPUs is not stated.
            MissingExtra: the extra ``notebook`` is not installed.
        """
        from rlhfless.widgets import Explorer, Settings, WhatIf

        what_if = WhatIf(self, self._step(step))
        return Explorer(what_if, Settings() if settings is None else settings, **changes)

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
