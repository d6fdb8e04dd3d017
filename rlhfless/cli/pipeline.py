"""``rlhfless pipeline``: schedules the training of actor and critic on the same devices, fused as in RLHFuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.group import main
from rlhfless.cli.options import format_option, seed_option, time_limit_option, together
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.paper.fused_pipelines import FusedInstance, ScheduledInstance

SHAPE = "stages:forward time:micro-batches[:memory of a micro-batch], such as 16:2:64"


@dataclass(frozen=True)
class Instances:
    """What to schedule: one actor and critic, or a table of them."""

    actor: str | None
    critic: str | None
    instances: str | None

    def read(self) -> list[FusedInstance]:
        """Return the instances.

        Raises:
            InputError: both or neither are given, or a value has another form.
        """
        from rlhfless.paper.fused_pipelines import FusedInstance, read_instances, rlhfuse_instances

        if self.instances is not None:
            if self.actor is not None or self.critic is not None:
                raise InputError("--instances excludes --actor and --critic; give one or the other")
            return rlhfuse_instances() if self.instances == "rlhfuse" else read_instances(self.instances)
        if self.actor is None or self.critic is None:
            raise InputError("--actor and --critic are needed, or --instances; rlhfuse names the published instances")
        (actor, held), (critic, critic_held) = _shape("--actor", self.actor), _shape("--critic", self.critic)
        return [FusedInstance(f"{self.actor} {self.critic}", actor, critic, (held, critic_held))]


def _instance_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--actor", metavar="S:F:M[:A]", help=f"Describe the actor's pipeline: {SHAPE}."),
        click.option("--critic", metavar="S:F:M[:A]", help="Describe the critic's the same way; it runs in copies if smaller."),
        click.option(
            "--instances",
            metavar="rlhfuse|FILE.csv",
            help="Schedule RLHFuse's 12 published instances, or those of a table.",
        ),
    ]
    return together("instances", lambda: Instances, options)(command)


@main.command()
@_instance_options
@click.option("--memory", is_flag=True, help="Then lower the peak memory at the latency that was reached.")
@click.option("--split-backward", is_flag=True, help="Split backward passes into the gradients of inputs and of weights.")
@time_limit_option(5.0, " per instance")
@seed_option
@format_option("csv")
@click.option("-o", "--out", type=click.Path(), help="Draw the schedules as a page without network (.html), or a picture.")
def pipeline(
    instances: Instances, memory: bool, split_backward: bool, time_limit_s: float, seed: int, form: str, out: str | None
) -> None:
    """Schedule actor and critic training on the same devices, with lower bounds on latency and memory.

    A backward pass takes twice the forward time. Latency is proven optimal where it equals its bound.
    """
    from rlhfless.paper.fused_pipelines import schedule_instance

    found = [
        schedule_instance(one, memory=memory, split_backward=split_backward, time_limit_s=time_limit_s, seed=seed)
        for one in instances.read()
    ]
    _print(found, form)
    if out is not None:
        from rlhfless.plots import plot_pipeline, save

        save(plot_pipeline({one.instance.name: one.plan for one in found}), out)
        click.echo(f"wrote {out}", err=True)


def _print(found: Sequence[ScheduledInstance], form: str) -> None:
    from rlhfless.paper.fused_pipelines import schedules_table

    table = schedules_table(found)
    if form == "csv":
        click.echo(table.to_csv(index=False), nl=False)
        return
    if form == "json":
        rows = json.loads(table.to_json(orient="records"))
        click.echo(json.dumps([row | {"plan": json.loads(one.plan.to_json())} for row, one in zip(rows, found, strict=True)]))
        return
    shown = table.assign(latency_gap=table["latency_gap"].map("{:.2%}".format))
    shown["memory_search_share"] = table["memory_search_share"].map("{:.0%}".format)
    for column in ("latency", "latency_bound", "peak_memory", "memory_bound", "paper_latency", "paper_memory"):
        shown[column] = table[column].map(lambda value: "-" if value != value else f"{value:g}")
    shown["cpu_s"] = table["cpu_s"].map("{:.2f}".format)
    if table["paper_latency"].isna().all():
        shown = shown.drop(columns=["paper_latency", "paper_memory"])
    click.echo(shown.to_string(index=False))
    click.echo(_summary(found))


def _summary(found: Sequence[ScheduledInstance]) -> str:
    optimal = sum(one.plan.latency_is_optimal for one in found)
    text = f"\nlatency proven optimal in {optimal} of {len(found)}; {sum(one.cpu_s for one in found):.1f} CPU seconds together"
    searched = [one.plan.search for one in found if one.plan.search.objective == "latency_then_memory"]
    if not searched:
        return text + "; peak memory was not searched for (--memory)"
    least = sum(one.plan.memory_is_optimal for one in found)
    shares = [search.memory_share for search in searched]
    compiled = "compiled by numba" if any(search.compiled for search in searched) else "in plain Python"
    return (
        f"{text}\npeak memory proven least at that latency in {least}; its search used {min(shares):.0%} to {max(shares):.0%} "
        f"of each time limit, {compiled}"
    )


def _shape(option: str, text: str) -> tuple[tuple[int, float, int], float]:
    """Return stages, forward time and micro-batches, and the memory of a micro-batch."""
    parts = text.split(":")
    try:
        if len(parts) not in (3, 4):
            raise ValueError
        return (int(parts[0]), float(parts[1]), int(parts[2])), float(parts[3]) if len(parts) == 4 else 0.0
    except ValueError:
        raise InputError(f"{option} is {text!r}; {SHAPE} is needed") from None
