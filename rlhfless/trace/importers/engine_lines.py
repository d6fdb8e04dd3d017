"""The statistics that vLLM's and SGLang's engines print about every ten seconds, in any file that has them.

Formats, from the engines' source: vLLM ``v1/metrics/loggers.py``, ``v1/spec_decode/metrics.py`` and
``v1/core/kv_cache_utils.py``, before its version 0.8 ``engine/metrics.py`` and ``core/scheduler.py``; SGLang
``managers/scheduler.py`` and ``scheduler_metrics_mixin.py``. Programs that copy vLLM's lines are read, too. All numbers of a
line are averages since the line before, but for running, waiting and the cache, which are those of the moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from rlhfless.trace import storage
from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import PEEK_BYTES, ImportOptions, ImportSession
from rlhfless.trace.limits import Guard, Limits
from solver.model.plurals import counted

FILE = "engine.parquet"
ENGINE = {
    "engine": "name of the engine in the log, such as 000; of several replicas each has its own",
    "time_s": "time of day of the line, in seconds; unknown where the line has none",
    "running": "requests in the batch when the line was written",
    "waiting": "requests in the queue when the line was written, swapped ones included",
    "cache_share": "share of the KV cache in use, 0 to 1",
    "prompt_tokens_per_s": "prompt tokens per second since the line before",
    "generated_tokens_per_s": "generated tokens per second since the line before",
    "prefix_hit_share": "share of prompt tokens found in the prefix cache",
    "preempted": "requests preempted since the line before",
    "drafted_tokens_per_s": "drafted tokens per second",
    "accepted_tokens_per_s": "accepted drafted tokens per second",
    "tokens_per_pass": "mean tokens of a verification, the engine's own one included",
    "accepted_at": "tuple of the share of drafts that were accepted up to each position; None where the line has none",
    "engines": "engines that the line adds up, 1 but for vLLM's line of all engines together",
    "line": "number of the line in the file",
}
"""Columns of the table of engine lines; a line that lacks one has NaN there."""
NOT_NUMBERS = ("engine", "accepted_at")

NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?")
TIME = re.compile(r"(?<![\d:.])([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?![\d:])")
PROCESS = re.compile(r"pid=(\d{1,10})(?:, ip=([\da-fA-F:.]{3,45}))?\)")
NAMED = re.compile(r"Engine (\d{1,6}): $")
ADDED_UP = re.compile(r"(\d{1,6}) Engines Aggregated: $")
RANKS = re.compile(r"\[[^\]\[]{8,60}\]")
DATA_PARALLEL, TENSOR_PARALLEL = re.compile(r"\bDP(\d{1,5})\b"), re.compile(r"\bTP(\d{1,5})\b")
CUMULATIVE = re.compile(r"total_(?:num_cumulative_preemption|cumulative_preemption_cnt)=(\d{1,12})")
RETRACTED = re.compile(r"#retracted_reqs: (\d{1,9})")
CACHE = re.compile(
    r"KV cache size: ([\d,]{1,20}) tokens|max_total_num_tokens=(\d{1,15})\b|be stored in KV cache \(([\d,]{1,20})\)"
)
CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]{1,15}) tokens per request: (\d{1,9}(?:\.\d{1,6})?)x")
BLOCKS = re.compile(r"GPU blocks: (\d{1,12})\b")
CONTEXT = re.compile(r"\bcontext_len=(\d{1,12})\b")
REPEATED = re.compile(r"\[repeated (\d{1,6})x across cluster\]")
STATISTICS, DRAFTS, OLD_DRAFTS = "Avg prompt throughput: ", "SpecDecoding metrics: ", "Speculative metrics: "
DECODE, PREFILL = "Decode batch", "Prefill batch"
MARKS = (
    STATISTICS,
    DECODE,
    PREFILL,
    DRAFTS,
    OLD_DRAFTS,
    "_preemption",
    "#retracted_reqs",
    "KV cache size: ",
    "max_total_num_tokens=",
    "be stored in KV cache (",
    "Maximum concurrency for ",
    "GPU blocks: ",
)
LONGEST = 4_000  # characters of a line after its mark
PREFIX = 400  # characters before it
BLOCK_TOKENS = (1, 8, 16, 32, 64, 128, 256)  # tokens of a block of the KV cache
LEAST, MOST = 1e-3, 1e9  # of the numbers of a line but 0: requests, shares, tokens per second
MOST_LINES = 500_000  # that are kept, of all engines of a file: 64 replicas for a day
FOUND = re.compile(
    rb"Avg generation throughput: \d|(?:Decode|Prefill) batch(?: \[\d{1,12}\])?[.,] {1,2}#[a-z-]{1,20}: \d"
    rb"|(?:SpecDecoding|Speculative) metrics: [A-Z]|KV cache size: \d[\d,]{0,20} tokens|Maximum concurrency for \d"
    rb"|max_total_num_tokens=\d|_preemption(?:_cnt)?=\d|#retracted_reqs: \d"
)


def engine_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row per line of statistics, in the order of the file; columns: ``ENGINE``."""
    frame = pd.DataFrame(list(rows), columns=list(ENGINE))
    frame["engines"] = frame["engines"].fillna(1)
    return frame.astype(dict.fromkeys((name for name in ENGINE if name not in NOT_NUMBERS), float))


def write_engine(folder: Path, frame: pd.DataFrame) -> Path:
    """Write the table into a folder, atomically.

    Raises:
        TraceError: the folder cannot be written.
    """
    types = {"engine": pa.string(), "accepted_at": pa.list_(pa.float64())}
    fields = [pa.field(name, types.get(name, pa.float64()), metadata={"doc": doc}) for name, doc in ENGINE.items()]
    path = folder / FILE
    storage.write_parquet(path, pa.Table.from_pandas(frame, schema=pa.schema(fields), preserve_index=False))
    return path


def read_engine(folder: str | Path, limits: Limits | None = None) -> pd.DataFrame:
    """Return the engine's lines of a folder that an import wrote; without rows if the log had none.

    Raises:
        TraceError: the file is damaged, or larger than the limits.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return engine_frame(())
    rows = storage.read_frame(path, ("engine",), guard=Guard(limits)).reindex(columns=list(ENGINE))
    shares = [tuple(one) if isinstance(one, list | tuple | np.ndarray) else None for one in rows["accepted_at"]]
    return engine_frame(rows.assign(accepted_at=shares).to_dict("records"))


class EngineLines:
    """Reads the engine lines of one file, in its order: lines of drafts and preemptions belong to the engine before them.

    Attributes:
        software: ``vLLM`` or ``SGLang``, whose lines came first; empty so far.
        facts: of the engine, as ``run_facts.RUN_FACTS``: ``kv_cache_tokens``, ``max_context_tokens``, and of SGLang's line with
            the fullest cache ``cached_tokens`` and ``cached_share``.
        left_out: lines of other replicas that Ray counted and did not print (``[repeated 3x across cluster]``).
        too_many: lines beyond the first ``MOST_LINES``.

    Example:
        >>> from rlhfless.trace.importers.engine_lines import EngineLines
        >>> row = EngineLines().line(7, "INFO 07-28 06:41:00 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        ...     "Avg generation throughput: 240.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 13.5%")
        >>> row["engine"], row["time_s"], row["running"], row["generated_tokens_per_s"], row["cache_share"]
        ('000', 24060.0, 8.0, 240.0, 0.135)
    """

    def __init__(self) -> None:
        self.software = ""
        self.facts: dict[str, float] = {}
        self.left_out = self.too_many = 0
        self._read = 0
        self._last: dict[str, str] = {}  # process -> its engine that printed last
        self._blocks = 0  # of the KV cache
        self._preempted: dict[str, float] = {}  # engine -> its count so far
        self._rank: dict[str, str] = {}  # SGLang's engine -> its tensor parallel rank that is read

    def line(self, number: int, text: str) -> dict[str, Any] | None:
        """Return a row of ``ENGINE``, without the columns that the line lacks; None for a line that is none of an engine.

        Args:
            number: of the line, from 1. text: of the line, with its prefixes: they name the replica.
        """
        for mark in MARKS:
            at = text.find(mark)
            if at >= 0:
                break
        else:
            return None
        prefix, rest = text[max(at - PREFIX, 0) : at], text[at : at + LONGEST].splitlines()[0]
        process = "/".join(f"{ip}:{pid}" if ip else pid for pid, ip in PROCESS.findall(prefix))
        if mark == STATISTICS:
            row = self._statistics(prefix, rest, process)
        elif mark in (DECODE, PREFILL, "#retracted_reqs"):
            row = self._sglang(mark, prefix, rest, process)
        elif mark in (DRAFTS, OLD_DRAFTS):
            self.software = self.software or "vLLM"
            row = _drafts(_fields(rest[len(mark) :]))
        elif mark == "_preemption":
            row = self._preemption(text, process)
        else:
            row = self._size(rest)
        if not row:
            return None
        if self._read == MOST_LINES:
            self.too_many += 1
            return None
        self._read += 1
        if repeated := REPEATED.search(rest):
            self.left_out += int(repeated[1]) - 1
        row.setdefault("engine", self._last.get(process, process))
        time = TIME.findall(prefix)
        if time:
            hours, minutes, seconds = map(int, time[-1])
            row["time_s"] = float(hours * 3600 + minutes * 60 + seconds)
        return {**row, "line": number}

    def report_to(self, reading: ImportSession) -> None:
        """Report what is not in the rows, when all lines are read: facts, the software, and lines that Ray left out."""
        reading.facts.update(self.facts)
        reading.framework = reading.framework or self.software
        if self.left_out:
            reading.note(
                f"Ray printed one line for several replicas and left out {self.left_out:,} lines of engines, so their tokens "
                "are not counted; RAY_DEDUP_LOGS=0 prints all"
            )
        if self.too_many:
            reading.note(f"the first {MOST_LINES:,} lines of engines were read, and {self.too_many:,} more were left out")

    def _statistics(self, prefix: str, rest: str, process: str) -> dict[str, Any]:
        fields = _fields(rest)
        generated, running = _first(fields, "Avg generation throughput"), _first(fields, "Running")
        if generated is None or running is None:
            return {}
        self.software = self.software or "vLLM"
        named, added_up = NAMED.search(prefix), ADDED_UP.search(prefix)
        own = named[1] if named else f"{added_up[1]} together" if added_up else ""
        engine = "/".join(filter(None, (process, own)))
        self._last[process] = engine
        queues = [_first(fields, name) for name in ("Waiting", "Pending", "Swapped")]
        cache = next((_first(fields, name) for name in fields if name.endswith("KV cache usage")), None)
        return _known(
            engine=engine, running=running, generated_tokens_per_s=generated,
            waiting=sum(queue or 0.0 for queue in queues) if queues != [None, None, None] else None,
            cache_share=_share(cache, 100), prompt_tokens_per_s=_first(fields, "Avg prompt throughput"),
            prefix_hit_share=_share(_first(fields, "Prefix cache hit rate"), 100), preempted=_first(fields, "Preemptions"),
            engines=max(float(added_up[1]), 1.0) if added_up else 1.0,
        )  # fmt: skip

    def _sglang(self, mark: str, prefix: str, rest: str, process: str) -> dict[str, Any]:
        ranks = " ".join(RANKS.findall(prefix)[-1:])
        data, tensor = DATA_PARALLEL.search(ranks), TENSOR_PARALLEL.search(ranks)
        engine = "/".join(filter(None, (process, data[0] if data else ""))) or "0"
        rank = tensor[0] if tensor else ""
        if self._rank.setdefault(engine, rank) != rank:
            return {}  # every rank prints the same
        if mark == "#retracted_reqs":
            retracted = RETRACTED.match(rest)
            return {"engine": engine, "preempted": float(retracted[1])} if retracted else {}
        fields = _fields(rest[rest.find("#") :]) if "#" in rest else {}
        running = _first(fields, "#running-req")
        if running is None:
            return {}
        self.software = self.software or "SGLang"
        self._last[process] = engine
        used = [_first(fields, name) for name in fields if name.endswith(("token usage", "mamba usage"))]
        known = [share for share in used if share is not None]
        tokens = _first(fields, "#token")
        if used == known == [_first(fields, "token usage")] and tokens and self.facts.get("cached_share", 0.0) < known[0] <= 1:
            self.facts |= {"cached_tokens": tokens, "cached_share": known[0]}
        row = _known(
            engine=engine, running=running, waiting=_first(fields, "#queue-req"),
            cache_share=_share(max(known) if known else None, 1), engines=1.0,
        )  # fmt: skip
        if mark == PREFILL:
            new, cached = _first(fields, "#new-token"), _first(fields, "#cached-token")
            hits = cached / (new + cached) if new is not None and cached is not None and new + cached > 0 else None
            return row | _known(prompt_tokens_per_s=_first(fields, "input throughput (token/s)"), prefix_hit_share=hits)
        generated, per_pass = _first(fields, "gen throughput (token/s)"), _first(fields, "accept len")
        accepted = generated * (1 - 1 / per_pass) if generated is not None and per_pass and per_pass >= 1 else None
        return row | _known(generated_tokens_per_s=generated, tokens_per_pass=per_pass, accepted_tokens_per_s=accepted)

    def _preemption(self, text: str, process: str) -> dict[str, Any]:
        """Old versions of vLLM warn of the first of every 50 preemptions, with the number so far."""
        so_far = CUMULATIVE.search(text)
        if so_far is None:
            return {}
        engine = self._last.get(process, process)
        before = self._preempted.get(engine)
        count = self._preempted[engine] = float(so_far[1])
        return {"preempted": count - before if before is not None and count > before else 1.0}

    def _size(self, rest: str) -> dict[str, Any]:
        """Keep what the engine states of its cache when it starts. Its size goes before what follows from its concurrency."""
        if concurrency := CONCURRENCY.match(rest):
            longest, times = (float(group.replace(",", "")) for group in concurrency.groups())
            if longest > 0 and times > 0:
                self.facts["max_context_tokens"] = longest
                self.facts.setdefault("kv_cache_tokens", self._of_blocks(longest * times))
            return {}
        if blocks := BLOCKS.match(rest):
            self._blocks = int(blocks[1])
            return {}
        size = CACHE.match(rest)
        digits = next((group.replace(",", "") for group in size.groups() if group), "") if size else ""
        if digits and int(digits) > 0:
            self.facts["kv_cache_tokens"] = float(digits)
        if context := CONTEXT.search(rest):
            self.facts["max_context_tokens"] = float(context[1])
        return {}

    def _of_blocks(self, about: float) -> float:
        """Return the tokens of so many blocks, if a size of blocks gives about as many; else those, which are rounded."""
        exact = [float(self._blocks * tokens) for tokens in BLOCK_TOKENS]
        return next((tokens for tokens in exact if abs(tokens - about) < 0.02 * about), float(round(about)))


def _fields(text: str) -> dict[str, str]:
    """Return the values of ``name: value, name: value``; a part without a name goes on with the value before it."""
    fields: dict[str, str] = {}
    name = ""
    for part in text.split(","):
        key, colon, value = part.strip().partition(": ")
        if colon:
            name = key
            fields.setdefault(name, value)
        elif name:
            fields[name] += "," + part
    return fields


def _first(fields: Mapping[str, str], name: str) -> float | None:
    """Return the number at the beginning of a value; None where there is none, or no engine has such a number."""
    match = NUMBER.match(fields.get(name, "").lstrip())
    value = float(match[0]) if match else -1.0
    return value if value == 0 or LEAST <= value <= MOST else None


def _share(value: float | None, of: float) -> float | None:
    """Return a share; None for one that is above 1, which no share is."""
    return value / of if value is not None and value <= of else None


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _drafts(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return a row of vLLM's line of drafts, of any version."""
    positions = fields.get("Per-position acceptance rate", "").split(",")
    shares = tuple(float(match[0]) for part in positions if (match := NUMBER.match(part.strip())))
    per_pass = _first(fields, "Mean acceptance length")
    efficiency, drafts = _first(fields, "System efficiency"), _first(fields, "Number of speculative tokens")
    if per_pass is None and efficiency is not None and drafts is not None:
        per_pass = efficiency * (drafts + 1)  # of the most tokens that a pass could give
    return _known(
        tokens_per_pass=per_pass, drafted_tokens_per_s=_first(fields, "Drafted throughput"),
        accepted_tokens_per_s=_first(fields, "Accepted throughput"),
        accepted_at=shares if shares and max(shares) <= 1 else None,
    )  # fmt: skip


def detect(path: Path) -> bool:
    """Return whether the first 16 MiB of a text have a line of an engine's statistics."""
    if not path.is_file() or path.suffix in (".parquet", ".pt", ".jsonl", ".json", ".csv"):
        return False
    try:
        with ImportSession(path, ImportOptions()).open(path) as stream:
            return FOUND.search(stream.read(PEEK_BYTES)) is not None
    except TraceError:
        return False  # the reader reports what is wrong with it


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the engine's lines and facts; yields no responses."""
    reading.expect([reading.path])
    lines = EngineLines()
    for number, raw in reading.lines(reading.path):
        row = lines.line(number, raw.decode("utf-8", "replace"))
        if row is not None:
            reading.guard.check_rows(reading.path, len(reading.engine) + 1)
            reading.engine.append(row)
    lines.report_to(reading)
    if not reading.engine and not reading.facts:
        raise TraceError(
            f"{reading.path}: has no line of an engine's statistics; vLLM's ('Avg generation throughput: ...') or SGLang's "
            "('Decode batch, #running-req: ...') are needed"
        )
    engines = len({row["engine"] for row in reading.engine})
    of_software = f" of {lines.software}" if lines.software else ""
    reading.note(f"engines: {counted(len(reading.engine), 'line')} of {counted(engines, 'engine')}{of_software}")
    yield from ()


FORMAT = Format("engine", "the lines of an engine (vLLM, SGLang)", detect, read)
