"""Writes vLLM's speculative decoding for a log: method, draft length by batch size, and the framework's lines for it.

vLLM has two methods that need no draft model. ``ngram`` drafts from the prompt and the response's own tokens. ``suffix`` drafts
from earlier responses and those under way, too. Each is judged by what the log accepts of drafts from the same tokens.

Checked with vLLM 0.32: ``ngram`` follows a table of lengths by batch size. ``suffix`` stops with an error where the table asks
for another length than the longest, so it gets no table. It ends drafts by itself where a continuation is unlikely.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhfless.analysis.draft_study import DraftStudy
from solver.model.acceptance import Acceptance
from solver.model.latency import LatencyModel
from solver.timing.draft_length import DraftLength, length_table

OWN = "own tokens"
LOOKUP = (1, 12)  # shortest and longest run of tokens that ``ngram`` looks up, as the measurement has them
SUFFIX_PACKAGE = "arctic-inference==0.1.1"  # that vLLM 0.32 asks for


@dataclass(frozen=True)
class DraftConfiguration:
    """A speculative method of vLLM that pays on a log.

    Attributes:
        method: ``ngram`` or ``suffix``. source: of the drafts that were measured in its place.
        lengths: best draft length by batch size. acceptance: of the longest measured draft.
    """

    method: str
    source: str
    lengths: tuple[DraftLength, ...]
    acceptance: Acceptance

    @property
    def draft_tokens(self) -> int:
        """Longest draft that pays at a batch size."""
        return max(row.draft_tokens for row in self.lengths)

    @property
    def table(self) -> list[list[int]]:
        """vLLM's ``num_speculative_tokens_per_batch_size``: first and last batch size, and draft length."""
        return [[row.first_batch, row.last_batch, row.draft_tokens] for row in self.lengths]

    @property
    def package(self) -> str | None:
        """What has to be installed beside vLLM for the method; None: nothing."""
        return SUFFIX_PACKAGE if self.method == "suffix" else None

    @property
    def speculative_config(self) -> dict[str, Any]:
        """What vLLM takes as ``speculative_config``."""
        shared = {"method": self.method, "num_speculative_tokens": self.draft_tokens}
        if self.method == "suffix":
            return shared
        shortest, longest = LOOKUP
        return {
            **shared, "prompt_lookup_min": shortest, "prompt_lookup_max": longest,
            "num_speculative_tokens_per_batch_size": self.table,
        }  # fmt: skip


def draft_configurations(study: DraftStudy, latency: LatencyModel) -> tuple[DraftConfiguration, ...]:
    """Return the methods that pay at a batch size by the log's acceptance and mean context: ``ngram`` first, then ``suffix``.

    ``suffix`` is judged by the best source that is not the response alone; it is left out where the log has none.
    """
    shares = {str(source): rows["survival"].to_numpy() for source, rows in study.by_position.groupby("source", sort=False)}
    others = [source for source in shares if source != OWN]
    methods = [("ngram", OWN)] if OWN in shares else []
    if others:
        methods.append(("suffix", max(others, key=lambda source: float(shares[source].sum()))))
    found = (configuration_of(*names, Acceptance(shares[names[1]]), latency, study.context_tokens) for names in methods)
    return tuple(one for one in found if one is not None)


def configuration_of(
    method: str, source: str, acceptance: Acceptance, latency: LatencyModel, context_tokens: float
) -> DraftConfiguration | None:
    """Return a method with its best length for each batch size; None where it pays at none.

    Args:
        source: of the drafts whose ``acceptance`` was measured. context_tokens: mean KV tokens of a response.
    """
    lengths = tuple(length_table(latency, acceptance, context_tokens))
    if not any(row.draft_tokens for row in lengths):
        return None
    return DraftConfiguration(method, source, lengths, acceptance)


def speculation_lines(framework: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the lines that give vLLM this ``speculative_config``; none where the framework does not decode with vLLM.

    verl hands ``rollout.engine_kwargs.vllm`` to ``vllm serve`` (since 0.7, checked in the sources of its main branch), NeMo-RL
    ``generation.vllm_kwargs`` to vLLM's arguments. Elsewhere it is the argument of vLLM itself.
    """
    return LINES.get(framework, _vllm)(config)


def _vllm(config: Mapping[str, Any]) -> tuple[str, ...]:
    return (f"vllm serve ... --speculative-config '{json.dumps(config)}'",)


def _hydra(prefix: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    return lambda config: tuple(_quoted(f"{prefix}.{name}={_plain(value)}") for name, value in config.items())


def _plain(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else str(value)


def _quoted(line: str) -> str:
    return f"'{line}'" if "[" in line else line


LINES: dict[str, Callable[[Mapping[str, Any]], tuple[str, ...]]] = {
    "verl": _hydra("+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config"),
    "nemo-rl": _hydra("++policy.generation.vllm_kwargs.speculative_config"),
    "slime": lambda config: (),  # decodes with SGLang
}
"""By the name of the import format."""
