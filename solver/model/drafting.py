"""Defines ``Drafting``: how responses are decoded with speculative decoding, that is with drafted tokens that a pass verifies.

Tokens never depend on it: a drafted token is kept only where the model draws the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from solver.model.errors import PlanningError, as_given, check_flags, is_whole

MAX_DRAFT_TOKENS = 32
LENGTHS = ("adaptive", "critical")
HISTORIES = ("last", "all", "none")
VLLM_DRAFTERS = ("vllm-ngram", "vllm-suffix")
"""Drafters of vLLM itself: its speculative methods ``ngram`` and ``suffix``, with drafts of a fixed length at most."""
DRAFTERS = ("suffix", *VLLM_DRAFTERS)


@dataclass(frozen=True)
class Drafting:
    """Settings of speculative decoding; ``None`` in their place means that each iteration yields one token per response.

    Attributes:
        drafter: where drafts come from: ``suffix`` (runs of tokens in earlier responses), an object with the methods of
            ``rlhfless.engine.Drafter``, or a method of vLLM itself, on the vLLM engine only: ``vllm-ngram`` (runs of tokens in
            the response's own text) or ``vllm-suffix`` (in those of all responses that the actor has decoded).
        max_draft_tokens: tokens drafted per response and pass at most, 1 to 32.
        length: tokens drafted per response: ``adaptive`` (by the response's own accepted drafts), ``critical`` (longer for
            responses that are predicted to finish last), or a fixed number up to ``max_draft_tokens``.
        min_match: shortest run, in tokens, that a token is drafted after.
        history: which earlier responses of its prompt a draft may come from: the ``last`` visit's, ``all``, or ``none``.
        siblings: whether the responses that the same prompt is decoding now are a source, too.

    Raises:
        PlanningError: a value is none of these.

    Example:
        >>> from solver.model.drafting import Drafting
        >>> Drafting(length=4).max_draft_tokens
        8
    """

    drafter: Any = "suffix"
    max_draft_tokens: int = 8
    length: Literal["adaptive", "critical"] | int = "adaptive"
    min_match: int = 2
    history: Literal["last", "all", "none"] = "last"
    siblings: bool = True

    def __post_init__(self) -> None:
        if not is_whole(self.max_draft_tokens, 1) or self.max_draft_tokens > MAX_DRAFT_TOKENS:
            raise PlanningError(
                f"max_draft_tokens is {as_given(self.max_draft_tokens)}; a whole number from 1 to {MAX_DRAFT_TOKENS} is needed"
            )
        if not (self.length in LENGTHS if isinstance(self.length, str) else is_whole(self.length, 0)):
            raise PlanningError(
                f"the draft length is {as_given(self.length)}; 'adaptive', 'critical' or a whole number of tokens is needed"
            )
        if not isinstance(self.length, str) and self.length > self.max_draft_tokens:
            raise PlanningError(
                f"the draft length is {self.length}, but max_draft_tokens is {self.max_draft_tokens}; at most that many can be "
                "drafted"
            )
        if not is_whole(self.min_match, 1):
            raise PlanningError(f"min_match is {as_given(self.min_match)}; a whole number of at least 1 token is needed")
        if self.history not in HISTORIES:
            raise PlanningError(f"history is {as_given(self.history)}; one of {', '.join(HISTORIES)} is needed")
        check_flags(siblings=self.siblings)
        if isinstance(self.drafter, str) and self.drafter not in DRAFTERS:
            raise PlanningError(
                f"drafter is {as_given(self.drafter)}; {', '.join(map(repr, DRAFTERS))}, or an object with start, extend, "
                "draft and remove is needed"
            )
        if self.vllm_method is not None and isinstance(self.length, str):
            raise PlanningError(
                f"the draft length is {self.length}, but drafter {self.drafter!r} chooses none by the profile; a number of "
                "tokens is needed, such as 4"
            )

    @property
    def vllm_method(self) -> str | None:
        """Return the name of the speculative method of vLLM itself; None where the drafter is ours or the caller's."""
        return self.drafter.removeprefix("vllm-") if isinstance(self.drafter, str) and self.drafter in VLLM_DRAFTERS else None

    @classmethod
    def of_length(cls, text: str, name: str = "the draft length", drafter: str = "suffix") -> Drafting:
        """Return the settings with a length that was typed: ``adaptive``, ``critical`` or a number.

        Args:
            text: the length. name: what it is called in the error. drafter: where drafts come from.

        Raises:
            PlanningError: it is none of these.
        """
        if text in LENGTHS:
            named: Literal["adaptive", "critical"] = "adaptive" if text == "adaptive" else "critical"
            return cls(drafter, length=named)
        if not text.isdecimal() or not 1 <= int(text) <= MAX_DRAFT_TOKENS:
            raise PlanningError(
                f"{name} is {as_given(text)}; adaptive, critical or a whole number from 1 to {MAX_DRAFT_TOKENS} is needed"
            )
        return cls(drafter, max(int(text), cls.max_draft_tokens), int(text))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values; a drafter of one's own is named by its type."""
        drafter = self.drafter if isinstance(self.drafter, str) else type(self.drafter).__name__
        return {**vars(self), "drafter": drafter}
