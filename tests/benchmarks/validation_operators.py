"""Vidur's operator times: linear layers predicted from other models and GPUs, read between measured sizes, and beside a
profile.

Knows the tables of measured operators, data sheets of GPUs, and shipped profiles. A layer's operators (projections, MLP,
norms, activations) take a constant, a share of reading their weights, and a share of their operations per token, each a
multiple of what the data sheet says, 0 or more. The multiples are fitted on all GPUs but one, and on all models but one, and
tested on that one. Attention is not in these tables.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from validation_errors import signed_error

from rlhfless.latency import load_profile
from rlhfless.latency.generate import BATCHES, FED_TOKENS
from solver.model.affine_fit import fit_nonnegative
from solver.model.workload import FloatArray

FOLDER = Path("vidur-gpu-profiles")
OPERATORS = ("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm", "mlp_up_proj",
             "mlp_act", "mlp_down_proj", "add")  # fmt: skip
BYTES_PER_S = {"h100": 3.35e12, "a100": 2.039e12, "a40": 0.696e12}
FLOPS = {"h100": 989e12, "a100": 312e12, "a40": 149.7e12}
MOST_TOKENS = 512  # responses that decode together; more are prefill
PROFILE, PROFILE_MODEL, PROFILE_GPU = "h100-llama2-70b-tp2", "Llama-2-70b-hf", "h100"
LAYERS = 80
LEAST_CONTEXT = 64  # the shortest of the profile's table, where attention is least


@dataclass(frozen=True)
class LayerTime:
    """The operators of one layer for ``tokens`` tokens, on one of ``degree`` GPUs: seconds, and its weights."""

    gpu: str
    model: str
    degree: int
    tokens: int
    weights: float
    seconds: float

    @property
    def terms(self) -> list[float]:
        """What the time is a sum of, by the data sheet: a constant, reading the weights, operations, the tokens' own
        numbers."""
        read = 2 * self.weights / self.degree / BYTES_PER_S[self.gpu]
        operations = 2 * self.weights * self.tokens / self.degree / FLOPS[self.gpu]
        return [
            1.0,
            max(read, operations),
            min(read, operations),
            self.tokens * math.sqrt(self.weights) / BYTES_PER_S[self.gpu],
        ]


def read_layers(data: Path) -> list[LayerTime]:
    """All measured layers of up to ``MOST_TOKENS`` tokens where no time is missing."""
    times = []
    for file in sorted((data / FOLDER / "compute").glob("*/*/mlp.csv")):
        with file.open(newline="", encoding="utf-8") as rows:
            for row in csv.DictReader(rows):
                named = [f"time_stats.{name}.median" for name in OPERATORS]
                parts = [row[name] for name in named if name in row]  # not every model has all of them
                if int(row["num_tokens"]) > MOST_TOKENS or not all(parts):
                    continue
                hidden, inner = int(row["n_embd"]), int(row["n_expanded_embd"])
                kv = int(row["n_kv_head"]) * hidden // int(row["n_head"])
                mlp = (3 if row["use_gated_mlp"] == "True" else 2) * hidden * inner
                times.append(
                    LayerTime(
                        gpu=file.parts[-3],
                        model=file.parts[-2],
                        degree=int(row["num_tensor_parallel_workers"]),
                        tokens=int(row["num_tokens"]),
                        weights=float(2 * hidden * hidden + 2 * hidden * kv + mlp),
                        seconds=sum(map(float, parts)) / 1e3,
                    )
                )
    return times


def across(layers: Sequence[LayerTime], split: Callable[[LayerTime], str]) -> list[dict[str, Any]]:
    """Every layer, predicted by what was fitted on all parts of the split but its own."""
    cases = []
    for part in dict.fromkeys(map(split, layers)):
        train = [one for one in layers if split(one) != part]
        weights, _ = fit_nonnegative(np.array([one.terms for one in train]), np.array([one.seconds for one in train]))
        for one in layers:
            if split(one) == part:
                error = signed_error(float(np.array(one.terms) @ weights), one.seconds)
                cases.append({"part": part, "gpu": one.gpu, "model": one.model, "tokens": one.tokens, "error": error})
    return cases


def between(layers: Sequence[LayerTime]) -> list[dict[str, Any]]:
    """Layers at numbers of tokens that a profile's table does not have, read between those that it has."""
    cases = []
    for key in dict.fromkeys((one.gpu, one.model, one.degree) for one in layers):
        own = {one.tokens: one.seconds for one in layers if (one.gpu, one.model, one.degree) == key}
        known = sorted(set(own) & {*BATCHES, *FED_TOKENS})
        for tokens in sorted(set(own) - set(known)):
            if known[0] < tokens < known[-1]:
                ours = float(np.interp(tokens, known, [own[size] for size in known]))
                cases.append({"part": key[0], "model": key[1], "tokens": tokens, "error": signed_error(ours, own[tokens])})
    return cases


def all_reduce_s(data: Path, workers: int) -> Callable[[float], float]:
    """Seconds of an all-reduce of so many bytes between GPUs of one DGX H100."""
    sizes: dict[float, float] = {}
    with (data / FOLDER / "network" / "h100_dgx" / "all_reduce.csv").open(newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            if int(row["num_workers"]) == workers and int(row["devices_per_node"]) == workers:
                sizes[float(row["size"])] = float(row["time_stats.all_reduce.median"]) / 1e3
    at: FloatArray = np.array(sorted(sizes))
    return lambda size: float(np.interp(size, at, [sizes[one] for one in at]))


def beside_profile(data: Path, layers: Sequence[LayerTime]) -> list[dict[str, Any]]:
    """The shipped profile's decode iterations at its shortest context against Vidur's layers and all-reduces, which leave out
    attention and the head."""
    table, reduce_s = load_profile(PROFILE).table, all_reduce_s(data, 2)
    assert table is not None
    cases = []
    for one in layers:
        if (one.gpu, one.model, one.degree) == (PROFILE_GPU, PROFILE_MODEL, 2) and one.tokens in BATCHES:
            theirs = LAYERS * (one.seconds + 2 * reduce_s(one.tokens * 8192 * 2))
            ours = float(table(one.tokens, one.tokens * LEAST_CONTEXT))
            cases.append({"part": PROFILE, "tokens": one.tokens, "ours_s": ours, "theirs_s": theirs})
            cases[-1]["error"] = signed_error(ours, theirs)
    return sorted(cases, key=lambda case: case["tokens"])


def validate(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Cases of every check, by its name."""
    layers = read_layers(data)
    return {
        "other GPU": across(layers, lambda one: one.gpu),
        "other model": across(layers, lambda one: one.model),
        "between sizes": between(layers),
        "profile": beside_profile(data, layers),
    }
