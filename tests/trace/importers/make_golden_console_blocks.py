"""Makes the golden console texts of TRL, NeMo-RL and prime-rl with the frameworks' own statements that print them.

    for repository in NVIDIA-NeMo/RL PrimeIntellect-ai/prime-rl; do git -C DIR clone https://github.com/$repository; done
    python tests/trace/importers/make_golden_console_blocks.py DIR/RL DIR/prime-rl     # TRL: pip install 'trl>=1.16'

- ``trl-console``: transformers' ``ProgressCallback`` prints the entries of ``golden/trl`` through its bar; its clock is ours.
- ``nemo-rl-console``: the statements of ``grpo.py`` that print a step, of a synchronous run (``console.log``) and of an
  asynchronous one (``async.log``), and ``print_performance_metrics``.
- ``prime-rl-console``: the expressions that are the lines of the orchestrator and of the trainer, of today and
  of ``OLD``, the last version with fields that have colons and rates.

NeMo-RL and prime-rl cannot be imported without a GPU's packages, so what prints is taken out of their sources as it stands
there. All three are under the Apache License 2.0. What it needs of the run has a stand-in.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional
from unittest import mock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from importer_samples import GOLDEN, sample_rollouts

OLD = "385538edb"
GRPO, UTILS = "nemo_rl/algorithms/grpo.py", "nemo_rl/algorithms/utils.py"
ORCHESTRATOR, TRAINER = "src/prime_rl/orchestrator/orchestrator.py", "src/prime_rl/trainer/rl/train.py"
FORMAT_TIME = "src/prime_rl/utils/logger.py"


def source(repository: Path, path: str, commit: str = "HEAD") -> str:
    """A file of a repository, as it was in a commit."""
    return subprocess.run(
        ["git", "-C", str(repository), "show", f"{commit}:{path}"], capture_output=True, text=True, check=True
    ).stdout


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(found := getattr(node, name, None), list):
                yield found


def between(text: str, first: str, last: str, which: int = 0) -> ast.Module:
    """The statements of one list, from one that assigns or prints the first text, to one that begins with the last."""
    found = []
    for statements in blocks(ast.parse(text)):
        written = [ast.unparse(one) for one in statements]
        starts = [at for at, one in enumerate(written) if one.startswith((first, "print(")) and first in one]
        for start in starts[:1]:
            end = next(at for at, one in enumerate(written) if at >= start and one.startswith(last))
            found.append((statements[start].lineno, statements[start : end + 1]))
    return ast.Module(sorted(found, key=lambda pair: pair[0])[which][1], [])


def function(text: str, name: str) -> ast.Module:
    """A function without annotations."""
    node = next(one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef) and one.name == name)
    return ast.Module([node], [])


def run(module: ast.Module, scope: dict[str, Any]) -> dict[str, Any]:
    exec(compile(module, "framework", "exec"), scope)
    return scope


class Settings(dict[str, Any]):
    """A configuration whose entries are attributes, too."""

    __getattr__ = dict.__getitem__


def trl() -> str:
    """A run of three steps, of which the second one only learns."""
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import ProgressCallback

    saved = json.loads((GOLDEN / "trl" / "trainer_state.json").read_text())
    clock, printed = [1000.0], io.StringIO()
    state = TrainerState(max_steps=saved["max_steps"], is_world_process_zero=True)
    with (
        mock.patch("tqdm.std.time", side_effect=lambda: clock[0]), contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        mock.patch("tqdm.std.tqdm.monitor_interval", 0),
    ):  # fmt: skip
        callback, arguments, control = ProgressCallback(), mock.Mock(spec=TrainingArguments), TrainerControl()
        callback.on_train_begin(arguments, state, control)
        for entry in saved["log_history"]:
            clock[0] += entry.get("step_time", 0.0)
            state.global_step = entry["step"]
            if "step_time" in entry:
                callback.on_step_end(arguments, state, control)
            callback.on_log(arguments, state, control, logs={name: value for name, value in entry.items() if name != "step"})
        callback.on_train_end(arguments, state, control)
    return printed.getvalue()


def nemo_rl(repository: Path, asynchronous: bool) -> str:
    """Two steps; 2 of 8 GPUs generate where the run is asynchronous, else all of them."""
    grpo = source(repository, GRPO)
    scope: dict[str, Any] = {"np": np, "Any": Any, "Optional": Optional}
    run(function(source(repository, UTILS), "print_performance_metrics"), scope)
    header = between(grpo, "Step {step + 1}" if asynchronous else "Step {current_step + 1}/{min(", "print")
    block = between(grpo, "📊 Training Results", "performance_metrics =", which=int(asynchronous))
    colocated = {"enabled": not asynchronous, "resources": {"num_nodes": 1, "gpus_per_node": 2}}
    config = Settings(
        grpo=Settings(
            use_dynamic_sampling=False, num_prompts_per_step=2, num_generations_per_prompt=2, max_num_steps=60,
            async_grpo=Settings(enabled=asynchronous),
        ),
        cluster={"num_nodes": 1, "gpus_per_node": 8}, policy={"generation": {"colocated": colocated}},
    )  # fmt: skip
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for step, rows in sample_rollouts().groupby("step"):
            tokens = rows["response_tokens"]
            timing = {
                "total_step_time": 12.75,
                "policy_and_reference_logprobs": 2.0,
                "policy_training": 3.0,
                "training_prep": 0.5,
            }
            timing |= {"exposed_generation": 6.5, "weight_sync": 0.25} if asynchronous else {"generation": 6.0}
            timing |= {} if asynchronous else {"prepare_for_generation/total": 0.5, "reward_calculation": 0.25}
            scope |= {
                "step": step - 1, "current_step": step - 1, "max_num_steps": 60, "wrapped_dataloader": range(100),
                "master_config": config, "timing_metrics": timing, "buffer_size_current": 64, "avg_trajectory_age": 1.0,
                "rewards": torch.tensor(rows["reward"].to_numpy()), "train_results": {"total_flops": 1e15, "num_ranks": 8},
                "metrics_logging_data": {"mean_gen_tokens_per_sample": float(tokens.mean())},
                "metrics": {
                    "loss": 0.0123, "gen_kl_error": 0.001, "global_valid_toks": float(tokens.sum()),
                    "total_num_tokens": 40_000.0, "per_worker_token_counts": {0: 11_000, 1: 9_000},
                },
            }  # fmt: skip
            run(header, scope)
            if not asynchronous:
                print(f"▶ Generating responses for batch of size {len(rows)}...")
            run(block, scope)
    return printed.getvalue()


def prime_rl(repository: Path) -> dict[str, str]:
    """Lines of the orchestrator and of the trainer, as they are and as they were."""
    scope: dict[str, Any] = {}
    run(function(source(repository, FORMAT_TIME), "format_time"), scope)
    texts: dict[str, list[str]] = {"console.log": [], "trainer.log": [], "old.log": []}
    head = between(source(repository, ORCHESTRATOR), "head = ", "head =")
    learned = between(source(repository, TRAINER), "step_message = ", "step_message =")
    rates = ast.Module([_last(source(repository, TRAINER))], [])
    old = between(source(repository, ORCHESTRATOR, OLD), "step_message = ", "step_message =")
    for step, rows in sample_rollouts().groupby("step"):
        shares = SimpleNamespace(mean=lambda: 0.0)
        of_all = SimpleNamespace(has_error=shares, cancelled=shares)
        eff = SimpleNamespace(
            reward=rows["reward"], num_turns=SimpleNamespace(mean=lambda: 1.0), num_branches=SimpleNamespace(mean=lambda: 1.0),
            is_truncated=(rows["finish_reason"] == "length"),
        )  # fmt: skip
        scope |= {
            "step": step, "step_time": 60.0 * step + 12.25, "eff": eff, "n_trainable": len(rows) - 1, "n_effective": len(rows),
            "trainable_rate": (len(rows) - 1) / len(rows), "max_off_policy_steps": step - 1,
            "episodes": SimpleNamespace(metrics=of_all), "progress": SimpleNamespace(step=step), "current_lr": 1e-6,
            "tensor_stats": {"loss/mean": 0.01, "entropy/all/mean": 0.5}, "throughput": 4321.5, "mfu": 31.5,
            "peak_memory": 40.25,
            "results_df": rows.assign(seq_len=rows["prompt_tokens"] + rows["response_tokens"]), "val_results_df": None,
            "scheduler": SimpleNamespace(async_level=step - 1, max_off_policy_level=step - 1),
        }  # fmt: skip
        stamp = "\x1b[2m23:5{}:30\x1b[0m\x1b[32m\x1b[1m SUCCESS\x1b[0m \x1b[32m\x1b[1m\x1b[22m{}\x1b[0m"
        texts["console.log"].append(stamp.format(7 + step, run(head, scope)["head"]))
        run(learned, scope)
        texts["trainer.log"].append(stamp.format(7 + step, run(rates, scope)["step_message"]))
        bar = f"Generating rollouts (train): 100%|##########| {len(rows)}/{len(rows)} [00:14<00:00, 3.5it/s]"
        texts["old.log"].append(bar)
        texts["old.log"].append(stamp.format(7 + step, run(old, scope)["step_message"]))
    return {name: "\n".join(lines) + "\n" for name, lines in texts.items()}


def _last(text: str) -> ast.stmt:
    """The statement that adds rates to the trainer's line."""
    return next(
        one for one in ast.walk(ast.parse(text))
        if isinstance(one, ast.AugAssign) and "step_message += " in (written := ast.unparse(one)) and "Throughput" in written
    )  # fmt: skip


def main(nemo: Path, prime: Path) -> None:
    """Write the texts anew."""
    texts = {"trl-console/console.log": trl()}
    texts |= {"nemo-rl-console/console.log": nemo_rl(nemo, False), "nemo-rl-console/async.log": nemo_rl(nemo, True)}
    texts |= {f"prime-rl-console/{name}": text for name, text in prime_rl(prime).items()}
    for name, text in texts.items():
        (GOLDEN / name).parent.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(text, encoding="utf-8", newline="")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
