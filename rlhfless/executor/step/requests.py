"""Makes the requests of a step from prompts: texts, conversations, or token ids. And their workload, for planning.

Texts become token ids where a tokenizer is known: the one that is given, or the engine's when the step is planned or run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike

from rlhfless.engine.protocol import Request
from rlhfless.errors import InputError
from solver.model.errors import as_given, is_whole
from solver.model.plurals import counted
from solver.model.workload import Workload

Message = Mapping[str, str]
"""A message of a conversation, with the keys ``role`` and ``content``."""
Prompt = str | Sequence[int] | Sequence[Message] | np.ndarray
"""A text, a conversation, or token ids."""


class Tokenizer(Protocol):
    """What turns a text into token ids.

    Those of ``rlhfless.engine.tokenizers`` for transformers also fill in chat templates (``filled_in``), and put the token that
    begins a text before it (``plain``).
    """

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...


@dataclass(frozen=True)
class TextRequests(Sequence[Request]):
    """Requests whose prompts are texts; ``Executor.run`` encodes them with the engine's tokenizer. So are slices of them.

    Attributes:
        prompts: texts, conversations, or token ids. samples_per_prompt, max_response_tokens, seed: as for ``requests``.
        chosen: numbers of the responses that are requested: all of them, or those of a slice.
    """

    prompts: tuple[Prompt, ...]
    samples_per_prompt: int
    max_response_tokens: int
    seed: int
    chosen: range

    def __len__(self) -> int:
        return len(self.chosen)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        if isinstance(index, slice):
            return replace(self, chosen=self.chosen[index])
        raise InputError(_no_tokenizer(next(p for p in self.prompts if not _are_ids(p))))

    def __iter__(self) -> Iterator[Request]:
        return (self[number] for number in range(len(self)))

    def encoded(self, tokenizer: Tokenizer) -> list[Request]:
        """Return the requests with the token ids of their prompts."""
        samples = self.samples_per_prompt
        made = []
        for p, prompt in enumerate(self.prompts):
            ids = np.array(prompt if _are_ids(prompt) else tokenizer.encode(_text(p, prompt, tokenizer)), dtype=np.int64)
            for sample in range(samples):
                stream = int(np.random.SeedSequence([self.seed, p, sample]).generate_state(1, np.uint64)[0])
                made.append(
                    Request(p * samples + sample, len(ids), self.max_response_tokens, prompt_ids=ids, seed=stream, prompt=p)
                )
        return [made[response] for response in self.chosen]


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
        prompts: texts, conversations, or token ids. A conversation is a list of messages ``{"role": ..., "content": ...}``,
            which the model's chat template formats. A text is used without the template; the tokenizer's beginning-of-text
            token is added if it has one and the text does not start with it.
        samples_per_prompt: number of responses per prompt, numbered prompt by prompt.
        max_response_tokens: responses are truncated at this many tokens.
        tokenizer: encodes the texts, such as ``engine.tokenizer``; None: the engine's own encodes them in ``Executor.run``.
        seed: seed of sampling; the random stream of a response depends only on (seed, prompt, sample). Use another seed for
            every step.

    Raises:
        InputError: there is no prompt, a prompt is of another type, or a number is wrong; the message names it. A conversation
            is refused once a tokenizer without a chat template is known.

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
    if isinstance(prompts, str) or not hasattr(prompts, "__len__") or not len(prompts):
        raise InputError(f"prompts is {as_given(prompts)}; a list of texts, conversations or lists of token ids is needed")
    for number, prompt in enumerate(prompts):
        if not (isinstance(prompt, str) or _are_messages(prompt) or _are_ids(prompt)):
            raise InputError(
                f"prompts[{number}] is {as_given(prompt)}; a text, a list of messages (role, content) or of token ids is needed"
            )
    every = range(len(prompts) * int(samples_per_prompt))
    made = TextRequests(tuple(prompts), int(samples_per_prompt), int(max_response_tokens), int(seed), every)
    if tokenizer is None and not all(_are_ids(prompt) for prompt in prompts):
        return made
    return made.encoded(tokenizer)  # type: ignore[arg-type]  # None where no prompt is a text


def encoded(given: Sequence[Request], engine: Any) -> Sequence[Request]:
    """Return requests with token ids: texts and conversations are encoded with the tokenizer of the engine factory.

    Raises:
        InputError: there is none, or something is no request; a prompt is a text, and the engine has no tokenizer; or a
            conversation, and it has no chat template.
    """
    if not isinstance(given, TextRequests) or not len(given):
        other = next((one for one in given if not isinstance(one, Request)), None)
        if other is not None or not len(given):
            raise InputError(f"requests is {as_given(given)}; make them of prompts with rlhfless.requests(prompts)")
        return given
    tokenizer = getattr(engine, "tokenizer", None)
    return list(given) if tokenizer is None else given.encoded(tokenizer)


def longest_response(requests: Sequence[Request]) -> int:
    """Return the most tokens that a response of these requests may have; the token ids of prompts may be unknown."""
    if isinstance(requests, TextRequests):
        return requests.max_response_tokens
    return max(request.max_tokens for request in requests)


def workload_of(requests: Sequence[Request], lengths: ArrayLike | None = None) -> Workload:
    """Return the workload of requests, for planning.

    Args:
        lengths: (R,) tokens that each response is expected to have, or (S, R) scenarios of them. None: half of the limit for
            each, which is a guess, and the one that predictors make without history.

    Raises:
        InputError: responses are not numbered from 0 in order, or the lengths are not one for each.
        PlanningError: a length is negative or no number.
    """
    if [request.response for request in requests] != list(range(len(requests))):
        raise InputError("the requests are not numbered 0, 1, 2, ... in order; make all of a step's with rlhfless.requests")
    prompts = [request.response if request.prompt is None else request.prompt for request in requests]
    _, first, prompt_of = np.unique(prompts, return_index=True, return_inverse=True)
    limit = max(request.max_tokens for request in requests)
    expected = np.full(len(requests), limit / 2) if lengths is None else np.asarray(lengths)
    if expected.ndim not in (1, 2) or expected.shape[-1] != len(requests):
        raise InputError(
            f"lengths has shape {expected.shape}, but there are {counted(len(requests), 'response')}; give one length for each"
        )
    return Workload([requests[i].prompt_tokens for i in first], prompt_of, expected, max_response_tokens=limit)


def _text(number: int, prompt: Prompt, tokenizer: Tokenizer) -> str:
    """Return the text of a prompt that is encoded."""
    if isinstance(prompt, str):
        begins: Any = getattr(tokenizer, "plain", None)
        return prompt if begins is None else str(begins(prompt))
    if not getattr(tokenizer, "has_chat_template", False):
        raise InputError(
            f"prompts[{number}] is a conversation, but the model's tokenizer has no chat template; give prompts as texts"
        )
    fill_in: Any = tokenizer.filled_in  # type: ignore[attr-defined]
    return str(fill_in(prompt))


def _are_messages(prompt: Any) -> bool:
    if not isinstance(prompt, list | tuple) or not prompt:
        return False
    return all(isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt)


def _are_ids(prompt: Any) -> bool:
    try:
        ids = np.asarray(prompt)
    except ValueError:
        return False
    return ids.ndim == 1 and len(ids) > 0 and ids.dtype.kind in "iu" and bool((ids >= 0).all())


def _no_tokenizer(prompt: Prompt) -> str:
    text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])  # type: ignore[index]
    return (
        f"prompt {text[:40]!r} is a text and its token ids are unknown; give requests(..., tokenizer=engine.tokenizer), or an "
        "engine of TorchEngine.from_pretrained to Executor"
    )
