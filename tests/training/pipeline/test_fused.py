"""Gradients of models in stages are those of whole models: bit for bit where micro-batches are added in the same order.

Tied embeddings have a gradient from the first and one from the last stage, and copies of a critic one each. Those are added at
the end, which is another order: 1e-6 relative is allowed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from pipeline_devices import LOSSES, ThreadGroup, actor_and_critic, micro_batches  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.algorithms.critic import PolicyAndCritic, make_critic  # noqa: E402
from rlhfless.training.pipeline.fused import FusedTraining  # noqa: E402
from rlhfless.training.pipeline.stages import split_model  # noqa: E402
from solver.pipeline import Chain, PipelineProblem, fused, one_f_one_b, schedule_pipeline, serial  # noqa: E402

MICRO_BATCHES = 6


def chain(route: Sequence[int], split: bool = False) -> PipelineProblem:
    return PipelineProblem([Chain("actor", route, MICRO_BATCHES, 1, 2, 1)], split_backward=split)


def whole_gradients(actor: Any, critic: Any, parts: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Gradients of whole models, micro-batch after micro-batch; clears them."""
    for part in parts:
        if critic is None:
            loss, _ = LOSSES["actor"](actor(input_ids=part.input_ids, use_cache=False).logits, part)
        else:
            logprobs, values = PolicyAndCritic(actor, critic)(part.input_ids, 1.0)
            loss = LOSSES["actor"].sum(logprobs) + LOSSES["critic"].sum(values)
        loss.backward()
    return taken(actor, critic)


def taken(actor: Any, critic: Any) -> dict[str, torch.Tensor]:
    """Gradients by name, which are cleared."""
    found = {}
    for model in (actor, critic) if critic is not None else (actor,):
        for name, parameter in model.named_parameters():
            found[f"{type(model).__name__}.{name}"], parameter.grad = parameter.grad, None
    return found


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference, relative to the largest gradient."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize(("kind", "critic_stages"), [("llama", 4), ("qwen2", 4), ("qwen2", 2)])
def test_fused_gradients_are_those_of_whole_models(kind: str, critic_stages: int) -> None:
    actor, critic = actor_and_critic(kind=kind)
    parts, copies = micro_batches(MICRO_BATCHES), 4 // critic_stages
    plan = schedule_pipeline(
        fused((4, 2, MICRO_BATCHES), (critic_stages, 1, MICRO_BATCHES // copies), activations=(1, 1)), time_limit_s=0.1
    )
    with FusedTraining(actor, critic, plan, LOSSES, group=ThreadGroup()) as training:
        step = training.step(parts, parts)
        gradients = taken(actor, critic)
        logprobs, values = training.look("actor", parts), training.look("critic", parts)
    expected = whole_gradients(actor, critic, parts)
    for name, theirs in expected.items():
        summed_apart = (kind == "qwen2" and name.endswith("ForCausalLM.model.embed_tokens.weight")) or (
            copies > 1 and name.startswith("Critic")
        )
        if summed_apart:
            assert apart(gradients[name], theirs) <= 1e-6, name
        else:
            assert torch.equal(gradients[name], theirs), name
    with torch.no_grad():
        outputs = [PolicyAndCritic(actor, critic)(part.input_ids, 1.0) for part in parts]
    assert all(torch.equal(ours, theirs) for ours, (theirs, _) in zip(logprobs, outputs, strict=True))
    assert all(torch.equal(ours, theirs) for ours, (_, theirs) in zip(values, outputs, strict=True))
    assert max(step.in_flight) <= plan.peak_memory
    assert sum(step.reports["critic"]) == pytest.approx(sum(float(LOSSES["critic"].sum(v)) for _, v in outputs), rel=1e-6)
    assert order_of(step.passes) == order_of(plan.table())


def order_of(table: pd.DataFrame) -> dict[int, list[tuple[Any, ...]]]:
    """Operations of each device in order."""
    columns = ["operation", "chain", "stage", "micro_batch"]
    return {device: list(rows[columns].itertuples(index=False, name=None)) for device, rows in table.groupby("device")}


@pytest.mark.parametrize(
    ("route", "split", "schedule"),
    [
        ((0, 1, 2, 3), False, one_f_one_b),
        ((0, 1, 0, 1), False, schedule_pipeline),
        ((0, 1, 1, 0), False, schedule_pipeline),
        ((0, 1, 2, 3), True, schedule_pipeline),
        ((0, 1, 1, 0), True, schedule_pipeline),
    ],
    ids=["1f1b", "interleaved", "v", "split", "split v"],
)
def test_one_chain_runs_in_any_order(route: Sequence[int], split: bool, schedule: Any) -> None:
    actor, _ = actor_and_critic(kind="llama")
    parts, plan = micro_batches(MICRO_BATCHES), schedule(chain(route, split))
    with FusedTraining(actor, None, plan, LOSSES, group=ThreadGroup()) as training:
        step = training.step(parts)
    gradients = taken(actor, None)
    for name, theirs in whole_gradients(actor, None, parts).items():
        assert torch.equal(gradients[name], theirs), name
    assert set(step.passes["operation"]) == ({"F", "I", "W"} if split else {"F", "B"})


def test_weights_that_change_between_steps_are_used_and_a_reference_is_looked_at() -> None:
    actor, critic = actor_and_critic(kind="llama")
    reference, _ = actor_and_critic(kind="llama")
    parts = micro_batches(4)
    plan = serial(fused((2, 1, 4), (2, 1, 4)))
    with FusedTraining(actor, critic, plan, LOSSES, reference=reference, group=ThreadGroup()) as training:
        first = training.look("actor", parts)
        training.step(parts, parts)
        once = [parameter.grad for parameter in actor.parameters()]
        training.step(parts, parts)  # sets gradients, and does not add to those of the step before
        assert all(torch.equal(x, parameter.grad) for x, parameter in zip(once, actor.parameters(), strict=True))
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter -= 0.1 * parameter.grad
        second, frozen = training.look("actor", parts), training.look("reference", parts)
    assert not torch.equal(first[0], second[0])
    assert all(torch.equal(x, y) for x, y in zip(first, frozen, strict=True))


def test_what_does_not_fit_is_refused() -> None:
    actor, critic = actor_and_critic(layers=2)
    plan, alone = serial(fused((2, 1, 4), (2, 1, 4))), one_f_one_b(chain((0, 1, 2)))
    with refused(InputError, "2 blocks", "3 stages"):
        FusedTraining(actor, None, alone, LOSSES)
    with refused(InputError, "2 chains", "critic"):
        FusedTraining(actor, None, plan, LOSSES)
    with refused(InputError, "'model'"):
        FusedTraining(actor, make_critic(actor, "head"), plan, LOSSES)
    with refused(InputError, "'actor'", "3 micro-batches", "4"):
        FusedTraining(actor, critic, plan, LOSSES, group=ThreadGroup()).step(micro_batches(3), micro_batches(4))
    with refused(InputError, "0 GPUs"):
        FusedTraining(actor, critic, plan, LOSSES, gpus=True)
    actor.config.model_type = "gpt2"
    with refused(InputError, "'gpt2'", "llama"):
        split_model(actor, 2)
