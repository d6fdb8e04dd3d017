"""Drafters for tests: they draft what a function of the tokens so far says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Ids = list[int]


class ScriptedDrafter:
    """Drafts ``says(response, tokens so far, most)``; the prompt is not among the tokens.

    Attributes:
        tokens: of the responses that it was told of and that are still there.
    """

    def __init__(self, says: Callable[[int, Ids, int], Sequence[int]]) -> None:
        self.says = says
        self.tokens: dict[int, Ids] = {}

    def start(
        self, response: int, prompt: int | None, prompt_ids: Sequence[int], history: Sequence[Ids], generated_ids: Sequence[int]
    ) -> None:
        """See ``Drafter``."""
        self.tokens[response] = [int(token) for token in generated_ids]

    def extend(self, response: int, tokens: Sequence[int]) -> None:
        """See ``Drafter``."""
        assert tokens, "a pass commits at least one token"
        self.tokens[response] += tokens

    def draft(self, response: int, most: int) -> Sequence[int]:
        """See ``Drafter``."""
        return self.says(response, self.tokens[response], most)

    def remove(self, response: int) -> None:
        """See ``Drafter``."""
        del self.tokens[response]


class FailingDrafter(ScriptedDrafter):
    """Raises when it is asked for a draft; processes import it from here."""

    def __init__(self) -> None:
        super().__init__(fails)


def fails(response: int, so_far: Ids, most: int) -> Sequence[int]:
    """Raise."""
    raise RuntimeError("no more ideas")
