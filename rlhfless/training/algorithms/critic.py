"""The critic of PPO: predicts the expected reward before each token of a response.

It is either a head on the policy's own hidden states, or a separate model. A head takes one forward pass for both, and its loss
moves the shared weights too.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError
from rlhfless.system.hub_names import may_be_on_hub
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor, nn
    from transformers import AutoModelForSequenceClassification
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.torch.pretrained import load_pretrained
from rlhfless.training.logprobs import logits_to_logprobs

CRITICS = ("head", "model")


class Critic(nn.Module):
    """A linear value head on hidden states: the policy's, or those of ``backbone``.

    Args:
        head: hidden states (..., H) to values (..., 1).
        backbone: a transformers model without a head; None reads the policy's hidden states.
    """

    def __init__(self, head: nn.Module, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.head, self.backbone = head, backbone

    def forward(self, input_ids: Tensor, policy_hidden: Tensor | None) -> Tensor:
        """Return (B, T - 1) values: entry t is the expected reward after tokens 0 ... t, before token t + 1 is drawn."""
        if self.backbone is not None:
            policy_hidden = self.backbone(input_ids=input_ids, use_cache=False).last_hidden_state
        assert policy_hidden is not None
        values: Tensor = self.head(policy_hidden[:, :-1].to(next(self.head.parameters()).dtype))
        return torch.squeeze_copy(values, -1).float()  # fully_shard wants no views


class PolicyAndCritic(nn.Module):
    """The two models that PPO trains, as one module for optimizer and checkpoint."""

    def __init__(self, policy: Any, critic: Critic) -> None:
        super().__init__()
        self.policy, self.critic = policy, critic

    def forward(self, input_ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Return (B, T - 1) log-probabilities as in ``token_logprobs``, and values of the same tokens."""
        shared = self.critic.backbone is None
        output = self.policy(input_ids=input_ids, use_cache=False, output_hidden_states=shared)
        hidden = output.hidden_states[-1] if shared else None
        return logits_to_logprobs(output.logits, input_ids, temperature), self.critic(input_ids, hidden)


def make_critic(policy: Any, kind: str = "head") -> Critic:
    """Return a critic for ``policy``; its first values are all 0.

    Args:
        kind: ``head``: a value head on the policy's hidden states; ``model``: a separate copy of the policy's layers; or a
            folder or hub name (``owner/name``) of a sequence-classification model with one label and the policy's vocabulary,
            such as the reward model, which keeps its head.

    Raises:
        InputError: ``kind`` is neither, or the folder's model does not fit.
        InputError: the folder's model cannot be read, see ``load_pretrained``.
    """
    hidden = policy.config.get_text_config().hidden_size
    if kind in CRITICS:
        head = nn.Linear(hidden, 1, device=policy.device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return Critic(head, None if kind == "head" else copy.deepcopy(policy.base_model))
    if not Path(kind).is_dir() and not may_be_on_hub(kind, owned=True):
        raise InputError(f"critic {kind!r} is unknown; give head, model, or a folder with a transformers model")
    model = load_pretrained(AutoModelForSequenceClassification, kind)
    if model.config.num_labels != 1 or not hasattr(model, "score"):
        labels = model.config.num_labels
        raise InputError(f"{kind}: has {labels} labels; a critic needs one label and a linear head named score")
    if model.config.vocab_size != policy.config.vocab_size:
        raise InputError(
            f"{kind}: has a vocabulary of {model.config.vocab_size} tokens, the policy one of {policy.config.vocab_size}; the "
            "critic reads the policy's tokens"
        )
    critic = Critic(model.score, model.base_model)
    return critic if policy.device.type == "meta" else critic.to(policy.device)  # sharding moves what has memory
