"""Records a run of TRL's ``GRPOTrainer``: every completion with its true number of tokens, and the times of each step's phases.

TRL's own log has texts only.

    TrlRecorder("out/recorded").attach(trainer)
    trainer.train()

TRL passes no completions to callbacks, so this module wraps two methods of the trainer: ``_generate`` and
``_calculate_rewards``. Their arguments and results are unchanged, whatever happens here. If a version of TRL lacks these
methods, nothing is recorded and a warning says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhfless.errors import missing_extra

try:
    from transformers import TrainerCallback
except ImportError:
    raise missing_extra("watching TRL", "transformers", "torch") from None

from rlhfless.trace.importers.record import text_id
from rlhfless.trace.recording.recorder import Recorder

HOLDER = "trainer"


class TrlRecorder(TrainerCallback):  # type: ignore[misc]
    """A TRL callback that records a run into a trace folder; ``attach`` registers it with a trainer.

    Rows: ``step`` is the optimizer step that first learns from the completion, counted from 1 as in TRL's own files.
    ``response_tokens`` counts generated tokens with the end token and without tool results. ``finish_reason`` is ``stop`` if
    the last token is the end or padding token, else ``length``. ``reward`` is the weighted sum from which advantages are
    computed. The end of a single completion is unknown, so times are in ``spans``: generation, rewards and learning of a step.

    Each process of a distributed run records separately: the first in ``folder``, others in ``folder-rank1``, ...

    Args:
        folder, run: see ``Recorder``.
        prompt_id: column of the data set with a name for each prompt; by default a hash of its text, as in imports.
        texts: also record the prompts' and completions' texts.
    """

    def __init__(self, folder: str | Path, run: str = "trl", prompt_id: str | None = None, texts: bool = False) -> None:
        self.folder, self.run, self.prompt_id, self.texts = Path(folder), run, prompt_id, texts
        self.recorder: Recorder | None = None
        self._generated: dict[str, Any] = {}
        self._seen: Counter[str] = Counter()
        self._step = 0
        self._learning_since_s = 0.0
        self._rewarded = False

    def attach(self, trainer: Any) -> TrlRecorder:
        """Start recording a trainer; call it before ``trainer.train()``. Returns the callback itself."""
        rank = int(getattr(trainer.accelerator, "process_index", 0))
        folder = self.folder.with_name(f"{self.folder.name}-rank{rank}") if rank else self.folder
        self.recorder = Recorder(folder, self.run, {"framework": "trl"})
        try:
            generate, rewards = trainer._generate, trainer._calculate_rewards
        except AttributeError as error:
            self.recorder.failed("this version of TRL cannot be watched", error)
            return self
        trainer._generate = self._watched(generate, self._before_generating, self._after_generating, trainer)
        trainer._calculate_rewards = self._watched(rewards, self._before_rewarding, self._after_rewarding, trainer)
        trainer.add_callback(self)
        return self

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step begins: it may generate, or learn again from what an earlier step generated."""
        self._safely(self._begin, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the end of a step's learning."""
        self._safely(self._learned)
        if self.recorder is not None:
            self.recorder.flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Convert the recording to the tables of a trace."""
        if self.recorder is not None:
            self.recorder.close()

    def _watched(self, method: Callable[..., Any], before: Callable[..., Any], after: Callable[..., Any], trainer: Any) -> Any:
        def watched(*args: Any, **named: Any) -> Any:
            if not trainer.model.training:  # evaluation
                return method(*args, **named)
            self._safely(before, trainer)
            result = method(*args, **named)
            self._safely(after, trainer, args, result)
            return result

        return watched

    def _safely(self, method: Callable[..., Any], *args: Any) -> None:
        try:
            method(*args)
        except Exception as error:  # whatever TRL is like, its training goes on
            if self.recorder is not None:
                self.recorder.failed("TRL was not understood", error)

    def _now_s(self) -> float:
        assert self.recorder is not None
        return self.recorder.now_s

    def _span(self, phase: str, call: str, start_s: float) -> None:
        assert self.recorder is not None
        self.recorder.append_span(
            step=self._step, holder=HOLDER, phase=phase, call=call, start_s=start_s, end_s=max(start_s, self._now_s())
        )

    def _begin(self, state: Any) -> None:
        self._step, self._seen = int(state.global_step) + 1, Counter()
        self._learning_since_s, self._rewarded = self._now_s(), False

    def _before_generating(self, trainer: Any) -> None:
        if self._rewarded:  # a part of the step's batch was learned from
            self._learned()
        self._generated = {"start_s": self._now_s()}

    def _after_generating(self, trainer: Any, args: tuple[Any, ...], result: tuple[Any, ...]) -> None:
        self._span("decode", "generate", self._generated["start_s"])
        self._generated |= {"prompts": result[0], "completions": result[1], "mask": result[2]}

    def _before_rewarding(self, trainer: Any) -> None:
        self._generated["rewarded_s"] = self._now_s()

    def _after_rewarding(self, trainer: Any, args: tuple[Any, ...], result: Any) -> None:
        self._span("prepare", "reward", self._generated["rewarded_s"])
        self._learning_since_s, self._rewarded = self._now_s(), True
        inputs, prompts, completions = args[:3]
        self._record(trainer, inputs, prompts, completions, result)

    def _learned(self) -> None:
        self._span("learn", "learn", self._learning_since_s)

    def _record(self, trainer: Any, inputs: list[Any], prompts: list[Any], completions: list[Any], of_functions: Any) -> None:
        """Return one row per completion of this process; rewards come for those of all processes, in order."""
        assert self.recorder is not None
        prompt_ids, tokens, mask = (self._generated[name] for name in ("prompts", "completions", "mask"))
        weighted = (of_functions * trainer.reward_weights.to(of_functions.device)).double()
        rewards = weighted.nansum(dim=1).where(~weighted.isnan().all(dim=1), float("nan")).tolist()
        first = int(trainer.accelerator.process_index) * len(tokens)
        of_tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        ends = (of_tokenizer.eos_token_id, of_tokenizer.pad_token_id)
        for i, token_ids in enumerate(tokens):
            name = text_id(_text(prompts[i])) if self.prompt_id is None else str(inputs[i][self.prompt_id])
            row: dict[str, Any] = {"prompt": _text(prompts[i]), "response": _text(completions[i])} if self.texts else {}
            self.recorder.append(
                step=self._step,
                prompt_id=name,
                sample=self._seen[name],
                prompt_tokens=len(prompt_ids[i]),
                response_tokens=len(token_ids) if mask is None else int(sum(mask[i])),
                finish_reason="stop" if token_ids[-1] in ends else "length",
                reward=rewards[first + i],
                weights_version=self._step - 1,
                **row,
            )
            self._seen[name] += 1


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=str)
