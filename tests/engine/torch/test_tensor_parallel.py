"""Tensor-parallel parts of a model: together they are the whole, and what cannot be cut is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from error_messages import refused  # noqa: E402
from torch_models import tiny_model  # noqa: E402

from rlhfless.engine.torch.model import DecoderModel  # noqa: E402
from rlhfless.engine.torch.tensor_parallel import check_parts, part_of  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_parts_have_a_share_of_every_projection_and_add_up_to_the_whole(kind: str) -> None:
    """Of outputs each part has its heads; what projections that are cut by inputs give is added up, biases once."""
    more = {"attention_bias": True, "mlp_bias": True} if kind == "llama" else {}
    model = DecoderModel(tiny_model(kind, **more), 64)
    check_parts(model, 2)
    parts = [part_of(model, rank, 2) for rank in range(2)]
    assert [part.kv_bytes_per_token * 2 for part in parts] == [model.kv_bytes_per_token] * 2
    assert all(part.weight_bytes < model.weight_bytes for part in parts)
    x = torch.randn(5, model.weights.embedding.shape[1], generator=torch.Generator().manual_seed(1))
    for number, layer in enumerate(model.weights.layers):
        ours = [part.weights.layers[number] for part in parts]
        heads = model.heads + 2 * model.kv_heads
        whole = layer.qkv(x).view(5, heads, model.head_dim)
        shares = [own.qkv(x).view(5, heads // 2, model.head_dim) for own in ours]
        for begin, count in ((0, model.heads), (model.heads, model.kv_heads), (model.heads + model.kv_heads, model.kv_heads)):
            joined = torch.cat([share[:, begin // 2 : (begin + count) // 2] for share in shares], 1)
            torch.testing.assert_close(joined, whole[:, begin : begin + count])
        for name in ("out", "down"):
            projection = getattr(layer, name)
            inputs = torch.randn(5, projection.weight.shape[1], generator=torch.Generator().manual_seed(2))
            added = sum(getattr(own, name)(half) for own, half in zip(ours, inputs.chunk(2, 1), strict=True))
            torch.testing.assert_close(added, projection(inputs))


def test_parts_that_are_not_equal_or_not_planned_are_refused() -> None:
    model = DecoderModel(tiny_model(), 64)
    for parts, named in ((4, "2 key-value heads"), (3, "4 attention heads"), (0, "at least 1"), ("2", "'2'")):
        with refused(InputError, f"tensor_parallel is {parts!r}", named):
            check_parts(model, parts)  # type: ignore[arg-type]
    model.tp_plan = {}
    with refused(InputError, "no tensor-parallel plan", "self_attn.q_proj"):
        check_parts(model, 2)
