"""``rlhfless drafts``: what speculative decoding would accept on a log with texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlhfless.cli.group import main
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import format_option, profile_option
from solver.model.plurals import counted

if TYPE_CHECKING:
    from rlhfless.analysis.draft_configuration import DraftConfiguration
    from rlhfless.analysis.draft_study import DraftStudy
    from solver.timing.draft_length import DraftLength


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@log_options
@click.option(
    "--history", type=click.Choice(["last", "all", "none"]), default="last", show_default=True,
    help="Draft from earlier responses to the prompt: of its last visit, of all visits, or none.",
)  # fmt: skip
@click.option("--max-draft-tokens", type=int, default=8, show_default=True, help="Draft at most this many tokens per pass.")
@click.option(
    "--max-tokens", type=int, default=100_000, show_default=True,
    help="Measure at most about this many tokens, of the prompts of the last step.",
)  # fmt: skip
@profile_option("Show the best draft length by batch size with this latency profile, too.")
@format_option()
def drafts(
    path: Path, log: LogOptions, history: str, max_draft_tokens: int, max_tokens: int, profile: str | None, form: str
) -> None:
    """Measure on the texts of the log PATH how many drafted tokens speculative decoding would have accepted.

    Drafts come from a suffix trie: no model and no GPU is needed. A drafted token counts as accepted if it equals the logged
    one. Texts are counted in tokens with --tokenizer, else in bytes.
    """
    from rlhfless.analysis.draft_configuration import draft_configurations
    from rlhfless.analysis.draft_study import study_drafts
    from rlhfless.analysis.log_texts import text_encoder
    from rlhfless.latency import load_profile
    from rlhfless.trace.importers.import_session import TEXTS

    latency = None if profile is None else load_profile(profile)
    rollouts = log.open_responses(path, TEXTS).trace.rollouts
    encode, unit = text_encoder(log.tokenizer)
    study = study_drafts(rollouts, encode, unit, history=history, max_draft_tokens=max_draft_tokens, max_tokens=max_tokens)
    table = None if latency is None else study.lengths(latency)
    configurations = () if latency is None else draft_configurations(study, latency)
    if form == "json":
        ranges = {} if table is None else {"draft_lengths": [vars(row) for row in table]}
        configured = {"speculative_configs": [found.speculative_config for found in configurations]} if ranges else {}
        click.echo(json.dumps(study.to_dict() | ranges | configured))
        return
    _show(study, profile, table)
    _show_configurations(configurations, study.unit)


def _show(study: DraftStudy, profile: str | None, table: Sequence[DraftLength] | None) -> None:
    from rlhfless.analysis.draft_study import joined

    click.echo(study.verdict if table is None else f"{_pays(str(profile), table)} {study.verdict}")
    click.echo(f"\nmeasured on {study.measured}, by source of the drafts:")
    click.echo(study.by_source.to_string(index=False, float_format=lambda v: f"{v:.2f}"))
    click.echo(f"\n{study.unit} per pass with {study.best.source.name}, by step and by length:")
    click.echo(study.by_step.to_string(index=False, float_format=lambda v: f"{v:.2f}"))
    click.echo(study.by_length.to_string(index=False, float_format=lambda v: f"{v:.2f}"))
    if study.unit == "bytes":
        click.echo("\ntexts are counted in bytes; name the run's tokenizer with --tokenizer to count tokens")
    if table is None:
        click.echo("\nname a latency profile with --profile to see up to which batch size drafts pay")
    else:
        click.echo(f"\nbest draft length with {profile}, at {study.context_tokens:,.0f} {study.unit} of context:")
        for row in joined(table):
            pays = f"{row.draft_tokens} drafted, {row.speedup:.2f} times as fast" if row.draft_tokens else "no drafts"
            sizes = f"{row.first_batch}" + (f" to {row.last_batch}" if row.last_batch > row.first_batch else "")
            click.echo(f"  batches of {sizes}: {pays}")


def _show_configurations(configurations: Sequence[DraftConfiguration], unit: str) -> None:
    """Print vLLM's and verl's configuration of each method that pays."""
    from rlhfless.analysis.draft_configuration import speculation_lines

    for found in configurations:
        rough = "" if unit == "tokens" else f", with lengths in {unit}: name the tokenizer to have them in tokens"
        click.echo(f"\nvLLM's method {found.method}, which drafts from {found.source}{rough}:")
        if found.package:
            click.echo(f"  pip install {found.package}")
        for framework in ("vllm", "verl"):
            for line in speculation_lines(framework, found.speculative_config):
                click.echo(f"  {line}")


def _pays(profile: str, table: Sequence[DraftLength]) -> str:
    """Return up to which batch drafts pay, as a sentence."""
    sizes = [row.last_batch for row in table if row.draft_tokens]
    if not sizes:
        return f"Speculative decoding pays at no batch size with {profile}."
    return f"Speculative decoding pays up to batches of {counted(max(sizes), 'response')} with {profile}."
