"""Processes with gloo that move weights: started once, they try many cases. Main function, and what each order does."""

from __future__ import annotations

import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.system.parent_death import die_with_parent
from rlhfless.system.piped_processes import HeartbeatConnection
from rlhfless.training.algorithms.critic import PolicyAndCritic, make_critic
from rlhfless.training.algorithms.ranks import Ranks
from rlhfless.training.models.tiny_model import tiny_qwen2
from rlhfless.training.reallocation.moves import Moves
from rlhfless.training.reallocation.shards import Shards, Weight, fully_sharded, tensor_parallel
from rlhfless.training.reallocation.tensor_parallel import TensorParallelModel, local_shards, shards_of
from rlhfless.training.worker_group import DONE, LOOPBACK, READY, report

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64)


def main(pipe: Connection, rank: int, count: int, meeting: str) -> None:
    """Run a rank until its pipe ends; an order is the name of a function of this file."""
    die_with_parent()
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    torch.set_num_threads(1)
    connection = HeartbeatConnection(pipe)
    try:
        dist.init_process_group("gloo", init_method=Path(meeting).as_uri(), rank=rank, world_size=count)
        groups = {count: dist.group.WORLD, 2: dist.new_group([0, 1])}
        connection.send((READY, None))
        while True:
            order, argument, _ = connection.recv()
            connection.send((DONE, ORDERS[order](rank, groups, argument)))
    except Exception as error:
        report(connection, error)


def cut(shards: Shards, name: str, whole: Any, rank: int) -> Any:
    """This rank's shard of a whole weight, cut by torch."""
    if name not in shards.dims:
        return whole.clone()
    dim, part = shards.dims[name], shards.part_of[rank]
    parts = torch.chunk(whole, shards.parts, dim)
    return parts[part].clone() if part < len(parts) else whole.narrow(dim, 0, 0).clone()


def there_and_back(rank: int, groups: Any, cases: list[tuple[int, int]]) -> list[str]:
    """Move random weights between random layouts and back, one case per seed and number of ranks; return what is not equal."""
    wrong = []
    for seed, ranks in cases:
        if rank >= ranks:
            continue
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        whole = {
            f"w{i}": torch.randint(0, 256, (rng.randint(1, 7), rng.randint(1, 6), rng.randint(1, 5)), generator=generator)
            .to(rng.choice(DTYPES))
            .squeeze(rng.randint(0, 2))
            for i in range(6)
        }
        weights = {name: Weight(tuple(value.shape), value.element_size()) for name, value in whole.items()}
        tp = rng.choice([tp for tp in (1, 2, 4) if tp <= ranks])
        dims = {name: rng.randrange(len(value.shape)) for name, value in weights.items() if rng.random() < 0.8}
        layouts = [fully_sharded(weights, ranks), tensor_parallel(weights, dims, ranks // tp, tp)]
        rng.shuffle(layouts)
        here, there = layouts
        before = {name: cut(here, name, value, rank) for name, value in whole.items()}
        after = Moves.of(here, there).run(before, groups[ranks])
        again = Moves.of(there, here).run(after, groups[ranks])
        for name, value in whole.items():
            for found, layout in ((after[name], there), (again[name], here)):
                wanted = cut(layout, name, value, rank)
                if found.dtype != value.dtype or not torch.equal(found, wanted):
                    wrong.append(f"seed {seed}, rank {rank} of {ranks}, {name}")
    return wrong


def models(rank: int, groups: Any, case: tuple[str, int]) -> dict[str, Any]:
    """Shard a model over all ranks (FSDP2), send it to a (dp, tp) layout, and compare passes of both.

    Args:
        case: ``policy``, ``untied``, or the kind of a critic beside the policy; and tp.
    """
    kind, tp = case
    count = len(groups) and dist.get_world_size()
    policy: Any = tiny_qwen2(CharTokenizer(), hidden=64, intermediate=90)
    if kind == "untied":
        policy.config.tie_word_embeddings = False
        policy = type(policy)(policy.config).eval()
    torch.manual_seed(1)
    with torch.no_grad():  # biases are zero at first
        for parameter in policy.parameters():
            dist.broadcast(parameter.add_(torch.randn_like(parameter) * 0.05), 0)
    both = policy if kind in ("policy", "untied") else PolicyAndCritic(policy, make_critic(policy, kind))
    whole = {name: value.detach().clone() for name, value in both.named_parameters()}
    mesh = init_device_mesh("cpu", (count // tp, tp), mesh_dim_names=("dp", "tp"))
    copy = TensorParallelModel(both, mesh)
    Ranks(rank, count, init_device_mesh("cpu", (count,))).shard(both)
    sharded = dict(both.named_parameters())
    moves = Moves.of(shards_of(sharded, tuple(range(count))), copy.shards)
    moved = moves.run(local_shards(sharded))
    back = Moves.of(moves.destination, moves.source).run(moved)
    copy.fill(moved)
    ids = torch.randint(2, 30, (3, 16), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found, wanted = (outputs(model, ids) for model in (copy.module, both))
        differs = [float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)]
    copy.empty()
    return {
        "equal": all(torch.equal(moved[name], cut(moves.destination, name, value, rank)) for name, value in whole.items()),
        "back": all(torch.equal(back[name], local) for name, local in local_shards(sharded).items()),
        "differs": differs,
        "spread": float(wanted[0].std()),
        "cut": sorted(moves.destination.dims),
        "kept": all(parameter.is_meta for parameter in copy.module.parameters()),
    }


def outputs(model: Any, ids: Any) -> tuple[Any, ...]:
    """Logits of a policy; log-probabilities and values where there is a critic, whose head is set to ones for that."""
    return tuple(model(ids, 1.0)) if isinstance(model, PolicyAndCritic) else (model(input_ids=ids, use_cache=False).logits,)


def large(rank: int, groups: Any, megabytes: int) -> None:
    """Move one large weight there and back, again and again, until a rank is gone."""
    count = dist.get_world_size()
    weights = {"w": Weight((megabytes, 2**18))}
    here, there = fully_sharded(weights, count), tensor_parallel(weights, {"w": 1}, 1, count)
    local = {"w": torch.ones(tuple(b - a for a, b in here.box("w", rank)))}
    while True:
        local = Moves.of(there, here).run(Moves.of(here, there).run(local))


def left(rank: int, groups: Any, leaver: int) -> None:
    """Move weights while one rank closes its connections and lives on."""
    if rank == leaver:
        dist.destroy_process_group()
        time.sleep(60)
    large(rank, groups, 8)


ORDERS = {"there_and_back": there_and_back, "models": models, "large": large, "left": left}
