"""A learner whose processes Ray places over two nodes is the learner of one process; one that is lost undoes the step."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

torch = pytest.importorskip("torch")

from training_samples import config, farthest, run_config  # noqa: E402

from rlhfless.training.config import LearnerError, TrainError  # noqa: E402
from rlhfless.training.loop import Trainer  # noqa: E402


@pytest.mark.nightly
def test_a_learner_over_two_nodes_ends_with_the_weights_of_one_process(tmp_path: Path, model: Path) -> None:
    from ray_samples import two_nodes

    options: dict[str, Any] = {
        "gpus": 2,
        "gpus_per_node": 1,
        "policy": "static",
        "steps": 3,
        "learning_rate": 1e-3,
        "kl_coef": 0.1,
    }
    with Trainer(config(**options), model=model, progress=False) as trainer:
        trainer.train()
        alone = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with two_nodes() as nodes:
        spread = {"executor": "ray", "ray_address": nodes.address, "learner_processes": 2, "learner_placement": "ray"}
        with Trainer(config(**options, **spread), tmp_path / "run", model=model, progress=False) as trainer:
            trainer.step()
            ranks: Any = trainer.state.learner._group  # type: ignore[attr-defined]
            assert len(set(ranks.nodes)) == 2
            os.kill(ranks.pids[1], signal.SIGKILL)
            with refused(LearnerError, "was lost", "not learned from"):
                trainer.step()
            assert trainer.next_step == 1
            trainer.step()
            os.kill(ranks.pids[1], signal.SIGSTOP)
            with refused(LearnerError, "process 1", "sign of life", "30 s", "heartbeat_timeout_s"):
                trainer.step()
            assert trainer.next_step == 2
            trainer.train()
            learned = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert farthest(alone, learned) < 1e-4


@pytest.mark.nightly
def test_a_process_on_ray_that_hangs_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    import stopping_rank

    from rlhfless.executor.distributed.ray.cluster import RayCluster
    from rlhfless.training.learner import ray_ranks
    from rlhfless.training.learner.worker import LearnerStart

    ray.cloudpickle.register_pickle_by_value(stopping_rank)  # Ray's processes do not see the folder of this file
    monkeypatch.setattr(ray_ranks, "RayRank", stopping_rank.StoppingRank)
    cluster = RayCluster(gpus=1)
    try:
        ranks = ray_ranks.RayRanks(2, 0, heartbeat_timeout_s=10.0)
        startup: Any = LearnerStart(2, "", "cpu", None, None, None, "grpo", {})  # type: ignore[arg-type]
        ranks.start(startup)
        assert ranks.order("learn") == [True, True], "torch's number of threads is a thread's"
        stopped = ranks.pids[1]
        with refused(LearnerError, "process 1", "sign of life", "10 s", "'stop'", "heartbeat_timeout_s"):
            ranks.order("stop")
        assert not ranks
        os.kill(stopped, signal.SIGKILL)  # Ray kills it as soon as it is able to
    finally:
        cluster.close()
    assert not ray.is_initialized()


@pytest.mark.full
def test_an_address_has_its_interface() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    from rlhfless.training.learner.ray_ranks import interface_of

    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None, "an address that no machine has"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learner_placement": "ray"}, ("learner_placement is 'ray'", "'virtual'", "'ray'")),
        ({"learner_placement": "ray", "executor": "ray"}, ("learner_processes 1", "several")),
        ({"learner_placement": "cloud"}, ("'cloud'", "'local'", "'ray'")),
        ({"learner_placement": 2}, ("learner_placement is 2", "'local'", "'ray'")),
    ],
)
def test_wrong_placements_are_one_sentence(changes: dict[str, Any], said: tuple[str, ...]) -> None:
    with refused(TrainError, *said):
        run_config(**changes)
