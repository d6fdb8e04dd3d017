"""Report text on speculative decoding: what methods of vLLM would have saved of a logged run's time, and their lines."""

from __future__ import annotations

from rlhfless.analysis.draft_configuration import speculation_lines
from rlhfless.analysis.draft_savings import DraftSavings
from rlhfless.diagnosis.numbers import Lever
from rlhfless.plots.style import counted

DRAFTS_FROM = {
    "ngram": "the prompt and the response's own tokens",
    "suffix": "earlier responses and those that are decoded beside it",
}
IN_BYTES = "texts were counted in bytes, so this is rough: name the tokenizer with --tokenizer"


def draft_lever(best: DraftSavings, framework: str, at_most: float, of: str, expected: tuple[float, float]) -> Lever:
    """Return vLLM's best speculative method on a log's texts as a lever.

    Args:
        framework: that wrote the log. at_most, of: see ``Lever``. expected: low and high end of the saving.
    """
    method = best.configuration.method
    price = f"none for the data: responses keep their distribution; {method} drafts from {DRAFTS_FROM[method]}"
    if best.unit == "bytes":
        price += f"; {IN_BYTES}"
    return Lever("drafts", "decode speculatively", at_most, price, of, " ".join(draft_lines(best, framework)), expected)


def draft_lines(best: DraftSavings, framework: str) -> tuple[str, ...]:
    """Return the lines of a framework for a speculative method; none where it does not decode with vLLM."""
    lines, package = speculation_lines(framework, best.speculative_config), best.configuration.package
    return (*lines, f"pip install {package}   # beside vLLM 0.32") if package and lines else lines


def saved_by_drafts(found: DraftSavings) -> str:
    """Return in words what a method would have saved, with its range and what it was measured on."""
    method = found.configuration.method
    return (
        f"Speculative decoding with vLLM's method {method} would have saved {found.mean:.0%} of the generation time "
        f"({found.low:.0%} to {found.high:.0%} over steps and responses). It drafts from {DRAFTS_FROM[method]}. On this log's "
        f"texts, drafts of {counted(found.draft_tokens, found.unit.removesuffix('s'))} give {found.tokens_per_pass:.2f} "
        f"{found.unit} per pass (measured on {counted(found.measured, 'response')}, with a suffix trie in place of vLLM's "
        "code). Times are the profile's, and responses keep their distribution."
        + (f" {IN_BYTES.capitalize()}." if found.unit == "bytes" else "")
    )
