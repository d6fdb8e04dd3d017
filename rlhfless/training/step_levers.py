"""Chooses the levers of every step of a run by what they were measured to save in it: planning, drafts, learning in pieces.

With ``levers`` ``measured`` a step plainly splits prompts at random over a right-sized number of actors, drafts nothing, and
learns from the whole batch. Each lever that the options name is tried in a step of its own (``lever_trial.py``). Compared are
costs relative to what the responses of the step are expected to cost plainly, by the profile: no lever changes responses.

- Planning (and re-planning) and drafts: w log T + (1 - w) log C of generation. T is what the trainer computes until the last
  response, and the busiest actor; C is all actors. Seconds count as if the device were unshared (``StepRecord.engine_s``), so
  that neither other programs nor a learner beside it are mistaken for the lever. Waits for moved responses are not in them.
- Pieces: the wall-clock seconds of the step. They are tried only where they are planned to pay, by the measured contention.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pandas as pd

from rlhfless.executor import StepRecord
from rlhfless.executor.step.record import holder_of
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.scheduling.baselines import LeastLoaded, Random, Static
from rlhfless.training.config import TrainConfig
from rlhfless.training.lever_trial import LeverTrial
from rlhfless.training.measured_learning import MeasuredLearning
from rlhfless.training.tasks import Problem
from solver.model.cluster import Cluster
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload
from solver.planning.random_split import random_split
from solver.stage_fusion.pieces import PiecesPlan
from solver.timing.evaluate import evaluate, ready_s

UNPLANNED = (Static, Random, LeastLoaded)  # policies that plan nothing


class StepParts(Protocol):
    """What is read of a step; ``LearningParts`` says what each is."""

    @property
    def config(self) -> TrainConfig: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def latency(self) -> LatencyModel: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def workload(self) -> Workload: ...
    @property
    def measured(self) -> MeasuredLearning | None: ...


class StepLevers:
    """The levers of a run's steps: as given, or by what was measured.

    Args:
        config: of the run. planner, drafting: as the run was given them. measures: steps run on the wall clock.

    Attributes:
        planner, drafting: of the present step.
        trials: by the name of the lever; none where the options decide.
    """

    def __init__(self, config: TrainConfig, planner: SchedulingPolicy, drafting: Drafting | None, *, measures: bool) -> None:
        self.planner, self.drafting = planner, drafting
        self._config, self._given = config, (planner, drafting)
        self._steps, self._used = 0, dict[str, bool]()
        self._began_s = self._trainer_s = 0.0
        named = {
            "planning": not isinstance(planner, UNPLANNED),
            "drafts": drafting is not None and config.cluster.engine != "vllm",  # whose processes would start anew
            "pieces": config.cluster.learner_gpus == "auto",
        }
        decides = measures and config.planner.levers == "measured"
        self.trials = {name: LeverTrial(name) for name, there in named.items() if there and decides}

    def begin(self, history: pd.DataFrame, problems: Sequence[Problem]) -> None:
        """Choose the levers of the next step, and begin to measure it.

        Args:
            history: rollouts of all earlier steps: until a prompt comes again there is nothing earlier to draft from.
        """
        self._began_s, self._used = time.thread_time(), {}
        once = self._config.steps <= self._config.steps_per_epoch  # so drafts come from siblings only
        if "planning" in self.trials:
            self.planner = self._given[0] if self._uses("planning") else Random()
        if "drafts" in self.trials:
            names = [problem.prompt_id for problem in problems]
            known = once or (not history.empty and bool(history["prompt_id"].isin(names).any()))
            self.drafting = self._given[1] if self._uses("drafts", known) else None

    def learns_in(self, plan: PiecesPlan | None) -> PiecesPlan | None:
        """Return how the step is learned from, given what is planned; None: nothing is."""
        if plan is None or "pieces" not in self.trials:
            return plan
        return plan if self._uses("pieces", len(plan.chosen.pieces) > 1) else replace(plan, chosen=plan.batch)

    def drafted(self, engines: Any) -> Any:
        """Return the engine factory of the step with its drafts, or without any."""
        return engines if self.drafting is self._given[1] else replace(engines, drafting=None)

    def generated(self) -> None:
        """Note that generation is over."""
        self._trainer_s = time.thread_time() - self._began_s

    def note(self, step: StepParts, record: StepRecord) -> None:
        """Measure a step that is over, and write into its record what was used and what is known of each lever.

        The first step of a process is left out: it starts processes.
        """
        self._steps += 1
        if step.measured is not None:
            step.measured.observe(record, step.latency)
        if not self.trials:
            return
        trying = {name for name, used in self._used.items() if used != self.trials[name].on}
        if self._steps > 1:
            costs = self._costs(step, record)
            for name, trial in self.trials.items():
                if (cost := costs.get(name)) is not None and not trying - {name}:
                    trial.note(self._used.get(name, False), cost)
        said = {
            name: {"used": self._used.get(name, False), "pays": trial.on, "measured_saving": trial.saving}
            for name, trial in self.trials.items()
        }
        record.event(record.start_s, "levers", None, **said)

    def _uses(self, name: str, can_save: bool = True) -> bool:
        """Return whether the step uses a lever, and note it; at most one is tried in a step."""
        if name not in self.trials:
            return False
        trying = any(used != self.trials[other].on for other, used in self._used.items())
        self._used[name] = self.trials[name].choose(can_save=can_save, may_try=not trying)
        return self._used[name]

    def _costs(self, step: StepParts, record: StepRecord) -> dict[str, float]:
        """Return the step's costs by lever, relative to the plain ones; without those that were not measured."""
        lengths = [record.completions[i].response_tokens for i in range(len(step.workload))]
        workload, objective = step.workload.with_response_tokens(lengths), Objective(step.config.planner.time_weight)
        known = PlanningProblem(workload, step.cluster, step.latency, objective)
        actors = min(known.one_kind[0].max_actors, len(np.unique(workload.prompt_of)))
        plain_s = evaluate(random_split(known, actors=actors), known).done_s - ready_s(step.latency)
        engine_s = [record.engine_s.get(holder_of(i), 0.0) for i in range(len(step.plan.actors))]
        costs = {}
        if sum(engine_s) > 0:
            time_s, cost_s = self._trainer_s + max(engine_s), self._trainer_s * len(engine_s) + sum(engine_s)
            weight = objective.time_weight
            costs["planning"] = (time_s / plain_s.max()) ** weight * (cost_s / plain_s.sum()) ** (1.0 - weight)
            costs["drafts"] = costs["planning"]
        if step.measured is not None and step.measured.costs is not None:
            tokens = sum(lengths) + sum(request.prompt_tokens for request in record.requests)
            batch_s = tokens * step.measured.costs.batch_per_token_s
            expected_s = step.measured.contention.decode_scale * plain_s.max() + batch_s
            costs["pieces"] = (record.end_s - record.start_s) / expected_s
        return costs
