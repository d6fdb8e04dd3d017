"""Refuses models whose layers or positions a KV cache of rows cannot hold; each error is one sentence.

What a configuration does not tell, ``TransformersModel`` finds by comparing logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhfless.errors import InputError

LAYERS = ("full_attention", "sliding_attention")
CHANGING = ("dynamic", "longrope")
"""Rotary embeddings that change once a context is longer than the original one, for tokens before it, too."""


def check_layers(model: Any) -> None:
    """Refuse what is no language model with its head, and layers that keep another state than keys and values.

    Raises:
        InputError: it is one of these.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "base_model"):
        raise InputError(f"the transformers engine decodes transformers language models, not a {type(model).__name__}")
    kind = config.model_type
    if model.get_output_embeddings() is None:
        raise InputError(
            f"the transformers engine needs a model with its language-model head, which {type(model).__name__} lacks; load it "
            "with AutoModelForCausalLM"
        )
    others = [layer for layer in getattr(config.get_text_config(), "layer_types", None) or () if layer not in LAYERS]
    if others:
        raise unsupported(kind, f"it has layers of {others[0]}, but only full and sliding attention keep keys and values alone")
    if model.base_model is model or getattr(model, "_is_stateful", False):
        raise unsupported(kind, "it has recurrent layers, or a decoder that cannot be run without its head")


def supported_tokens(model: Any, max_tokens: int | None) -> int:
    """Return the longest context that a model supports with the same rotary embedding at every length.

    Args:
        max_tokens: the longest context that is wanted; None: the longest supported.

    Raises:
        InputError: contexts are wanted that change the embedding; or the model states no longest context and none is wanted.
    """
    config = model.config.get_text_config()
    whole = getattr(config, "max_position_embeddings", None) or max_tokens
    if whole is None:
        raise InputError(f"{model.config.model_type!r} models state no longest context; give max_tokens")
    same = min([whole, *(original for original in _originals(config, whole))])
    if max_tokens is not None and same < max_tokens <= whole:
        why = f"its rotary embedding changes beyond {same} tokens, and max_tokens (prompt and response) is {max_tokens}"
        raise unsupported(model.config.model_type, why, f"give at most {same}")
    return int(same)


def unsupported(kind: str, why: str, instead: str = "") -> InputError:
    """Return the error for models of this ``model_type``."""
    vllm = "use the vLLM engine (executor local or ray)"
    return InputError(
        f"the transformers engine cannot decode this {kind!r} model: {why}; {instead and instead + ', or '}{vllm}"
    )


def _originals(config: Any, whole: int) -> Iterator[int]:
    """Yield the original context of every rotary embedding that changes."""
    for rope in _ropes(config):
        if rope.get("rope_type") in CHANGING:
            original: Any = rope.get("original_max_position_embeddings")
            yield int(original or getattr(config, "original_max_position_embeddings", whole))


def scales_rope(config: Any) -> bool:
    """Return whether a configuration has a rotary embedding that is scaled, with which a context may be extended."""
    return any(rope.get("rope_type", "default") != "default" for rope in _ropes(config))


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of the rotary embedding, and of those of kinds of layers."""
    ropes: Any = getattr(config, "rope_parameters", None) or {}
    yield ropes
    yield from (rope for rope in ropes.values() if isinstance(rope, Mapping))
