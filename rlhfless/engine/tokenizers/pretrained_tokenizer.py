"""Wraps a transformers tokenizer and its chat template in the interface of ``CharTokenizer``.

Transformers is imported inside functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError, missing_extra
from rlhfless.system.model_folders import from_folder


class PretrainedTokenizer:
    """A transformers tokenizer with the interface of ``CharTokenizer``.

    Raises:
        InputError: it has no end token for responses.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.wrapped = tokenizer
        if tokenizer.eos_token_id is None:
            raise InputError("the tokenizer has no end-of-text token; set eos_token in its tokenizer_config.json")
        self.eos_token_id: int = tokenizer.eos_token_id
        self.pad_token_id: int = self.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    @classmethod
    def of(cls, tokenizer: Any) -> Any:
        """Return a tokenizer of transformers in this interface, and any other as it is.

        Raises:
            InputError: it has no end token for responses.
        """
        return cls(tokenizer) if hasattr(tokenizer, "save_pretrained") and not hasattr(tokenizer, "save") else tokenizer

    @classmethod
    def load(cls, folder: str | Path) -> PretrainedTokenizer:
        """Return the tokenizer in a model's folder, without network access.

        Raises:
            InputError: the folder has none, or one with its own code.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise missing_extra("a tokenizer of transformers", error.name, "torch") from None
        missing = InputError(f"{folder}: holds no tokenizer; save it next to the model (tokenizer.json, tokenizer_config.json)")
        try:
            tokenizer = from_folder(AutoTokenizer, folder)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise missing from error
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # made up from the model's kind, without a single word
            raise missing
        tokenizer.init_kwargs.pop("local_files_only", None)  # how it was loaded here, which transformers would save with it
        return cls(tokenizer)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.wrapped)

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(getattr(self.wrapped, "chat_template", None))

    def encode(self, text: str, *, eos: bool = False) -> list[int]:
        """Return the tokens of ``text``, which already contains its special tokens; followed by the end token if ``eos``."""
        tokens = list(self.wrapped.encode(text, add_special_tokens=False))
        return [*tokens, self.eos_token_id] if eos else tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text up to the first end token, without special tokens."""
        kept = []
        for token in tokens:
            if token == self.eos_token_id:
                break
            kept.append(int(token))
        return str(self.wrapped.decode(kept, skip_special_tokens=True))

    def filled_in(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the chat template filled with a conversation, up to where the model's answer begins."""
        return str(self.wrapped.apply_chat_template([dict(m) for m in messages], tokenize=False, add_generation_prompt=True))

    def plain(self, text: str) -> str:
        """Return a plain prompt that begins with the special token that the tokenizer puts before a text, if it puts one."""
        first = self.wrapped.bos_token
        if first is not None and text.startswith(first):  # written out already, as chat templates do
            return text
        begins = first is not None and self.wrapped(text).input_ids[:1] == [self.wrapped.bos_token_id]
        return f"{first}{text}" if begins else text

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files into ``folder``."""
        self.wrapped.save_pretrained(folder)
