"""Report text on speculative decoding: methods of vLLM that would have saved time of a logged run, and their configuration."""

from __future__ import annotations

from collections.abc import Sequence

from rlhfless.analysis.draft_configuration import speculation_lines
from rlhfless.analysis.draft_savings import DraftSavings
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted

DRAFTS_FROM = {
    "ngram": "the prompt and the response's own tokens",
    "suffix": "earlier responses and those that are decoded beside it",
}


def drafts_section(page: Page, drafts: Sequence[DraftSavings], framework: str) -> None:
    """Add what each speculative method would have saved, and the lines that switch the best one on; nothing without methods.

    Args:
        drafts: the best method first. framework: that wrote the log.
    """
    if not drafts:
        return
    for found in drafts:
        page.text(saved_by_drafts(found))
    if len(drafts) > 1:
        page.text(f"Only one of them can be used: {drafts[0].configuration.method} saves more.")
    best = drafts[0]
    if best.unit == "bytes":
        page.text(
            "Texts were counted in bytes, because no tokenizer was named, so savings and draft lengths are rough. Name the "
            "run's tokenizer with --tokenizer to count tokens."
        )
    lines = speculation_lines(framework, best.speculative_config)
    if not lines:
        page.text(f"Configuration lines for drafts are left out: {framework} does not decode with vLLM.")
        return
    package = best.configuration.package
    install = (f"pip install {package}   # beside vLLM 0.32",) if package else ()
    page.code(f"speculative decoding with vLLM's method {best.configuration.method}", (*install, *lines))


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
