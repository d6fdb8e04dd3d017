"""Two runs of vLLM that others measured, request by request, against the simulated engine with the same arrivals.

Knows measured kernel times (linear layers, attention, what is done per sequence) of a GPU, the log of a run on it, and the
simulated engine. An actor's table of iterations is the sum of the kernels of its layers; iterations that feed more tokens than
the batch that usually runs have that batch and a prompt for the rest, with the attention kernel measured for both together.
Only what kernels do not hold, the host's time per iteration, is fitted: so that one run takes as long as it did, and then the
*other* run, on the other GPU, is predicted with it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from validation_errors import signed_error

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.latency.fit import fit_prompt_tokens, fit_table
from solver.model.admission import Admission
from solver.model.iteration_table import IterationTable
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray

FOLDER = Path("llmservingsim-measurements")
RUNS = {"RTX4090": "RTX4090_Llama-3.1-8B", "RTXPRO6000": "RTXPRO6000_Llama-3.1-8B"}
LAYERS, KV_BYTES_PER_TOKEN, WEIGHT_BYTES = 32, 131_072, 16.06e9
MEMORY_BYTES = {"RTXPRO6000": 97_887 << 20}  # where the log does not say how much KV cache there was
PER_LAYER = {"layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1}
CONTEXTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)  # tokens of the prompt of a mixed iteration
MIXED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)  # beside which attention of a prompt was measured
WINDOW_S = 30
MOST_HOST_S = 0.02


class Kernels:
    """Measured kernels of one layer on a GPU, in seconds."""

    def __init__(self, folder: Path) -> None:
        self._by_tokens = self._read(folder / "dense.csv", "tokens")
        self._by_sequences = self._read(folder / "per_sequence.csv", "sequences")
        self._attention = {}
        with (folder / "attention.csv").open(newline="", encoding="utf-8") as rows:
            for row in csv.DictReader(rows):
                key = tuple(int(row[name]) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
                self._attention[key] = float(row["time_us"]) / 1e6

    @staticmethod
    def _read(file: Path, size: str) -> dict[str, tuple[list[float], list[float]]]:
        points: dict[str, tuple[list[float], list[float]]] = {}
        with file.open(newline="", encoding="utf-8") as rows:
            for row in csv.DictReader(rows):
                at, seconds = points.setdefault(row["layer"], ([], []))
                at.append(float(row[size]))
                seconds.append(float(row["time_us"]) / 1e6)
        return points

    def dense_s(self, tokens: float) -> float:
        """Linear layers, norms and activations of an iteration of so many tokens, of all layers."""
        once = sum(float(np.interp(tokens, *self._by_tokens[name])) for name in ("embedding", "final_layernorm"))
        layer = sum(times * float(np.interp(tokens, *self._by_tokens[name])) for name, times in PER_LAYER.items())
        return once + LAYERS * layer

    def sequences_s(self, sequences: float) -> float:
        """The head and sampling."""
        return sum(float(np.interp(sequences, *points)) for points in self._by_sequences.values())

    def attention_s(self, chunk: int, batch: int, context: float) -> float:
        """Attention of all layers: a prefill of ``chunk`` tokens beside ``batch`` responses with ``context`` tokens each;
        linear between contexts, and beyond them."""
        contexts = sorted(kv for c, own, n, kv in self._attention if (c, own, n) == (chunk, 0, batch))
        i = min(max(int(np.searchsorted(contexts, context)), 1), len(contexts) - 1)
        low, high = (self._attention[chunk, 0, batch, kv] for kv in contexts[i - 1 : i + 1])
        return LAYERS * (low + (high - low) * (context - contexts[i - 1]) / (contexts[i] - contexts[i - 1]))

    def iteration_s(self, batch: int, context: float, chunk: int = 0, together: bool = True) -> float:
        """An iteration without the host; ``together`` with the attention kernel that was measured for a batch and a prompt."""
        own = min(batch, MIXED_BATCHES[-1]) if chunk and together else batch  # as many KV tokens in fewer responses
        attention = self.attention_s(chunk if together else 0, own, context * batch / own)
        if chunk and not together:
            attention += LAYERS * self._attention[chunk, 0, 0, 0]
        return self.dense_s(batch + chunk) + attention + self.sequences_s(batch)

    def latency(
        self, host_s: float, kv_capacity_tokens: int, slots: int, budget: int, usual_batch: float, together: bool = True
    ) -> LatencyModel:
        """The actor: the kernels, and ``host_s`` in every iteration.

        Args:
            budget: most tokens that an iteration feeds. usual_batch: the batch beside which prompts are fed.
        """
        beside = min([n for n in BATCHES if n >= min(usual_batch, slots)] or BATCHES[-1:])
        decode = [n for n in BATCHES if n <= beside]
        rows = [[self.iteration_s(n, x) for x in CONTEXTS] for n in decode]
        rows += [[self.iteration_s(beside, x * (beside + c) / beside, c, together) for x in CONTEXTS] for c in CHUNKS]
        table = IterationTable(np.array([*decode, *(beside + c for c in CHUNKS)]), np.array(CONTEXTS), np.array(rows) + host_s)
        fit = fit_table(table, beside, kv_capacity_tokens)
        return LatencyModel(
            "kernels",
            1,
            fit.base_s,
            fit.per_response_s,
            fit.per_kv_token_s,
            table=table,
            prefill_per_token_s=fit_prompt_tokens(table, fit, beside, budget, kv_capacity_tokens)[0],
            max_batch=slots,
            kv_capacity_tokens=kv_capacity_tokens,
            prefill="mixed",
            token_budget=budget,
        )


@dataclass(frozen=True, eq=False)
class ServedRun:
    """A run that was measured, or one that was simulated; times count from the first request.

    Attributes:
        arrives_s, first_token_s, end_s: (n,) of every request.
        running, tokens_per_s: (T,) of every second, at its end.
    """

    arrives_s: FloatArray
    first_token_s: FloatArray
    end_s: FloatArray
    running: FloatArray
    tokens_per_s: FloatArray

    def windows(self) -> list[tuple[int, float, float]]:
        """Start, mean running requests and tokens per second of every whole window."""
        return [
            (at, float(self.running[at : at + WINDOW_S].mean()), float(self.tokens_per_s[at : at + WINDOW_S].mean()))
            for at in range(0, len(self.running) - WINDOW_S + 1, WINDOW_S)
        ]


def read_run(folder: Path) -> tuple[ServedRun, list[dict[str, Any]], dict[str, Any]]:
    """A measured run, its requests and what its engine was started with."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    rows.sort(key=lambda row: row["queued_ts"])
    began = rows[0]["queued_ts"]
    times = (np.array([row[name] - began for row in rows]) for name in ("queued_ts", "first_token_ts", "last_token_ts"))
    with (folder / "timeseries.csv").open(newline="", encoding="utf-8") as file:
        seconds = list(csv.DictReader(file))
    running, tokens = (np.array([float(row[name]) for row in seconds]) for name in ("running", "gen_throughput"))
    return ServedRun(*times, running, tokens), rows, meta


def kv_capacity(gpu: str, meta: Mapping[str, Any]) -> int:
    """KV tokens that the engine had: as the log says, else by its share of the memory."""
    if "kv_cache" in meta:
        return int(meta["kv_cache"]["num_kv_tokens"])
    return int((0.9 * MEMORY_BYTES[gpu] - WEIGHT_BYTES) / KV_BYTES_PER_TOKEN)


def serve(latency: LatencyModel, requests: Sequence[Mapping[str, Any]], rule: str = "preempt") -> ServedRun:
    """The requests on a simulated engine, each when it arrived, looked at once a second."""
    began = requests[0]["queued_ts"]
    admission = Admission(latency.max_batch, latency.kv_capacity_tokens, rule)
    engine = SimulatedEngine(latency, admission, 0.0)
    arrives_s = np.array([row["queued_ts"] - began for row in requests])
    engine.add(
        [
            Request(i, row["input_toks"], row["output_toks"], available_s=float(at), target_tokens=row["output_toks"])
            for i, (row, at) in enumerate(zip(requests, arrives_s, strict=True))
        ]
    )
    first_s, end_s = np.zeros(len(requests)), np.zeros(len(requests))
    running, total, done, complete = [], [0], 0, 0
    while complete < len(requests):
        for one in engine.advance(float(len(running) + 1)).completions:
            first_s[one.response], end_s[one.response] = one.first_token_s, one.time_s
            done += one.response_tokens
            complete += 1
        running.append(len(engine.running()))
        total.append(done + int(engine.token_arrays()[1].sum()))
    engine.close()
    return ServedRun(arrives_s, first_s, end_s, np.array(running, dtype=float), np.diff(np.array(total, dtype=float)))


@dataclass(frozen=True, eq=False)
class Case:
    """A GPU's kernels, the run that was measured on it, and its requests."""

    gpu: str
    kernels: Kernels
    measured: ServedRun
    requests: Sequence[Mapping[str, Any]]
    kv_capacity_tokens: int
    slots: int
    iteration_tokens: int

    @classmethod
    def of(cls, data: Path, gpu: str) -> Case:
        """The case of a GPU, from the data's folder."""
        measured, requests, meta = read_run(data / FOLDER / "vllm-runs" / RUNS[gpu])
        kernels = Kernels(data / FOLDER / "profiles" / gpu / "Llama-3.1-8B" / "tp1")
        started = meta["engine_kwargs"]
        sizes = kv_capacity(gpu, meta), started["max_num_seqs"], started["max_num_batched_tokens"]
        return cls(gpu, kernels, measured, requests, *sizes)

    @property
    def batch(self) -> float:
        """Responses that run at once where there are enough: slots, or what the KV cache holds."""
        mean = np.mean([row["input_toks"] + row["output_toks"] / 2 for row in self.requests])
        return float(min(self.slots, self.kv_capacity_tokens / mean))

    def run(self, host_s: float, rule: str = "preempt", together: bool = True, budget: int | None = None) -> ServedRun:
        """The simulated run."""
        sizes = self.kv_capacity_tokens, self.slots, budget or self.iteration_tokens, self.batch
        return serve(self.kernels.latency(host_s, *sizes, together), self.requests, rule)

    def fitted_host_s(self) -> float:
        """The host's time per iteration with which the simulated run takes as long as the measured one, within 10 us."""
        low, high = 0.0, MOST_HOST_S
        while high - low > 1e-5:
            host_s = (low + high) / 2
            if self.run(host_s).end_s.max() < self.measured.end_s.max():
                low = host_s
            else:
                high = host_s
        return low


def compare(case: Case, simulated: ServedRun) -> dict[str, Any]:
    """Signed errors of a whole run, of its requests and of its windows."""
    real = case.measured
    latency_s, first_s = real.end_s - real.arrives_s, real.first_token_s - real.arrives_s
    each = [
        {
            "latency_error": signed_error(ours - at, theirs),
            "ttft_s": float(waited),
            "ttft_difference_s": float(first - at - waited),
        }
        for ours, first, at, theirs, waited in zip(
            simulated.end_s, simulated.first_token_s, real.arrives_s, latency_s, first_s, strict=True
        )
    ]
    windows = [
        {
            "from_s": at,
            "running": running,
            "running_error": signed_error(our_running, running),
            "tokens_per_s": tokens,
            "tokens_error": signed_error(our_tokens, tokens),
        }
        for (at, running, tokens), (_, our_running, our_tokens) in zip(real.windows(), simulated.windows(), strict=False)
    ]
    return {
        "makespan_s": float(real.end_s.max()),
        "makespan_error": signed_error(float(simulated.end_s.max()), float(real.end_s.max())),
        "mean_latency_error": signed_error(float((simulated.end_s - real.arrives_s).mean()), float(latency_s.mean())),
        "mean_ttft_s": float(first_s.mean()),
        "mean_ttft_error": signed_error(float((simulated.first_token_s - real.arrives_s).mean()), float(first_s.mean())),
        "requests": each,
        "windows": windows,
    }


def validate(data: Path) -> list[dict[str, Any]]:
    """Every run with the host's time that was fitted on the other one, as it is and with one thing left out at a time."""
    cases = [Case.of(data, gpu) for gpu in RUNS]
    results = []
    for case, other in zip(cases, reversed(cases), strict=True):
        host_s = other.fitted_host_s()
        ways = {
            "as modelled": case.run(host_s),
            "without the host": case.run(0.0),
            "without interference": case.run(host_s, together=False),
            "with a quarter of the token budget": case.run(host_s, budget=case.iteration_tokens // 4),
            "with reserved memory": case.run(host_s, rule="reserve"),
            "with all the memory": replace(case, kv_capacity_tokens=1 << 30).run(host_s),
        }
        for way, simulated in ways.items():
            row = {"gpu": case.gpu, "way": way, "fitted_on": other.gpu, "host_s": host_s, **compare(case, simulated)}
            results.append(row if way == "as modelled" else {k: v for k, v in row.items() if k not in ("requests", "windows")})
    return results
