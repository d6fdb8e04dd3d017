"""Test writers: rollouts as every framework would have logged them.

Knows the fields that each framework writes. verl's are those of its ray trainer (V0) and of its V1 trainer, whose own
functions make its golden files (``make_golden_verl.py``); TRL's come from TRL itself (``make_golden_trl.py``). NeMo-RL's fields
are those of its GRPO loop's ``log_data``, slime's those of ``Sample.to_dict`` and its trace events; these frameworks cannot be
installed without a GPU, so their code is not run here.

Rollouts have step, prompt (a number), sample, prompt_tokens (3 or more), response_tokens, finish_reason, reward,
weights_version, start_s and end_s. One symbol is one token (``golden/trl/tokenizer.json``); a response that stopped ends
with a token of its own.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

GOLDEN = Path(__file__).parents[1] / "trace" / "importers" / "golden"
TOKENIZER = GOLDEN / "trl"
LIMIT = 9  # tokens of the longest response
CLOCK = 1.75e9  # when the logged machines started


def sample_rollouts() -> pd.DataFrame:
    """Two steps of two prompts with two samples; one is cut, one has no reward, the prompts come again."""
    rows = []
    for step in (1, 2):
        for prompt in (0, 1):
            for sample in (0, 1):
                tokens = (5 * step + 3 * prompt + 2 * sample) % LIMIT + 1
                rows.append(
                    {
                        "step": step,
                        "prompt": prompt,
                        "sample": sample,
                        "prompt_tokens": 4 + prompt,
                        "response_tokens": tokens,
                        "finish_reason": "length" if tokens == LIMIT else "stop",
                        "reward": 0.25 * len(rows),
                        "weights_version": step - 1,
                        "start_s": float(10 * step),
                        "end_s": 10.0 * step + tokens,
                    }
                )
    return pd.DataFrame(rows)


def many_rollouts(prompts: int = 12, samples: int = 4) -> pd.DataFrame:
    """Two steps whose lengths differ much by prompt, in the order of dispatch."""
    rng = np.random.default_rng(5)
    rows = []
    for step in (1, 2):
        for prompt, mean in enumerate(rng.permutation(np.geomspace(4, 60, prompts))):
            tokens = np.clip(mean * rng.lognormal(0, 0.3, samples), 1, 99).astype(int).tolist()
            rows += [
                {"step": step, "prompt": prompt, "sample": sample, "prompt_tokens": 4, "response_tokens": own,
                 "finish_reason": "stop", "reward": 1.0}
                for sample, own in enumerate(tokens)
            ]  # fmt: skip
    return pd.DataFrame(rows)


def prompt_text(row: Any) -> str:
    """As many symbols as the prompt has tokens."""
    return f"{row.prompt:0{row.prompt_tokens}d}"


def response_text(row: Any) -> str:
    """As many symbols as the response has tokens, its end token left out."""
    return "".join("abcd"[(row.sample + at) % 4] for at in range(row.response_tokens - (row.finish_reason == "stop")))


def _lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


def write_verl_v0(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One file a step, a reward extra beside the score."""
    for step, rows in rollouts.groupby("step"):
        texts = (
            {"input": prompt_text(r), "output": response_text(r), "gts": "7", "score": r.reward} for r in rows.itertuples()
        )
        _lines(folder / f"{step}.jsonl", ({**record, "step": step, "acc": 1.0} for record in texts))
    return folder


def write_verl_v1(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One file a step, every response with its name."""
    for step, rows in rollouts.groupby("step"):
        _lines(
            folder / f"{step}.jsonl",
            (
                {"input": prompt_text(r), "output": response_text(r), "gts": None, "score": r.reward, "step": step}
                | {"uid": f"gsm_{r.prompt}_{r.sample}_0"}
                for r in rows.itertuples()
            ),
        )
    return folder


def write_trl(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One parquet file a step."""
    (folder / "completions").mkdir(parents=True)
    for step, rows in rollouts.groupby("step"):
        frame = pd.DataFrame(
            {
                "step": step,
                "prompt": [prompt_text(r) for r in rows.itertuples()],
                "completion": [response_text(r) for r in rows.itertuples()],
                "my_reward": rows["reward"].to_numpy(),
                "advantage": [step + 0.5 * at for at in range(len(rows))],
            }
        )
        frame.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")
    return folder


def write_nemo_rl(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One file a step, every line with lists that are as long as the longest row of the step."""
    for step, rows in rollouts.groupby("step"):
        width = int((rows["prompt_tokens"] + rows["response_tokens"]).max())
        records = []
        for at, r in enumerate(rows.itertuples()):
            whole = r.prompt_tokens + r.response_tokens
            ids = [*(10 + int(c) for c in prompt_text(r)), *[5] * r.response_tokens, *[0] * (width - whole)]
            mask = [0.0] * r.prompt_tokens + [1.0] * r.response_tokens + [0.0] * (width - whole)
            records.append(
                {"idx": at, "content": [prompt_text(r), response_text(r)], "rewards": r.reward, "input_lengths": whole}
                | {"token_ids": ids, "token_loss_mask": mask, "sample_loss_mask": 1.0, "advantages": [0.1] * width}
                | {"generation_logprobs": [-0.5] * width, "prev_logprobs": [-0.5] * width}
            )
        _lines(folder / f"train_data_step{step}.jsonl", records)
    return folder


def write_areal(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One file a task, which is a prompt of a step, and its sessions."""
    sessions = []
    for task, ((step, _), rows) in enumerate(rollouts.groupby(["step", "prompt"])):
        records = []
        for r in rows.itertuples():
            versions = {"head_version": r.weights_version, "tail_version": r.weights_version}
            records.append(
                {"task_id": task, "sample_idx": r.sample, "seqlen": r.prompt_tokens + r.response_tokens}
                | {"prompt_len": r.prompt_tokens, **versions, "version_rle": [[r.weights_version, r.response_tokens]]}
                | {"reward": r.reward, "prompt": prompt_text(r), "completion": response_text(r)}
            )
            span = {"start_ts": CLOCK + r.start_s, "end_ts": CLOCK + r.end_s}
            sessions.append(
                {"task_id": task, "session_id": len(sessions), "rank": 0, "status": "accepted", "submit_ts": CLOCK + r.start_s}
                | {"finalized_ts": CLOCK + r.end_s + 1, "generate_s": r.end_s - r.start_s, "reward_s": 0.1}
                | {"phases": {"generate": [span], "reward": []}}
            )
        _lines(folder / "rollout" / str(step) / f"{task}.jsonl", records)
    _lines(folder / "session_tracer" / "sessions-r0.jsonl", sessions)
    return folder


def write_slime(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One pickle of plain data a rollout."""
    import torch

    (folder / "rollout_data").mkdir(parents=True)
    status = {"stop": "completed", "length": "truncated"}
    for step, rows in rollouts.groupby("step"):
        samples = []
        for at, r in enumerate(rows.itertuples()):
            event = {"name": "sglang_generate", "trace_id": "t", "sample_id": at, "attempt": 0, "span_id": "s"}
            events = [
                {**event, "type": "span_start", "ts": CLOCK + r.start_s},
                {**event, "type": "span_end", "ts": CLOCK + r.end_s},
            ]
            samples.append(
                {"group_index": 100 * int(step) + r.prompt, "index": at, "prompt": prompt_text(r), "label": "7"}
                | {"tokens": [1] * (r.prompt_tokens + r.response_tokens), "response": response_text(r)}
                | {"response_length": r.response_tokens, "reward": r.reward, "status": status[r.finish_reason]}
                | {"loss_mask": None, "weight_versions": [str(r.weights_version)], "metadata": {}}
                | {"trace": {"version": 1, "trace_id": "t", "events": events}}
            )
        torch.save({"rollout_id": int(step), "samples": samples}, folder / "rollout_data" / f"{step}.pt")
    return folder


def write_prime_rl(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One file a step, an episode with one trace a line."""
    for step, rows in rollouts.groupby("step"):
        episodes = []
        for at, r in enumerate(rows.itertuples()):
            usage = {"prompt_tokens": r.prompt_tokens, "completion_tokens": r.response_tokens}
            nodes = [
                {"message": {"role": "user", "content": prompt_text(r)}, "token_ids": None, "usage": None},
                {"message": {"role": "assistant", "content": response_text(r)}, "token_ids": None, "usage": usage},
            ]
            span = {"start": CLOCK + r.start_s, "end": CLOCK + r.end_s}
            trace = {"nodes": nodes, "errors": [], "is_truncated": r.finish_reason == "length"}
            timing = {"start": CLOCK + r.start_s, "agent": span}
            episodes.append(
                {"id": f"e{step}-{at}", "group": f"g{step}-{r.prompt}", "traces": [trace], "rewards": {"solved": r.reward}}
                | {"timing": timing}
            )
        _lines(folder / "rollouts" / f"step_{step}" / "train" / "all" / "traces.jsonl", episodes)
    return folder


def write_table(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One csv with our own names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log.csv"
    rollouts.rename(columns={"prompt": "prompt_id"}).to_csv(path, index=False)
    return path


def write_table_jsonl(folder: Path, rollouts: pd.DataFrame) -> Path:
    """The same as lines of JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log.jsonl"
    rollouts.rename(columns={"prompt": "prompt_id"}).to_json(path, orient="records", lines=True, double_precision=15)
    return path


def write_table_parquet(folder: Path, rollouts: pd.DataFrame) -> Path:
    """The same as parquet, in row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log.parquet"
    write_parquet_rows(path, rollouts.rename(columns={"prompt": "prompt_id"}), group_rows=3)
    return path


def write_verl_scalars(folder: Path, rollouts: pd.DataFrame) -> Path:
    """One line a step."""
    names = ("gen", "reward", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "step")
    records = []
    for step, rows in rollouts.groupby("step"):
        tokens = rows["response_tokens"]
        timing = {f"timing_s/{name}": float(at + 1) for at, name in enumerate(names)}
        lengths = {f"response_length/{name}": float(getattr(tokens, name)()) for name in ("mean", "max", "min")}
        lengths["prompt_length/mean"] = float(rows["prompt_tokens"].mean())
        lengths["response_length/clip_ratio"] = float((rows["finish_reason"] == "length").mean())
        records.append({"step": step, "data": {**timing, **lengths, "critic/score/mean": float(rows["reward"].mean())}})
    _lines(folder / "experiment.jsonl", records)
    return folder / "experiment.jsonl"


def write_openrlhf(folder: Path, rollouts: pd.DataFrame) -> Path:
    """A console, coloured and with other lines between."""
    lines = ["INFO starting"]
    for step, rows in rollouts.groupby("step"):
        values = {"timing/generation": 4.0, "timing/make_experience": 2.0, "timing/ppo_train": 3.0, "timing/broadcast": 0.5}
        values |= {"timing/step_total": 9.5, "rollout/response_length_mean": float(rows["response_tokens"].mean())}
        values |= {"rollout/truncated_rate": float((rows["finish_reason"] == "length").mean())}
        values |= {"rollout/num_samples": len(rows), "kl": math.nan, "policy_loss": -math.inf}
        lines += [f"\x1b[36m(PPOTrainer pid=1)\x1b[0m ✨ Global step {step}: {values}", "Episode [1/1]: 50%"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "console.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "console.log"


def write_trl_scalars(folder: Path, rollouts: pd.DataFrame) -> Path:
    """The trainer's state."""
    history = []
    for step, rows in rollouts.groupby("step"):
        tokens = rows["response_tokens"]
        history.append(
            {"step": step, "step_time": 3.0, "completions/mean_length": float(tokens.mean()), "reward": 0.5}
            | {"completions/max_length": float(tokens.max()), "completions/min_length": float(tokens.min())}
            | {"completions/clipped_ratio": float((rows["finish_reason"] == "length").mean())}
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 2, "log_history": history}), encoding="utf-8")
    return folder / "trainer_state.json"


def write_step_table(folder: Path, rollouts: pd.DataFrame) -> Path:
    """A table with one row per step, with the headings that a person gives it."""
    rows = [
        {"step": step, "step time (s)": 9.5, "gen_ms": 4000.0, "reward + logprobs (s)": 2.0, "train seconds": 3.0,
         "weight sync (s)": 0.5, "mean_length": float(of["response_tokens"].mean()), "note": "long, \"quoted\""}
        for step, of in rollouts.groupby("step")
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(folder / "steps.csv", index=False, lineterminator="\n")
    return folder / "steps.csv"


def write_tensorboard(folder: Path, rollouts: pd.DataFrame) -> Path:
    """NeMo-RL's metrics in an event file, by torch's writer, which NeMo-RL uses."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    for step, rows in rollouts.groupby("step"):
        timing = {"total_step_time": 9.5, "generation": 4.0, "policy_and_reference_logprobs": 1.5, "reward_calculation": 0.5}
        timing |= {"policy_training": 2.5, "training_prep": 0.5, "prepare_for_generation/total": 0.5}
        timing |= {"prepare_for_generation/transfer_and_update_weights": 0.25, "valid_tokens_per_sec_per_gpu": 321.0}
        for name, seconds in timing.items():
            writer.add_scalar(f"timing/train/{name}", seconds, step)
        writer.add_scalar("train/mean_gen_tokens_per_sample", float(rows["response_tokens"].mean()), step)
    writer.close()
    next(folder.glob("events*")).rename(folder / "events.out.tfevents.0.golden")  # its name has the machine's
    return folder


def write_wandb(folder: Path, rollouts: pd.DataFrame) -> Path:
    """slime's metrics in a run file of wandb: a row of its rollout, and one of its training."""
    rows: list[dict[str, Any]] = []
    for step, of_step in rollouts.groupby("step"):
        tokens = of_step["response_tokens"]
        rows += [
            {"perf/rollout_time": 4.0, "rollout/response_len/mean": float(tokens.mean()), "rollout/step": step},
            {"perf/log_probs_time": 0.75, "perf/ref_log_probs_time": 1.25, "perf/actor_train_time": 3.0, "perf/step_time": 9.5}
            | {"perf/update_weights_time": 0.5, "rollout/step": step},
            {"train/loss": 0.5, "train/step": 7, "chart": {"_type": "histogram"}},
        ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run-golden.wandb"
    path.write_bytes(wandb_file([wandb_row({**row, "_step": at}) for at, row in enumerate(rows)]))
    return path


def wandb_row(metrics: dict[str, Any]) -> bytes:
    """A record of one row of metrics, as a protocol-buffer message."""

    def field(number: int, content: bytes) -> bytes:
        size, prefix = len(content), b""
        while size > 127:
            prefix += bytes([size & 127 | 128])
            size >>= 7
        key = number << 3 | 2
        head = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
        return head + prefix + bytes([size]) + content

    items = b"".join(
        field(1, field(2, name.encode()) + field(16, json.dumps(value).encode())) for name, value in metrics.items()
    )
    return field(2, items)


def wandb_file(messages: list[bytes]) -> bytes:
    """A run file of wandb with these records: a LevelDB log of blocks of 32 KiB."""
    content = bytearray(b":W&B\xe1\xbe\x00")
    for message in messages:
        left, first = message, True
        while first or left:
            room = 32_768 - len(content) % 32_768
            if room < 7:
                content += bytes(room)
                room = 32_768
            piece, left = left[: room - 7], left[room - 7 :]
            kind = (1 if first else 4) if not left else (2 if first else 3)
            content += struct.pack("<IHB", zlib.crc32(piece, zlib.crc32(bytes([kind]))), len(piece), kind) + piece
            first = False
    return bytes(content)


Writer = Callable[[Path, pd.DataFrame], Path]

COUNTED = ["step", "sample", "prompt_tokens", "response_tokens", "reward"]
TIMED = [*COUNTED, "weights_version", "start_s", "end_s"]
ROLLOUT_WRITERS: dict[str, tuple[str, Writer, list[str]]] = {
    "verl-v0": ("verl", write_verl_v0, [*COUNTED, "finish_reason"]),
    "verl-v1": ("verl", write_verl_v1, [*COUNTED, "finish_reason"]),
    "trl": ("trl", write_trl, [*COUNTED, "finish_reason"]),
    "nemo-rl": ("nemo-rl", write_nemo_rl, COUNTED),
    "areal": ("areal", write_areal, TIMED),
    "slime": ("slime", write_slime, [*TIMED, "finish_reason"]),
    "prime-rl": ("prime-rl", write_prime_rl, [*COUNTED, "finish_reason", "start_s", "end_s"]),
    "table": ("table", write_table, [*TIMED, "finish_reason"]),
    "table-jsonl": ("table", write_table_jsonl, [*TIMED, "finish_reason"]),
    "table-parquet": ("table", write_table_parquet, [*TIMED, "finish_reason"]),
}
"""Log → format, writer, and the columns that come back."""

SCALAR_WRITERS: dict[str, tuple[str, Writer]] = {
    "verl-scalars": ("verl-scalars", write_verl_scalars),
    "openrlhf": ("console", write_openrlhf),
    "trl-scalars": ("trl-scalars", write_trl_scalars),
    "tensorboard": ("tensorboard", write_tensorboard),
    "wandb": ("wandb", write_wandb),
    "step-table": ("steps", write_step_table),
}


def write_parquet_rows(path: Path, rows: pd.DataFrame, group_rows: int) -> None:
    """A parquet file in row groups of a size."""
    with pq.ParquetWriter(path, pa.Table.from_pandas(rows, preserve_index=False).schema) as writer:
        for start in range(0, len(rows), group_rows):
            writer.write_table(pa.Table.from_pandas(rows.iloc[start : start + group_rows], preserve_index=False))
