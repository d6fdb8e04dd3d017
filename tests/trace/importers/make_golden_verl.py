"""Makes ``golden/verl-v0`` and ``golden/verl-v1`` with verl's own function, which writes its dumps of generations.

    pip download --no-deps --dest DIR verl==0.9.1
    python tests/trace/importers/make_golden_verl.py DIR/verl-0.9.1-py3-none-any.whl

verl itself cannot be imported without a GPU's packages. The function that writes (``_write_generations``, one in each trainer)
needs only json, os and numpy, so it is taken out of the wheel's sources as it stands there.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from importer_samples import GOLDEN, prompt_text, response_text, sample_rollouts

NAME = "_write_generations"
TRAINERS = {"verl-v0": "verl/trainer/ppo/ray_trainer.py", "verl-v1": "verl/trainer/ppo/v1/trainer_base.py"}


def writer_of(source: str) -> Callable[..., None]:
    """verl's static method, out of the text of the module that it stands in."""
    (found,) = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == NAME]
    found.decorator_list = []
    scope: dict[str, Any] = {"json": json, "os": os, "np": np}
    exec(compile(ast.Module([found], []), NAME, "exec"), scope)
    writer: Callable[..., None] = scope[NAME]
    return writer


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


if __name__ == "__main__":
    main(sys.argv[1])
