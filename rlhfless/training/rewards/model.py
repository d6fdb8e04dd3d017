"""A reward model: a transformers sequence-classification model with one label, whose logit is the reward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    from transformers import AutoModelForSequenceClassification
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from rlhfless.engine.torch.pretrained import load_pretrained
from rlhfless.system.model_folders import local_folder
from rlhfless.training.micro_batches import micro_batches
from rlhfless.training.offload import copied_to, to_cpu
from rlhfless.training.rewards.response import Failure, Response


class ModelReward:
    """Judges prompt and response as one text with a reward model.

    If the problem is a conversation and the reward model has a chat template, that template joins them; else they are
    concatenated.

    Args:
        model, tokenizer: the reward model and its own tokenizer.
        max_tokens_per_micro_batch: padded tokens computed at a time.
        device: where the model runs; its weights are copied there for each call of ``score``, unless they are there. None: they
            are.

    Raises:
        InputError: the model has more than one label.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PretrainedTokenizer,
        name: str = "model",
        max_tokens_per_micro_batch: int = 8192,
        device: torch.device | str | None = None,
    ) -> None:
        if model.config.num_labels != 1:
            raise InputError(
                f"the reward model has {model.config.num_labels} labels; one label is needed, whose logit is the reward"
            )
        self.name, self.model, self.tokenizer, self.max_tokens_per_micro_batch = (
            name,
            model.eval(),
            tokenizer,
            max_tokens_per_micro_batch,
        )
        self.device = torch.device(model.device if device is None else device)
        # transformers finds the last token of a row by the padding before which it stands.
        model.config.get_text_config().pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id

    @classmethod
    def load(
        cls, folder: str | Path, name: str = "model", device: torch.device | str = "cpu", *, offloads: bool = False
    ) -> ModelReward:
        """Load the reward model in a folder, or of this name on the hub, onto a device.

        Args:
            offloads: keep its weights in CPU memory, and copy them to the device while it scores.

        Raises:
            InputError: the folder's model cannot be read, see ``load_pretrained``.
            InputError: the folder has no tokenizer, or the model has more than one label.
        """
        folder = local_folder(folder)
        model = load_pretrained(AutoModelForSequenceClassification, folder)
        placed = to_cpu(model) if offloads else model.to(device)
        return cls(placed, PretrainedTokenizer.load(folder), name, device=device)

    @torch.no_grad()
    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """Return (R,) logits, NaN where the logit was not finite, and the failures."""
        rows = [self.tokenizer.encode(self._text(response)) for response in responses]
        values, forward = np.full(len(rows), np.nan), copied_to(self.model, self.device)
        for part in micro_batches([len(row) for row in rows], self.max_tokens_per_micro_batch):
            width = max(len(rows[i]) for i in part)
            ids = torch.full((len(part), width), self.tokenizer.pad_token_id)
            mask = torch.zeros_like(ids)
            for row, i in enumerate(part):
                ids[row, : len(rows[i])] = torch.tensor(rows[i])
                mask[row, : len(rows[i])] = 1
            logits = forward(input_ids=ids.to(self.device), attention_mask=mask.to(self.device)).logits
            values[part] = logits[:, 0].float().cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(values)).tolist()
        failures = [Failure(i, self.name, f"the model's logit is {values[i]}, which is not finite") for i in bad]
        values[bad] = np.nan
        return values, failures

    def _text(self, response: Response) -> str:
        messages = getattr(response.problem, "messages", ())
        if messages and self.tokenizer.has_chat_template:
            whole = [*map(dict, messages), {"role": "assistant", "content": response.text}]
            return str(self.tokenizer.wrapped.apply_chat_template(whole, tokenize=False))
        return self.tokenizer.plain(response.prompt + response.text)
