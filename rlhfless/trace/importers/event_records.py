"""Reads the binary records of two loggers, TensorBoard's event files and wandb's run files, and the fields of their messages.

Knows framing and protocol-buffer fields only. What a record says of a step is read in ``tensorboard.py`` and ``wandb_run.py``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from rlhfless.trace.errors import TraceError
from rlhfless.trace.limits import Guard

BLOCK = 32_768  # bytes of a block of wandb's file
WANDB_HEAD = b":W&B"
WANDB_HEAD_BYTES = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
CASTAGNOLI = 0x82F63B78  # polynomial of TensorBoard's checksums, reversed
MASK = 0xA282EAD8


class Field(NamedTuple):
    """One field of a message: its number, and its value, a whole number or bytes (8 of a double, 4 of a float)."""

    number: int
    value: int | bytes


class IncompleteRecordError(Exception):
    """A file ends within a record, as that of a run which was killed."""


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a protocol-buffer message in their order.

    Raises:
        ValueError: the bytes are no message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            whole, at = _varint(message, at)
            yield Field(key >> 3, whole)
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(message):
            raise ValueError("a field that ends after its message")
        yield Field(key >> 3, message[at : at + size])
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    whole = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        whole |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return whole, at
    raise ValueError("a number without an end")


def tensorboard_records(path: Path, stream: IO[bytes], guard: Guard) -> Iterator[bytes]:
    """Yield the messages of an event file (TFRecord): length, checksum, message, checksum.

    Raises:
        IncompleteRecordError: the file ends within a record.
        TraceError: a checksum is wrong, or a record is longer than the limit.
    """
    number = 0
    while head := stream.read(12):
        number += 1
        if len(head) < 12:
            raise IncompleteRecordError
        size, check = struct.unpack("<QI", head)
        if _masked_checksum(head[:8]) != check:
            raise _damaged(path, number, "event file of TensorBoard")
        if size > guard.limits.line_bytes:
            guard.refuse_line(path, f"record {number}")
        guard.check_rows(path, number)
        body = stream.read(size + 4)
        if len(body) < size + 4:
            raise IncompleteRecordError
        yield body[:size]


def wandb_records(path: Path, stream: IO[bytes], guard: Guard) -> Iterator[bytes]:
    """Yield the messages of a run file (a LevelDB log of 32 KiB blocks): checksum, length and kind before each piece.

    Raises:
        IncompleteRecordError: the file ends within a record.
        TraceError: the file is not wandb's, a checksum is wrong, or a record is longer than the limit.
    """
    head = stream.read(WANDB_HEAD_BYTES)
    if not head.startswith(WANDB_HEAD):
        raise TraceError(f"{path}: does not begin as wandb's run file; an intact file run-*.wandb is needed")
    at, number, pieces, size = WANDB_HEAD_BYTES, 0, bytearray(), 0
    while True:
        if (left := BLOCK - at % BLOCK) < 7:  # no room for a head: the block is filled with zeros
            at += len(stream.read(left))
        head = stream.read(7)
        if not head.strip(b"\0"):
            break
        if len(head) < 7:
            raise IncompleteRecordError
        check, size, kind = struct.unpack("<IHB", head)
        body = stream.read(size)
        at += 7 + len(body)
        if len(body) < size:
            raise IncompleteRecordError
        number += kind in (FULL, FIRST)
        if kind not in (FULL, FIRST, MIDDLE, LAST) or zlib.crc32(body, zlib.crc32(bytes([kind]))) != check:
            raise _damaged(path, number, "run file of wandb")
        guard.check_rows(path, number)
        if kind in (FULL, FIRST):
            pieces = bytearray()
        pieces += body
        if len(pieces) > guard.limits.line_bytes:
            guard.refuse_line(path, f"record {number}")
        if kind in (FULL, LAST):
            yield bytes(pieces)
            pieces = bytearray()
    if pieces:
        raise IncompleteRecordError


def _damaged(path: Path, number: int, what: str) -> TraceError:
    return TraceError(f"{path}: record {number} has a wrong checksum; an intact {what} is needed")


def _table() -> tuple[int, ...]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (CASTAGNOLI if entry & 1 else 0)
        entries.append(entry)
    return tuple(entries)


CHECKSUMS = _table()


def _masked_checksum(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CHECKSUMS[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF
