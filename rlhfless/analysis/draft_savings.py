"""Says what vLLM's speculative decoding would have saved of a logged run, by the drafts that its texts accept.

Drafts come from the tokens that vLLM's method drafts from, with a suffix trie of our own in place of vLLM's. They are measured
on some responses of the last step. Each response of the timed steps then takes the passes of a measured one of about the same
rank by length, drawn at random several times. So responses differ in what they accept as they did in the log, and the longest
ones, which go on where earlier responses ended, accept as little as the longest ones did. Their times come from the latency
profile, on the actors that the run's own dispatch gave them. A pass reads each KV cache once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.analysis.draft_configuration import OWN, DraftConfiguration, configuration_of
from rlhfless.analysis.draft_groups import SOURCES, DraftSource, Encode, draft_groups
from rlhfless.analysis.draft_study import last_prompts
from rlhfless.engine.simulated.accepted_runs import SPREAD, DraftedRuns, DrawnRuns
from rlhfless.simulate import LoggedStep, SimulationConfig
from solver.model.acceptance import Acceptance
from solver.model.plan import ActorPlan, Plan
from solver.model.workload import FloatArray, Workload
from solver.timing.draft_length import DRAFT_CALL_S
from solver.timing.evaluate import evaluate

MEASURED_TOKENS = 20_000  # of the last step, about
LENGTHS = (1, 2, 4, 8)  # drafted tokens that are compared
DRAWS = 4  # of measured responses for the responses of a step
PERCENTILES = (5, 95)  # of the savings, over steps and draws
ASSUMED_RESPONSES, ASSUMED_TOKENS = 48, 400  # that are drawn where no text says what is accepted
LEAST_SAVED = 0.01  # of the time; less is not recommended
NEIGHBOURS = 1.0  # places of a measured response, in order of length, by which a drawn one may be off


@dataclass(frozen=True)
class DraftSavings:
    """What a speculative method of vLLM would have saved.

    Attributes:
        configuration: the method, with the best length of its drafts by batch size.
        draft_tokens: the fixed draft length with the least time; savings are those of this length.
        low, mean, high: share of the generation time that is saved: 5th percentile, mean and 95th percentile.
        tokens_per_pass: of the measured responses.
        unit: what texts were counted in: ``tokens`` or ``bytes``. measured: number of measured responses.
    """

    configuration: DraftConfiguration
    draft_tokens: int
    low: float
    mean: float
    high: float
    tokens_per_pass: float
    unit: str
    measured: int

    @property
    def speculative_config(self) -> Mapping[str, object]:
        """What vLLM takes as ``speculative_config``: the method's own, with the length that savings were computed for where it
        has no table."""
        config = self.configuration.speculative_config
        return config if self.configuration.method == "ngram" else {**config, "num_speculative_tokens": self.draft_tokens}


def draft_savings(
    rollouts: pd.DataFrame,
    steps: Sequence[LoggedStep],
    assigned: pd.DataFrame,
    setting: SimulationConfig,
    encode: Encode,
    unit: str = "tokens",
) -> tuple[DraftSavings, ...]:
    """Return the methods that would have saved time of generation, the best first.

    None where the log has no texts, or was decoded with drafts already.

    Args:
        rollouts: all responses of the log. steps: those that are timed.
        assigned: rollouts of a simulation of the run's own dispatch, with ``actor`` and ``start_s``.
        encode: returns the tokens of a text. unit: what it counts.
    """
    if "response" not in rollouts or already_drafts(rollouts):
        return ()
    with_text = rollouts[[isinstance(text, str) for text in rollouts["response"]]]  # some logs have messages there
    if with_text.empty:
        return ()
    kept = last_prompts(with_text, MEASURED_TOKENS)
    plans = [(assigned_plan(step, assigned, setting), step.truth) for step in steps]
    context_tokens = float(np.mean([step.truth.prompt_tokens[step.truth.prompt_of].mean() for step in steps]))
    context_tokens += float(np.mean([step.truth.response_tokens.mean() for step in steps])) / 2
    found = []
    for method, source, measured in _measured(kept, encode):
        acceptance = measured[LENGTHS[-1]].acceptance
        configuration = configuration_of(method, source.name, acceptance, setting.latency, context_tokens)
        if configuration is None:
            continue
        saved = {n: _saved(plans, passes, n, setting) for n, passes in measured.items()}
        best = max(LENGTHS, key=lambda n: saved[n].mean())
        low, high = np.percentile(saved[best], PERCENTILES)
        mean = float(saved[best].mean())
        if low > 0 and mean >= LEAST_SAVED:
            tokens, passes = measured[best].tokens, measured[best].passes
            per_pass = float(tokens.sum() / passes.sum())
            found.append(DraftSavings(configuration, best, float(low), mean, float(high), per_pass, unit, len(tokens)))
    return tuple(sorted(found, key=lambda one: -one.mean))


class AssumedSavings(NamedTuple):
    """Share of the generation time that drafts of ``draft_tokens`` tokens save, if they are accepted as assumed."""

    draft_tokens: int
    mean: float


def assumed_savings(
    acceptance: Acceptance, steps: Sequence[LoggedStep], assigned: pd.DataFrame, setting: SimulationConfig
) -> AssumedSavings:
    """Return what drafts would save of generation if responses accepted them like this; the best of ``LENGTHS``.

    Args:
        acceptance: of the typical response; responses differ as in ``simulate.drafts.DrawnDrafts``.
        steps, assigned, setting: see ``draft_savings``.
    """
    drawn = DrawnRuns(acceptance, spread=SPREAD)
    runs = [drawn.of(response, ASSUMED_TOKENS) for response in range(ASSUMED_RESPONSES)]
    plans = [(assigned_plan(step, assigned, setting), step.truth) for step in steps]
    saved = {n: float(_saved(plans, _Passes.of(runs, n), n, setting, draws=1).mean()) for n in LENGTHS}
    best = max(LENGTHS, key=saved.__getitem__)
    return AssumedSavings(best, saved[best])


def already_drafts(rollouts: pd.DataFrame) -> bool:
    """Return whether the log's responses were decoded with drafts."""
    return "drafted_tokens" in rollouts and bool((rollouts["drafted_tokens"].fillna(0) > 0).any())


def _measured(kept: pd.DataFrame, encode: Encode) -> Iterator[tuple[str, DraftSource, dict[int, _Passes]]]:
    """Yield vLLM's methods with the passes of the last step for every draft length, as far as the log has their sources."""
    last = [int(kept["step"].max())]
    several = (kept.groupby(["step", "prompt_id"]).size() > 1).any()
    again = kept.groupby("prompt_id")["step"].nunique().max() > 1
    for source in SOURCES:
        of_suffix = source.siblings == bool(several) and (source.history != "none") == bool(again)
        if source.name != OWN and not of_suffix:
            continue
        groups = draft_groups(kept, encode, source, steps=last)
        runs = [run for group in groups for run in group.runs(LENGTHS[-1]) if len(run.available)]
        if runs:
            yield "ngram" if source.name == OWN else "suffix", source, {n: _Passes.of(runs, n) for n in LENGTHS}


class _Passes(NamedTuple):
    """Measured responses in order of their length: (M,) ``tokens``, ``passes`` and ``drafted`` tokens of each, and (n,) passes
    that ``accepted`` each position."""

    tokens: FloatArray
    passes: FloatArray
    drafted: FloatArray
    accepted: FloatArray

    @classmethod
    def of(cls, runs: Sequence[DraftedRuns], most: int) -> _Passes:
        """Return the passes with drafts of up to ``most`` tokens."""
        rows, accepted = [], np.zeros(most)
        for run in runs:
            available, right = np.minimum(run.available, most).tolist(), np.minimum(run.accepted, most).tolist()
            at = passes = drafted = 0
            while at < len(right):
                accepted[: right[at]] += 1
                drafted += available[at]
                passes += 1
                at += right[at] + 1
            rows.append((len(right), passes, drafted))
        tokens, passes_of, drafted_of = np.array(sorted(rows), dtype=float).T
        return cls(tokens, passes_of, drafted_of, accepted)

    @property
    def acceptance(self) -> Acceptance:
        """Share of passes that accepted each position."""
        return Acceptance(self.accepted / self.passes.sum())


def assigned_plan(step: LoggedStep, assigned: pd.DataFrame, setting: SimulationConfig) -> Plan:
    """Return the actors of a step with the responses that the run's own dispatch gave them.

    Args:
        assigned: rollouts of a simulation of that dispatch, with ``actor`` and ``start_s``.
    """
    own = assigned[assigned["step"] == step.step]
    keys = zip(own["prompt_id"].astype(str), own["sample"], strict=True)
    ran = dict(zip(keys, zip(own["start_s"], own["actor"], strict=True), strict=True))
    where = [ran[key] for key in zip(step.rows["prompt_id"].astype(str), step.rows["sample"], strict=True)]
    groups: dict[str, list[int]] = {}
    for i in sorted(range(len(where)), key=lambda i: where[i][0]):
        groups.setdefault(where[i][1], []).append(i)
    size, latency = setting.cluster.gpus_per_actor, setting.latency
    actors = [
        ActorPlan(setting.cluster.kind, tuple(range(size * k, size * (k + 1))), 0, tuple(responses), (), latency.max_batch)
        for k, responses in enumerate(groups.values())
    ]
    return Plan(tuple(actors), "as logged", 0.0, 0.0, 0.0)


def _saved(
    plans: Sequence[tuple[Plan, Workload]], measured: _Passes, most: int, setting: SimulationConfig, draws: int = DRAWS
) -> FloatArray:
    """Return (steps * draws,) shares of the generation time that drafts of up to ``most`` tokens save."""
    latency = replace(setting.latency, start_s=0.0, sync_s=0.0)
    shares = []
    for number, (plan, truth) in enumerate(plans):
        problem = replace(setting, latency=latency).problem(truth)
        alone_s = evaluate(plan, problem, table=True).makespan_s
        for draw in range(draws):
            drafted = _with_passes(truth, measured, most, np.random.default_rng((number, draw)))
            with_drafts_s = evaluate(plan, replace(problem, workload=drafted), table=True).makespan_s
            with_drafts_s += DRAFT_CALL_S * float(drafted.iterations.max())
            shares.append(1 - with_drafts_s / alone_s if alone_s else 0.0)
    return np.array(shares)


def _with_passes(truth: Workload, measured: _Passes, most: int, rng: np.random.Generator) -> Workload:
    """Return the workload with the passes of measured responses, drawn at random among those of about the same rank by
    length."""
    lengths, last = truth.response_tokens, len(measured.tokens) - 1
    rank = np.argsort(np.argsort(lengths, kind="stable"), kind="stable") / max(len(lengths) - 1, 1)
    near = np.rint(rank * last + rng.uniform(-NEIGHBOURS, NEIGHBOURS, len(lengths)))
    drawn = np.clip(near, 0, last).astype(int)
    passes = measured.passes[drawn]
    needed = np.clip(np.ceil(lengths * passes / measured.tokens[drawn]), np.ceil(lengths / (most + 1)), lengths)
    fed = np.maximum(1 + measured.drafted[drawn] / passes, lengths / np.maximum(needed, 1))
    return Workload(
        truth.prompt_tokens, truth.prompt_of, lengths, max_response_tokens=truth.max_response_tokens, passes=needed,
        fed_per_pass=fed,
    )  # fmt: skip
