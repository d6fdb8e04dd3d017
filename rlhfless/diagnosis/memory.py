"""How much a model takes of the GPUs' memory: weights, KV cache per token, how many sequences fit, and when preemption begins.

Arithmetic on a model's ``config.json`` with the names of transformers:

- KV bytes per token = 2 * layers with attention * KV heads * head size * bytes of a number. With multi-head latent attention
  (DeepSeek) it is layers * (kv_lora_rank + qk_rope_head_dim) * bytes, and every GPU of a replica holds all of it.
- Weights are ``metadata.total_size`` of ``model.safetensors.index.json`` where that is beside the configuration, else counted
  as those of a decoder with gated MLPs, with experts or without.

Activations, CUDA graphs and buffers of the engine are unknown, so what fits is an upper bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import BOUND, DERIVED, LOGGED, Collected, Finding, Number, Part, counted, number
from rlhfless.diagnosis.whole_run import LARGEST
from rlhfless.errors import InputError
from rlhfless.latency.gpus import gpu
from rlhfless.latency.profile import list_profiles, read_profile

GIB = 2.0**30
BYTES = {"float32": 2, "float": 2, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1}
"""Bytes of a number as engines serve it: vLLM's ``auto`` serves float32 weights in 16 bits."""
QUANTISED = {"fp8": 1.0, "fbgemm_fp8": 1.0, "mxfp4": 17 / 32}  # 32 numbers of 4 bits and a scale of 8
WITHOUT_CACHE = ("linear_attention", "mamba", "conv", "recurrent")
VLLM_MEMORY_SHARE = 0.9
LEAST_SHARE_IN_USE = 0.25  # of a cache, from which its size follows to 2 %, as the share has two decimals
EVENLY = 1 << 20  # KV heads where their number is unknown: so many that any number of GPUs divides them


@dataclass(frozen=True)
class ModelMemory:
    """Bytes of a model.

    Attributes:
        name: of the model or its folder.
        kv_bytes_per_token: of all layers, of one replica on one GPU.
        weight_bytes: of all weights; None where the configuration does not tell.
        read_bytes: least bytes that a decode iteration reads: weights without the rows of embeddings and the experts that are
            not asked; None likewise.
        kv_heads: that tensor parallel divides; 0 where every GPU holds all of the cache (latent attention).
        max_context_tokens: longest prompt with its response that the model knows; None where the configuration has none.
        notes: what is not counted, or was taken; sentences.
    """

    name: str
    kv_bytes_per_token: float
    weight_bytes: float | None
    read_bytes: float | None
    kv_heads: int
    max_context_tokens: int | None
    notes: tuple[str, ...] = ()

    def kv_bytes_per_gpu(self, tensor_parallel: int = 1) -> float:
        """Return KV bytes per token of one GPU of a replica; KV heads that are fewer than GPUs are copied."""
        if not self.kv_heads:
            return self.kv_bytes_per_token
        return self.kv_bytes_per_token * math.ceil(self.kv_heads / tensor_parallel) / self.kv_heads


@dataclass(frozen=True)
class MemoryFit:
    """What fits into one replica's memory, at most.

    Attributes:
        kv_tokens: of all sequences together. weights_gib: of one GPU. kv_bytes_per_token: of one GPU.
    """

    kv_tokens: int
    weights_gib: float
    kv_bytes_per_token: float

    def sequences(self, context_tokens: float) -> float:
        """Return how many sequences of so many tokens (prompt and response) fit."""
        return self.kv_tokens / context_tokens

    def preemption_begins_at(self, batch: float) -> float:
        """Return the mean tokens of a sequence (prompt and response so far) at which the cache is full with so many."""
        return self.kv_tokens / batch


def model_memory(model: str | Path | Mapping[str, Any], *, kv_cache_dtype: str = "auto") -> ModelMemory:
    """Return the memory of a model: bytes of its weights, and KV cache bytes per token.

    Args:
        model: its folder, its ``config.json``, the configuration itself, or the name of a shipped profile's model.
        kv_cache_dtype: number format of the engine's KV cache; ``auto`` is the model's own.

    Raises:
        InputError: there is no such model, or its configuration lacks a field that KV bytes depend on; the message names it.

    Example:
        >>> from rlhfless.diagnosis.memory import model_memory
        >>> model_memory({"num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
        ...     "intermediate_size": 18944, "vocab_size": 152064, "torch_dtype": "bfloat16"}).kv_bytes_per_token
        57344.0
    """
    if isinstance(model, Mapping):
        return _of_config(model, "the model", None, kv_cache_dtype)
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    if file.is_file():
        config = _json(file, "a model's config.json")
        return _of_config(config, file.resolve().parent.name if file.name == "config.json" else file.stem, file, kv_cache_dtype)
    profiles = {read_profile(name)["model"].lower(): name for name in list_profiles()}
    if isinstance(model, str) and (known := profiles.get(model.strip().rsplit("/", 1)[-1].lower())):
        return _of_profile(known)
    raise InputError(
        f"{model}: is neither a model's folder or config.json nor a model of a shipped profile "
        f"({', '.join(sorted(profiles))}); name the folder or the config.json of the run's model"
    )


def memory_fit(
    model: ModelMemory,
    gpu_memory_gib: float,
    *,
    tensor_parallel: int = 1,
    memory_share: float = VLLM_MEMORY_SHARE,
    reserved_gib: float = 0.0,
) -> MemoryFit:
    """Return how many KV tokens and sequences fit into the memory of one replica of ``tensor_parallel`` GPUs.

    Args:
        memory_share: share of a GPU's memory that the engine may use (vLLM's ``gpu_memory_utilization``).
        reserved_gib: memory per GPU for activations, CUDA graphs and buffers, if known.

    Raises:
        InputError: a size is not above 0, the model's weights are unknown, or they do not fit.

    Example:
        >>> from rlhfless.diagnosis.memory import ModelMemory, memory_fit
        >>> seven_b = ModelMemory("7B", 57344.0, 15.2e9, 14.1e9, 4, 32768)
        >>> fit = memory_fit(seven_b, 80)
        >>> fit.kv_tokens, round(fit.sequences(32768)), round(fit.preemption_begins_at(512))
        (1083102, 33, 2115)
    """
    if not (gpu_memory_gib > 0 and tensor_parallel >= 1 and 0 < memory_share <= 1 and reserved_gib >= 0):
        raise InputError(
            f"{gpu_memory_gib} GiB of {counted(tensor_parallel, 'GPU')} with a memory share of {memory_share} and "
            f"{reserved_gib} GiB reserved is no memory of a replica; "
            "GiB above 0, at least 1 GPU, a share above 0 and up to 1 are needed"
        )
    if model.weight_bytes is None:
        raise InputError(
            f"{model.name}: the size of its weights is unknown ({'; '.join(model.notes)}); a folder with "
            "model.safetensors.index.json is needed"
        )
    weights = model.weight_bytes / tensor_parallel
    left = memory_share * gpu_memory_gib * GIB - weights - reserved_gib * GIB
    if left <= 0:
        each = "the one GPU" if tensor_parallel == 1 else f"each of {tensor_parallel} GPUs"
        raise InputError(
            f"{model.name}: its weights take {weights / GIB:.1f} GiB of {each}, more than the "
            f"{memory_share * gpu_memory_gib - reserved_gib:.1f} GiB that the engine may use; more GPUs per replica are needed"
        )
    per_token = model.kv_bytes_per_gpu(tensor_parallel)
    if per_token <= 0:
        raise InputError(f"{model.name}: none of its layers has a KV cache; a model with attention is needed")
    return MemoryFit(int(left / per_token), weights / GIB, per_token)


def kv_ratio(model: ModelMemory, other: ModelMemory, tensor_parallel: int = 1) -> float:
    """Return the ratio of KV cache bytes per token of ``model`` to those of ``other``, on each GPU of a replica.

    Example:
        >>> from rlhfless.diagnosis.memory import ModelMemory, kv_ratio
        >>> small, large = (ModelMemory("", kv, None, None, 8, None) for kv in (36864.0, 131072.0))
        >>> round(kv_ratio(large, small), 2)
        3.56
    """
    return model.kv_bytes_per_gpu(tensor_parallel) / other.kv_bytes_per_gpu(tensor_parallel)


def memory(run: LoggedRun, found: Collected) -> Part:
    """Return what the run's model takes of the GPUs' memory: the stated one, or the one whose configuration is the log.

    Without a model it is what the engine states of its KV cache; an empty part where it states nothing.

    Raises:
        InputError: the stated model is none, or its weights do not fit into the stated GPUs.
        GpuError: the stated kind of GPU is not in the table, and its memory is not stated.
    """
    stated = run.stated
    path = run.config or stated.model
    facts = {name: value for name, value in run.facts.items() if 0 < value <= LARGEST}
    by_use = None if "kv_cache_tokens" in facts else _by_use(facts)
    if path is None and "kv_cache_tokens" not in facts and by_use is None:
        return Part()
    replica = stated.tensor_parallel or 1
    model = None if path is None else model_memory(path)
    numbers: list[Number] = []
    notes: list[str] = []
    gib = stated.gpu_memory_gib or (gpu(stated.gpu).memory_gib if stated.gpu else None)
    share = stated.memory_share or VLLM_MEMORY_SHARE
    tokens, evidence, how = facts.get("kv_cache_tokens"), LOGGED, "the engine's own statement when it started"
    if by_use is not None:
        tokens, evidence, how = by_use, DERIVED, "tokens in the cache over the share of it that they take, with two decimals"
    if model is not None:
        notes += model.notes
        if stated.tensor_parallel is None:
            notes.append("a replica is taken to be one GPU, as its tensor parallel size is not stated")
        per_token = model.kv_bytes_per_gpu(replica)
        numbers.append(
            number("model_kv_bytes_per_token", per_token, DERIVED, f"the configuration of {model.name}, of each GPU")
        )
        if tokens is None and gib is not None and model.weight_bytes is not None:
            tokens = float(memory_fit(model, gib, tensor_parallel=replica, memory_share=share).kv_tokens)
            evidence, how = BOUND, f"{share:.0%} of {gib:g} GiB without the weights; activations and CUDA graphs take more"
        if model.weight_bytes is not None:
            gib_each = model.weight_bytes / replica / GIB
            numbers.append(number("model_weights_per_gpu_gib", gib_each, DERIVED, f"the configuration of {model.name}"))
    compared, ratio = _compared(run, model, replica, gib, share)
    numbers += compared
    findings = [] if model is None else [Finding("memory", 0.0, _of_the_model(model, numbers) + ratio, (numbers[0].key,))]
    if tokens is None:
        missing = "the size of the model's weights"
        if model is None or model.weight_bytes is not None:
            missing = "the kind of GPU (--gpu)"
        unknown = f"how many tokens fit into the KV cache: {missing} would tell"
        return Part(tuple(numbers), tuple(findings), cannot_say=(unknown,), notes=tuple(notes))
    numbers.append(number("kv_cache_tokens", tokens, evidence, how))
    qualified = {BOUND: "at most ", DERIVED: "about "}.get(evidence, "")
    fits = f"The KV cache of one engine holds {qualified}{tokens:,.0f} tokens"
    limit = facts.get("max_context_tokens") or (None if model is None else model.max_context_tokens)
    if limit:
        how = f"kv_cache_tokens over {limit:,.0f} tokens each"
        numbers.append(number("full_length_sequences", tokens / limit, evidence, how))
        fits += f": {tokens / limit:,.2f} sequences of {limit:,.0f} tokens, and more of shorter ones"
    batch = found.numbers.value("engine_peak_requests")
    if batch:
        at = f"kv_cache_tokens over the peak batch of {batch:,.0f} requests"
        numbers.append(number("preemption_begins_at_tokens", tokens / batch, evidence, at))
        fits += f"; with {batch:,.0f} requests it is full at a mean of {tokens / batch:,.0f} tokens each"
    sentence = " ".join([f"{fits}.", *(one.sentence for one in findings)])
    return Part(tuple(numbers), (Finding("memory", 0.0, sentence, ("kv_cache_tokens",)),), notes=tuple(notes))


def _by_use(facts: Mapping[str, float]) -> float | None:
    """Return the tokens of a cache by those in it; None where their share is unknown, or too small for its two decimals."""
    tokens, share = facts.get("cached_tokens"), facts.get("cached_share", 0.0)
    return tokens / share if tokens is not None and LEAST_SHARE_IN_USE <= share <= 1 else None


def _of_the_model(model: ModelMemory, numbers: list[Number]) -> str:
    known = {one.key: one.value for one in numbers}
    sentence = f"{model.name} takes {known['model_kv_bytes_per_token'] / 1024:,.1f} KiB of KV cache per token"
    if "model_weights_per_gpu_gib" in known:
        sentence += f" and {known['model_weights_per_gpu_gib']:,.1f} GiB of weights on each GPU"
    return f"{sentence}."


def _compared(
    run: LoggedRun, model: ModelMemory | None, replica: int, gib: float | None, share: float
) -> tuple[list[Number], str]:
    """Compare the model whose configuration is the log with the stated one: a number and a sentence; nothing of one model.

    How many tokens fit also depends on what the weights leave, so it is said where the memory of a GPU is known.

    Args:
        gib: memory of a GPU. share: of it that the engine may use.
    """
    if model is None or run.config is None or run.stated.model is None:
        return [], ""
    other = model_memory(run.stated.model)
    if not min(model.kv_bytes_per_token, other.kv_bytes_per_token) > 0:
        return [], ""  # one of them has no KV cache
    ratio = kv_ratio(model, other, replica)
    how = f"KV bytes per token of {model.name} over those of {other.name}"
    said = f" That is {ratio:.2f} times the KV cache per token of {other.name}"
    numbers = [number("kv_bytes_ratio", ratio, DERIVED, how)]
    if gib is None or model.weight_bytes is None or other.weight_bytes is None:
        return numbers, f"{said}; how many tokens fit also depends on the weights."
    try:
        own, others = (memory_fit(one, gib, tensor_parallel=replica, memory_share=share).kv_tokens for one in (model, other))
    except InputError:  # the weights of one of them do not fit
        return numbers, f"{said}."
    if not own or not others:
        return numbers, f"{said}."
    how = f"tokens of {model.name} over those of {other.name} that fit into {share:.0%} of {gib:g} GiB beside the weights"
    numbers.append(number("kv_tokens_ratio", own / others, DERIVED, how))
    return numbers, f"{said}, and with the weights of both, {own / others:.2f} times as many tokens of {model.name} fit."


def _json(file: Path, what: str) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read as JSON ({type(error).__name__}); {what} is needed") from error
    if not isinstance(config, dict):
        raise InputError(f"{file}: is not a JSON object; {what} is needed")
    return config


def _of_profile(name: str) -> ModelMemory:
    """Return the bytes that a shipped profile has of its model."""
    profile = read_profile(name)
    weights = profile["kv_capacity"]["weight_bytes"]
    sizes = f"the bytes of the weights and of the KV cache are those of {profile['model']} in its shipped profiles"
    note = f"{sizes}; each GPU of a replica is assumed to hold an equal share of the KV cache"
    kv_bytes = float(profile["link"]["kv_bytes_per_token"])
    return ModelMemory(profile["model"], kv_bytes, weights, weights, EVENLY, None, (note,))


def _of_config(config: Mapping[str, Any], name: str, file: Path | None, kv_cache_dtype: str) -> ModelMemory:
    notes: list[str] = []
    for inner in ("text_config", "llm_config", "thinker_config"):
        if isinstance(config.get(inner), Mapping):
            config = {**{key: config[key] for key in ("torch_dtype", "dtype") if key in config}, **config[inner]}
            notes.append("other parts of the model than its text decoder are not counted")
    fields = _Fields(config, str(file or name))
    bytes_each = _bytes_of_number(fields, notes)
    cache_bytes = bytes_each if kv_cache_dtype == "auto" else BYTES.get(kv_cache_dtype.split("_")[0])
    if cache_bytes is None:
        raise InputError(f"kv_cache_dtype is {kv_cache_dtype!r}; auto, bfloat16, float16 or fp8 is needed")
    layers = fields.count("num_hidden_layers")
    cached = _layers_with_cache(fields, layers, notes)
    latent = fields.count("kv_lora_rank", 0)
    if latent:
        kv_heads, per_layer = 0, latent + fields.count("qk_rope_head_dim", 0)
    else:
        heads = fields.count("num_attention_heads")
        if not heads:
            raise InputError(f"{fields.source}: the field num_attention_heads is 0; a whole number above 0 is needed")
        kv_heads = fields.count("num_key_value_heads", heads)
        per_layer = 2 * kv_heads * fields.head_size(heads)
    weights, read = _weights(fields, layers, bytes_each, notes)
    index = file.parent / "model.safetensors.index.json" if file is not None else None
    if index is not None and index.is_file():
        total = _json(index, "an index of safetensors").get("metadata")
        size = total.get("total_size") if isinstance(total, Mapping) else None
        if isinstance(size, int | float) and size > 0:
            read = float(size) * read / weights if read and weights else None
            weights = float(size)
    longest = fields.count("max_position_embeddings", 0) or None
    kv = float(cached * per_layer * cache_bytes)
    return ModelMemory(name, kv, weights, read, kv_heads, longest, tuple(dict.fromkeys(notes)))


class _Fields:
    """Fields of a configuration; a wrong one is named."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of 0 or more."""
        value = self.config.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value > 1 << 40:
            raise InputError(f"{self.source}: the field {name} is {value!r}; a whole number of 0 or more is needed")
        return value

    def head_size(self, heads: int) -> int:
        """Return ``head_dim``, or the hidden size over the heads."""
        if self.config.get("head_dim") is not None:
            return self.count("head_dim")
        return self.count("hidden_size") // max(heads, 1)

    def first(self, *names: str) -> int:
        """Return the first of several names that is there, else 0."""
        return next((self.count(name) for name in names if self.config.get(name) is not None), 0)


def _bytes_of_number(fields: _Fields, notes: list[str]) -> int:
    named = fields.config.get("torch_dtype", fields.config.get("dtype"))
    if named is None:
        notes.append("the configuration names no number format; 16 bits are taken")
        return 2
    plain = str(named).removeprefix("torch.")
    if plain not in BYTES:
        raise InputError(f"{fields.source}: the field torch_dtype is {named!r}; bfloat16, float16 or float32 is needed")
    if plain in ("float32", "float"):
        notes.append("float32 weights are counted in 16 bits, as vLLM's dtype=auto serves them")
    return BYTES[plain]


def _layers_with_cache(fields: _Fields, layers: int, notes: list[str]) -> int:
    """Return the layers that hold KV of every token."""
    kinds, every = fields.config.get("layer_types"), fields.count("full_attention_interval", 0)
    cached = layers
    if isinstance(kinds, list) and len(kinds) == layers:
        cached = sum(str(kind) not in WITHOUT_CACHE for kind in kinds)
    elif every:
        cached = layers // every
    if cached < layers:
        notes.append(f"the state of {layers - cached} of {layers} layers without a KV cache is not counted")
    sliding = isinstance(kinds, list) and "sliding_attention" in kinds
    if sliding or (fields.config.get("sliding_window") and fields.config.get("use_sliding_window", True)):
        notes.append(
            "sliding windows are not counted: every layer is taken to keep every token, so KV bytes are an upper bound"
        )
    return cached


def _weights(fields: _Fields, layers: int, bytes_each: int, notes: list[str]) -> tuple[float | None, float | None]:
    """Return bytes of all weights, and of those that a decode iteration reads at least; None where a field is missing."""
    config = fields.config
    if not all(isinstance(config.get(name), int) for name in ("hidden_size", "vocab_size", "num_attention_heads")):
        notes.append("weights are unknown: the configuration lacks hidden_size, vocab_size or num_attention_heads")
        return None, None
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    experts = fields.first("n_routed_experts", "num_experts", "num_local_experts")
    wide, narrow = fields.first("intermediate_size"), fields.first("moe_intermediate_size", "intermediate_size")
    if not wide and not narrow:
        notes.append("weights are unknown: the configuration lacks intermediate_size")
        return None, None
    dense = layers
    if experts:
        dense = fields.count("first_k_dense_replace", 0)
        only = config.get("mlp_only_layers")
        dense += len(only) if isinstance(only, list) else 0
        every = max(fields.first("decoder_sparse_step", "moe_layer_freq"), 1)
        dense += (layers - dense) - (layers - dense) // every
    shared = fields.count("n_shared_experts", 0) * narrow + fields.first("shared_expert_intermediate_size")
    chosen = fields.first("num_experts_per_tok", "num_experts_per_token", "top_k_experts") or experts
    per_expert, always = 3 * hidden * narrow, hidden * experts + 3 * hidden * shared
    attention = _attention(fields, hidden, heads) + 2 * hidden
    body = layers * attention + dense * 3 * hidden * wide + (layers - dense) * always + hidden
    table = fields.count("vocab_size") * hidden
    tied = bool(config.get("tie_word_embeddings", False))
    total = body + (layers - dense) * experts * per_expert + table * (1 if tied else 2)
    read = body + (layers - dense) * min(chosen, experts) * per_expert + table
    if experts:
        notes.append(f"of {experts} experts a decode iteration reads {chosen} at least, and nearly all in a large batch")
    scale = _quantised(config, notes)
    return (None, None) if scale is None else (total * (scale or bytes_each), read * (scale or bytes_each))


def _attention(fields: _Fields, hidden: int, heads: int) -> int:
    """Return the parameters of one attention block, biases included where the family has them."""
    latent = fields.count("kv_lora_rank", 0)
    if latent:
        nope, rope = fields.count("qk_nope_head_dim", 0), fields.count("qk_rope_head_dim", 0)
        value, rank = fields.count("v_head_dim", 0), fields.count("q_lora_rank", 0)
        query = (hidden * rank + rank + rank * heads * (nope + rope)) if rank else hidden * heads * (nope + rope)
        down, up = hidden * (latent + rope) + latent, latent * heads * (nope + value)
        return query + down + up + heads * value * hidden
    size, kv_heads = fields.head_size(heads), fields.count("num_key_value_heads", heads)
    own = hidden * heads * size + 2 * hidden * kv_heads * size + heads * size * hidden
    kind = str(fields.config.get("model_type", ""))
    biased = fields.config.get("attention_bias") or kind.startswith("qwen2")
    return own + ((heads + 2 * kv_heads) * size if biased else 0) + (2 * size if kind.startswith("qwen3") else 0)


def _quantised(config: Mapping[str, Any], notes: list[str]) -> float | None:
    """Return bytes of a quantised weight, 0 for weights that are not; None where the method is unknown."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return 0.0
    bits, method = found.get("bits"), str(found.get("quant_method", ""))
    if isinstance(bits, int) and 0 < bits <= 16:
        notes.append(f"weights are counted with {bits} bits each; scales and parts that stay in 16 bits are not counted")
        return bits / 8
    if method in QUANTISED:
        notes.append(f"weights are counted as {method}; scales and parts that stay in 16 bits are not counted")
        return QUANTISED[method]
    notes.append("weights are unknown: the configuration names an unknown quantisation")
    return None
