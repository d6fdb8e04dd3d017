"""Splits a model into pipeline stages: the embedding and blocks, blocks, blocks and the head; for actors and critics.

A stage runs the model's own code on a part of its blocks, and its weights are the model's own objects. So a chain of stages
computes the model bit for bit.
"""

from __future__ import annotations

import copy
from typing import Any

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    from torch import Tensor, nn
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.critic import Critic

MODELS = ("llama", "qwen2")
"""Model types of transformers whose stages are tested."""


class Stage(nn.Module):
    """Consecutive blocks of a model, with its embedding if they are the first and its head if they are the last.

    Args:
        backbone: transformers model without a head that has these blocks only.
        head: of the last stage: hidden states (B, T, H) to the output.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module | None, *, first: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.first = backbone, head, first

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden states (B, T, H), or the output of the last stage.

        Args:
            x: (B, T) tokens at the first stage, hidden states at the others.
        """
        given = {"input_ids": x} if self.first else {"inputs_embeds": x}
        hidden: Tensor = self.backbone(**given, use_cache=False).last_hidden_state
        return hidden if self.head is None else self.head(hidden)


class ValueHead(nn.Module):
    """The head of a critic with a backbone: hidden states (B, T, H) to values (B, T - 1)."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.critic = Critic(head)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the values, as ``Critic`` does."""
        values: Tensor = self.critic(None, hidden)
        return values


def split_model(model: Any, stages: int) -> list[Stage]:
    """Return the stages of a model, in order; their blocks differ by at most one, and later stages have more.

    Args:
        model: a causal language model of transformers, whose last stage returns logits (B, T, V); or a ``Critic`` with a
            backbone, whose last stage returns values (B, T - 1).

    Raises:
        InputError: the model is of another kind, or has fewer blocks than stages.

    Example:
        >>> from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
        >>> from rlhfless.training.models.tiny_model import tiny_qwen2
        >>> [len(stage.backbone.layers) for stage in split_model(tiny_qwen2(CharTokenizer(), layers=5), 2)]
        [2, 3]
    """
    if isinstance(model, Critic):
        if model.backbone is None:
            raise InputError(
                "the critic is a head on the policy's layers, so it has no stages of its own; choose critic 'model'"
            )
        backbone, head = model.backbone, ValueHead(model.head)
    else:
        backbone, head = model.base_model, model.get_output_embeddings()
    config: Any = backbone.config
    if config.model_type not in MODELS:
        raise InputError(f"model type {config.model_type!r} cannot be split into stages; one of {', '.join(MODELS)} is needed")
    if len(set(getattr(config, "layer_types", ()))) > 1 or config.attention_dropout:
        raise InputError("a model whose blocks differ, or with dropout, cannot be split into stages; give a plain one")
    layers: Any = backbone.layers
    blocks = list(layers)
    if not 1 <= stages <= len(blocks):
        raise InputError(
            f"the model has {len(blocks)} blocks, which cannot be split into {stages} stages; give 1 to {len(blocks)}"
        )
    cuts = [len(blocks) * stage // stages for stage in range(stages + 1)]
    return [
        Stage(
            _part(backbone, blocks[cuts[stage] : cuts[stage + 1]], first=stage == 0, last=stage == stages - 1),
            head if stage == stages - 1 else None,
            first=stage == 0,
        )
        for stage in range(stages)
    ]


def _part(backbone: Any, blocks: list[nn.Module], *, first: bool, last: bool) -> Any:
    """Return a shallow copy of the backbone with some of its blocks, and embedding and norm where they belong."""
    part = copy.copy(backbone)
    part._modules = {**backbone._modules, "layers": nn.ModuleList(blocks)}
    if not first:
        part._modules["embed_tokens"] = None
    if not last:
        part._modules["norm"] = nn.Identity()
    return part
