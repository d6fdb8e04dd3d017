"""A learner of two processes (FSDP2 over gloo, on the CPU) is the learner of one: numbers, weights, checkpoints; and its end.

float32 on both sides. Compared are several batches of two updates with AdamW at a rate of 1e-3. Losses, gradients' norms and
all other numbers agree to 1e-5 + 1e-4 |x|. Weights agree to 1e-4, a tenth of one of these steps. Sums are taken in another
order. AdamW divides by the gradient, so where that is near zero its rounding shows.
"""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import noise_batch, pieces_of, small_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from training_samples import config  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.trace import read_trace  # noqa: E402
from rlhfless.training import worker_group  # noqa: E402
from rlhfless.training.algorithms.batch import Batch  # noqa: E402
from rlhfless.training.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from rlhfless.training.config import LearnerError, TrainError  # noqa: E402
from rlhfless.training.learner.first_weights import SharedWeights, empty_model  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402
from rlhfless.training.learner.process_group import LearnerProcesses, make_learner  # noqa: E402
from rlhfless.training.loop import Trainer, train  # noqa: E402
from rlhfless.training.micro_batches import micro_batches, micro_batches_by_rank, padded_tokens  # noqa: E402
from rlhfless.training.random_state import streams_of  # noqa: E402

OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"kl_coef": 0.1, "loss_aggregation": "sequence", "lr_scheduler_type": "linear", "lr_scheduler_steps": 5},
    "ppo": {
        "kl_coef": 0.1,
        "critic": "model",
        "critic_learning_rate": 2e-3,
        "mask_truncated": True,
        "lam": 0.95,
        "num_mini_batches": 2,
    },
    "rloo": {"kl_coef": 0.1, "mask_truncated": True},
    "gspo": {"kl_coef": 0.1, "clip_ratio_low": 0.05, "clip_ratio_high": 0.1},
}
SHARED = {
    "learning_rate": 1e-3,
    "num_updates": 2,
    "max_tokens_per_micro_batch": 64,
    "old_logprobs_from": "recomputed",
    "importance_ratio_cap": 1.2,
}
CHANGE_NO_WEIGHT = {"gradient_checkpointing": True, "offload_reference": True}


class Pair:
    """A learner of one process and one of two, of the same algorithm on the same first weights. Only the processes have the
    options that save memory.
    """

    def __init__(self, name: str) -> None:
        self.name, self.options = name, {**SHARED, **OPTIONS[name]}
        self.one_model, self.two_model = small_model(), small_model()
        self.one = make_learner(name, self.one_model, **self.options)
        self.two = make_learner(name, self.two_model, processes=2, **self.options, **CHANGE_NO_WEIGHT)
        assert isinstance(self.one, LocalLearner)
        assert isinstance(self.two, LearnerProcesses)

    def learn_the_same(self, batch: Batch) -> None:
        """Numbers and weights are the same within the tolerance."""
        ours, theirs = self.one.learn(batch), self.two.learn(batch)
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds", "prepare_seconds"}:
            assert theirs[name] == pytest.approx(ours[name], abs=1e-5, rel=1e-4, nan_ok=True), name
        self.assert_same_weights()

    def stream_the_same(self, batch: Batch) -> None:
        """In pieces, each learner in another order."""
        for seed, learner in enumerate((self.one, self.two)):
            learner.begin()
            for piece in pieces_of(batch, seed):
                learner.add(piece)
        ours, theirs = self.one.finish(), self.two.finish()
        for name in ours.keys() - {"seconds", "prepare_seconds"}:
            assert theirs[name] == pytest.approx(ours[name], abs=1e-5, rel=1e-4, nan_ok=True), name
        self.assert_same_weights()

    def assert_same_weights(self) -> None:
        for p, q in zip(self.one_model.parameters(), self.two_model.parameters(), strict=True):
            torch.testing.assert_close(p, q, atol=1e-4, rtol=0)


@pytest.fixture(scope="module", params=OPTIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    both = Pair(request.param)
    yield both
    both.two.close()


@given(st.lists(st.integers(1, 400), max_size=40), st.integers(16, 2000), st.integers(1, 5))
def test_rows_are_assigned_once_balanced_and_in_as_many_parts_to_every_process(
    lengths: list[int], budget: int, processes: int
) -> None:
    """Largest differencing leaves sums that differ by no more than the largest row."""
    hands = micro_batches_by_rank(lengths, budget, processes)
    assert len(hands) == processes
    assert len({len(parts) for parts in hands}) == 1
    rows = [[row for part in parts for row in part] for parts in hands]
    assert sorted(row for own in rows for row in own) == list(range(len(lengths)))
    sums = [sum(padded_tokens(lengths[row]) for row in own) for own in rows]
    assert max(sums) - min(sums) <= max(map(padded_tokens, lengths), default=0)
    for part in (part for parts in hands for part in parts):
        assert len(part) <= 1 or len(part) * padded_tokens(max(lengths[row] for row in part)) <= budget
    if processes == 1:
        assert hands == [micro_batches(lengths, budget)]


@pytest.mark.full
def test_two_processes_learn_what_one_learns_and_go_on_from_each_other(pair: Pair, tmp_path: Path) -> None:
    """Several batches, one with fewer responses to learn from than processes; then each goes on from the other's checkpoint."""
    for seed in range(2):
        pair.learn_the_same(noise_batch(small_model(), seed=seed))
    pairs = list(zip(pair.two_model.parameters(), small_model().parameters(), strict=True))
    assert max(float((p - q).detach().abs().max()) for p, q in pairs) > 2e-3
    drawn = noise_batch(small_model(), seed=7)
    rewards, truncated = np.array([1.0] + [math.nan] * 10 + [0.0]), np.array([False] + [True] * 11)
    few = Batch(drawn.prompt_ids, drawn.response_ids, rewards, [0] * 12, drawn.engine_logprobs, truncated)
    pair.learn_the_same(few)
    pair.two.learn(Batch(drawn.prompt_ids, drawn.response_ids, [math.nan] * 12, [0] * 12, drawn.engine_logprobs))
    pair.one.learn(Batch(drawn.prompt_ids, drawn.response_ids, [math.nan] * 12, [0] * 12, drawn.engine_logprobs))

    save_checkpoint(tmp_path / "one", 3, pair.one)
    save_checkpoint(tmp_path / "two", 3, pair.two)
    load_checkpoint(tmp_path / "one", 3, pair.two)
    load_checkpoint(tmp_path / "two", 3, pair.one)
    pair.assert_same_weights()
    pair.learn_the_same(noise_batch(small_model(), seed=3))
    pair.stream_the_same(noise_batch(small_model(), seed=4, off=0.15))


@pytest.mark.full
def test_two_processes_in_bfloat16_keep_float32_weights_and_moments(tmp_path: Path) -> None:
    """Changes smaller than bfloat16 tells apart add up in them; passes are those of bfloat16, as the mismatch shows."""
    exact_model, model = small_model(), small_model()
    exact = make_learner("grpo", exact_model, learning_rate=1e-5)
    rough = make_learner("grpo", model, processes=2, learning_rate=1e-5, learner_dtype="bfloat16")
    batch = noise_batch(small_model(), off=0.0)
    ours, theirs = exact.learn(batch), rough.learn(batch)
    save_checkpoint(tmp_path, 1, rough)
    rough.close()
    assert ours["mismatch_mean"] < 1e-5
    assert 1e-5 < theirs["mismatch_mean"] < 1e-2
    assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=2e-2)
    kept = [value for file in tmp_path.rglob("*.safetensors") for value in load_file(file).values()]
    assert {value.dtype for value in kept} == {torch.float32}
    pairs = list(zip(model.parameters(), small_model().parameters(), strict=True))
    changed = torch.cat([(p != q).flatten() for p, q in pairs])
    as_bfloat16 = torch.cat([(p.bfloat16() != q.bfloat16()).flatten() for p, q in pairs])
    assert changed.float().mean() > 0.9
    assert as_bfloat16.float().mean() < 0.5


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_two_processes_in_bfloat16_learn_nearly_what_float32_learns_and_resume_exactly(name: str, tmp_path: Path) -> None:
    """The engine's log-probabilities are exact here, so the mismatch is that of bfloat16: below 1e-2 per token, and of float32
    below 1e-5. Losses and norms follow those of float32, and weights move in the same direction. Processes that start anew from
    a checkpoint go on bit for bit."""
    options = {**SHARED, **OPTIONS[name]}
    exact_model, model, first = small_model(), small_model(), list(small_model().parameters())
    exact = make_learner(name, exact_model, **options)
    rough = make_learner(name, model, processes=2, learner_dtype="bfloat16", **options)
    for seed in range(3):
        batch = noise_batch(exact_model, seed=seed, off=0.0)
        ours, theirs = exact.learn(batch), rough.learn(batch)
        assert ours["mismatch_mean"] < 1e-5
        assert 1e-5 < theirs["mismatch_mean"] < 1e-2
        for number in ("loss", "grad_norm"):
            assert theirs[number] == pytest.approx(ours[number], abs=5e-3, rel=2e-2), number
    moved = [
        torch.cat([(p.detach() - q.detach()).flatten() for p, q in zip(each.parameters(), first, strict=True)])
        for each in (exact_model, model)
    ]
    assert float(torch.nn.functional.cosine_similarity(*moved, dim=0)) > 0.99
    save_checkpoint(tmp_path, 3, rough)
    batch = noise_batch(model, seed=3)
    numbers = rough.learn(batch)
    rough.close()
    again_model = small_model()
    again = make_learner(name, again_model, processes=2, learner_dtype="bfloat16", **options)
    load_checkpoint(tmp_path, 3, again)
    resumed = again.learn(batch)
    again.close()
    measured = {"seconds", "prepare_seconds"}
    assert {k: v for k, v in resumed.items() if k not in measured} == {k: v for k, v in numbers.items() if k not in measured}
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again_model.parameters(), strict=True))


@pytest.mark.full
def test_what_ends_an_order_ends_all_and_reading_starts_new_ones(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed, or Ctrl-C while one hangs."""
    save_checkpoint(tmp_path, 1, pair.one)
    load_checkpoint(tmp_path, 1, pair.two)
    first, second = pair.two.pids
    if pair.name == "grpo":
        os.kill(second, signal.SIGKILL)
        with refused(LearnerError, "process 1", "SIGKILL", "'learn'"):
            pair.two.learn(noise_batch(small_model()))
    else:
        os.kill(second, signal.SIGSTOP)  # so that the other waits for it when the interrupt comes

        def interrupted(*awaited: Any) -> Any:
            """Whoever waits for answers is interrupted a moment later."""
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            return wait(*awaited)

        wait, before = worker_group.next_message, signal.signal(signal.SIGALRM, signal.default_int_handler)
        monkeypatch.setattr(worker_group, "next_message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.two.learn(noise_batch(small_model()))
        monkeypatch.undo()
        signal.signal(signal.SIGALRM, before)
    assert pair.two.pids == []
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    with refused(LearnerError):
        pair.two.learn(noise_batch(small_model()))
    load_checkpoint(tmp_path, 1, pair.two)
    pair.assert_same_weights()
    pair.learn_the_same(noise_batch(small_model(), seed=5))


@pytest.mark.full
def test_the_trainers_model_has_no_weights_of_its_own_and_a_failed_step_leaves_them_as_they_were(tmp_path: Path) -> None:
    """Its parameters are mapped from the file that the first process replaces as a whole. Other objects keep what they have
    read, and the file is back to one model's bytes after the step."""
    model = small_model()
    start = [p.detach().clone() for p in model.parameters()]
    learner = make_learner("grpo", model, processes=2, learning_rate=1e-3)
    assert isinstance(learner, LearnerProcesses)
    shared = Path(learner._board.path)
    try:
        read_before = [p.data for p in model.parameters()]
        learner.learn(noise_batch(small_model()))
        learned = [p.detach().clone() for p in model.parameters()]
        assert all(torch.equal(p, q) for p, q in zip(read_before, start, strict=True))
        assert any(not torch.equal(p, q) for p, q in zip(learned, start, strict=True))
        assert [file.stat().st_size for file in shared.parent.iterdir() if file != shared.parent / "meeting"] == [
            4 * sum(p.numel() for p in model.parameters())
        ]
        shared.with_name("weights.new").mkdir()  # in which no process can write
        with refused(LearnerError, "weights.new"):
            learner.learn(noise_batch(small_model(), seed=1))
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), learned, strict=True))
    finally:
        learner.close()
    model.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) <= set(model.state_dict())


def test_a_model_without_memory_for_weights_has_their_shapes_and_all_of_its_buffers() -> None:
    model = small_model()
    empty = empty_model(model.config)
    assert {weight.device.type for weight in empty.parameters()} == {"meta"}
    assert {name: weight.shape for name, weight in empty.named_parameters()} == {
        name: weight.shape for name, weight in model.named_parameters()
    }
    torch.testing.assert_close(dict(empty.named_buffers()), dict(model.named_buffers()), atol=0, rtol=0)
    assert dict(empty.named_buffers()), "rotary embeddings have frequencies"


def test_weights_that_cannot_be_replaced_as_a_whole_stay_as_they_were(tmp_path: Path) -> None:
    """A full disk, which ends a write half-way, and an interrupt; nothing is left of the attempt."""
    shared = SharedWeights.of(small_model(), tmp_path / "weights")
    before = (tmp_path / "weights").read_bytes()

    def interrupted() -> Iterator[torch.Tensor]:
        yield torch.zeros(1000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared.replace(interrupted())
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
    try:
        with refused(LearnerError, "weights.new", "learner_processes 1"):
            shared.replace(torch.zeros(1 << 14) for _ in range(4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "weights").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["weights"]


@pytest.mark.nightly
def test_refusals_come_through_as_they_are(tmp_path: Path) -> None:
    model = small_model()
    with refused(InputError):
        make_learner("grpo", model, processes=2, learning_rate=1e-3).learn(Batch([[2], [2]], [[3], [4]], [1, 0], ["a", "b"]))
    with refused(InputError, "'adafactor'"):
        make_learner("grpo", model, processes=2, learning_rate=1e-3, optimizer="adafactor").write(tmp_path)


@pytest.mark.full
def test_the_loop_with_two_processes_goes_on_with_one(model: Path, tmp_path: Path) -> None:
    """The same responses as with one process; a run may be resumed with another number, and closing ends the processes."""
    train(config(steps=3), tmp_path / "one", model=model)
    with Trainer(config(steps=2, learner_processes=2), tmp_path / "two", model=model, progress=False) as trainer:
        trainer.train()
        learner = trainer.state.learner
        assert isinstance(learner, LearnerProcesses)
        pids = learner.pids
        assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    train(config(steps=3), tmp_path / "two", resume=True)
    ours, theirs = (read_trace(tmp_path / name).rollouts for name in ("one", "two"))
    assert theirs["response"].tolist() == ours["response"].tolist()
    with refused(TrainError, "'constant'", "'linear'", "warmup_steps"):
        train(config(steps=2, lr_scheduler_type="linear", warmup_steps=1), tmp_path / "two", resume=True)


@pytest.mark.nightly
def test_processes_that_start_anew_drop_out_what_the_others_would_have(tmp_path: Path) -> None:
    """What they draw follows from the seed that the loop gives every step; another seed gives other weights."""
    model = small_model()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = model.config.attention_dropout = 0.3
    learner = make_learner("grpo", model, processes=2, learning_rate=1e-2)

    def learned(seed: int) -> torch.Tensor:
        with streams_of(seed, 1):
            learner.learn(noise_batch(small_model()))
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    learner.write(tmp_path)
    first = learned(0)
    learner.close()
    learner.read(tmp_path)
    again = learned(0)
    learner.read(tmp_path)
    other = learned(1)
    learner.close()
    assert torch.equal(again, first)
    assert not torch.equal(other, first), "dropout drew nothing"
