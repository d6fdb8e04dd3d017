"""Tiny random models of many architectures, made with transformers' own config classes."""

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB, EOS = 64, 63
WINDOW = 6
USUAL = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 128, "initializer_range": 0.3, "bos_token_id": None,
    "pad_token_id": None, "eos_token_id": EOS, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 16, **SLIDING}
LATENT = {
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
ARCHITECTURES = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": WINDOW},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    "gemma3_text": GEMMA,
    "phi3": {"sliding_window": WINDOW},
    "olmo2": {},
    "olmo3": SLIDING,
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0},
    "smollm3": {"no_rope_layers": [1, 0]},
    "qwen3_moe": {"head_dim": 8, **EXPERTS},
    "mixtral": {"sliding_window": WINDOW, **EXPERTS},
    "gpt_oss": {"head_dim": 8, **SLIDING, **EXPERTS},
    "gpt2": {},
    "gpt_neox": {},
    "stablelm": {"use_qkv_bias": True, "use_parallel_residual": True},
    "starcoder2": {"sliding_window": WINDOW},
    "cohere2": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v3": LATENT,
    "glm4": {"head_dim": 8},
}


def tiny(kind, seed=0, **more):
    """A model in evaluation mode whose every parameter is random, sinks and norms included."""
    config = CONFIG_MAPPING[kind](**(USUAL | ARCHITECTURES.get(kind, {}) | more))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() == 1:
                    p.add_(0.3 * torch.randn_like(p))
    model.set_attn_implementation("eager")  # Gemma 2 caps scores nowhere else
    model.generation_config = GenerationConfig(eos_token_id=EOS, pad_token_id=EOS)
    return model.eval()
