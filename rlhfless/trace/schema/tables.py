"""Defines the tables of a trace: every column with its type, unit and meaning.

``validation.py`` applies this schema and ``storage.py`` stores it. A null means *unknown*: what a log does not record stays
null and is never replaced by a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 1
"""Version of the tables below; a reader refuses every other version."""

FINISH_REASONS = ("stop", "length", "aborted")
PHASES = ("start", "sync", "prefill", "transfer", "decode", "migrate", "prepare", "learn")
ROLES = ("prefill", "decode", "prepare", "learner", "reference", "reward", "critic", "warm")

NO_ACTOR = "without an actor"
"""Holder of reserved GPUs on which no actor was started."""

META_KEYS = ("seeds", "cluster", "profile", "policy", "clock", "charging", "device")
"""What meta.json says about a run besides ``schema_version``, ``project_version`` and the completed ``steps``."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: the column's name, with its unit where it has one.
        dtype: ``str``, ``int``, ``float``, ``bool``, ``json`` (text that parses as JSON) or ``ints`` (a list of int).
        doc: its meaning, in one line.
        unit: its unit, or the empty string.
        required: a table without this column is refused.
        nullable: a cell may be null, which means unknown.
        optional: if the table lacks the column, it is not added; other columns that are not required are filled in.
        default: value of the column, or of a null cell, where none is given; with None it is null.
        minimum: smallest value, or None.
        allowed: the only values, or empty for any.
    """

    name: str
    dtype: str
    doc: str
    unit: str = ""
    required: bool = False
    nullable: bool = False
    optional: bool = False
    default: Any = None
    minimum: float | None = None
    allowed: tuple[str, ...] = ()


def _needed(name: str, dtype: str, doc: str, **more: Any) -> Column:
    return Column(name, dtype, doc, required=True, **more)


def _maybe(name: str, dtype: str, doc: str, **more: Any) -> Column:
    return Column(name, dtype, doc, nullable=True, **more)


def _seconds(name: str, doc: str, **more: Any) -> Column:
    return Column(name, "float", doc + ", since the run's start", unit="s", minimum=0, **more)


_RUN = Column("run", "str", "name of the run", default="log")
_STEP = _needed("step", "int", "step of the run", minimum=0)
_DETAIL = _maybe("detail", "json", "further values, as a JSON text")

ROLLOUTS = (
    _RUN,
    _STEP,
    Column("epoch", "int", "earlier steps of the run that had this prompt; derived if the log lacks it", minimum=0),
    _needed("prompt_id", "str", "name of the prompt; whole numbers are written as text"),
    _needed("sample", "int", "index of the response within its prompt's group", minimum=0),
    _maybe("prompt_tokens", "int", "length of the prompt", unit="tokens", minimum=0),
    _needed("response_tokens", "int", "length of the response; a lower bound unless it stopped", unit="tokens", minimum=0),
    _maybe("finish_reason", "str", "why the response ended", allowed=FINISH_REASONS),
    _maybe("reward", "float", "reward of the response"),
    _maybe("weights_version", "int", "version of the weights that generated it", minimum=0),
    _maybe("predicted_tokens", "float", "length predicted before the step", unit="tokens", minimum=0, optional=True),
    _maybe("prefill_tokens_computed", "int", "prompt tokens computed for it alone", unit="tokens", minimum=0, optional=True),
    _maybe("actor", "str", "holder that generated its last token", optional=True),
    _seconds("start_s", "when its generation began", nullable=True, optional=True),
    _seconds("first_token_s", "when its first token was generated", nullable=True, optional=True),
    _seconds("end_s", "when its last token was generated", nullable=True, optional=True),
    _maybe("passes", "int", "iterations that decoded it, with drafts", minimum=0, optional=True),
    _maybe("drafted_tokens", "int", "tokens drafted for it", unit="tokens", minimum=0, optional=True),
    _maybe("accepted_tokens", "int", "drafted tokens that became its own", unit="tokens", minimum=0, optional=True),
    _maybe("turns", "json", "tokens of each turn, and seconds of the wait for a tool after it", optional=True),
)  # fmt: skip

ALLOCATIONS = (
    _RUN,
    _STEP,
    _needed("holder", "str", "who holds the GPUs: the name of an actor, a learner, ..."),
    _needed("role", "str", "what the holder is", allowed=ROLES),
    _maybe("node", "int", "node of the GPUs", minimum=0),
    _needed("gpu_ids", "ints", "the GPUs, counted through the nodes; none for a learner on the CPU"),
    _needed("kind", "str", "kind of GPU"),
    Column("market", "str", "how the GPUs are bought", default="on-demand"),
    _needed("usd_per_gpu_s", "float", "price of one GPU-second", unit="usd", minimum=0),
    _seconds("start_s", "when billing began", required=True),
    _seconds("end_s", "when billing ended", required=True),
)

SPANS = (
    _RUN,
    _STEP,
    _needed("holder", "str", "holder of the GPUs that did it, as in allocations"),
    _needed("phase", "str", "what it did", allowed=PHASES),
    _maybe("call", "str", "which call of the phase, where there are several"),
    _seconds("start_s", "when it began", required=True),
    _seconds("end_s", "when it ended", required=True),
    _maybe("batch_mean", "float", "responses in the batch, mean over time", minimum=0),
    _maybe("slots", "int", "responses that the batch could hold", minimum=1),
    _maybe("tokens", "int", "tokens processed", unit="tokens", minimum=0),
    _maybe("kv_tokens", "int", "tokens of KV cache moved or held at the end", unit="tokens", minimum=0),
    _maybe("bytes", "int", "bytes moved", unit="bytes", minimum=0),
    _maybe("from_actor", "str", "the holder that a transfer or migration came from"),
    Column("background", "bool", "it ran behind a foreground span and does not keep the GPUs busy", default=False),
    _DETAIL,
)

EVENTS = (
    _RUN,
    _STEP,
    _seconds("time_s", "when it happened", required=True),
    _needed("name", "str", "what happened: cut, kill, decision, prewarm, retry, ..."),
    _maybe("holder", "str", "holder that it happened to"),
    _DETAIL,
)

TABLES: dict[str, tuple[Column, ...]] = {
    "rollouts": ROLLOUTS,
    "allocations": ALLOCATIONS,
    "spans": SPANS,
    "events": EVENTS,
}


def text_columns(table: str) -> tuple[str, ...]:
    """Return the names of the text columns of ``table``, so that a reader keeps ``007`` as text."""
    return tuple(column.name for column in TABLES[table] if column.dtype == "str")
