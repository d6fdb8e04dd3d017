"""``rlhfless plan``: plans one step of a log with lengths predicted from the earlier steps, and executes the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import CliPositionalArg

from rlhfless.cli.acceptance import ACCEPTED, stated_acceptance
from rlhfless.cli.log_options import open_recognised
from rlhfless.cli.logged_run import assumed_of, refuse_without_gpus
from rlhfless.cli.options import Limits, Names, OutFolder, PricedGpus, Printed, refuse_missing_log, shown
from rlhfless.cli.printed_json import print_json
from rlhfless.errors import InputError
from solver.model.plurals import counted

if TYPE_CHECKING:
    from rlhfless.executor import StepRecord
    from rlhfless.simulate import LoggedStep, SimulationConfig
    from solver.model.acceptance import Acceptance
    from solver.model.cluster import Cluster, MixedCluster
    from solver.model.latency import LatencyModel
    from solver.model.plan import Plan


POOL = "GPUS:PROFILE[,PROFILE...][:USD[:MARKET]]"
EXECUTED = ["policy", "actors", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "bound_gpu_seconds"]


class PlanOptions(Printed, Limits, PricedGpus):
    """Plan one step of LOG with lengths predicted from the earlier steps, and run the plan with the true lengths.

    The plan says how many actors start and which responses each generates. Policy solver makes it, as `run.plan()` does in
    Python. It is compared with the static schedule and the lower bound. The latency profile is scaled to the times in LOG. With
    --pool or --drafts the plan is printed but not executed.

    With --engine server the plan also runs on OpenAI-compatible servers that run already, such as `vllm serve`, one server per
    actor. Responses have the true lengths, and prompts of random tokens, so that times are real and texts are not.
    """

    log: CliPositionalArg[Path] = Field(
        description="A trace, or a log whose format is recognised; write any other as a trace with `rlhfless convert`."
    )
    step: int | None = Field(None, description="Number of the step to plan.  [default: the last]")
    pools: tuple[str, ...] = Field(
        (), validation_alias="pool", json_schema_extra=shown(POOL),
        description="Add GPUs of another kind or price to the cluster, such as 8:h100-qwen2.5-3b-tp1:2.5; repeatable.",
    )  # fmt: skip
    drafts: str | None = Field(
        None, json_schema_extra=shown("A0.7|weak|strong"),
        description=f"Plan with speculative decoding that accepts {ACCEPTED}.  [default: no drafts]",
    )  # fmt: skip
    engine: Literal["simulated", "server"] = Field("simulated", description="Engine that executes the plan.")
    servers: Names = Field(
        (), validation_alias="server", json_schema_extra=shown("URL,..."),
        description="With --engine server: the servers, such as http://localhost:8000,http://localhost:8001.",
    )  # fmt: skip
    out: OutFolder | None = Field(
        None, validation_alias=AliasChoices("out", "o"), json_schema_extra=shown("FOLDER"),
        description="With --engine server: write the trace of the executed plan to FOLDER.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _servers_fit(self) -> Self:
        if (self.engine == "server") != bool(self.servers):
            raise InputError("--engine server and --server URL belong together; give both, or leave both out")
        if self.out is not None and not self.servers:
            raise InputError("-o is given, but nothing runs; give --engine server --server URL as well, or leave it out")
        if self.servers and (self.pools or self.drafts is not None):
            raise InputError("--engine server runs plans without --pool and --drafts; leave these out")
        return self


def plan(options: PlanOptions) -> None:
    """Print a plan of one step.

    Raises:
        InputError: options contradict each other, or the log has no such step.
        TraceError: the log cannot be read, or the folder to write holds a trace already.
        PlanningError: there is no plan within the limits.
    """
    refuse_missing_log(options.log)
    from rlhfless.run import load
    from rlhfless.scheduling.solver import planned as static_plan
    from rlhfless.trace.store import refuse_trace_in
    from solver.model.drafting import Drafting
    from solver.timing.drafted_latency import drafted

    if options.out is not None:
        refuse_trace_in(options.out)
    run = load(open_recognised(options.log), hardware=options.hardware, time_weight=options.time_weight, verbose=False)
    refuse_without_gpus(run, options.log)
    wanted = run.steps[-1] if options.step is None else options.step
    if wanted not in run.steps:
        raise InputError(f"{options.log}: has no step {wanted}; its steps are {run.steps[0]} to {run.steps[-1]}")
    planned = run.plan(wanted)
    logged, work = planned.logged, planned.logged.predicted
    setting = replace(planned.setting, objective=options.objective(run.objective.time_weight), seed=0)
    planned = replace(planned, setting=setting)
    problem, search = logged.inputs(setting)
    scale = run.times.scale
    expected = None if options.drafts is None else stated_acceptance(options.drafts)
    if options.pools:
        clusters, models = mixed_pools(setting.cluster, run.setting.latency, options.pools)
        problem = replace(problem, cluster=clusters, latency={size: scale.of(model) for size, model in models.items()})
    if expected is not None:
        problem = problem.with_latencies(lambda model: drafted(model, expected))
    compared = None
    if options.pools or expected is not None:
        result = static_plan(problem, search)
    else:
        compared = planned.compare()
        result = compared.plans["solver"][0]
    if expected is not None:
        result = replace(result, drafting=Drafting(), acceptance=expected)
    ran = None
    if options.servers:
        ran = on_servers(logged, setting, result, options.servers)
        if options.out is not None:
            ran.trace.save(options.out)
    assumed = assumed_of(run)
    if options.format == "json":
        guess = {"guess": logged.guess} if logged.guess else {}
        executed = {} if compared is None else {"executed": compared.table[EXECUTED].to_dict("records")}
        about = {"step": wanted, "profile": setting.latency.name, "times": scale.to_dict()}
        if assumed:
            about["assumed"] = assumed
        if ran is not None:
            executed["on_servers"] = {"servers": options.servers, "generation_s": generation_s(ran)}
        print_json("rlhfless-plan", about | guess | json.loads(result.to_json()) | executed)
        return
    if compared is None:  # a comparison states both
        for sentence in assumed:
            print(sentence)
    print(f"step {wanted} of {options.log}: {work}")
    if logged.guess and compared is None:
        print(logged.guess)
    print(f"times: {scale.words()}")
    print(repr(result))
    if compared is not None:
        print(f"executed with the true lengths: {compared!r}")
    if ran is not None:
        print(
            f"executed on {counted(len(options.servers), 'server')} with the true lengths: {generation_s(ran):.3g} s from the "
            f"first request to the last token{'' if options.out is None else f'; wrote {options.out}'}"
        )
    if expected is not None:
        print(f"drafts planned with {options.drafts}: {_per_pass(expected)}")


def on_servers(logged: LoggedStep, setting: SimulationConfig, plan: Plan, urls: Sequence[str]) -> StepRecord:
    """Execute a plan of a logged step on servers, with the true lengths and prompts of random tokens.

    Raises:
        PlanningError: the plan has more actors than there are servers, or does what a server cannot.
        InputError: a server cannot be used. StepFailed: all of them were lost.
    """
    import numpy as np

    from rlhfless.engine import Sampling, ServerEngineFactory
    from rlhfless.engine.server.engine import SMALL_IDS
    from rlhfless.executor import ProcessPool

    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, SMALL_IDS, size=tokens) for tokens in logged.truth.prompt_tokens.tolist()]
    owners = logged.truth.prompt_of.tolist()
    requests = [replace(r, prompt_ids=prompts[owner]) for r, owner in zip(logged.requests(), owners, strict=True)]
    engines = ServerEngineFactory(sampling=Sampling(temperature=0))  # of text that says nothing
    with ProcessPool([url for url in urls for _ in range(setting.latency.gpus_per_actor)]) as pool:
        return pool.run_step(plan, requests, engines, setting.latency, setting.cluster, step=logged.step)


def generation_s(record: StepRecord) -> float:
    """Return the seconds from the first request to the last token: without the start of the actors' processes."""
    done = record.completions.values()
    return max(c.time_s for c in done) - min(c.start_s for c in done)


def _per_pass(acceptance: Acceptance) -> str:
    most = acceptance.max_draft_tokens
    tokens = acceptance.tokens_per_pass(most)
    return f"{tokens:.2f} tokens per pass with {most} drafted, the same of all responses; less where they differ"


def mixed_pools(
    first: Cluster, latency: LatencyModel, pools: Sequence[str]
) -> tuple[MixedCluster, dict[tuple[str, int], LatencyModel]]:
    """Return a mixed cluster of ``first`` and the values of ``--pool``, and its latency models by (kind, GPUs per actor).

    Args:
        pools: each of the form ``POOL``. Nodes have eight GPUs, or all if there are fewer;
            the default price is the list price of kind and market.

    Raises:
        ProfileError: a pool is not of this form, or its profiles are of several kinds; one sentence.
    """
    from rlhfless.latency import ProfileError, load_profile, usd_per_gpu_hour
    from rlhfless.latency.gpus import NODE_GPUS
    from solver.model.cluster import GpuPool, MixedCluster

    form = f"{POOL}, such as 8:h100-qwen2.5-3b-tp1,h100-qwen2.5-3b-tp2:2.5:preemptible"
    models = {(latency.kind, latency.gpus_per_actor): latency}
    made = [first.pools[0]]
    for text in pools:
        count, _, rest = text.partition(":")
        names, _, rest = rest.partition(":")
        price, _, market = rest.partition(":")
        if not count.isdecimal() or int(count) < 1 or not names:
            raise ProfileError(f"--pool {text}: is not of the form {form}")
        try:
            usd = float(price) if price else None
        except ValueError:
            raise ProfileError(f"--pool {text}: {price!r} is not a price in USD per GPU-hour; the form is {form}") from None
        offered = [load_profile(name) for name in names.split(",")]
        kinds = sorted({model.kind for model in offered})
        if len(kinds) > 1:
            raise ProfileError(f"--pool {text}: its profiles are for {' and '.join(kinds)}; give each GPU kind its own --pool")
        for model in offered:
            same_size = models.setdefault((model.kind, model.gpus_per_actor), model)
            if same_size.name != model.name:
                raise ProfileError(
                    f"--pool {text}: profiles {same_size.name} and {model.name} are both for {model.gpus_per_actor} x "
                    f"{model.kind}; give one of them"
                )
        per_node = min(NODE_GPUS, int(count))
        if int(count) % per_node:
            raise ProfileError(
                f"--pool {text}: {count} GPUs do not fill whole nodes of {per_node}; give a multiple of {per_node}"
            )
        market = market or "on-demand"
        made.append(
            GpuPool(
                kinds[0], int(count) // per_node, per_node, usd_per_gpu_hour(kinds[0], market) if usd is None else usd, market
            )
        )
    return MixedCluster(made), models
