"""Times per output token and to the first token that were measured end to end, against a model fitted on other models and GPUs.

Knows the table of measured points, the public shapes of two models and the data sheets of two GPUs. A point is a server that
always has as many requests as its ``concurrency``, each with the same prompt and response lengths. It is predicted by the
form of a ``LatencyModel`` (a constant, a time per response and one per KV token in an iteration, and one per token of
prefill), whose coefficients are sums over what the hardware does: bytes of weights and of KV cache over memory bandwidth,
operations over the peak, all-reduces over NVLink. How far from the data sheet each term is, is fitted (0 or more) on the
points of all other pairs of model and GPU, never on points of the pair that is predicted. What the table does not say of a
server is fitted for every server apart: what a layer takes whatever is in the batch (launches, norms), and what a KV token
takes (its numbers may have one byte or two); a server without points in the fit has the mean of the others. There is no
constant per iteration beside the one per layer: all servers but one were measured on one model only, so the two cannot be
told apart there, and where they can, little is left for a constant (``constant_share``).

In steady state every request costs all others one prefill while it runs, so an iteration of B requests has B / response
tokens of them. Where the KV cache holds fewer requests than there are, the others wait, and by Little's law the first token
comes later by their share of a residence. A set of points of which more than a tenth took less than the data sheet's least for
reading weights and caches (of one byte a number) and computing the prompts is no such server (its prompts were cached, or not
counted): nothing is fitted on it.

Beside every prediction stands the error of the same form fitted on the point's own set: what no transfer can be better than.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from validation_errors import signed_error

from solver.model.affine_fit import fit_nonnegative
from solver.model.workload import FloatArray

FILE = Path("aiconfigurator-measured") / "silicon_llama_h100_h200.csv"
USABLE = 0.9  # of GPU memory, less what activations take
RESERVE_BYTES = 4e9
NVLINK_BYTES_PER_S = 450e9
KV_BYTES = {"vllm": 2, "trtllm": 1, "sglang": 2}  # of a number, for how many requests fit: usual beside weights of 8 bits
LEAST_KV_BYTES = 1
IMPOSSIBLE = 0.1  # share of a set's points that may be faster than its hardware
SERVERS = ("layers", "kv")  # what servers differ in
CHOICES = (SERVERS, ("kv",), *((*SERVERS, more) for more in ("responses", "weights", "prefill")))
QUEUE = ("request", "others")  # how many requests come at once is not in the table and differs between servers' benchmarks


@dataclass(frozen=True)
class Shape:
    """A model's public configuration."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    parameters: float

    @property
    def kv_numbers(self) -> int:
        """Numbers in the KV cache of a token."""
        return 2 * self.layers * self.kv_heads * (self.hidden // self.heads)


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet: memory, its bandwidth, and operations per second with 16 bits (twice as many with 8)."""

    memory_bytes: float
    bytes_per_s: float
    flops: float


SHAPES = {"8B": Shape(32, 4096, 32, 8, 8.03e9), "70B": Shape(80, 8192, 64, 8, 70.6e9)}
GPUS = {"h100_sxm": Gpu(85.9e9, 3.35e12, 989e12), "h200_sxm": Gpu(151.4e9, 4.8e12, 989e12)}


@dataclass(frozen=True)
class Point:
    """A measured point: seconds to the first token and per token after it."""

    name: str
    backend: str
    model: str
    gpu: str
    weight_bytes: int  # of one number
    prompt_tokens: int
    response_tokens: int
    concurrency: int
    tensor_parallel: int
    ttft_s: float
    tpot_s: float

    @property
    def pair(self) -> str:
        """What points are split by."""
        return f"{self.model} on {self.gpu.removesuffix('_sxm').upper()}"

    @property
    def set(self) -> tuple[str, str]:
        """Points of one server, model and GPU."""
        return self.pair, self.backend

    @property
    def batch(self) -> float:
        """Requests that run at once: as many as there are, or as the KV cache holds."""
        shape, gpu = SHAPES[self.model], GPUS[self.gpu]
        room = self.tensor_parallel * (USABLE * gpu.memory_bytes - RESERVE_BYTES) - shape.parameters * self.weight_bytes
        held = shape.kv_numbers * KV_BYTES[self.backend] * (self.prompt_tokens + self.response_tokens / 2)
        return float(min(self.concurrency, max(1.0, room / held)))


def read_points(file: Path) -> list[Point]:
    """All points of the table.

    Raises:
        FileNotFoundError: the data are not there.
    """
    points = []
    with file.open(newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            points.append(
                Point(
                    name=row["id"],
                    backend=row["backend"],
                    model="70B" if "70B" in row["model_path"] else "8B",
                    gpu=row["system"],
                    weight_bytes=1 if row["precision"] == "fp8" else 2,
                    prompt_tokens=int(float(row["isl"])),
                    response_tokens=int(float(row["osl"])),
                    concurrency=int(float(row["batch_size"])),
                    tensor_parallel=int(float(row["tp_size"])),
                    ttft_s=float(row["silicon_ttft_ms"]) / 1e3,
                    tpot_s=float(row["silicon_tpot_ms"]) / 1e3,
                )
            )
    return points


def prefill_operations(point: Point) -> float:
    """Operations that the prefill of one prompt takes: weights, and attention over half of the prompt."""
    shape = SHAPES[point.model]
    return 2 * shape.parameters * point.prompt_tokens + 2 * shape.layers * shape.hidden * point.prompt_tokens**2


def prefill_all_reduce_s(point: Point) -> float:
    """Seconds in which the hidden states of one prompt pass NVLink: two all-reduces a layer, none on one GPU."""
    shape = SHAPES[point.model]
    sent = 2 * shape.layers * point.prompt_tokens * shape.hidden * 2
    return sent / NVLINK_BYTES_PER_S if point.tensor_parallel > 1 else 0.0


def terms(point: Point) -> dict[str, float]:
    """What the data sheets say an iteration takes, term by term, in seconds (counts where the sheet says nothing); a number of
    the KV cache has one byte."""
    shape, gpu, degree, batch = SHAPES[point.model], GPUS[point.gpu], point.tensor_parallel, point.batch
    flops = gpu.flops * 2 / point.weight_bytes
    context = point.prompt_tokens + point.response_tokens / 2
    return {
        "layers": float(shape.layers),
        "responses": batch,
        "weights": shape.parameters * point.weight_bytes / degree / gpu.bytes_per_s,
        "kv": batch * context * shape.kv_numbers * LEAST_KV_BYTES / degree / gpu.bytes_per_s,
        "operations": 2 * shape.parameters * batch / degree / flops,
        "all_reduces": 2.0 * shape.layers * (degree > 1),
        "prefill": prefill_operations(point) / degree / flops * batch / point.response_tokens,
        "prefill_all_reduces": prefill_all_reduce_s(point) * batch / point.response_tokens,
    }


def first_token_terms(point: Point, tpot_s: float) -> dict[str, float]:
    """What the first token waits for, in seconds: its own prefill, those of the requests that come with it, the iteration under
    way, and those that wait for KV memory."""
    gpu, degree, batch = GPUS[point.gpu], point.tensor_parallel, point.batch
    own = prefill_operations(point) / degree / (gpu.flops * 2 / point.weight_bytes)
    waits = (point.concurrency / batch - 1) * point.response_tokens * tpot_s
    reduces = prefill_all_reduce_s(point)
    others = (own + reduces) * batch
    return {"request": 1.0, "own": own, "all_reduces": reduces, "others": others, "iteration": tpot_s, "waits": waits}


class _Fit:
    """Coefficients of 0 or more for terms; those in ``own`` are fitted for every server apart, and a server that was not
    among the training points has the mean of the others."""

    def __init__(
        self, train: Sequence[Point], rows: Sequence[dict[str, float]], seconds: Sequence[float], own: Sequence[str]
    ) -> None:
        self._servers, self._own = sorted({p.backend for p in train}), own
        columns = np.array([self._columns(p, row) for p, row in zip(train, rows, strict=True)])
        self.coefficients: FloatArray = fit_nonnegative(columns, np.array(seconds))[0]

    def _columns(self, point: Point, row: dict[str, float]) -> list[float]:
        known = point.backend in self._servers
        shares = [float(s == point.backend) if known else 1 / len(self._servers) for s in self._servers]
        return [value * share for name, value in row.items() for share in (shares if name in self._own else [1.0])]

    def seconds(self, point: Point, row: dict[str, float]) -> float:
        """What the terms of a point come to."""
        return float(np.array(self._columns(point, row)) @ self.coefficients)


def explained(points: Sequence[Point]) -> list[Point]:
    """The points of sets that can be servers in steady state: nearly all took at least what the data sheet says is needed."""

    def possible(point: Point) -> bool:
        least = terms(point)
        return point.tpot_s >= least["weights"] + least["kv"] + least["prefill"]

    sets = {point.set for point in points}
    share = {one: float(np.mean([possible(p) for p in points if p.set == one])) for one in sets}
    return [point for point in points if share[point.set] >= 1 - IMPOSSIBLE]


def constant_share(points: Sequence[Point]) -> float:
    """Of what an 8B iteration takes whatever is in it, the share that a constant has beside the layers, fitted on the points of
    the only server that was measured on both models."""
    own = [point for point in points if point.backend == "trtllm"]
    rows = [{"constant": 1.0, **terms(point)} for point in own]
    constant_s, layer_s, *_ = _Fit(own, rows, [point.tpot_s for point in own], ()).coefficients
    return float(constant_s / (constant_s + SHAPES["8B"].layers * layer_s))


class _Model:
    """Both times of any point, by what the training points say."""

    def __init__(self, train: Sequence[Point], servers: Sequence[str]) -> None:
        self._each = _Fit(train, [terms(p) for p in train], [p.tpot_s for p in train], servers)
        self._first = _Fit(train, [first_token_terms(p, p.tpot_s) for p in train], [p.ttft_s for p in train], QUEUE)

    def errors(self, point: Point) -> tuple[float, float]:
        """Signed errors of the time per token and of the time to the first."""
        tpot_s = self._each.seconds(point, terms(point))
        ttft_s = self._first.seconds(point, first_token_terms(point, tpot_s))
        return signed_error(tpot_s, point.tpot_s), signed_error(ttft_s, point.ttft_s)


def validate(points: Sequence[Point], servers: Sequence[str] = SERVERS) -> list[dict[str, Any]]:
    """Every point, predicted by a model that was fitted on all pairs of model and GPU but its own; ``servers``: the terms that
    are fitted for every server apart."""
    known = explained(points)
    inside = {one: _Model([p for p in points if p.set == one], servers) for one in dict.fromkeys(p.set for p in points)}
    cases = []
    for pair in dict.fromkeys(p.pair for p in points):
        model = _Model([p for p in known if p.pair != pair], servers)
        for point in [p for p in points if p.pair == pair]:
            (tpot, ttft), (own_tpot, own_ttft) = model.errors(point), inside[point.set].errors(point)
            cases.append(
                {
                    "case": point.name,
                    "set": f"{pair}, {point.backend}",
                    "explained": point in known,
                    "kv_bound": point.batch < point.concurrency,
                    "concurrency": point.concurrency,
                    "tpot_s": point.tpot_s,
                    "tpot_error": tpot,
                    "tpot_inside": own_tpot,
                    "ttft_s": point.ttft_s,
                    "ttft_error": ttft,
                    "ttft_inside": own_ttft,
                }
            )
    return cases
