"""Options that save the learner's memory: recomputed layers, and a reference model that waits on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import gradient_of, noise_batch, small_model  # noqa: E402
from training_samples import config, run_config, same_weights  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.algorithms.registry import recompute_layers  # noqa: E402
from rlhfless.training.config import TrainError  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402
from rlhfless.training.loop import train  # noqa: E402
from rlhfless.training.offload import copied_to, to_cpu  # noqa: E402


def kept_bytes(learner: LocalLearner, batch: Any) -> int:
    """Bytes of activations that autograd keeps between the forward and the backward passes of a batch."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in learner.algorithm.trained.parameters()}
    sizes: list[int] = []

    def keep(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in weights:
            sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.learn(batch)
    return sum(sizes)


@pytest.mark.parametrize(
    ("name", "options"), [("grpo", {"kl_coef": 0.1}), pytest.param("ppo", {"critic": "model"}, marks=pytest.mark.full)]
)
def test_recomputed_layers_keep_fewer_bytes_and_give_the_same_gradient(name: str, options: dict[str, Any]) -> None:
    """Bit for bit, also where dropout draws; and each layer runs once more."""
    batch, found = noise_batch(small_model()), {}
    for recomputed in (False, True):
        model = small_model()
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.3
        learner = LocalLearner.make(name, model, learning_rate=1e-3, gradient_checkpointing=recomputed, **options)
        runs: list[int] = []
        model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, runs=runs: runs.append(torch.is_grad_enabled()))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            kept = kept_bytes(learner, batch)
        found[recomputed] = gradient_of(learner.algorithm.trained), kept, sum(runs)
    (plain, all_bytes, passes), (again, few_bytes, more_passes) = found[False], found[True]
    assert torch.equal(plain, again)
    assert float(plain.abs().max()) > 0
    assert few_bytes < 0.7 * all_bytes
    assert more_passes == 2 * passes


@pytest.mark.full
def test_a_run_is_resumed_with_other_options_of_memory_to_the_same_weights(tmp_path: Path, model: Path) -> None:
    run: dict[str, Any] = {"policy": "static", "gpus": 1, "kl_coef": 0.1, "steps": 2}
    train(config(**run), tmp_path / "whole", model=model)
    saving = {"gradient_checkpointing": True, "offload_reference": True}
    train(config(**{**run, "steps": 1}, **saving), tmp_path / "parts", model=model)
    train(config(**run), tmp_path / "parts", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_an_offloaded_model_is_on_the_device_for_its_passes_only() -> None:
    """The device is ``meta``, which every machine has: passes are made there, and the weights stay where they are."""
    model = to_cpu(small_model())
    before = [(parameter.data_ptr(), parameter.detach().clone()) for parameter in model.parameters()]
    assert copied_to(model, "cpu") is model
    assert copied_to(model.lm_head, "meta")(input=torch.zeros((1, 32), device="meta")).device.type == "meta"
    after = [(parameter.data_ptr(), parameter.detach()) for parameter in model.parameters()]
    assert all(p == q and torch.equal(x, y) for (p, x), (q, y) in zip(before, after, strict=True))


def test_a_model_that_cannot_recompute_is_refused() -> None:
    with refused(InputError, "gradient_checkpointing", "Linear"):
        recompute_layers(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gradient_checkpointing": "yes"}, ("gradient_checkpointing", "'yes'", "True or False")),
        ({"gradient_checkpointing": 1}, ("gradient_checkpointing", "1", "True or False")),
        ({"offload_reference": True}, ("offload_reference", "kl_coef 0")),
        ({"offload_reference": "cpu", "kl_coef": 0.1}, ("offload_reference", "'cpu'", "True or False")),
    ],
)
def test_wrong_values_are_one_sentence(changes: dict[str, Any], said: tuple[str, ...]) -> None:
    with refused(TrainError, *said):
        run_config(**changes)
