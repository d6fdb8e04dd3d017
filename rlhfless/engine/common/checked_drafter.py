"""Guards an engine against its drafter: tokens never depend on a draft, so a drafter that fails costs speed only."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import islice

import numpy as np

from rlhfless.engine.common.drafter import Drafter, TokenIds
from rlhfless.errors import reason
from solver.model.errors import as_given


class DraftsOffWarning(RuntimeWarning):
    """A drafter broke its contract; the actor decodes on without drafts."""


class CheckedDrafter:
    """Calls a drafter for an engine, and switches it off for good once it breaks its contract.

    A drafter breaks it where it raises, or drafts more tokens than asked, what is no whole number, or ids outside the
    vocabulary. One ``DraftsOffWarning`` names it and says why. Afterwards every draft is empty.

    Args:
        vocabulary: number of tokens of the model.

    Attributes:
        off: why no drafts come any more, as part of a sentence; None while they come.
    """

    def __init__(self, drafter: Drafter, vocabulary: int) -> None:
        self._drafter, self._vocabulary = drafter, vocabulary
        self.off: str | None = None

    def start(
        self, response: int, prompt: int | None, prompt_ids: TokenIds, history: Sequence[TokenIds], generated_ids: TokenIds
    ) -> None:
        """See ``Drafter``."""
        if self.off is None:
            try:
                self._drafter.start(response, prompt, prompt_ids, history, generated_ids)
            except Exception as error:
                self._fails("start", response, error)

    def extend(self, response: int, tokens: Sequence[int]) -> None:
        """See ``Drafter``."""
        if self.off is None:
            try:
                self._drafter.extend(response, tokens)
            except Exception as error:
                self._fails("extend", response, error)

    def draft(self, response: int, most: int) -> list[int]:
        """See ``Drafter``; the ids are whole numbers of the vocabulary."""
        if self.off is not None or most <= 0:
            return []
        try:
            drafted = list(islice(self._drafter.draft(response, most), most + 1))
        except Exception as error:
            self._fails("draft", response, error)
            return []
        if len(drafted) > most:
            self._switch_off(f"drafted more than the {most} tokens for response {response} that it was asked for")
            return []
        if not drafted or (set(map(type, drafted)) == {int} and min(drafted) >= 0 and max(drafted) < self._vocabulary):
            return drafted
        for token in drafted:
            if not (type(token) is int or isinstance(token, np.integer)) or not 0 <= token < self._vocabulary:
                self._switch_off(
                    f"drafted {as_given(token)} for response {response}; token ids are whole numbers from 0 to "
                    f"{self._vocabulary - 1}"
                )
                return []
        return [int(token) for token in drafted]

    def remove(self, response: int) -> None:
        """See ``Drafter``."""
        if self.off is None:
            try:
                self._drafter.remove(response)
            except Exception as error:
                self._fails("remove", response, error)

    def _fails(self, call: str, response: int, error: Exception) -> None:
        self._switch_off(f"failed in {call}() for response {response} ({type(error).__name__}: {reason(error)})")

    def _switch_off(self, why: str) -> None:
        self.off = f"the drafter {type(self._drafter).__name__} {why}"
        warnings.warn(f"drafts are off for the rest of the step: {self.off}", DraftsOffWarning, stacklevel=4)
