"""Tiny language models with random weights for the tests of the torch engine."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCAB, EOS = 32, 0


def tiny_model(kind="qwen2", seed=0, hidden=64, layers=2, **more):
    """A model whose norms and biases are random too, so that none of them can be forgotten unnoticed."""
    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    settings = {
        "vocab_size": VOCAB, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 3 * hidden, "max_position_embeddings": 512,
        "tie_word_embeddings": True, "initializer_range": hidden**-0.5, "eos_token_id": EOS,
        "bos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config_class(**(settings | more)))
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() == 1:
                    p.add_(0.2 * torch.randn_like(p))
    return model.eval()
