"""A character tokenizer: every symbol is one token, so that lengths in tokens are lengths in characters. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlhfless.errors import InputError

SYMBOLS = "0123456789+-*=?:;,.#()<>/abcdkotxy "


@dataclass(frozen=True)
class CharTokenizer:
    """Character tokenizer: token 0 is padding, token 1 ends a response, then one token for each of ``symbols``.

    Raises:
        InputError: ``symbols`` is empty or has a symbol twice.
    """

    symbols: str = SYMBOLS

    pad_token_id = 0
    eos_token_id = 1

    def __post_init__(self) -> None:
        if not self.symbols or len(set(self.symbols)) != len(self.symbols):
            raise InputError(f"symbols is {self.symbols!r}; at least one symbol is needed, and none of them twice")
        object.__setattr__(self, "_token_of", {symbol: token for token, symbol in enumerate(self.symbols, start=2)})

    @property
    def vocab_size(self) -> int:
        """Number of tokens, padding and end included."""
        return len(self.symbols) + 2

    def encode(self, text: str, *, eos: bool = False) -> list[int]:
        """Return the tokens of ``text``, followed by the end token if ``eos``.

        Raises:
            InputError: a symbol of the text is not in ``symbols``.
        """
        token_of: dict[str, int] = self.__dict__["_token_of"]
        try:
            tokens = [token_of[symbol] for symbol in text]
        except KeyError as error:
            raise InputError(
                f"the tokenizer has no symbol {error.args[0]!r}; give text of {self.symbols!r} alone, or a model whose "
                "tokenizer knows it"
            ) from None
        return [*tokens, self.eos_token_id] if eos else tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text up to the first end token; padding is skipped."""
        text = []
        for token in tokens:
            if token == self.eos_token_id:
                break
            if token != self.pad_token_id:
                text.append(self.symbols[int(token) - 2])
        return "".join(text)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as a small JSON file."""
        Path(path).write_text(json.dumps({"type": "char", "symbols": self.symbols}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CharTokenizer:
        """Read what ``save`` wrote.

        Raises:
            InputError: the file is not a character tokenizer.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is not JSON ({error}); a file written by CharTokenizer.save is needed") from None
        if not isinstance(content, dict) or content.get("type") != "char" or not isinstance(content.get("symbols"), str):
            raise InputError(f'{path} is not a character tokenizer: it needs "type": "char" and a string "symbols"')
        return cls(content["symbols"])
