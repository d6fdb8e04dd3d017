"""Memory arithmetic: numbers of public models by hand, what fits, and configurations that do not tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from engine_samples import read_lines, rollout_lines
from error_messages import refused

from rlhfless.diagnosis import diagnose
from rlhfless.diagnosis.engine_profile import engine_lines
from rlhfless.diagnosis.logged_run import LoggedRun, Stated
from rlhfless.diagnosis.memory import kv_ratio, memory, memory_fit, model_memory
from rlhfless.diagnosis.numbers import BOUND, DERIVED, LOGGED, Collected, Part
from rlhfless.errors import InputError
from rlhfless.latency import GpuError

LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}  # fmt: skip
QWEN_7B = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "intermediate_size": 18944, "vocab_size": 152064, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "sliding_window": 131072, "use_sliding_window": False, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN_3B = {
    **QWEN_7B, "num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
    "intermediate_size": 11008, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
DEEPSEEK_LITE = {
    "model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "q_lora_rank": None, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "intermediate_size": 10944, "vocab_size": 102400,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "kv_bytes", "parameters"),
    [
        (QWEN_3B, 2 * 36 * 2 * 128 * 2, 3_085_938_688),
        (QWEN_7B, 2 * 28 * 4 * 128 * 2, 7_615_616_512),
        (LLAMA_8B, 2 * 32 * 8 * 128 * 2, 8_030_261_248),
        (DEEPSEEK_LITE, 27 * (512 + 64) * 2, 15_706_484_224),
    ],
    ids=["Qwen2.5-3B", "Qwen2.5-7B", "Llama-3.1-8B", "DeepSeek-V2-Lite"],
)
def test_bytes_of_public_models(config: dict[str, Any], kv_bytes: int, parameters: int) -> None:
    """The parameters are those that the models' pages on the hub state."""
    model = model_memory(config)
    assert model.kv_bytes_per_token == kv_bytes
    assert model.weight_bytes == 2 * parameters


def test_what_a_decode_iteration_reads_at_least() -> None:
    tied, untied = model_memory(QWEN_3B), model_memory(QWEN_7B)
    assert tied.read_bytes == tied.weight_bytes
    assert untied.weight_bytes is not None
    assert untied.read_bytes == untied.weight_bytes - 2 * 152064 * 3584, "rows of embeddings are looked up"
    experts = model_memory(DEEPSEEK_LITE)
    assert experts.weight_bytes is not None
    assert experts.read_bytes == experts.weight_bytes - 2 * (26 * 58 * 3 * 2048 * 1408 + 102400 * 2048)
    assert any("experts" in note for note in experts.notes)


def test_what_fits_by_hand() -> None:
    """80 GiB at 0.9 without 15.2 GB leave 62.1 GB: 1.08 million tokens of 57,344 bytes, 66 sequences of 16,384."""
    model = model_memory(QWEN_7B)
    fit = memory_fit(model, 80)
    assert fit.kv_tokens == int((0.9 * 80 * 2**30 - 2 * 7_615_616_512) / 57344) == 1_082_557
    assert fit.sequences(16384) == pytest.approx(66.07, abs=0.01)
    assert fit.preemption_begins_at(512) == pytest.approx(2114.4, abs=0.1)
    assert fit.weights_gib == pytest.approx(14.185, abs=0.001)
    assert memory_fit(model, 80, reserved_gib=2.0).kv_tokens == pytest.approx(fit.kv_tokens - 2 * 2**30 / 57344, abs=1)


def test_tensor_parallel_divides_heads_and_copies_them_where_they_are_fewer() -> None:
    seven, latent = model_memory(QWEN_7B), model_memory(DEEPSEEK_LITE)
    assert [seven.kv_bytes_per_gpu(size) for size in (1, 2, 4, 8)] == [57344, 28672, 14336, 14336]
    assert [latent.kv_bytes_per_gpu(size) for size in (1, 8)] == [31104, 31104]
    assert memory_fit(seven, 80, tensor_parallel=4).weights_gib == pytest.approx(14.185 / 4, abs=0.001)


def test_two_models_compared() -> None:
    assert kv_ratio(model_memory(LLAMA_8B), model_memory(QWEN_3B)) == pytest.approx(131072 / 36864)
    assert kv_ratio(model_memory(QWEN_7B), model_memory(DEEPSEEK_LITE), 8) == pytest.approx(14336 / 31104)


def test_a_folder_has_its_name_and_the_exact_size_of_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN_7B))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 15_231_233_024}}))
    for named in (folder, folder / "config.json", str(folder)):
        model = model_memory(named)
        assert (model.name, model.weight_bytes) == ("my-model", 15_231_233_024)


def test_the_model_of_a_shipped_profile() -> None:
    model = model_memory("Qwen/Qwen2.5-3B")
    assert (model.kv_bytes_per_token, model.weight_bytes) == (36864, pytest.approx(2 * 3_085_938_688, rel=1e-4))


@pytest.mark.parametrize(
    ("change", "kv_bytes", "noted"),
    [
        ({"torch_dtype": "float32"}, 57344, "float32"),
        ({"torch_dtype": None}, 57344, "16 bits"),
        ({"head_dim": 64}, 28672, ""),
        ({"use_sliding_window": True}, 57344, "upper bound"),
        ({"layer_types": ["linear_attention"] * 21 + ["full_attention"] * 7}, 14336, "21 of 28 layers"),
        ({"full_attention_interval": 4}, 14336, "21 of 28 layers"),
        ({"num_key_value_heads": None}, 57344 * 7, ""),
    ],
)
def test_what_a_configuration_may_have_or_lack(change: dict[str, Any], kv_bytes: int, noted: str) -> None:
    model = model_memory({**QWEN_7B, **change})
    assert model.kv_bytes_per_token == kv_bytes
    assert noted in " ".join(model.notes)
    if not noted:
        assert model.notes == ()


def test_the_text_decoder_of_a_larger_model() -> None:
    model = model_memory({"torch_dtype": "bfloat16", "text_config": {k: v for k, v in QWEN_7B.items() if k != "torch_dtype"}})
    assert model.kv_bytes_per_token == 57344
    assert any("not counted" in note for note in model.notes)


def test_quantised_weights_and_cache() -> None:
    eight = model_memory({**QWEN_7B, "quantization_config": {"quant_method": "fp8"}}, kv_cache_dtype="fp8")
    assert (eight.kv_bytes_per_token, eight.weight_bytes) == (28672, 7_615_616_512)
    four = model_memory({**QWEN_7B, "quantization_config": {"quant_method": "awq", "bits": 4}})
    assert four.weight_bytes == 7_615_616_512 / 2
    unknown = model_memory({**QWEN_7B, "quantization_config": {"quant_method": "own"}})
    assert unknown.weight_bytes is None
    with refused(InputError, "unknown"):
        memory_fit(unknown, 80)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": None}, ("num_hidden_layers",)),
        ({"num_hidden_layers": -1}, ("num_hidden_layers", "-1")),
        ({"num_key_value_heads": "4"}, ("num_key_value_heads", "'4'")),
        ({"torch_dtype": "int1"}, ("torch_dtype", "int1")),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], named: tuple[str, ...]) -> None:
    with refused(InputError, *named):
        model_memory({**QWEN_7B, **change})


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with refused(InputError, "no-such-model", "config.json"):
        model_memory("no-such-model")
    for text in ("[1]", "{"):
        (tmp_path / "config.json").write_text(text)
        with refused(InputError, str(tmp_path / "config.json")):
            model_memory(tmp_path)


def test_weights_that_do_not_fit_are_refused() -> None:
    with refused(InputError, "14.2 GiB", "GPUs"):
        memory_fit(model_memory(QWEN_7B), 14)
    for wrong in (
        {"gpu_memory_gib": 0},
        {"gpu_memory_gib": 80, "memory_share": 1.5},
        {"gpu_memory_gib": 80, "tensor_parallel": 0},
    ):
        with refused(InputError, "share"):
            memory_fit(model_memory(QWEN_7B), **wrong)


def part_of(stated: Stated, facts: dict[str, float] | None = None, engine: bool = False) -> Part:
    lines = read_lines(rollout_lines() if engine else [])
    run = LoggedRun("log", "vLLM", pd.DataFrame(), engine=lines, stated=stated, facts=facts or {})
    found = Collected()
    found.add(engine_lines(run, found))
    return memory(run, found)


def config_file(folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps(QWEN_7B))
    return str(folder / "config.json")


def test_the_diagnosis_says_nothing_of_a_model_that_nobody_states() -> None:
    assert part_of(Stated(gpu="h100")) == Part()


def test_the_diagnosis_of_a_stated_model_and_gpu(tmp_path: Path) -> None:
    part = part_of(Stated(model=config_file(tmp_path), gpu="h100"), engine=True)
    found = {one.key: one for one in part.numbers}
    assert (found["kv_cache_tokens"].value, found["kv_cache_tokens"].evidence) == (1_082_557, BOUND)
    assert found["full_length_sequences"].value == pytest.approx(1_082_557 / 131072)
    assert found["preemption_begins_at_tokens"].value == pytest.approx(1_082_557 / 200), (
        "200 requests are the peak of the lines"
    )
    assert any("one GPU" in note for note in part.notes)


def test_what_the_engine_states_goes_before_arithmetic(tmp_path: Path) -> None:
    part = part_of(
        Stated(model=config_file(tmp_path), tensor_parallel=1), {"kv_cache_tokens": 900_000, "max_context_tokens": 9000}
    )
    found = {one.key: one for one in part.numbers}
    assert (found["kv_cache_tokens"].value, found["kv_cache_tokens"].evidence) == (900_000, LOGGED)
    assert found["full_length_sequences"].value == 100
    assert part.notes == ()


def test_without_a_gpu_the_diagnosis_says_what_would_tell(tmp_path: Path) -> None:
    part = part_of(Stated(model=config_file(tmp_path)))
    assert [one.key for one in part.numbers] == ["model_kv_bytes_per_token", "model_weights_per_gpu_gib"]
    assert any("GPU" in sentence for sentence in part.cannot_say)
    with refused(GpuError, "h1000"):
        part_of(Stated(model=config_file(tmp_path), gpu="h1000"))


def test_a_configuration_is_a_log_and_is_compared_with_a_stated_one(tmp_path: Path) -> None:
    for name, heads in (("one", 4), ("other", 8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**QWEN_7B, "num_key_value_heads": heads}))
    one, other = (tmp_path / name / "config.json" for name in ("one", "other"))
    alone = diagnose(one)
    assert alone.verdict[0].kind == "memory"
    assert alone.numbers["model_kv_bytes_per_token"].value == 57344
    assert any("--gpu" in sentence for sentence in alone.cannot_say)
    both = diagnose(one, Stated(model=str(other), gpu="h100", tensor_parallel=1))
    assert both.numbers["kv_bytes_ratio"].value == 0.5
    assert {"kv_cache_tokens", "full_length_sequences"} <= set(both.numbers)
    assert "0.50 times" in both.verdict[0].sentence


def test_how_many_tokens_fit_of_two_models_counts_their_weights(tmp_path: Path) -> None:
    """With half the KV bytes per token and heavier weights, fewer tokens fit into a small GPU, not twice as many."""
    for name, change in (("heavy", {"num_key_value_heads": 2, "intermediate_size": 30000}), ("light", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**QWEN_7B, **change}))
    heavy, light = (tmp_path / name / "config.json" for name in ("heavy", "light"))
    found = diagnose(heavy, Stated(model=str(light), gpu_memory_gib=24.0, tensor_parallel=1))
    left = [0.9 * 24 * 2**30 - model_memory(one).weight_bytes for one in (heavy, light)]
    assert found.numbers["kv_bytes_ratio"].value == 0.5
    assert found.numbers["kv_tokens_ratio"].value == pytest.approx(2 * left[0] / left[1], rel=1e-3)
    assert found.numbers["kv_tokens_ratio"].value < 1
    unknown = diagnose(heavy, Stated(model=str(light), tensor_parallel=1))
    assert "kv_tokens_ratio" not in unknown.numbers
    assert "times as many" not in unknown.verdict[0].sentence


def test_what_an_engine_states_needs_no_model() -> None:
    part = part_of(Stated(), {"kv_cache_tokens": 90_000, "max_context_tokens": 9000}, engine=True)
    found = {one.key: one.value for one in part.numbers}
    assert found == {"kv_cache_tokens": 90_000, "full_length_sequences": 10, "preemption_begins_at_tokens": 450}
    assert "10.00 sequences" in part.findings[0].sentence


def test_the_size_of_a_cache_follows_from_the_fullest_line_of_sglang(tmp_path: Path) -> None:
    line = "Decode batch. #running-req: {}, #token: {}, token usage: {}, gen throughput (token/s): 800.00, #queue-req: 9"
    (tmp_path / "engine.log").write_text("\n".join(line.format(*one) for one in ((40, 6000, 0.15), (200, 32000, 0.80))))
    found = diagnose(tmp_path / "engine.log")
    assert (found.numbers["kv_cache_tokens"].value, found.numbers["kv_cache_tokens"].evidence) == (40_000, DERIVED)
    assert found.numbers["preemption_begins_at_tokens"].value == 200
    assert found.verdict[0].kind == "pace", "the pace is what is said first"
    (tmp_path / "engine.log").write_text(line.format(40, 6000, 0.15))
    assert "kv_cache_tokens" not in diagnose(tmp_path / "engine.log").numbers, "0.15 may be anything from 0.145 to 0.155"


def test_what_sglang_states_goes_before_what_its_lines_show(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text(
        "max_total_num_tokens=41000, chunked_prefill_size=8192\n"
        "Decode batch. #running-req: 200, #token: 32000, token usage: 0.80, gen throughput (token/s): 800.00, #queue-req: 9\n"
    )
    found = diagnose(tmp_path / "engine.log")
    assert (found.numbers["kv_cache_tokens"].value, found.numbers["kv_cache_tokens"].evidence) == (41_000, LOGGED)
