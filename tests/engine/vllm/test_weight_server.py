"""Weights by vLLM's NCCL transfer from a server: who gets them, and that they arrive. Gloo takes the place of NCCL here."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import Client
from multiprocessing.context import AuthenticationError
from pathlib import Path
from typing import Any

import gloo_for_nccl
import pytest
import torch
from error_messages import refused
from vllm_samples import EOS, GREEDY, LATENCY, ROOMY, by_response, factory_of, model_of, needs_vllm, requests, torch_engine

from rlhfless.engine.vllm import weight_server
from rlhfless.engine.vllm.adapter import VllmError
from rlhfless.engine.vllm.engine import VllmEngine
from rlhfless.engine.vllm.start_up import VllmSettings, engine_arguments
from rlhfless.engine.vllm.weight_client import Hello, TransferCall, WeightClient
from rlhfless.engine.vllm.weight_folders import NO_WEIGHTS, check_weights, write_config
from rlhfless.engine.vllm.weight_server import OfferedWeights, ReplicaEnd, WeightServer
from rlhfless.engine.vllm.weight_transfer import ServerAddress, TransferredWeights
from rlhfless.training.weight_sync import NcclSync

Call = Callable[..., Any]
FEW = requests(4)


def nobody_calls(*arguments: Any, **options: Any) -> None:
    raise AssertionError("nothing is sent")


@pytest.fixture
def server() -> Iterator[WeightServer]:
    here = WeightServer("127.0.0.1")
    yield here
    here.close()


def offered(version: int) -> OfferedWeights:
    return OfferedWeights(model_of(3), version, torch.bfloat16)


def test_only_the_offered_version_is_sent(server: WeightServer) -> None:
    with closing(WeightClient(server.address, [""])) as replica:
        assert replica.receive(0, nobody_calls) == "the trainer offers no weights, but the step needs weights 0"
        server.offer(offered(3))
        assert replica.receive(4, nobody_calls) == "the trainer offers weights 3, but the step needs weights 4"
        server.withdraw()
        assert replica.receive(3, nobody_calls) == "the trainer offers no weights, but the step needs weights 3"


def test_a_replica_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection then ends, as an answer that comes late would be taken for that to the next call."""
    monkeypatch.setattr(weight_server, "ANSWER_S", 0.0)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        with refused(TimeoutError, "start_weight_update", "within"):
            ReplicaEnd(ours).start_weight_update()
        assert theirs.recv() == TransferCall("start_weight_update", {})


def test_weights_do_not_pass_within_a_gpu(server: WeightServer) -> None:
    weights = offered(3)
    weights.gpu = "GPU-1"
    server.offer(weights)
    with closing(WeightClient(server.address, ["GPU-0", "GPU-1"])) as replica:
        refusal = replica.receive(3, nobody_calls)
    assert refusal is not None
    assert refusal.startswith("the learner and an actor share GPU GPU-1")
    assert refusal.endswith("weight_sync 'folder'")


def test_strangers_get_nothing_and_disturb_nobody(server: WeightServer) -> None:
    silent = socket.create_connection((server.address.host, server.address.port))
    with pytest.raises((AuthenticationError, EOFError)):
        WeightClient(replace(server.address, key=b"another"), [""])
    with closing(WeightClient(server.address, [""])) as replica:
        assert replica.receive(0, nobody_calls) is not None
    silent.close()
    assert server.address.key.hex() not in repr(server.address)


def test_a_closed_server_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    here = WeightServer("127.0.0.1")
    with closing(WeightClient(here.address, [""])) as replica:
        assert replica.receive(0, nobody_calls) is not None
    here.close()
    here.close()
    ended_by = time.monotonic() + 300
    while set(threading.enumerate()) - before and time.monotonic() < ended_by:  # one that has not begun yet cannot be joined
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
    with pytest.raises(OSError):
        WeightClient(here.address, [""])


def test_weights_have_the_order_and_format_in_which_they_are_generated() -> None:
    """Of a model with tied output weights the embedding is sent once."""
    model = model_of(3)
    names, sent = [name for name, _ in model.named_parameters()], list(offered(1))
    assert [name for name, _ in sent] == names
    assert "lm_head.weight" not in names
    assert {weight.dtype for _, weight in sent} == {torch.bfloat16}
    assert offered(1).nbytes == sum(weight.nbytes for _, weight in sent)
    parameters = dict(model.named_parameters())
    assert all(torch.equal(weight, parameters[name].bfloat16()) for name, weight in sent)


def test_replicas_start_with_a_configuration_and_no_weights(tmp_path: Path) -> None:
    folder = write_config(model_of(3), tmp_path)
    check_weights(folder, NO_WEIGHTS)
    assert not list(folder.glob("*.safetensors"))
    arguments = engine_arguments(
        VllmSettings(1, 4, 512, 64, weight_transfer="nccl"), folder, on_cpu=False, eager=False, hands_over=False
    )
    assert arguments["weight_transfer_config"] == {"backend": "nccl"}
    assert arguments["load_format"] == "dummy"
    weights = TransferredWeights.sent_by(ServerAddress("node", 1, b""), 10, NO_WEIGHTS)
    engines = replace(factory_of(folder, 0), transferred=weights)
    assert (engines.folder_version, engines.weight_bytes, engines.shipped_bytes) == (NO_WEIGHTS, 10, 0)
    assert engines.compatibility_key(LATENCY).weight_transfer == "nccl"
    assert engines.spans_nodes
    assert pickle.loads(pickle.dumps(engines)).transferred.server == weights.server, "actors receive it"


def test_a_step_publishes_its_weights_until_they_change(tmp_path: Path) -> None:
    """Every step has the same folder, so that actors of one step serve the next."""
    sync, model = NcclSync("127.0.0.1", torch.bfloat16), model_of(3)
    first, second = sync.publish(model, 0), sync.publish(model, 1)
    assert first.folder == second.folder
    assert second.transferred is not None
    assert second.transferred.nbytes == sum(weight.numel() * 2 for weight in model.parameters())
    assert second.transferred.server is not None
    with closing(WeightClient(second.transferred.server, [""])) as replica:
        assert replica.receive(0, nobody_calls) == "the trainer offers weights 1, but the step needs weights 0"
        sync.release()
        assert replica.receive(1, nobody_calls) == "the trainer offers no weights, but the step needs weights 1"
    sync.close()
    assert not first.folder.exists()


# --- with vLLM --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer() -> Iterator[Call]:
    """``trainer(function, *arguments)`` calls a function where the trainer is: vLLM changes the process that imports it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as there:
        yield lambda function, *arguments: there.submit(function, *arguments).result()
        with suppress(BrokenProcessPool):
            there.submit(os._exit, 0).result()


def in_vllm(folder: Path, function: Any) -> None:
    factory_of(folder, 0)(LATENCY, ROOMY).replica._engine.collective_rpc(function)


def decode_received(folder: Path, address: ServerAddress, version: int) -> dict[int, list[int]]:
    """Greedy tokens of the running replica with weights of the server."""
    replica = factory_of(folder, 0)(LATENCY, ROOMY).replica
    replica.sleep()
    replica.receive(TransferredWeights.sent_by(address, 0, NO_WEIGHTS), version)
    engine = VllmEngine(replica, ROOMY, eos_id=EOS, sampling=GREEDY)
    engine.add(FEW)
    done = by_response(engine.advance(math.inf).completions)
    engine.close()
    return {i: one.token_ids.tolist() for i, one in done.items()}


def by_torch(seed: int) -> dict[int, list[int]]:
    engine = torch_engine(seed)
    engine.add(FEW)
    return {i: one.token_ids.tolist() for i, one in by_response(engine.advance(math.inf).completions).items()}


@needs_vllm
@pytest.mark.full
def test_a_replica_of_vllm_receives_the_weights_of_every_step(call: Call, vllm_weights: Path, trainer: Call) -> None:
    """Twice by one group; then the trainer's weights may change, and late replicas are told so."""
    address, folder = trainer(gloo_for_nccl.serve), vllm_weights / "weights-0"
    call(in_vllm, folder, gloo_for_nccl.takes_nccl)
    for seed, version in ((4, 11), (5, 12)):
        assert trainer(gloo_for_nccl.offer, seed, version) > 10 * gloo_for_nccl.SMALL_BUFFER
        assert call(decode_received, folder, address, version) == by_torch(seed)
    trainer(gloo_for_nccl.withdraw)
    with refused(VllmError, "weights 13", "no weights"):
        call(decode_received, folder, address, 13)
    call(in_vllm, folder, gloo_for_nccl.takes_it_no_more)


def join_and_leave(order: str, kwargs: dict[str, Any]) -> None:
    """A replica that joins the group as vLLM's does, and ends when it should receive."""
    from vllm.distributed.utils import StatelessProcessGroup

    if order == "init_weight_transfer_engine":
        info = kwargs["init_info"]
        group = StatelessProcessGroup.create(info["master_address"], info["master_port"], 1, info["world_size"])
        GROUPS.append(gloo_for_nccl.Gloo(group, None))
    if order == "update_weights":
        raise SystemExit


GROUPS: list[Any] = []


def leave_in_between(address: ServerAddress) -> None:
    gloo_for_nccl.replace_nccl()
    with Client((address.host, address.port), authkey=address.key) as connection:
        connection.send(Hello(1, ()))
        connection.send(5)
        with suppress(SystemExit):
            while isinstance(order := connection.recv(), TransferCall):
                join_and_leave(order.name, dict(order.arguments))
                connection.send(None)
    GROUPS.clear()


@needs_vllm
@pytest.mark.nightly
def test_a_replica_that_ends_while_it_receives_holds_nobody_up(call: Call, trainer: Call) -> None:
    """What is sent to it is aborted, so weights can be withdrawn; the next replica would get them."""
    address = trainer(gloo_for_nccl.serve)
    trainer(gloo_for_nccl.offer, 3, 5)
    call(leave_in_between, address)
    assert trainer(gloo_for_nccl.withdraw)
