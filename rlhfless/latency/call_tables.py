"""Reads the shipped tables of model calls: seconds of prefills and decode iterations on 1, 2, 4 or 8 GPUs of a kind.

Needs json and numpy only. Tables are in ``data/calls``, one file per GPU kind, made by ``rlhfless.latency.generate_calls``. A
file states its origin, command, date and licence, and under ``assumptions`` every number that is assumed rather than measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlhfless.latency.shipped import ProfileError, check_schema, read_object, shipped_files
from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.iteration_table import IterationTable
from solver.model.workload import FloatArray

FOLDER = "calls"
SCHEMA = "rlhfless-call-tables"
SCHEMA_VERSION = 1
NUMBERS = ("memory_bytes_per_gpu", "memory_bytes_per_s", "node_bytes_per_s", "network_bytes_per_s")
SHAPE = ("parameters", "layers", "hidden", "kv_heads", "head_dim", "vocabulary")


@dataclass(frozen=True, eq=False)
class ModelTimes:
    """Times of a whole model on ``tp`` GPUs that hold a part of every weight.

    Attributes:
        prefill: by sequences and tokens, all-reduce included. prefill_alone: the same without all-reduce.
        decode: by batch and KV tokens.
    """

    prefill: IterationTable
    prefill_alone: IterationTable
    decode: IterationTable

    def prefill_s(self, sequences: float, tokens: float, all_reduce_share: float = 1.0) -> float:
        """Return the seconds of a pass over ``sequences`` of so many tokens each.

        Linear between measured sizes and proportional above the largest.

        Args:
            all_reduce_share: of the all-reduce time that the pass waits for; 0 if it is hidden behind computation.
        """
        with_s, alone_s = (float(_read(table, sequences, tokens)) for table in (self.prefill, self.prefill_alone))
        return alone_s + all_reduce_share * (with_s - alone_s)

    def decode_s(self, batch: float, context_tokens: ArrayLike) -> FloatArray:
        """Return the seconds of decode iterations of ``batch`` responses with so many KV tokens each; arrays broadcast."""
        return _read(self.decode, batch, context_tokens)


def _read(table: IterationTable, rows: float, columns: ArrayLike) -> FloatArray:
    """Return seconds at a number of sequences and tokens of each; beyond the table they are proportional."""
    each = np.asarray(columns, float)
    inside, inside_each = min(rows, float(table.batch[-1])), np.minimum(each, table.context_tokens[-1])
    beyond = rows / inside * (each / np.maximum(inside_each, 1.0) if np.any(each > inside_each) else 1.0)
    return np.asarray(table(inside, inside * inside_each) * beyond)


@dataclass(frozen=True, eq=False)
class ModelTables:
    """A model: its sizes, and its times by tensor-parallel size.

    Attributes:
        name: of the model. parameters: number of weights. layers, hidden, kv_heads, head_dim, vocabulary: its shape.
        times: by tensor-parallel size.
    """

    name: str
    parameters: int
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    times: Mapping[int, ModelTimes]

    def kv_bytes_per_token(self, tp: int) -> int:
        """Return the bytes of KV cache per token on each of ``tp`` GPUs, in bf16; a KV head is on one GPU at least."""
        return 2 * 2 * self.layers * self.head_dim * -(-self.kv_heads // tp)


@dataclass(frozen=True, eq=False)
class KindTables:
    """All tables of a GPU kind.

    Attributes:
        kind: of GPU. memory_bytes_per_gpu: as the driver reports it. memory_bytes_per_s: nominal bandwidth.
        node_bytes_per_s, network_bytes_per_s: links between GPUs of one node and between nodes.
        models: by short name. source: the file's other fields (``origin, assumptions, ...``).
    """

    kind: str
    memory_bytes_per_gpu: float
    memory_bytes_per_s: float
    node_bytes_per_s: float
    network_bytes_per_s: float
    models: Mapping[str, ModelTables]
    source: Mapping[str, Any]

    def model(self, name: str) -> ModelTables:
        """Return a model's tables.

        Raises:
            ProfileError: there are none; the message names the models that have some.
        """
        if not isinstance(name, str) or name not in self.models:
            raise ProfileError(
                f"model {as_given(name)} has no table for GPU kind {self.kind!r}; choose from {', '.join(sorted(self.models))}"
            )
        return self.models[name]

    def times(self, name: str, tp: int) -> ModelTimes:
        """Return a model's times on ``tp`` GPUs.

        Raises:
            ProfileError: the model or this tensor-parallel size has no table; the message names those that exist.

        Example:
            >>> from rlhfless.latency import load_call_tables
            >>> times = load_call_tables("h100").times("llama2-7b", tp=1)
            >>> round(times.prefill_s(sequences=8, tokens=512), 4)
            0.0793
        """
        model = self.model(name)
        if not is_whole(tp, 1) or tp not in model.times:
            raise ProfileError(
                f"model {name!r} has no table for tensor-parallel size {as_given(tp)} on {self.kind!r}; it has "
                f"{', '.join(map(str, sorted(model.times)))}"
            )
        return model.times[tp]


def list_call_kinds() -> list[str]:
    """Return the GPU kinds with shipped tables, sorted.

    Example:
        >>> from rlhfless.latency import list_call_kinds
        >>> list_call_kinds()
        ['a100', 'h100', 'l40s']
    """
    return sorted(shipped_files(FOLDER))


def load_call_tables(kind: str) -> KindTables:
    """Return the tables of a GPU kind.

    Raises:
        ProfileError: there is no such kind, or its file is damaged; one sentence.

    Example:
        >>> from rlhfless.latency import load_call_tables
        >>> sorted(load_call_tables("a100").models)[:3]
        ['codellama-34b', 'llama2-13b', 'llama2-70b']
    """
    shipped = shipped_files(FOLDER)
    if not isinstance(kind, str) or kind not in shipped:
        raise ProfileError(f"GPU kind {as_given(kind)} has no tables of model calls; choose from {', '.join(sorted(shipped))}")
    return _read_once(shipped[kind])


@cache
def _read_once(path: Path) -> KindTables:
    return read_call_tables(path)


def read_call_tables(path: Path) -> KindTables:
    """Return the tables of a file.

    Raises:
        ProfileError: the file cannot be read, or a field is missing or wrong; one sentence that names both.
    """
    read = read_object(path, "a file of call tables")
    try:
        check_schema(read, path, SCHEMA, SCHEMA_VERSION, "a file of call tables")
        numbers = {name: _number(read, name, path) for name in NUMBERS}
        models = {name: _model(read, name, path) for name in read["models"]}
        return KindTables(read["kind"], **numbers, models=models, source=read)
    except KeyError as error:
        raise ProfileError(f"{path}: has no field {error}; generate_calls writes it") from None
    except (TypeError, AttributeError, IndexError):
        raise ProfileError(f"{path}: a field has another form than generate_calls writes; make the file again") from None


def _model(read: Mapping[str, Any], name: str, path: Path) -> ModelTables:
    """Return the tables of one model of a file."""
    model = read["models"][name]
    sequences, tokens = read["prefill"]["sequences"], read["prefill"]["tokens"]
    batch, context = read["decode"]["batch"], read["decode"]["context_tokens"]
    times = {}
    for tp, table in model["tables"].items():
        where = f"{path}: the table of {name!r} with tp {tp}"
        prefill_s = _seconds(table, "prefill_s", (len(sequences), len(tokens)), where)
        alone_s = prefill_s
        if "all_reduce_s" in table:
            alone_s = prefill_s - _seconds(table, "all_reduce_s", prefill_s.shape, where)
        decode_s = _seconds(table, "decode_s", (len(batch), len(context)), where)
        try:
            times[int(tp)] = ModelTimes(
                IterationTable(sequences, tokens, prefill_s),
                IterationTable(sequences, tokens, alone_s),
                IterationTable(batch, context, decode_s),
            )
        except PlanningError as error:
            raise ProfileError(f"{where} is wrong: {error}") from None
    return ModelTables(model["name"], **{size: int(_number(model, size, path)) for size in SHAPE}, times=times)


def _seconds(table: Mapping[str, Any], name: str, shape: tuple[int, ...], where: str) -> FloatArray:
    """Return a table's numbers; refuse another shape."""
    try:
        seconds = np.array(table[name], float)
    except ValueError:
        seconds = np.zeros(0)
    if seconds.shape != shape:
        raise ProfileError(f"{where} has no {' x '.join(map(str, shape))} numbers in {name}; make the file again")
    return seconds


def _number(fields: Mapping[str, Any], name: str, path: Path) -> float:
    if not is_number(fields[name], 0) or not fields[name]:
        raise ProfileError(f"{path}: the field {name} is {as_given(fields[name])}; a number above 0 is needed")
    return float(fields[name])
