"""Report text on speculative decoding: what methods of vLLM would have saved of a logged run's time."""

from __future__ import annotations

from rlhfless.analysis.draft_savings import DraftSavings
from rlhfless.plots.style import counted

DRAFTS_FROM = {
    "ngram": "the prompt and the response's own tokens",
    "suffix": "earlier responses and those that are decoded beside it",
}


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
