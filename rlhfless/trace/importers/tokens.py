"""Counts and encodes the tokens of texts with a tokenizer that the user names (library ``tokenizers``)."""

from __future__ import annotations

from pathlib import Path

from rlhfless.errors import missing_extra, reason
from rlhfless.system.hub_names import may_be_on_hub
from rlhfless.trace.errors import TraceError

PIECE = 2**20  # characters that are tokenised at once: a token takes some hundred bytes until it is counted


class TokenCounter:
    """Counts and encodes tokens with a fast tokenizer.

    Args:
        name: a folder with ``tokenizer.json``, such a file, or a name on the hub.

    Raises:
        TraceError: it cannot be loaded.
        MissingExtra: the tokenizers package is not installed.
    """

    def __init__(self, name: str | Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise missing_extra("Counting the tokens of a log's texts", "tokenizers", "logs") from error
        path = Path(name)
        if not path.exists() and not may_be_on_hub(name):
            raise TraceError(f"--tokenizer {name}: there is no such file or folder; a folder with tokenizer.json is needed")
        if path.is_dir() and not (path / "tokenizer.json").is_file():
            raise TraceError(
                f"{path}: has no tokenizer.json; a folder that save_pretrained of a fast tokenizer wrote is needed"
            )
        try:
            if path.exists():
                self._tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
            else:
                self._tokenizer = Tokenizer.from_pretrained(str(name))
        except Exception as error:  # the library raises bare Exception, and the hub's client whatever the network does
            raise TraceError(
                f"--tokenizer {name}: cannot be loaded ({reason(error)}); a local folder with tokenizer.json or a hub name "
                "is needed"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, texts: list[str]) -> list[int]:
        """Return (len(texts),) tokens of each text, without special tokens; equal texts are tokenized once."""
        tokens: dict[str, int] = {}
        piece: list[str] = []
        size = 0
        for text in dict.fromkeys(texts):
            piece.append(text)
            size += len(text)
            if size >= PIECE:
                tokens |= self._counted(piece)
                piece, size = [], 0
        tokens |= self._counted(piece)
        return [tokens[text] for text in texts]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def _counted(self, texts: list[str]) -> dict[str, int]:
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return dict(zip(texts, map(len, encoded), strict=True))
