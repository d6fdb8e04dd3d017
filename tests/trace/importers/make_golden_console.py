"""Makes the golden console texts ``golden/*-console`` with the frameworks' own functions that print them.

    for repository in verl-project/verl THUDM/slime NovaSky-AI/SkyRL alibaba/ROLL; do git -C DIR clone --depth 1 \
        https://github.com/$repository; done
    python tests/trace/importers/make_golden_console.py DIR

The frameworks cannot be installed without a GPU's packages, so what prints is taken out of their sources as it stands there.
All of them are under the Apache License 2.0. These are verl's ``concat_dict_to_str``, slime's ``log_rollout_data`` with its
statistics, ``gather_log_data`` and ``log_perf_data``, SkyRL's ``ConsoleLogger``, and ROLL's ``StdoutTracker``. The prefixes are
those of the frameworks' loggers and of Ray. What they need of engines and processes has a stand-in.
"""

from __future__ import annotations

import ast
import copy
import json
import logging
import pprint
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from importer_samples import GOLDEN, sample_rollouts

GENERATE, LOG_PROBS, LEARN, SYNC, STEP = 4.0, 2.0, 3.0, 0.5, 10.25  # seconds of every step
RAY = "\x1b[36m({} pid=71)\x1b[0m "
BAR = "{}:   {}%|{:<10}| {}/50 [00:{:02}<08:12, 10.25s/it]"


def definitions(path: Path, names: set[str], **scope: Any) -> dict[str, Any]:
    """Functions and classes out of a module's source, without decorators of functions, with what they need of it."""
    tree = ast.parse(path.read_text("utf-8"))
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names}
    assert found.keys() == names, f"{path} has other names now"
    exec(compile(ast.Module(list(found.values()), []), str(path), "exec"), scope)
    return scope


class Printed:
    """A logger that keeps its lines, each with a prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.lines = prefix, list[str]()

    def info(self, message: str) -> None:
        """Print as loggers do: the prefix stands before the first line."""
        self.lines += f"{self.prefix}{message}".split("\n")


def steps() -> Iterator[tuple[int, pd.DataFrame]]:
    """The rollouts of each step."""
    for step, rows in sample_rollouts().groupby("step"):
        yield int(step), rows


def verl(sources: Path) -> list[str]:
    """The trainer's line, with numbers of numpy among them, and its progress bar on standard error."""
    import numbers

    import torch

    scope = definitions(
        sources / "verl/verl/utils/logger/aggregate_logger.py", {"concat_dict_to_str"},
        numbers=numbers, pprint=pprint, torch=torch,
    )  # fmt: skip
    lines = [RAY.format("TaskRunner") + "Training from scratch"]
    for step, rows in steps():
        tokens, prompts = rows["response_tokens"], rows["prompt_tokens"]
        metrics = {
            "global_seqlen/mean": float((tokens + prompts).sum()) / 2, "actor/lr": 1e-06, "perf/mfu/actor": np.float64(0.41),
            "critic/score/mean": float(rows["reward"].mean()), "response_length/mean": float(tokens.mean()),
            "response_length/max": float(tokens.max()), "response_length/min": float(tokens.min()),
            "response_length/clip_ratio": float((rows["finish_reason"] == "length").mean()),
            "prompt_length/mean": float(prompts.mean()), "num_turns/max": np.int64(2),
            "timing_s/agent_loop/generate_sequences/mean": np.float64(2.5),
            "timing_s/agent_loop/generate_sequences/max": np.float64(3.75), "timing_s/gen": GENERATE,
            "timing_s/old_log_prob": LOG_PROBS, "timing_s/update_actor": LEARN, "timing_s/update_weights": SYNC,
            "timing_s/step": STEP, "perf/total_num_tokens": int((tokens + prompts).sum()), "perf/throughput": 3.25,
        }  # fmt: skip
        lines += [
            RAY.format("TaskRunner") + scope["concat_dict_to_str"](metrics, step),
            RAY.format("TaskRunner") + BAR.format("Training Progress", 2 * step, "▍" * step, step, 10 * step),
        ]
    return lines


def slime(sources: Path) -> list[str]:
    """Records of the rollout manager and of the trainer."""
    folder = sources / "slime/slime/observability"
    helpers = definitions(folder / "metric_utils.py", {"dict_add_prefix", "compute_statistics"}, np=np, Any=Any)
    manager = Printed(RAY.format("RolloutManager") + "[2026-05-04 10:00:00] rollout_metrics.py:268 - ")
    trainer = Printed(RAY.format("MegatronTrainRayActor") + "[2026-05-04 10:00:09] train_metric_utils.py:401 - ")
    shared = {
        "np": np, "Any": Any, "Namespace": SimpleNamespace, "compute_rollout_step": lambda args, number: number,
        "logging_utils": SimpleNamespace(log=lambda *args, **kwargs: None), **helpers,
    }  # fmt: skip
    rollout_scope = definitions(
        folder / "rollout_metrics.py",
        {"log_rollout_data", "compute_metrics_from_samples", "compute_perf_metrics_from_samples", "_compute_zero_std_metrics",
         "_compute_sglang_request_perf_metrics", "_iter_sglang_generate_attrs"},
        Sample=SimpleNamespace(Status=SimpleNamespace(TRUNCATED="truncated")), logger=manager,
        has_repetition=lambda text: False, group_by=_grouped, _compute_spec_metrics=lambda *_: {},
        _compute_prefix_cache_metrics=lambda *_: {}, _compute_reward_cat_metrics=lambda *_: {},
        _compute_top_p_kept_vocab_metrics=lambda *_: {}, _SGLANG_REQUEST_PERF_FIELDS=(("request/e2e_latency", "e2e_latency"),),
        _SGLANG_PREFILL_PERF_FIELDS=(), _SGLANG_DECODE_PERF_FIELDS=(), **shared,
    )  # fmt: skip
    clock: dict[str, float] = {}
    trainer_scope = _trainer(folder, trainer, clock, shared)
    lines = []
    for step, rows in steps():
        samples = [_slime_sample(row) for row in rows.itertuples()]
        args = SimpleNamespace(
            custom_rollout_log_function_path=None, load_debug_rollout_data=None, rollout_num_gpus=2, advantage_estimator="grpo"
        )
        rollout_scope["log_rollout_data"](step - 1, args, samples, None, GENERATE)
        total = float((rows["response_tokens"] + rows["prompt_tokens"]).mean())
        trainer_scope["gather_log_data"]("rollout", args, step - 1, {"total_lengths": total, "raw_reward": np.float64(0.5)})
        clock.update(train_wait=5.0, train=5.25, log_probs=LOG_PROBS, actor_train=LEARN, update_weights=SYNC)
        trainer_scope["log_perf_data"](step - 1, args)
        lines += [*manager.lines, *trainer.lines]
        manager.lines, trainer.lines = [], []
    return lines


def _trainer(folder: Path, printed: Printed, clock: dict[str, float], shared: dict[str, Any]) -> dict[str, Any]:
    timer = SimpleNamespace(log_dict=lambda: clock, reset=lambda: None, seq_lens=[11, 9])
    ranks = SimpleNamespace(
        get_tensor_model_parallel_rank=lambda: 0, is_pipeline_last_stage=lambda: True,
        get_data_parallel_rank=lambda with_context_parallel: 0, get_data_parallel_world_size=lambda with_context_parallel: 1,
        get_data_parallel_src_rank=lambda with_context_parallel: 0,
        get_data_parallel_group_gloo=lambda with_context_parallel: None,
    )  # fmt: skip
    sys.modules["megatron"] = SimpleNamespace(core=SimpleNamespace(mpu=ranks))  # type: ignore[assignment]
    sys.modules["megatron.core"] = SimpleNamespace(mpu=ranks)  # type: ignore[assignment]
    return definitions(
        folder / "train_metric_utils.py", {"gather_log_data", "log_perf_data"}, logger=printed, deepcopy=copy.deepcopy,
        Timer=lambda: timer, dist=SimpleNamespace(get_world_size=lambda: 2),
        calculate_fwd_flops=lambda seqlens, args: np.float64(4e12),
        gather_and_reduce_log_dict=lambda log_dict, **_: log_dict, **shared,
    )  # fmt: skip


def _slime_sample(row: Any) -> SimpleNamespace:
    attrs = {"e2e_latency": float(row.response_tokens)}
    event = {"type": "span_end", "name": "sglang_generate", "attrs": attrs}
    return SimpleNamespace(
        effective_response_length=row.response_tokens, response_length=row.response_tokens, non_generation_time=0.0,
        response="", status="truncated" if row.finish_reason == "length" else "completed", group_index=row.prompt,
        get_reward_value=lambda args: row.reward, trace={"events": [event]},
    )  # fmt: skip


def _grouped(values: list[Any], key: Callable[[Any], Any] = lambda value: value) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def skyrl(sources: Path) -> list[str]:
    """Both dicts of an asynchronous trainer's step, and its bar; Ray puts its prefix before every line."""
    printed = Printed("2026-05-04 10:00:00.000 | INFO     | skyrl.train.utils.tracking:log:190 - ")
    path = sources / "SkyRL/skyrl/train/utils/tracking.py"
    console = definitions(path, {"ConsoleLogger"}, pprint=pprint, logger=printed, Any=Any, Dict=dict)["ConsoleLogger"]()
    for step, rows in steps():
        tokens = rows["response_tokens"]
        console.log(
            {"generate/avg_num_tokens": float(tokens.mean()), "generate/max_num_tokens": int(tokens.max()),
             "generate/min_num_tokens": int(tokens.min()), "generate/batch_num_seq": len(rows), "async/staleness_max": 1,
             "reward/avg_raw_reward": float(rows["reward"].mean()), "trainer/global_step": step, "trainer/epoch": 0},
            step,
        )  # fmt: skip
        seconds = {"wait_for_generation_buffer": GENERATE, "fwd_logprobs_values_reward": LOG_PROBS, "policy_train": 2.875}
        seconds |= {"train_critic_and_policy": LEARN, "run_training": LEARN + LOG_PROBS, "sync_weights": SYNC, "step": STEP}
        console.log({f"timing/{name}": value for name, value in seconds.items()}, step)
        printed.lines.append(BAR.format("Training Step Progress", 2 * step, "▍" * step, step, 10 * step))
    return [f"(skyrl_entrypoint pid=71) {line}" for line in printed.lines]


def roll(sources: Path) -> list[str]:
    """The metrics of an RLVR pipeline, whose total is of the step before, with a reducer's tag in a name."""
    printed = Printed("[2026-05-04 10:00:00] [tracking.py (98)] [INFO] [DRIVER 0 / 1][PID 71] ")
    scope = definitions(
        sources / "ROLL/roll/utils/tracking.py",
        {"BaseTracker", "StdoutTracker", "_strip_metric_tag", "strip_at_tag_in_log"},
        json=json, logger=printed, Any=Any, Dict=dict, Optional=Optional, wraps=wraps,
    )  # fmt: skip
    tracker = scope["StdoutTracker"]({})
    before = 0.0
    for step, rows in steps():
        tokens = rows["response_tokens"]
        metrics = {
            "time/step_total": before, "time/step_model_update": SYNC, "time/step_generate": GENERATE,
            "time/old_log_probs": LOG_PROBS, "time/step_train": LEARN, "token/response_length/mean": float(tokens.mean()),
            "token/response_length/max": float(tokens.max()), "token/response_length/min": float(tokens.min()),
            "token/prompt_length/mean": float(rows["prompt_tokens"].mean()), "actor/kl_loss@mean": 0.125,
            "system/tps/tps": 5.5, "critic/score/mean": float(rows["reward"].mean()),
        }  # fmt: skip
        tracker.log(metrics, step)
        before = STEP
    return printed.lines


def main(sources: Path) -> None:
    """Write every text anew."""
    logging.disable()
    for name, lines in {"verl": verl, "slime": slime, "skyrl": skyrl, "roll": roll}.items():
        folder = GOLDEN / f"{name}-console"
        folder.mkdir(exist_ok=True)
        (folder / "console.log").write_text("\n".join(lines(sources)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
