"""Options of commands that plan or simulate a step as a whole: preparation and learning per token, and what of it overlaps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.options import Command, together
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from solver.model.cluster import Cluster
    from solver.model.objective import NonGenerationPhases
    from solver.model.plan import Plan
    from solver.model.problem import PlanningProblem
    from solver.model.workload import Workload
    from solver.stage_fusion.bound import StepBound
    from solver.stage_fusion.cut import CutPlan
    from solver.stage_fusion.token_work import TokenWork

ROWS = ("rlhfuse", "rlhfuse+stream", "stream")  # compared with the default policies where there is work per token


@dataclass(frozen=True)
class FusionOptions:
    """What the options say: seconds per token on the GPUs of one actor, and what overlaps with decoding."""

    prepare_per_token_s: float = 0.0
    learn_per_token_s: float = 0.0
    fuse: str = "none"

    def work(self, phases: NonGenerationPhases) -> TokenWork | None:
        """Return preparation and learning per token; None where the options say nothing of them.

        Raises:
            InputError: constants of a step are given as well, or nothing is there to fuse.
            PlanningError: seconds per token are negative or not finite.
        """
        from solver.stage_fusion.token_work import TokenWork

        if not self.prepare_per_token_s and not self.learn_per_token_s:
            if self.fuse != "none":
                raise InputError(
                    f"--fuse {self.fuse} has nothing to fuse; --prepare-per-token-s or --learn-per-token-s is needed as well"
                )
            return None
        if phases.seconds:
            raise InputError(
                "--prepare-s or --learn-s is given together with seconds per token; give constants of a step or rates"
            )
        return TokenWork(self.prepare_per_token_s, self.learn_per_token_s, "group", phases.learner_gpus)

    def phases(self, phases: NonGenerationPhases, workload: Workload, cluster: Cluster) -> NonGenerationPhases:
        """Return the phases that generation is planned with: all work after it, on the learner's GPUs or else on all."""
        work = self.work(phases)
        if work is None:
            return phases
        size = cluster.gpus_per_actor
        of_step = work.of(workload, size)
        servers = of_step.learner_servers or cluster.max_actors
        return replace(
            phases, prepare_s=float(of_step.prepare_s.sum()) / servers, learn_s=float(of_step.learn_s.sum()) / servers
        )

    def step_of(self, plan: Plan, problem: PlanningProblem, phases: NonGenerationPhases) -> tuple[CutPlan, StepBound] | None:
        """Return the cut that is best for the whole step, and the bound on it; None where nothing is fused."""
        from solver.stage_fusion.bound import step_bound
        from solver.stage_fusion.cut import choose_cut

        work = self.work(phases)
        if work is None or self.fuse == "none":
            return None
        work = replace(work, unlock="batch") if self.fuse == "prepare" else work
        points = replace(problem, workload=problem.workload.points)
        return choose_cut(plan, problem, work), step_bound(points, work.of(points.workload, points.one_kind[0].gpus_per_actor))


def step_text(cut: CutPlan, bound: StepBound) -> str:
    """Return the step as a whole in words."""
    return f"{cut!r}\nlower bound on the step with the predicted lengths: {bound.time_s:.2f} s"


def step_json(cut: CutPlan, bound: StepBound) -> dict[str, Any]:
    """Return the step as a whole as values."""
    names = ("share", "threshold", "keep", "place", "time_s", "gpu_seconds")
    uncut = {name: getattr(cut.uncut, name) for name in ("time_s", "gpu_seconds")}
    return {**{name: getattr(cut, name) for name in names}, "uncut": uncut, "bound_time_s": bound.time_s}


def fusion_options(command: Command) -> Command:
    """Add --prepare-per-token-s, --learn-per-token-s and --fuse, as the argument ``fusion``."""
    options = [
        click.option(
            "--prepare-per-token-s",
            type=float,
            default=0.0,
            help="Prepare each token of prompts and responses in this many seconds on one actor's GPUs.  [default: 0]",
        ),
        click.option(
            "--learn-per-token-s",
            type=float,
            default=0.0,
            help="Learn from each token of prompts and responses in this many seconds on one actor's GPUs.  [default: 0]",
        ),
        click.option(
            "--fuse",
            type=click.Choice(["none", "prepare", "learn"]),
            default="none",
            show_default=True,
            help="Prepare on freed GPUs while others decode (prepare), and learn from complete prompts, too (learn).",
        ),
    ]
    return together("fusion", lambda: FusionOptions, options)(command)
