"""The copy of a model's weights that the torch engine decodes with."""

from __future__ import annotations

import pytest
import torch
from error_messages import refused
from torch_models import tiny_model

from rlhfless.engine.torch import worker_backend as torch_backend
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.weights import tensors_of
from rlhfless.errors import ClosedError, InputError


@pytest.mark.parametrize("given", ["model", "state dict"])
def test_a_head_that_is_tied_to_the_embedding_is_held_and_sent_once(given: str) -> None:
    """Transformers names it twice in a state dict."""
    source = tiny_model(seed=1)
    assert "lm_head.weight" in source.state_dict()
    model = DecoderModel(tiny_model())
    model.load(source if given == "model" else source.state_dict())
    assert model.weights.head.weight is model.weights.embedding
    assert torch.equal(model.weights.embedding, source.get_input_embeddings().weight)
    bytes_of = sum(p.numel() * p.element_size() for p in source.parameters())
    assert model.weight_bytes == bytes_of
    form, buffers = torch_backend.Backend().pack(model.weights)
    sent = len(form) + sum(buffer.raw().nbytes for buffer in buffers)
    assert sent < bytes_of + source.get_input_embeddings().weight.nbytes / 2


def test_a_head_of_its_own_is_copied() -> None:
    source = tiny_model(seed=1, tie_word_embeddings=False)
    model = DecoderModel(source)
    assert torch.equal(model.weights.head.weight, source.lm_head.weight)
    assert not torch.equal(model.weights.head.weight, model.weights.embedding)
    loosened = {**tiny_model().state_dict(), "lm_head.weight": source.lm_head.weight}  # of a tied architecture
    model.load(loosened)
    assert torch.equal(model.weights.head.weight, source.lm_head.weight)


@pytest.mark.parametrize("given", ["model", "state dict"])
def test_weights_are_copied_over_those_in_use(given: str) -> None:
    """At the same addresses, which CUDA graphs know."""
    model, source = DecoderModel(tiny_model()), tiny_model(seed=1)
    before, tensors = model.weights, tensors_of(model.weights)
    model.load(source if given == "model" else source.state_dict())
    assert model.weights is before
    fresh = tensors_of(DecoderModel(source).weights)
    for tensor, kept, expected in zip(tensors_of(model.weights), tensors, fresh, strict=True):
        assert tensor is kept
        assert torch.equal(tensor, expected)


def test_a_head_that_is_tied_no_more_gets_storage_of_its_own() -> None:
    tied, loose = tiny_model(seed=1), tiny_model(seed=2, tie_word_embeddings=False)
    model = DecoderModel(tied)
    embedding = model.weights.embedding
    for source, is_tied in ((loose, False), (tied, True)):
        model.load(source)
        assert model.weights.embedding is embedding
        assert (model.weights.head.weight is embedding) == is_tied
        assert torch.equal(model.weights.head.weight, source.lm_head.weight)
        assert torch.equal(embedding, source.get_input_embeddings().weight)


def test_half_copied_weights_are_not_decoded_with(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = DecoderModel(tiny_model()), tiny_model(seed=1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.load(source)
    with pytest.raises(ClosedError, match="released"):
        model.decode(model.new_cache(), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 8)
    model.load(source)
    assert torch.equal(model.weights.embedding, source.get_input_embeddings().weight)


@pytest.mark.parametrize("freed", [False, True])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"num_hidden_layers": 3},
            ("model.layers.2.",),
        ),
        (
            {"num_hidden_layers": 1},
            ("model.layers.1.",),
        ),
        (
            {"hidden_size": 128},
            ("model.embed_tokens.weight", "32", "128", "64"),
        ),
        (
            {"intermediate_size": 96},
            ("model.layers.0.mlp.gate_proj.weight", "96", "64"),
        ),
    ],
)
def test_weights_of_another_size_are_refused_and_those_in_use_stay(
    other: dict[str, int], said: tuple[str, ...], freed: bool
) -> None:
    model, source = DecoderModel(tiny_model()), tiny_model(**other)
    if freed:
        model.free()
    before = model.weights
    for given in (source, source.state_dict()):
        with refused(InputError, *said):
            model.load(given)
        assert model.weights is before
