"""``rlhfless step``: plans a whole training step from a log: actors, responses, learner and layouts in one plan."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import CliPositionalArg

from rlhfless.cli.acceptance import ACCEPTED, stated_acceptance
from rlhfless.cli.log_options import open_recognised
from rlhfless.cli.model_calls import StepGpus, StepModels
from rlhfless.cli.options import WEIGHT, Limits, Names, OutFile, Printed, Share, refuse_missing_log, shown
from rlhfless.cli.printed_json import print_json
from rlhfless.errors import InputError
from solver.model.errors import PlanningError
from solver.model.objective import TIME_WEIGHT
from solver.model.step_levers import DRAFTS, LEVERS, lever_names


class StepOptions(Printed, Limits, StepGpus, StepModels):
    """Plan the last step of LOG as a whole: replicas and their responses, the learner's GPUs, layouts, and overlap.

    Lengths are predicted from the earlier steps of LOG. The plan uses the optimisations of --levers that help on held-out
    length scenarios. For each it prints the expected saving, and the saving in a simulated execution with the true lengths.
    Seconds come from tables of measured operators, not from LOG.
    """

    log: CliPositionalArg[Path] = Field(
        description="A trace, or a log whose format is recognised; write any other as a trace with `rlhfless convert`."
    )
    time_weight: Share | None = Field(None, json_schema_extra=shown("W"), description=f"{WEIGHT}  [default: {TIME_WEIGHT}]")
    out: OutFile | None = Field(
        None, validation_alias=AliasChoices("out", "o"), description="Write a picture of the plan, or a page (.html)."
    )
    levers: Names = Field(
        ("all",),
        description="Optimisations that the plan may use; each is used only if it helps on "
        f"held-out length scenarios: {', '.join(LEVERS)}.",
    )
    drafts: str | None = Field(
        None, json_schema_extra=shown("A0.7|weak|strong"),
        description=f"Allow speculative decoding that accepts {ACCEPTED}.  [default: no drafts]",
    )  # fmt: skip

    @property
    def chosen(self) -> tuple[str, ...]:
        """The levers that are named; ``all`` has drafts only if something says what they accept.

        Raises:
            InputError: a name is unknown, or drafts are a lever without what they accept, or the reverse.
        """
        try:
            names = lever_names(",".join(self.levers))
        except PlanningError as error:
            raise InputError(f"--{error}") from None
        if self.levers == ("all",) and self.drafts is None:
            names = tuple(name for name in LEVERS if name != DRAFTS)
        if DRAFTS in names and self.drafts is None:
            raise InputError("--levers has drafts, but not how many are accepted; --drafts weak, strong or A0.7 is needed")
        if DRAFTS not in names and self.drafts is not None:
            raise InputError(f"--drafts is {self.drafts}, but the plan may not draft; --levers all or drafts is needed")
        return names


def step(options: StepOptions) -> None:
    """Print a whole step as planned and as executed, and draw it.

    Raises:
        InputError: options contradict each other, or one makes no sense.
        TraceError: the log cannot be read.
        PlanningError: there is no plan within the limits.
    """
    refuse_missing_log(options.log)
    from rlhfless.latency import StepBatch, generation_latency
    from rlhfless.plots import save
    from rlhfless.run.planned_whole_step import SECONDS_OF, PlannedWholeStep
    from rlhfless.simulate import DrawnDrafts, SimulationConfig, logged_steps, step_of_calls
    from rlhfless.trace import response_limit

    graph, levers, cluster = options.graph, options.chosen, options.cluster(options)
    trace = open_recognised(options.log).trace
    logged = next(logged_steps(trace.rollouts, None, response_limit(trace.meta), steps=[int(trace.rollouts["step"].max())]))
    workload = logged.predicted.points
    batch = StepBatch(
        len(workload),
        max(1, round(float(workload.prompt_tokens[workload.prompt_of].mean()))),
        max(1, round(float(workload.response_tokens.mean()))),
        options.mini_batches,
    )
    costs = options.costs(options, batch)
    latency = generation_latency(costs)
    setting = SimulationConfig(cluster, latency[min(latency)])
    of_calls = step_of_calls(logged, setting, graph, costs, memory_bytes=options.memory_bytes(costs))
    drafts = None if options.drafts is None else DrawnDrafts(stated_acceptance(options.drafts))
    planned = PlannedWholeStep(of_calls, options.objective(TIME_WEIGHT), drafts, levers)
    if options.out is not None:
        save(planned.plot(), options.out)
        print(f"wrote {options.out}", file=sys.stderr)
    if options.format == "json":
        about = {"kind": options.gpu, "models": dict(costs.models), "batch": asdict(costs.batch), "times_from": SECONDS_OF}
        found = {"plan": planned.words, "results": planned.results.to_dict("records")}
        saved = {"levers": planned.savings.to_dict("records"), "assumptions": dict(costs.tables.source["assumptions"])}
        print_json("rlhfless-step", about | found | saved)
    else:
        print(repr(planned))
