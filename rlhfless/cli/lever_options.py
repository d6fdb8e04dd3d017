"""Options of ``rlhfless step`` that let a plan use levers: which, for which lengths, and what drafts accept.

Overlap, streaming and drafts alone are levers of model calls, whose plan says where every call runs. With any other lever, the
whole step of actors and a learner is planned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.draft_options import drafts_option, stated_acceptance
from rlhfless.cli.options import Command, Decorator, together
from rlhfless.errors import InputError
from solver.model.errors import PlanningError
from solver.model.step_levers import CALL_LEVERS, DRAFTS, LEVERS, lever_names

if TYPE_CHECKING:
    from rlhfless.cli.log_options import LogOptions
    from rlhfless.latency import CallTable, StepBatch
    from rlhfless.simulate import LoggedStep
    from solver.dataflow import WithLevers
    from solver.model.acceptance import Acceptance
    from solver.model.workload import Workload


@dataclass(frozen=True)
class LeverOptions:
    """The levers of a step plan as a user states them."""

    levers: str
    lengths: Path | None
    drafts: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The levers that are named; ``all`` has drafts only if something says what they accept.

        Raises:
            InputError: a name is unknown, or what a lever needs is not given.
        """
        try:
            names = lever_names(self.levers)
        except PlanningError as error:
            raise InputError(f"--{error}") from None
        if self.levers == "all" and self.drafts is None:
            names = tuple(name for name in LEVERS if name != DRAFTS)
        if names and self.lengths is None:
            raise InputError(f"--levers {self.levers} follows responses to their ends; --lengths LOG is needed")
        if DRAFTS in names and self.drafts is None:
            raise InputError("--levers has drafts, but not how many are accepted; --drafts weak, strong or A0.7 is needed")
        if DRAFTS not in names and self.drafts is not None:
            raise InputError(f"--drafts is {self.drafts}, but the plan may not draft; --levers all or drafts is needed")
        return names

    @property
    def acceptance(self) -> Acceptance | None:
        """What drafts accept.

        Raises:
            InputError: it is no acceptance.
        """
        return None if self.drafts is None else stated_acceptance(self.drafts)

    @property
    def of_actors(self) -> bool:
        """Whether a lever is named that plans of model calls do not have."""
        return bool(set(self.names) - set(CALL_LEVERS))

    def logged(self, log: LogOptions) -> LoggedStep | None:
        """Return the last step of the log, with lengths predicted from the steps before it; None without a log.

        Raises:
            InputError: options of reading are given without a log.
            TraceError: the log cannot be read.
        """
        from rlhfless.simulate import logged_steps

        if self.lengths is None:
            if log != type(log)():
                raise InputError("options of reading a log are given without one; name it with --lengths LOG")
            assert not self.names, "levers need lengths"
            return None
        rows = log.open_with_warnings(self.lengths).trace.rollouts
        return next(logged_steps(rows, None, log.max_response_tokens, steps=[int(rows["step"].max())]))

    def batch(self, given: StepBatch, workload: Workload | None) -> StepBatch:
        """Return the batch of a step: as given, or the number of responses and the mean lengths of the log's."""
        if workload is None:
            return given
        prompt_tokens = round(float(workload.prompt_tokens[workload.prompt_of].mean()))
        response_tokens = round(float(workload.response_tokens.mean()))
        return replace(
            given,
            responses=len(workload),
            prompt_tokens=max(1, prompt_tokens),
            response_tokens=max(1, response_tokens),
        )

    def generation(self, costs: CallTable, workload: Workload | None) -> WithLevers | None:
        """Return what is generated, by the tables of the costs, with the levers; None without a log."""
        from rlhfless.latency import generation_latency
        from solver.dataflow import StepGeneration, WithLevers

        if workload is None:
            return None
        return WithLevers(StepGeneration(workload, generation_latency(costs), drafts=self.acceptance), self.names)


def lever_options(command: Command) -> Command:
    """Add --levers, --lengths and --drafts, as the argument ``lever``."""
    options: list[Decorator] = [
        click.option(
            "--levers", default="none", show_default=True, metavar="all|none|NAME[,NAME...]",
            help=f"Let the plan use these levers where they pay: {', '.join(LEVERS)}. Plans with "
            f"{', '.join(CALL_LEVERS[:-1])} or {CALL_LEVERS[-1]} alone say where every model call runs; any other lever is one "
            "of actors and a learner.",
        ),
        click.option(
            "--lengths", type=click.Path(path_type=Path), metavar="LOG",
            help="Plan for the responses of the last step of this log, with lengths predicted from its earlier steps, in place "
            "of --responses, --prompt-tokens and --response-tokens.",
        ),
        drafts_option("Let drafts accept"),
    ]  # fmt: skip
    return together("lever", lambda: LeverOptions, options)(command)
