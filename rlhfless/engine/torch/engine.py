"""The torch engine: real decoding with a transformers language model behind the engine protocol.

Its parts are the decode loop (decode_loop.py), the scheduler (common/batch_scheduler.py), KV rows (kv_rows.py), unchanged
batches (decode_run.py), the forward pass (model.py, decode_step.py), sampling (sampling.py) and charged time
(iteration_clock.py). Many engines may share one model: N emulated GPUs on one device, one copy of the weights.

Invariant: on one machine, in float32 on the CPU and with a ``DecoderModel``, token ids depend on (weights, prompt, seed) only.
They do not depend on the batch, the actor, the time of a cut, whether KV was moved or recomputed, or whose prefix was reused.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rlhfless.engine.common.journal import EngineJournal
from rlhfless.engine.protocol import Completion, Progress, Request
from rlhfless.errors import InputError, missing_extra
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel

try:
    import torch

    from rlhfless.engine.common.engine_drafts import EngineDrafts, PassDrafts
    from rlhfless.engine.common.request_validation import TokenRoom
    from rlhfless.engine.common.sampling import Sampling
    from rlhfless.engine.common.sequence import SequenceState
    from rlhfless.engine.torch.decode_loop import DecodeLoop
    from rlhfless.engine.torch.lookahead import PendingIterations
    from rlhfless.engine.torch.row_model import RowModel
    from rlhfless.engine.torch.validation import kv_wrong
    from rlhfless.system.cpu_threads import computing_with
    from rlhfless.system.device_memory import explain_out_of_memory
except ImportError as error:
    if error.name != "torch":
        raise
    raise missing_extra("the torch engine", error.name, "torch") from None

if TYPE_CHECKING:
    from rlhfless.engine.torch.factory import TorchEngineFactory

P = ParamSpec("P")
T = TypeVar("T")


def _computes(method: Callable[Concatenate[TorchEngine, P], T]) -> Callable[Concatenate[TorchEngine, P], T]:
    """Decorate a method to enter torch's modes once per call, and to explain errors where the device has no room."""

    @functools.wraps(method)
    def call(self: TorchEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        device, computing = self.model.device, computing_with(self.model.threads, self.model.device)
        doing = f"what an actor with {self.slots} slots computes"
        with explain_out_of_memory(device, doing), torch.inference_mode(), computing:
            return method(self, *args, **kwargs)

    return call


class TorchEngine:
    """One actor that decodes with a ``DecoderModel``, or with a ``TransformersModel``.

    Args:
        model: the model; may be shared with other engines on its device.
        admission: slots, KV memory, and the rule by which responses join and leave the batch.
        charge: source of the seconds of an iteration: a latency model, or ``"measured"`` for the real seconds.
        eos_id: the token, or several, that ends a response; never sampled if a length is forced.
        start_s: start of the clock in seconds.
        drafting: settings of speculative decoding; None: one token per response and iteration. Drafts never change tokens.
            Log-probabilities may differ by rounding (up to 1e-4), except where the engine is reproducible bit for bit.

    Raises:
        InputError: ``charge`` is neither, or drafts have no latency model to choose their length by.

    Example:
        >>> import rlhfless as rl
        >>> engines = rl.TorchEngine.from_pretrained("data/models/arithmetic-grpo", drafting=rl.Drafting(max_draft_tokens=4))
        >>> engines.drafting.length
        'adaptive'
    """

    reuses_prefixes = True

    def __init__(
        self,
        model: RowModel,
        admission: Admission,
        charge: LatencyModel | str,
        *,
        eos_id: int | Sequence[int],
        sampling: Sampling | None = None,
        start_s: float = 0.0,
        drafting: Drafting | PassDrafts | None = None,
    ) -> None:
        self.model, self.slots, self.weights_version = model, admission.max_batch, 0
        self._room = TokenRoom.of(model, admission)
        if isinstance(drafting, Drafting):
            if not isinstance(charge, LatencyModel):
                raise InputError(
                    f"drafting with length={drafting.length!r} needs a latency model as charge; where time is measured, make "
                    "the engine by a factory, which has one"
                )
            drafts: PassDrafts | None = EngineDrafts(drafting, charge, admission, model.vocabulary, eos_id)
        else:
            drafts = drafting
        self._loop = DecodeLoop(model, admission, charge, eos_id, sampling or Sampling(), start_s, drafts)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 4096,
        device: str = "auto",
        dtype: str = "auto",
        drafting: Drafting | None = None,
        forward: str = "own",
    ) -> TorchEngineFactory:
        """Return the engine factory of a pretrained model: an ``Executor`` makes one engine of it per actor.

        Args:
            folder: written by a transformers model's ``save_pretrained``, with its tokenizer, or by ``rlhfless train``.
            sampling: how tokens are sampled; temperature 1 without filters when None.
            max_tokens: longest context, prompt and response, in tokens; limited by the model's own.
            device: ``cpu``, ``cuda``, or ``auto``: CUDA if there is a device.
            dtype: number format of weights and KV cache, ``float32`` or ``bfloat16``. ``auto`` is bfloat16 on a GPU, and
                float32 on the CPU, where tokens then do not depend on the batch.
            drafting: as for the engine.
            forward: ``own`` for a ``DecoderModel``, ``transformers`` for a ``TransformersModel``, which supports more
                architectures.

        Raises:
            InputError: the folder lacks a model of a known architecture, or its tokenizer; the device is unknown or absent; or
                ``dtype`` or ``forward`` is unknown.
            MissingExtra: transformers is not installed.
        """
        from rlhfless.engine.torch.factory import TorchEngineFactory
        from rlhfless.engine.torch.pretrained import choose_device, choose_dtype, load_model, stop_ids_of
        from rlhfless.engine.torch.row_models import row_model

        place = choose_device(device)
        number_format = choose_dtype(dtype, place)
        model, tokenizer = load_model(folder, place)
        limit = min(max_tokens, getattr(model.config.get_text_config(), "max_position_embeddings", max_tokens))
        rows = row_model(forward, model, limit, number_format)
        return TorchEngineFactory(
            rows, stop_ids_of(model, tokenizer), sampling or Sampling(), tokenizer=tokenizer, drafting=drafting
        )

    @property
    def clock_s(self) -> float:
        """See the protocol."""
        return self._loop.clock_s

    @property
    def journal(self) -> EngineJournal:
        """Return the journal of committed iterations, from which ``replay.py`` can run them again."""
        return self._loop.journal

    @property
    def drafts_off(self) -> str | None:
        """See ``SupportsDrafts``."""
        return None if self._loop.drafts is None else self._loop.drafts.off

    @_computes
    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol."""
        self._loop.add([SequenceState.of(request, self._loop.clock_s, self._room, kv_wrong) for request in requests])

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol. Iterations that it has to compute are kept for ``advance``."""
        loop = self._loop
        if (due_s := loop.queue.due_s(loop.clock_s)) < math.inf:
            return due_s
        if loop.upcoming is None:  # else nothing is computed, and an executor asks all of its engines again and again
            self._look_ahead()
        return loop.next_completion_s()

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        if self._loop.nothing_by(to_s):
            return Progress([], self._loop.new_spans())
        return self._advance(to_s)

    @_computes
    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """Run one iteration in real time, for the wall-clock event loop; does nothing without responses.

        Args:
            from_s: where it begins, unless the last one ended later.
            clock: called when its tokens are computed: returns where it ends, and the next one begins. Preparing its shape for
                the device (CUDA graphs) is a separate span before it.
        """
        loop = self._loop
        loop.clock_s, loop.upcoming = max(loop.clock_s, from_s), None
        completions = loop.complete_due(loop.queue.due_s(loop.clock_s))
        pending = loop.plan()
        if pending is None:
            return Progress(completions, [])
        loop.run_now(pending, clock)
        return Progress([*completions, *loop.commit(pending, 1)], loop.new_spans())

    @_computes
    def commit_next(self) -> list[Completion]:
        """Commit the next iteration, which must exist, without preparing the one after it; returns its completions."""
        pending = self._loop.next()
        assert pending is not None, "nothing is left to decode"
        return self._loop.commit(pending, 1)

    @_computes
    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol."""
        progress, loop = Progress([], []), self._loop
        if loop.clock_s < at_s:  # else no iteration can be under way: measured ones would be run to be forgotten
            progress = self._commit_while(lambda pending: bisect_left(pending.starts_s, at_s), at_s)
        if loop.clock_s < at_s < math.inf:  # idle at that time
            loop.clock_s = at_s
        loop.upcoming = None
        loop.copy_tokens_to_host()
        wanted = None if responses is None else set(responses)
        taken = [s for s in loop.queue if wanted is None or s.request.response in wanted]
        requests = [s.export(loop.clock_s, loop.rows.kv_of(s)) for s in taken]
        loop.leave(taken)
        loop.rows.forget_prompts(loop.queue.waiting)
        return requests, progress

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        queue, decode_run = self._loop.queue, self._loop.decode_run
        tokens = {s.request.response: s.count for s in queue}
        if decode_run is not None and (more := decode_run.tokens_on_device):
            for s in queue.running:
                tokens[s.request.response] += more
        return tokens

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple([s.request.response for s in self._loop.queue.running])

    def waiting(self) -> tuple[int, ...]:
        """See the protocol."""
        queue = self._loop.queue
        return tuple([s.request.response for s in (*queue.waiting, *queue.empty)])

    def sync(self, weights: Any, weights_version: int) -> None:
        """Replace the weights by a model's or a state dict, for every engine that shares the model.

        Running responses keep the KV state that the old weights computed; prompts and prefixes that others wait for are
        recomputed.
        """
        loop = self._loop
        self.model.load(weights)
        self.weights_version = weights_version
        loop.upcoming = None
        loop.rows.forget_prompts()
        for s in loop.queue.waiting:
            s.forget_prefix()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of KV state of its batch and of prompts that others will share."""
        return self._loop.rows.held_bytes

    def close(self) -> None:
        """See the protocol."""
        self._loop.close()

    @_computes
    def _look_ahead(self) -> None:
        self._loop.next()

    @_computes
    def _advance(self, to_s: float) -> Progress:
        return self._commit_while(lambda pending: bisect_right(pending.ends_s, to_s), to_s)

    def _commit_while(self, wanted: Callable[[PendingIterations], int], to_s: float) -> Progress:
        return Progress(self._loop.commit_while(wanted, to_s), self._loop.new_spans())
