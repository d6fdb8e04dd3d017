"""Makes the golden dumps ``golden/verl-*`` with verl's own function, which writes its dumps of generations.

    pip download --no-deps --dest DIR verl==0.9.1
    python tests/trace/importers/make_golden_verl.py DIR/verl-0.9.1-py3-none-any.whl

verl itself cannot be imported without a GPU's packages. The function that writes (``_write_generations``, one in each trainer)
needs only json, os and numpy, so it is taken out of the wheel's sources as it stands there. So are the functions that change
a batch before: V0's ``_balance_batch`` orders ``golden/verl-v0-balanced``, and V1's ``upsample_batch_to_divisible_size`` names
the padding rows of ``golden/verl-v1-padded``. V1's ``_log_rollout_data`` sorts ``golden/verl-v1-uuid`` by the random ids that
its ``_fetch_one_gen_batch`` gives to prompts (here from a seed). What they need of verl and its transfer queue has a stand-in.
The padding rows are new in every run.
"""

from __future__ import annotations

import ast
import copy
import heapq
import json
import os
import shutil
import sys
import uuid
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from importer_samples import GOLDEN, many_rollouts, prompt_text, response_text, sample_rollouts

NAME = "_write_generations"
BALANCING, PADDING = "verl/utils/seqlen_balancing.py", "verl/trainer/ppo/padding_utils.py"
RANKS = 4
TRAINERS = {"verl-v0": "verl/trainer/ppo/ray_trainer.py", "verl-v1": "verl/trainer/ppo/v1/trainer_base.py"}


def functions_of(source: str, names: set[str], **scope: Any) -> dict[str, Any]:
    """Functions out of the text of the module that they stand in, with what they need of it."""
    tree = ast.parse(source)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in found:
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
    exec(compile(ast.Module(found, []), "verl", "exec"), scope)
    return scope


def writer_of(source: str) -> Callable[..., None]:
    """verl's static method that writes a dump."""
    writer: Callable[..., None] = functions_of(source, {NAME}, json=json, os=os, np=np)[NAME]
    return writer


def balanced(wheel: zipfile.ZipFile, lengths: list[int]) -> list[int]:
    """The order in which V0 leaves rows of those lengths."""
    names = {"calculate_workload", "karmarkar_karp", "greedy_partition", "get_seqlen_balanced_partitions"}
    utilities = functions_of(wheel.read(BALANCING).decode(), names, torch=torch, heapq=heapq, copy=copy, chain=chain)
    found: list[int] = []
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in zip(mask, lengths, strict=True):
        row[:length] = 1
    method = functions_of(
        wheel.read(TRAINERS["verl-v0"]).decode(), {"_balance_batch"}, torch=torch,
        calculate_workload=utilities["calculate_workload"], log_seqlen_unbalance=lambda **_: {},
        get_seqlen_balanced_partitions=utilities["get_seqlen_balanced_partitions"],
    )["_balance_batch"]  # fmt: skip
    trainer = SimpleNamespace(_get_dp_size=lambda group, role: RANKS, actor_rollout_wg=None)
    batch = SimpleNamespace(
        batch={"attention_mask": mask}, non_tensor_batch={}, reorder=lambda index: found.extend(index.tolist())
    )
    method(trainer, batch, {})
    return found


def padded(wheel: zipfile.ZipFile, keys: list[str], multiple: int) -> list[str]:
    """The uids of a batch after V1 has padded it."""
    queue = SimpleNamespace(kv_batch_get=lambda **_: [{}], kv_batch_put=lambda **_: None)
    upsample = functions_of(
        wheel.read(PADDING).decode(), {"upsample_batch_to_divisible_size"}, tq=queue, uuid=uuid, copy=copy,
        KVBatchMeta=_Batch, list_of_dict_to_tensordict=list, logger=SimpleNamespace(info=lambda *_: None),
        construct_minimal_padding_template=lambda *_: ({}, {}),
    )["upsample_batch_to_divisible_size"]  # fmt: skip
    return list(upsample(_Batch(keys, [{}] * len(keys), "train", None, None), multiple, 0).keys)


def named_and_sorted(wheel: zipfile.ZipFile, rows: list[Any], seed: int) -> tuple[list[int], list[str]]:
    """The order in which V1 dumps a batch, and the uids in that order; every prompt gets a random id."""
    random = Random(seed)
    names = SimpleNamespace(uuid4=lambda: uuid.UUID(int=random.getrandbits(128), version=4))
    queue = SimpleNamespace(
        kv_batch_get=lambda **_: {
            "uid": np.zeros(len(rows)), "prompts": _Tokens(range(len(rows))), "responses": _Tokens(range(len(rows))),
            "rm_scores": torch.zeros(len(rows), 1),
        }
    )  # fmt: skip
    methods = functions_of(
        wheel.read(TRAINERS["verl-v1"]).decode(), {"_fetch_one_gen_batch", "_log_rollout_data"}, np=np, uuid=names, tq=queue,
        tu=SimpleNamespace(get_tensordict=lambda batch: batch), marked_timer=lambda *_, **__: nullcontext(),
    )  # fmt: skip
    prompts = sorted({row.prompt for row in rows})
    loader = SimpleNamespace(train_dataloader_it=iter([{"raw_prompt": prompts}]))
    id_of = dict(zip(prompts, methods["_fetch_one_gen_batch"](loader)["uid"], strict=True))
    dumped: dict[str, Any] = {}
    trainer = SimpleNamespace(
        tokenizer=SimpleNamespace(pad_token_id=0, decode=lambda row, **_: row), _dump_generations=dumped.update
    )
    keys = [f"{id_of[row.prompt]}_{row.sample}_0" for row in rows]
    methods["_log_rollout_data"](trainer, SimpleNamespace(keys=keys, partition_id="train"), {}, "")
    return dumped["inputs"], dumped["reward_extra_infos_dict"]["uid"]


class _Tokens(list[int]):
    """Rows of tokens, each of which is its own number."""

    def to_padded_tensor(self, padding: int) -> _Tokens:
        return self


class _Batch:
    """What padding needs of the transfer queue's batch."""

    def __init__(self, keys: list[str], tags: list[dict[str, Any]], partition_id: str, fields: Any, extra_info: Any) -> None:
        self.keys, self.tags, self.partition_id, self.fields, self.extra_info = keys, tags, partition_id, fields, extra_info

    def __len__(self) -> int:
        return len(self.keys)


def main(wheel: str) -> None:
    """Write both dumps anew: V0's with a reward extra, V1's with the name of every response and no ground truth."""
    for name, module in TRAINERS.items():
        write = writer_of(zipfile.ZipFile(wheel).read(module).decode())
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        for step, rows in sample_rollouts().groupby("step"):
            listed = list(rows.itertuples())
            extra = {"acc": [1.0] * len(listed)} if name == "verl-v0" else {}
            extra |= {"uid": [f"gsm_{r.prompt}_{r.sample}_0" for r in listed]} if name == "verl-v1" else {}
            write(
                inputs=[prompt_text(r) for r in listed], outputs=[response_text(r) for r in listed],
                gts=["7" if name == "verl-v0" else None] * len(listed), scores=[r.reward for r in listed],
                reward_extra_infos_dict=extra, dump_path=str(GOLDEN / name), global_steps=step,
            )  # fmt: skip
    archive = zipfile.ZipFile(wheel)
    for step, rows in many_rollouts(48, 1).groupby("step"):
        listed = list(rows.itertuples())
        order = balanced(archive, [r.prompt_tokens + r.response_tokens for r in listed])
        _dump(archive, "verl-v0", "verl-v0-balanced", step, [listed[i] for i in order], {})
    for step, rows in many_rollouts().groupby("step"):
        listed = list(rows.itertuples())
        names = padded(archive, [f"gsm_{r.prompt}_{r.sample}_0" for r in listed], 64)
        _dump(archive, "verl-v1", "verl-v1-padded", step, listed, {"uid": names})

    for step, rows in sample_rollouts().groupby("step"):
        listed = list(rows.itertuples())
        order, names = named_and_sorted(archive, listed, seed=step)
        _dump(archive, "verl-v1", "verl-v1-uuid", step, [listed[i] for i in order], {"uid": names})


def _dump(wheel: zipfile.ZipFile, trainer: str, name: str, step: int, rows: list[Any], extra: dict[str, list[str]]) -> None:
    padding = len(extra.get("uid", rows)) - len(rows)
    writer_of(wheel.read(TRAINERS[trainer]).decode())(
        inputs=[*(prompt_text(r) for r in rows), *[""] * padding], outputs=[*(response_text(r) for r in rows), *[""] * padding],
        gts=[None] * (len(rows) + padding), scores=[*(r.reward for r in rows), *[0.0] * padding],
        reward_extra_infos_dict=extra, dump_path=str(GOLDEN / name), global_steps=step,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
