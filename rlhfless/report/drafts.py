"""Report text on speculative decoding: what methods of vLLM would have saved of a logged run's time, and their lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlhfless.analysis import Change
from rlhfless.analysis.draft_configuration import speculation_lines
from rlhfless.analysis.draft_savings import DraftSavings
from rlhfless.plots.style import counted

DRAFTS_FROM = {
    "ngram": "the prompt and the response's own tokens",
    "suffix": "earlier responses and those that are decoded beside it",
}


def draft_changes(drafts: Sequence[DraftSavings], framework: str, generation_share: float) -> Iterator[Change]:
    """Yield the best speculative method as a change of the configuration; nothing without methods.

    Args:
        drafts: the best method first. framework: that wrote the log.
        generation_share: of the steps' time, that is generation.
    """
    if not drafts:
        return
    best = drafts[0]
    method, package = best.configuration.method, best.configuration.package
    lines = speculation_lines(framework, best.speculative_config)
    install = (f"pip install {package}   # beside vLLM 0.32",) if package and lines else ()
    needs = f"vLLM's method {method} drafts from {DRAFTS_FROM[method]}; responses keep their distribution."
    if best.unit == "bytes":
        needs += " Texts were counted in bytes, so this is rough: name the tokenizer with --tokenizer."
    if not lines:
        needs += f" {framework} does not decode with vLLM, so there are no lines."
    low, mean, high = (generation_share * one for one in (best.low, best.mean, best.high))
    yield Change("decode speculatively", (*lines, *install), low, mean, high, mean, needs)


def saved_by_drafts(found: DraftSavings) -> str:
    """Return in words what a method would have saved, with its range and what it was measured on."""
    method = found.configuration.method
    return (
        f"Speculative decoding with vLLM's method {method} would have saved {found.mean:.0%} of the generation time "
        f"({found.low:.0%} to {found.high:.0%} over steps and responses). It drafts from {DRAFTS_FROM[method]}. On this log's "
        f"texts, drafts of {counted(found.draft_tokens, found.unit.removesuffix('s'))} give {found.tokens_per_pass:.2f} "
        f"{found.unit} per pass (measured on {counted(found.measured, 'response')}, with a suffix trie in place of vLLM's "
        "code). Times are the profile's, and responses keep their distribution."
    )
