"""Makes the requests of a step from prompts: texts, or token ids.

Texts become token ids where a tokenizer is known: the one that is given, or the engine's when the step is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.errors import InputError
from solver.model.errors import as_given, is_whole

Prompt = str | Sequence[int] | np.ndarray
"""A text, or its token ids."""


class Tokenizer(Protocol):
    """What turns a text into token ids."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...


@dataclass(frozen=True)
class TextRequests(Sequence[Request]):
    """Requests whose prompts are texts; ``Executor.run`` encodes them with the engine's tokenizer.

    Attributes:
        prompts: texts, or token ids. samples_per_prompt, max_response_tokens, seed: as for ``requests``.
    """

    prompts: tuple[Prompt, ...]
    samples_per_prompt: int
    max_response_tokens: int
    seed: int

    def __len__(self) -> int:
        return len(self.prompts) * self.samples_per_prompt

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        raise InputError(_no_tokenizer(next(p for p in self.prompts if isinstance(p, str))))

    def __iter__(self) -> Iterator[Request]:
        return iter((self[0],))

    def encoded(self, tokenizer: Tokenizer) -> list[Request]:
        """Return the requests with the token ids of their prompts."""
        samples = self.samples_per_prompt
        made = []
        for p, prompt in enumerate(self.prompts):
            ids = np.array(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, dtype=np.int64)
            for sample in range(samples):
                stream = int(np.random.SeedSequence([self.seed, p, sample]).generate_state(1, np.uint64)[0])
                made.append(
                    Request(p * samples + sample, len(ids), self.max_response_tokens, prompt_ids=ids, seed=stream, prompt=p)
                )
        return made


def requests(
    prompts: Sequence[Prompt],
    samples_per_prompt: int = 8,
    max_response_tokens: int = 320,
    *,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
) -> Sequence[Request]:
    """Return one request per response: ``samples_per_prompt`` of every prompt, those of a prompt next to each other.

    Args:
        prompts: texts, or token ids. A text is used as it is: fill in the chat template of an instruct model beforehand.
        samples_per_prompt: responses to each prompt, numbered prompt by prompt.
        max_response_tokens: a response ends here at the latest.
        tokenizer: of the texts, such as ``engine.tokenizer``; the engine's own encodes them in ``Executor.run`` when None.
        seed: of the random streams; each depends on (seed, prompt, sample) only. Give another one for every step.

    Raises:
        InputError: there is no prompt, a prompt is no text and no token ids, or a number is wrong; the message names it.

    Example:
        >>> import rlhfless as rl
        >>> made = rl.requests([[5, 6, 7], [8, 9]], samples_per_prompt=2, max_response_tokens=64)
        >>> [(request.response, request.prompt, request.prompt_tokens) for request in made]
        [(0, 0, 3), (1, 0, 3), (2, 1, 2), (3, 1, 2)]
    """
    for name, value in (("samples_per_prompt", samples_per_prompt), ("max_response_tokens", max_response_tokens)):
        if not is_whole(value, 1):
            raise InputError(f"{name} is {as_given(value)}; a whole number of at least 1 is needed")
    if not is_whole(seed, 0):
        raise InputError(f"seed is {as_given(seed)}; a whole number of 0 or more is needed")
    if isinstance(prompts, str) or not len(prompts):
        raise InputError(f"prompts is {as_given(prompts)}; a list of texts or of lists of token ids is needed")
    for number, prompt in enumerate(prompts):
        if not (isinstance(prompt, str) or _are_ids(prompt)):
            raise InputError(f"prompts[{number}] is {as_given(prompt)}; a text or a list of token ids is needed")
    made = TextRequests(tuple(prompts), int(samples_per_prompt), int(max_response_tokens), int(seed))
    if tokenizer is None and any(isinstance(prompt, str) for prompt in prompts):
        return made
    return made.encoded(tokenizer)  # type: ignore[arg-type]  # None where no prompt is a text


def encoded(given: Sequence[Request], engine: Any) -> Sequence[Request]:
    """Return requests with token ids: texts are encoded with the tokenizer of the engine factory.

    Raises:
        InputError: a prompt is a text, and the engine has no tokenizer.
    """
    if not isinstance(given, TextRequests):
        return given
    tokenizer = getattr(engine, "tokenizer", None)
    return list(given) if tokenizer is None else given.encoded(tokenizer)


def _are_ids(prompt: Any) -> bool:
    try:
        ids = np.asarray(prompt)
    except ValueError:
        return False
    return ids.ndim == 1 and len(ids) > 0 and ids.dtype.kind in "iu" and bool((ids >= 0).all())


def _no_tokenizer(text: str) -> str:
    return (
        f"prompt {text[:40]!r} is a text and its token ids are unknown; give requests(..., tokenizer=engine.tokenizer), or an "
        "engine of TorchEngine.from_pretrained to Executor"
    )
