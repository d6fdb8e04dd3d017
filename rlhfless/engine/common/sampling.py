"""How tokens are sampled: temperature, filters and a penalty, the same for every engine that decodes."""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.errors import InputError
from solver.model.errors import is_number, is_whole


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled, with transformers' filters in transformers' order.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: only the k likeliest tokens, 0 for all of them (and those that are as likely as the k-th).
        top_p: of these, only the likeliest that together reach this share.
        min_p: of these, only those at least this many times as likely as the likeliest.
        repetition_penalty: before all others, divides the positive logits of tokens that prompt or response have already, and
            multiplies their negative ones; 1 changes none.

    Raises:
        InputError: a value outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        penalty = self.repetition_penalty
        for name, wanted, good in (
            ("temperature", "a finite number of 0 or more", is_number(self.temperature, 0)),
            ("top_p", "above 0 and at most 1", is_number(self.top_p, 0) and 0 < self.top_p <= 1),
            ("top_k", "a whole number of 0 or more", isinstance(self.top_k, int) and is_whole(self.top_k, 0)),
            ("min_p", "at least 0 and at most 1", is_number(self.min_p, 0) and self.min_p <= 1),
            ("repetition_penalty", "a finite number above 0", is_number(penalty, 0) and penalty > 0),
        ):
            if not good:
                raise InputError(f"{name} is {getattr(self, name)!r}; it must be {wanted}")

    @property
    def penalises(self) -> bool:
        """Return whether the next token depends on the tokens before it other than by logits."""
        return self.repetition_penalty != 1
