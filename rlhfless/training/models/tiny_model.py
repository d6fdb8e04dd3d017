"""A language model small enough to train from scratch on two CPU cores; saves models with their tokenizer.

The folder that ``save_model`` writes has ``config.json``, ``model.safetensors`` and the character tokenizer; transformers and
vLLM read the first two as any Qwen2 model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhfless.training import missing_torch

try:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.common.model_files import write_model
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from rlhfless.engine.torch.pretrained import TOKENIZER_FILE
from rlhfless.training.models.saved_folder import saved_folder


def tiny_qwen2(
    tokenizer: CharTokenizer,
    seed: int = 0,
    *,
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 512,
    max_tokens: int = 1024,
) -> Qwen2ForCausalLM:
    """Return a random Qwen2 model in float32, determined by ``seed``; about half a million parameters by default.

    Does not touch torch's global random state.
    """
    config = Qwen2Config(
        vocab_size=tokenizer.vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=True,
        initializer_range=0.04,
        # Responses are short: slow rotations would leave most of a head blind to position.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        attention_dropout=0.0,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    return model.float().eval()


def save_model(
    model: Any, tokenizer: CharTokenizer | PretrainedTokenizer, folder: str | Path, dtype: str | None = None
) -> None:
    """Write model and tokenizer into ``folder``, synced to the disk. It replaces a model there, and leaves other files.

    Args:
        dtype: number format of the weights, such as ``bfloat16``; ``config.json`` names it. None: the model's.

    Raises:
        TrainError: it could not be written, as on a full disk; earlier content is unchanged.
    """
    with saved_folder(Path(folder)) as draft:
        write_model(model, draft, None if dtype is None else getattr(torch, dtype))
        tokenizer.save(draft / TOKENIZER_FILE if isinstance(tokenizer, CharTokenizer) else draft)
