"""Processes (gloo, on the CPU) execute planned pipelines: in the plan's order, with the gradients of whole models.

Gradients are equal bit for bit where micro-batches are added in the same order. Tied embeddings have a gradient from the first
and one from the last stage, and copies of a critic one each. Those are added at the end, which is another order: 1e-6 relative
is allowed there.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from typing import Any

import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import gloo_ranks  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training import run_pipelines  # noqa: E402
from rlhfless.training.algorithms.critic import make_critic  # noqa: E402
from rlhfless.training.config import LearnerError  # noqa: E402
from rlhfless.training.demonstrations.pipeline import PipelineRun, split_model  # noqa: E402
from rlhfless.training.models.tiny_model import tiny_qwen2  # noqa: E402
from solver import PlanningError  # noqa: E402
from solver.pipeline import (  # noqa: E402
    Chain,
    PipelinePlan,
    PipelineProblem,
    fused,
    schedule_pipeline,
    serial,
)

TIED = "policy.model.embed_tokens.weight"


def llama(blocks: int) -> Any:
    """A small model whose embeddings are not tied."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=20, num_hidden_layers=blocks, **sizes)).eval()


def both(stages: int, critic_stages: int, micro_batches: int) -> PipelinePlan:
    """Actor and critic together; the critic's copies share the micro-batches."""
    copies = stages // critic_stages
    actor, critic = (stages, 2, micro_batches), (critic_stages, 1, micro_batches // copies)
    return schedule_pipeline(fused(actor, critic, activations=(1, 1)), time_limit_s=0.1)


def alone(*route: int, split: bool = False) -> PipelineProblem:
    """The actor alone, on the device of each stage."""
    return PipelineProblem([Chain("actor", route, 6, 1, 2, 1)], split_backward=split)


def check(runs: Mapping[str, list[PipelineRun]], tied: bool) -> None:
    """Every plan has run in its order, not faster than planned, with the gradients of whole models."""
    for name, (run,) in runs.items():
        plan = run.executed.plan
        assert run.in_planned_order, name
        assert run.over_plan > -1e-6, "a pass takes its planned time at least"
        assert max(run.in_flight) <= plan.peak_memory, name
        assert run.executed.table()["memory"].max() == plan.peak_memory
        assert run.gradients.keys() == run.whole_gradients.keys()
        copies = len(plan.problem.chains) > 2
        for weight, difference in run.differences.items():
            summed_apart = (tied and weight == TIED) or (copies and weight.startswith("critic."))
            assert difference <= (1e-6 if summed_apart else 0), (name, weight)


@pytest.mark.full
def test_two_processes_run_actor_and_critic_together() -> None:
    """Tied embeddings; one critic over both devices, a copy of it on each, none, and the two models in series."""
    plans = {
        "fused": both(2, 2, 4),
        "copies": both(2, 1, 4),
        "serial": serial(fused((2, 2, 4), (2, 1, 4), activations=(1, 1))),
        "actor": serial(alone(0, 1)),
    }
    runs = run_pipelines(plans, unit_s=0.005)
    check(runs, tied=True)
    assert {name.split(".")[0] for name in runs["fused"][0].gradients} == {"policy", "critic"}
    assert {name.split(".")[0] for name in runs["actor"][0].gradients} == {"policy"}
    assert set(runs["copies"][0].executed.passes["chain"]) == {"actor", "critic 0", "critic 1"}


@pytest.mark.full
def test_four_processes_run_any_plan() -> None:
    """Interleaved stages, V shapes and split backward passes, all in the same processes, twice."""
    plans = {
        "fused": both(4, 4, 6),
        "copies": both(4, 2, 6),
        "1f1b": serial(alone(0, 1, 2, 3)),
        "interleaved": schedule_pipeline(alone(0, 1, 0, 1)),
        "v": schedule_pipeline(alone(0, 1, 1, 0)),
        "split": schedule_pipeline(alone(0, 1, 2, 3, split=True)),
        "split v": schedule_pipeline(alone(0, 1, 1, 0, split=True)),
    }
    runs = run_pipelines(plans, llama(4), unit_s=0.002, repeats=2)
    for repeat in range(2):
        check({name: [of_plan[repeat]] for name, of_plan in runs.items()}, tied=False)
    assert set(runs["split"][0].executed.passes["operation"]) == {"F", "I", "W"}
    assert set(runs["v"][0].executed.passes["operation"]) == {"F", "B"}


@pytest.mark.full
def test_a_process_that_is_killed_ends_all_with_a_sentence() -> None:
    """Process 1 kills itself at its third micro-batch, while process 0 waits for it."""
    actor = llama(2)
    actor.model.layers[1].register_forward_pre_hook(gloo_ranks.kill_at_the_third_call)
    with refused(LearnerError, "process 1 of the pipeline", "SIGKILL", "run the demonstration again"):
        run_pipelines({"fused": both(2, 2, 4)}, actor)
    assert not [each.name for each in multiprocessing.active_children() if each.name.startswith("rlhfless-pipeline")]


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_stages_in_series_compute_the_model_bit_for_bit(kind: str, stages: int) -> None:
    model = llama(3) if kind == "llama" else tiny_qwen2(CharTokenizer(), hidden=32, layers=3, heads=2, kv_heads=1)
    critic = make_critic(model, "model")
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(1))
    ids = torch.randint(2, 20, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = (model(input_ids=ids, use_cache=False).logits, critic(ids, None))
        for whole, expected in zip((model, critic), wanted, strict=True):
            hidden = ids
            for stage in split_model(whole, stages):
                hidden = stage(hidden)
            assert torch.equal(hidden, expected)


@pytest.mark.full
def test_what_does_not_fit_is_refused_before_a_process_starts() -> None:
    plan = serial(alone(0, 1, 2))
    with refused(InputError, "plans is empty"):
        run_pipelines({})
    with refused(InputError, "2 blocks", "3 stages"):
        run_pipelines({"deep": plan}, llama(2))
    uneven = PipelineProblem([Chain("actor", (0, 1), 4, 1, 2), Chain("critic", (1, 0), 2, 1, 2)])
    with refused(InputError, "4 micro-batches", "2 of the critic"):
        run_pipelines({"uneven": serial(uneven)})
    with refused(PlanningError, "unit_s", "0"):
        run_pipelines({"actor": serial(alone(0, 1))}, llama(2), unit_s=0)
    other = llama(3)
    other.config.model_type = "gpt2"
    with refused(InputError, "'gpt2'", "llama"):
        run_pipelines({"other": plan}, other)
