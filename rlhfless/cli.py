"""The command line: options in, one call, tables or JSON out. Thin; every command's work is a function elsewhere.

Wrong input ends with exit code 2 and one line on standard error: what is wrong, where, and what would be right.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rlhfless import __version__
from rlhfless.errors import InputError, MissingExtra

F = TypeVar("F", bound=Callable[..., Any])


def user_errors() -> tuple[type[Exception], ...]:
    """The exceptions whose message is one sentence for people."""
    from rlhfless.latency import PriceError, ProfileError
    from rlhfless.predict import PredictionError
    from rlhfless.scheduling import PolicyError
    from rlhfless.trace import TraceError
    from rlhfless.training.config import TrainError
    from solver.errors import PlanningError

    ours = (PlanningError, TraceError, ProfileError, PriceError, PredictionError, PolicyError, TrainError)
    return (*ours, MissingExtra, InputError)


class OneLineGroup(click.Group):
    """A command group whose refusals are one line and exit code 2, click's own included."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line."""
        kwargs["standalone_mode"] = False
        try:
            result = super().main(*args, **kwargs)
        except click.exceptions.Exit as stop:
            sys.exit(stop.exit_code)
        except click.Abort:
            click.echo("rlhfless: interrupted", err=True)
            sys.exit(130)
        except click.ClickException as error:
            self._refuse(error.format_message())
        except user_errors() as error:
            self._refuse(str(error))
        except OSError as error:
            self._refuse(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(result if isinstance(result, int) else 0)

    @staticmethod
    def _refuse(message: str) -> None:
        click.echo("rlhfless: " + " ".join(message.split()), err=True)
        sys.exit(2)


@click.group(
    cls=OneLineGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="rlhfless")
@click.pass_context
def main(context: click.Context) -> None:
    """Plan RLHF generation with OR-Tools, run the plan, see time, cost and idle GPUs."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def cluster_options(command: F) -> F:
    """--gpus, --gpus-per-node, --gpus-per-actor, --profile, --usd-per-gpu-hour, --time-weight and --response-limit."""
    for option in reversed(
        [
            click.option("--gpus", type=click.IntRange(1), required=True, help="GPUs in all."),
            click.option("--gpus-per-node", type=click.IntRange(1), help="GPUs of a node.  [default: 8, or --gpus if fewer]"),
            click.option("--gpus-per-actor", type=int, help="GPUs of an actor.  [default: the profile's]"),
            click.option("--profile", required=True, help="Latency profile: a shipped name or a JSON file."),
            click.option("--usd-per-gpu-hour", type=float, help="Price.  [default: list price of the profile's GPU kind]"),
            click.option("--time-weight", type=float, default=0.7, show_default=True, help="1 time only, 0 cost only."),
            click.option("--response-limit", type=int, help="Longest response allowed.  [default: longest of the log]"),
            click.option("--admission", type=click.Choice(["reserve", "preempt"]), default="reserve", show_default=True),
        ]
    ):
        command = option(command)
    return command


format_option = click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)


def _cluster(profile: str, gpus: int, gpus_per_node: int | None, gpus_per_actor: int | None, usd: float | None) -> Any:
    """The cluster and the latency model of the options."""
    from rlhfless.latency import load_profile, usd_per_gpu_hour
    from solver.cluster import Cluster

    latency = load_profile(profile)
    per_node = min(8, gpus) if gpus_per_node is None else gpus_per_node
    if gpus % per_node:
        raise InputError(f"--gpus {gpus} is no multiple of --gpus-per-node {per_node}; give whole nodes")
    price = usd_per_gpu_hour(latency.kind) if usd is None else usd
    per_actor = latency.gpus_per_actor if gpus_per_actor is None else gpus_per_actor
    return Cluster(gpus // per_node, per_node, per_actor, latency.kind, price), latency


@main.command()
@click.argument("rollouts", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Step to plan.  [default: the last]")
@cluster_options
@click.option("--deadline-s", type=float, help="Least cost within this time instead of the weighted objective.")
@click.option("--budget-gpu-s", type=float, help="Least time within these GPU-seconds instead.")
@click.option(
    "--time-limit", "time_limit_s", type=click.FloatRange(0), default=1.0, show_default=True, help="Seconds to solve."
)
@format_option
def plan(
    rollouts: Path,
    step: int | None,
    gpus: int,
    gpus_per_node: int | None,
    gpus_per_actor: int | None,
    profile: str,
    usd_per_gpu_hour: float | None,
    time_weight: float,
    response_limit: int | None,
    admission: str,
    deadline_s: float | None,
    budget_gpu_s: float | None,
    time_limit_s: float,
    form: str,
) -> None:
    """Plan one step of ROLLOUTS (a trace folder, or a parquet, csv or jsonl file) from the steps before it."""
    from rlhfless.simulate import logged_steps
    from rlhfless.trace import read_rollouts
    from solver.objective import Objective
    from solver.planner import plan_generation

    cluster, latency = _cluster(profile, gpus, gpus_per_node, gpus_per_actor, usd_per_gpu_hour)
    objective = Objective(time_weight, deadline_s, budget_gpu_s)
    table = read_rollouts(rollouts)
    known = sorted(int(s) for s in table["step"].unique())
    wanted = known[-1] if step is None else step
    if wanted not in known:
        raise InputError(f"{rollouts}: has no step {wanted}; its steps are {known[0]} to {known[-1]}")
    logged = next(logged_steps(table, response_limit=response_limit, steps=[wanted]))
    result = plan_generation(logged.predicted, cluster, latency, objective, time_limit_s=time_limit_s, admission=admission)
    if form == "json":
        click.echo(json.dumps({"step": wanted, "profile": latency.name, **json.loads(result.to_json())}))
        return
    click.echo(f"step {wanted} of {rollouts}: {logged.predicted}")
    click.echo(repr(result))


@main.command()
@click.argument("rollouts", type=click.Path(path_type=Path))
@cluster_options
@click.option("--policies", default="static,random,rlhfless,fold,solver,oracle", show_default=True, help="Comma-separated.")
@click.option("--tau", type=float, default=0.7, show_default=True, help="Local cut of policy rlhfless.")
@click.option("--static-actors", type=int, help="Actors of the policies static and rlhfuse.  [default: all that fit]")
@click.option("--hold", type=click.Choice(["generation", "step"]), default="generation", show_default=True)
@click.option("--prepare-s", type=float, default=0.0, help="Seconds of preparation after generation.")
@click.option("--learn-s", type=float, default=0.0, help="Seconds of learning after preparation.")
@click.option("--learner-gpus", type=int, default=0, help="GPUs of the learner beside the actors'.")
@click.option("--migration", type=click.Choice(["cheaper", "move", "recompute"]), default="cheaper", show_default=True)
@click.option(
    "--time-limit", "time_limit_s", type=click.FloatRange(0), default=0.3, show_default=True, help="Seconds to solve a step."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write the trace of every policy to OUT/POLICY.")
@format_option
def simulate(
    rollouts: Path,
    gpus: int,
    gpus_per_node: int | None,
    gpus_per_actor: int | None,
    profile: str,
    usd_per_gpu_hour: float | None,
    time_weight: float,
    response_limit: int | None,
    admission: str,
    policies: str,
    tau: float,
    static_actors: int | None,
    hold: str,
    prepare_s: float,
    learn_s: float,
    learner_gpus: int,
    migration: str,
    time_limit_s: float,
    seed: int,
    out: Path | None,
    form: str,
) -> None:
    """Run every step of ROLLOUTS under scheduling policies on simulated engines, and compare them."""
    from rlhfless.simulate import Setting
    from rlhfless.simulate import simulate as run_simulation
    from rlhfless.trace import read_rollouts
    from solver.objective import Objective, StepRest

    cluster, latency = _cluster(profile, gpus, gpus_per_node, gpus_per_actor, usd_per_gpu_hour)
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(f"--policies {policies!r} names no policy or one twice; give each once, separated by commas")
    setting = Setting(
        cluster,
        latency,
        Objective(time_weight),
        StepRest(prepare_s, learn_s, learner_gpus),
        response_limit=response_limit,
        time_limit_s=time_limit_s,
        tau=tau,
        static_actors=static_actors,
        hold=hold,
        admission=admission,
        migration=migration,
        seed=seed,
    )
    if out is not None and out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise InputError(f"{out}: exists and is not empty; choose a new folder for -o")
    result = run_simulation(read_rollouts(rollouts), setting, names)
    if out is not None:
        for name, trace in result.traces.items():
            trace.save(out / name)
    if form == "json":
        click.echo(json.dumps(result.to_dict()))
        return
    for title, has_history in (("steps with history", True), ("steps without history", False)):
        table = result.summary(has_history)
        if table["steps"].max() > 0:
            click.echo(f"{title}, sums over steps (bound_cost_at_time: GPU-seconds that no policy can beat at that time)")
            click.echo(table.to_string(index=False, float_format=lambda v: f"{v:,.3f}"))


@main.command(name="import")
@click.argument("framework", type=click.Choice(["csv"]))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of the trace to write.")
@click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Their column for one of ours; may be repeated.")
@click.option("--response-limit", type=int, help="Longest response that the run allowed.")
def import_(framework: str, path: Path, out: Path, maps: tuple[str, ...], response_limit: int | None) -> None:
    """Turn a log of FRAMEWORK into a trace. `csv` reads any csv, jsonl or parquet table with one row per response."""
    from rlhfless.trace import Trace, import_table

    mapping = {}
    for pair in maps:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours or not theirs:
            raise InputError(f"--map {pair}: is not of the form OURS=THEIRS, prompt_id=prompt_index for example")
        mapping[ours] = theirs
    rollouts, summary = import_table(path, mapping, response_limit)
    Trace(rollouts, meta={"imported_from": path.name, "framework": framework}).save(out)
    click.echo(str(summary))
    click.echo(f"wrote {out}")


@main.command()
@click.option("--task", type=click.Choice(["arithmetic"]), default="arithmetic", show_default=True)
@click.option("--algorithm", type=click.Choice(["grpo"]), default="grpo", show_default=True)
@click.option("--steps", type=int, default=60, show_default=True, help="Steps of the whole run.")
@click.option("--gpus", type=int, default=16, show_default=True, help="Emulated GPUs.")
@click.option("--profile", default="cpu-tiny-qwen2", show_default=True, help="What an emulated GPU takes for an iteration.")
@click.option("--policy", default="solver", show_default=True, help="Scheduling policy.")
@click.option("--time-weight", type=float, default=0.7, show_default=True)
@click.option("--charging", type=click.Choice(["profile", "measured"]), default="profile", show_default=True)
@click.option("--engine", type=click.Choice(["torch"]), default="torch", show_default=True)
@click.option("--pool", type=click.Choice(["local"]), default="local", show_default=True)
@click.option("--prompts-per-step", type=int, default=32, show_default=True)
@click.option("--samples", type=int, default=8, show_default=True, help="Responses per prompt.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--model", type=click.Path(path_type=Path), help="Start from this folder instead of a new warm-up.")
@click.option("--resume", is_flag=True, help="Continue the run in OUT after its last completed step.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of trace and checkpoint.")
def train(out: Path, resume: bool, model: Path | None, engine: str, pool: str, **options: Any) -> None:
    """Train the shipped task on emulated GPUs: predict, plan, execute, reward, learn, trace, step after step."""
    from rlhfless.training.config import TrainConfig
    from rlhfless.training.loop import train as run_training

    trace = run_training(TrainConfig(**options), out, resume=resume, model=model)
    click.echo(repr(trace))
    click.echo(f"wrote {out}")


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The HTML page.")
@click.option("--gpus", type=click.IntRange(1), help="GPUs of the simulated schedules.  [default: the trace's own, or 16]")
@click.option("--gpus-per-node", type=click.IntRange(1), help="GPUs of a node.  [default: 8, or --gpus if fewer]")
@click.option("--gpus-per-actor", type=int, help="GPUs of an actor.  [default: the profile's]")
@click.option("--profile", help="Latency profile.  [default: the trace's own, or l40s-qwen2.5-3b-tp2]")
@click.option("--usd-per-gpu-hour", type=float, help="Price.  [default: list price of the profile's GPU kind]")
@click.option("--time-weight", type=float, default=0.7, show_default=True)
@click.option("--steps", "max_steps", type=click.IntRange(1), default=8, show_default=True, help="Most steps to simulate.")
def report(
    path: Path,
    out: Path,
    gpus: int | None,
    gpus_per_node: int | None,
    gpus_per_actor: int | None,
    profile: str | None,
    usd_per_gpu_hour: float | None,
    time_weight: float,
    max_steps: int,
) -> None:
    """Write one interactive page about PATH (a trace, or a table of response lengths)."""
    from rlhfless.report import read_source, write_report
    from rlhfless.simulate import Setting
    from solver.objective import Objective

    trace = read_source(path)
    own = trace.meta.get("cluster") or {}
    if gpus is None and "nodes" in own:
        gpus, gpus_per_node = own["nodes"] * own["gpus_per_node"], gpus_per_node or own["gpus_per_node"]
    named = profile or trace.meta.get("profile") or "l40s-qwen2.5-3b-tp2"
    cluster, latency = _cluster(named, gpus or 16, gpus_per_node, gpus_per_actor, usd_per_gpu_hour)
    limit = (trace.meta.get("config") or {}).get("response_limit")
    write_report(trace, out, Setting(cluster, latency, Objective(time_weight), response_limit=limit), max_steps=max_steps)
    click.echo(f"wrote {out.resolve()}")


@main.command(name="run-notebook")
@click.argument("notebook", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="The page that the notebook writes.")
def run_notebook(notebook: Path, out: Path) -> None:
    """Execute NOTEBOOK without a browser and say where its page is."""
    from rlhfless.notebook import run_notebook as execute

    executed = execute(notebook, out)
    click.echo(f"executed notebook: {executed}")
    click.echo(f"interactive page:  {out.resolve()}")


@main.command()
@click.option("--model", default="tiny-qwen2", show_default=True, help="Folder of a transformers model, or a built-in name.")
@click.option("--device", default="cpu", show_default=True, help="Torch device.")
@click.option("--threads", type=int, default=1, show_default=True, help="CPU threads of torch.")
@click.option("--rounds", type=int, default=15, show_default=True, help="Times the grid is measured; the median is kept.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="JSON file of the profile.")
def profile(model: str, device: str, threads: int, rounds: int, out: Path) -> None:
    """Measure what the torch engine takes for a model on this machine. Run it where nothing else runs."""
    from rlhfless.engine.torch_profile import engine_timers
    from rlhfless.latency import load_profile, save_profile
    from rlhfless.latency.measure import measure_profile

    command = f"rlhfless profile --model {model} --device {device} --threads {threads} --rounds {rounds} -o {out}"
    measured = measure_profile(engine_timers, model, out.stem, device=device, threads=threads, rounds=rounds, command=command)
    path = save_profile(out, measured)
    click.echo(f"{path}: {load_profile(path)!r}, fit error {measured['fit']['mean_relative_error']:.1%}")


@main.command()
def doctor() -> None:
    """What is installed, which device, and what will not work."""
    from rlhfless.doctor import format_report

    click.echo(format_report())


if __name__ == "__main__":
    main()
