"""Learner and actors on the same devices: actors give memory back while the learner learns, and leave it unused cores."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from error_messages import refused  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from training_samples import config, farthest, run_config  # noqa: E402

from rlhfless.engine.common.sampling import Sampling  # noqa: E402
from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel  # noqa: E402
from rlhfless.latency import load_profile  # noqa: E402
from rlhfless.training.config import ClusterConfig, TrainConfig, TrainError  # noqa: E402
from rlhfless.training.engines import TorchEngines, make_engines, same_bits  # noqa: E402
from rlhfless.training.factory import make_cluster  # noqa: E402
from rlhfless.training.learner_threads import learner_threads  # noqa: E402
from rlhfless.training.loop import Trainer  # noqa: E402
from rlhfless.training.models.tiny_model import tiny_qwen2  # noqa: E402
from solver.model.admission import Admission  # noqa: E402
from solver.model.latency import LatencyModel  # noqa: E402


def live_bytes() -> int:
    """Bytes of all tensors of this process, each storage counted once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and not thing.is_meta:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def trained(steps: int, notes: list[tuple[int, int, int]], **options: Any) -> dict[str, torch.Tensor]:
    """Weights after so many steps; notes when each is learned from: the engines' bytes, all tensors' bytes, and threads."""
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, seed=1, hidden=32, layers=1, intermediate=64)
    with Trainer(
        config(gpus=2, prompts=2, prompts_per_step=2, max_response_tokens=8, policy="static", **options),
        model=(model, tokenizer),
        progress=False,
    ) as trainer:
        learner: Any = trainer.state.learner
        whole = "learn" if trainer.config.cluster.learning == "batch" else "finish"
        learn, engines = getattr(learner, whole), trainer.engines
        assert isinstance(engines, TorchEngines)

        def noted(*batch: Any) -> Any:
            notes.append((engines._rows.weight_bytes, live_bytes(), torch.get_num_threads()))
            return learn(*batch)

        setattr(learner, whole, noted)
        for _ in range(steps):
            trainer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("learning", ["batch", "stream"])
def test_engines_give_their_weights_back_while_the_learner_learns(learning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released, kept = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    weights = trained(1, released, learning=learning)
    with monkeypatch.context() as without:
        without.setattr(TorchEngines, "release", lambda self: None)
        same = trained(1, kept, learning=learning)
    held = kept[0][0]
    assert held > 0
    assert [engines for engines, _, _ in released] == [0]
    saved = [
        with_engines - without_engines for (_, without_engines, _), (_, with_engines, _) in zip(released, kept, strict=True)
    ]
    assert min(saved) >= held, f"{saved} bytes less, but engines hold {held}"
    assert farthest(weights, same) == 0.0


def test_learning_with_several_threads_changes_weights_by_rounding_only() -> None:
    one, two = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    weights, others = trained(1, one), trained(1, two, learner_threads=2)
    assert ([threads for *_, threads in one], [threads for *_, threads in two]) == ([1], [2])
    assert farthest(weights, others) < 1e-4


@settings(max_examples=30)
@given(st.integers(1, 64), st.integers(0, 16), st.integers(1, 4))
def test_a_learner_has_the_cores_that_actors_do_not_use(cores: int, actors: int, processes: int) -> None:
    auto = run_config(learner_threads="auto", learner_processes=processes)
    threads = learner_threads(auto, beside_actors=actors, cores=cores)
    assert threads >= 1
    assert threads == 1 or processes * threads + actors <= cores
    assert processes * (threads + 1) + actors > cores


def test_weights_are_those_of_one_thread_where_bits_are_promised() -> None:
    assert learner_threads(TrainConfig(), cores=64) == 1
    assert learner_threads(run_config(engine="vllm", executor="local"), cores=64) == 64
    assert learner_threads(run_config(learner_threads=3), cores=64) == 3


def test_a_share_of_a_gpu_is_for_vllm() -> None:
    with refused(TrainError, "gpu_memory_utilization", "memory_gib"):
        run_config(gpu_memory_utilization=0.4)
    assert run_config(gpu_memory_utilization=0.4, engine="vllm", executor="local").cluster.engine == "vllm"


def test_actors_decode_with_as_many_threads_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and log-probabilities are those of one thread within rounding; the program's own threads stay."""
    seen, compute = list[int](), DecoderModel.compute

    def watched(self: DecoderModel, *arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return compute(self, *arguments)

    monkeypatch.setattr(DecoderModel, "compute", watched)
    logprobs, before = [], torch.get_num_threads()
    for threads in (1, 2):
        seen.clear()
        given = run_config(actor_threads=threads)
        model = tiny_qwen2(CharTokenizer(), hidden=32, layers=1, intermediate=64)
        factory = make_engines(given.cluster, model, 1, 64, Sampling(), "float32").of_step(model, 0)
        engine = factory(LatencyModel("tiny", 1, 1.0, 0.0), Admission(2, 256))
        ids = np.arange(3, 11)
        engine.add([Request(i, 8, 16, prompt_ids=ids, seed=i, target_tokens=16) for i in range(2)])
        done = sorted(engine.advance(math.inf).completions, key=lambda one: one.response)
        logprobs.append(np.concatenate([one.logprobs for one in done]))
        assert set(seen) == {threads}
        assert factory.model.bit_stable == (threads == 1)
        assert same_bits(given, "cpu", "float32", custom_pool=False) == (threads == 1)
    assert torch.get_num_threads() == before
    np.testing.assert_allclose(logprobs[0], logprobs[1], atol=1e-4)
    beside = run_config(actor_threads=2, learner_threads="auto")
    assert learner_threads(beside, beside_actors=3, cores=8) == 2
    with refused(TrainError, "actor_threads is 2", "'vllm'"):
        run_config(actor_threads=2, engine="vllm", executor="local")


def test_actors_of_vllm_alone_are_tensor_parallel_on_the_gpus_of_their_profile() -> None:
    for options in ({"executor": "local"}, {"engine": "transformers"}, {"engine": "vllm"}):
        with refused(TrainError, "tensor_parallel is 2", "cluster.engine 'vllm' with cluster.executor 'local' or 'ray'"):
            run_config(tensor_parallel=2, **options)
    asked = ClusterConfig(engine="vllm", executor="local", tensor_parallel=2, gpus=4)
    assert make_cluster(asked, replace(load_profile("cpu-tiny-qwen2"), gpus_per_actor=2)).actors_per_node == 2
    with refused(TrainError, "tensor_parallel is 2", "'cpu-tiny-qwen2' have 1 GPU", "2 GPUs per actor"):
        make_cluster(asked, load_profile("cpu-tiny-qwen2"))


def test_reward_models_wait_on_the_cpu_only_where_there_are_some() -> None:
    with refused(TrainError, "offload_reward_models is True", "rewards are task, -0.5*format:^a", "model:FOLDER"):
        run_config(offload_reward_models=True, rewards=["task", "-0.5*format:^a"])
    for name in ("model:judge", "0.5*model:judge"):
        assert run_config(offload_reward_models=True, rewards=["task", name]).task.offload_reward_models


def test_engines_take_contexts_as_long_as_asked_for_and_as_long_as_needed() -> None:
    model = tiny_qwen2(CharTokenizer(), seed=1, hidden=32, layers=1, intermediate=64), CharTokenizer()
    with Trainer(config(gpus=2, max_model_len=96), model=model, progress=False) as trainer:
        assert isinstance(trainer.engines, TorchEngines)
        assert trainer.engines._rows.max_tokens == 96
    with refused(TrainError, "max_model_len is 25"):
        Trainer(config(gpus=2, max_model_len=25), model=model, progress=False)
