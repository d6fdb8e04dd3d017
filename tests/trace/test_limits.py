"""Limits of what is read: a small file that holds gigabytes is refused in one sentence, before memory is full."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command

from rlhfless.errors import InputError
from rlhfless.trace import ImportOptions, Limits, TraceError, import_log, open_log, read_rollouts, read_trace
from rlhfless.trace.csv_blocks import csv_blocks, csv_frames
from rlhfless.trace.limits import Guard

GOLDEN = Path(__file__).parent / "importers" / "golden"
TOKENIZER = GOLDEN / "trl"
ROW = b"1,p,0,5\n"
HEADER = b"step,prompt_id,sample,response_tokens\n"
SMALL = Limits(line_bytes=2**20, rows=1000, unpacked_bytes=4 * 2**20)


def packed(path: Path, *pieces: bytes) -> Path:
    """A packed file of the pieces."""
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for piece in pieces:
            stream.write(piece)
    return path


def read(path: Path, limits: Limits = SMALL, framework: str = "auto") -> Any:
    """The rollouts of a log under limits."""
    return import_log(path, ImportOptions(tokenizer=TOKENIZER, limits=limits), framework).rollouts


LONG = b"7" * 2**20
BOMBS = {
    "csv.gz": ("line", HEADER, b"1,p,0,", *[LONG] * 3),
    "jsonl.gz": ("line", b'{"step": 1, "prompt_id": "', *[LONG] * 3),
    "quoted.csv.gz": ("line", HEADER, b'1,"', *[b"p\n" * 2**19] * 3),
    "rows.csv.gz": ("rows", HEADER, ROW * 1001),
    "rows.jsonl.gz": ("rows", b'{"step": 1, "prompt_id": "p", "sample": 0, "response_tokens": 5}\n' * 1001),
    "bytes.csv.gz": ("unpacked", HEADER, *[b"\n" * 2**20] * 5),
    "bytes.jsonl.gz": ("unpacked", *[b" " * 2**19 + b"\n"] * 11),
}
OPTIONS = {
    "line": "RLHFLESS_LIMITS=max_line_mib",
    "rows": "RLHFLESS_LIMITS=max_rows",
    "unpacked": "RLHFLESS_LIMITS=max_unpacked_gib",
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("reader", [lambda p: read(p, framework="table"), lambda p: read_rollouts(p, SMALL)])
def test_a_packed_table_is_refused_at_each_limit(name: str, reader: Callable[[Path], Any], tmp_path: Path) -> None:
    kind, *pieces = BOMBS[name]
    path = packed(tmp_path / f"log.{name}", *pieces)
    tracemalloc.start()
    try:
        with refused(TraceError, str(name), str(OPTIONS[kind])):
            reader(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20, "a few times the largest limit, whatever the file holds"


def bombs_of_frameworks(folder: Path) -> dict[str, Path]:
    """A log of every framework whose first file is one long line, or whose archive is packed."""
    for name in ("verl-v1", "nemo-rl", "areal", "prime-rl", "verl-scalars", "slime", "trl"):
        shutil.copytree(GOLDEN / name, folder / name)
    paths = {
        "verl": folder / "verl-v1" / "2.jsonl",
        "nemo-rl": folder / "nemo-rl" / "train_data_step2.jsonl",
        "areal": max((folder / "areal" / "rollout").rglob("*.jsonl")),
        "prime-rl": max((folder / "prime-rl").rglob("*.jsonl")),
        "verl-scalars": folder / "verl-scalars" / "experiment.jsonl",
        "trl": folder / "trl" / "trainer_state.json",
    }
    for path in paths.values():
        path.write_bytes(path.read_bytes() + b'{"input": "' + b"7" * (2**20 + 1))
    return {**paths, "slime": max((folder / "slime").rglob("*.pt"))}


FRAMEWORKS = ("verl", "nemo-rl", "areal", "prime-rl", "verl-scalars", "trl")


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return bombs_of_frameworks(tmp_path_factory.mktemp("logs"))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_refuses_a_long_line_and_reads_it_under_a_higher_limit(name: str, frameworks: dict[str, Path]) -> None:
    path = frameworks[name]
    folder = path if name == "verl-scalars" else next(
        one for one in path.parents if one.parent.name.startswith("logs")
    )  # fmt: skip
    with refused(TraceError, str(path.name), "RLHFLESS_LIMITS=max_line_mib"):
        import_log(folder, ImportOptions(tokenizer=TOKENIZER, limits=SMALL), name)
    higher = Limits(line_bytes=2**22)
    try:
        log = import_log(folder, ImportOptions(tokenizer=TOKENIZER, limits=higher), name)
        assert log.summary.rows or log.summary.scalar_steps
    except TraceError as error:
        assert "not JSON" in str(error)  # noqa: PT017 (the state of a trainer is one document)


@pytest.mark.parametrize("name", ["verl-v1", "nemo-rl", "areal", "prime-rl", "slime", "trl", "table-parquet"])
def test_every_framework_counts_responses(name: str) -> None:
    if name == "slime":
        pytest.importorskip("torch")
    log = GOLDEN / name / "log.parquet" if name.startswith("table") else GOLDEN / name
    with refused(TraceError, "RLHFLESS_LIMITS=max_rows"):
        read(log, Limits(rows=7))


def test_a_dump_of_slime_whose_archive_is_packed_is_refused(frameworks: dict[str, Path]) -> None:
    pytest.importorskip("torch")
    path = frameworks["slime"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            new.writestr(part.filename, old.read(part) + (bytes(5 * 2**20) if part.filename.endswith("data.pkl") else b""))
    path.write_bytes(buffer.getvalue())
    with refused(TraceError, "RLHFLESS_LIMITS=max_unpacked_gib"):
        read(path.parents[1])


def test_messages_of_a_slime_prompt_that_hold_each_other_are_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    prompt: list[Any] = ["p"]
    for _ in range(30):
        prompt = [prompt, prompt]
    sample = {"group_index": 0, "index": 0, "prompt": prompt, "response_length": 5}
    (tmp_path / "rollout_data").mkdir()
    torch.save({"rollout_id": 0, "samples": [sample]}, tmp_path / "rollout_data" / "0.pt")
    with refused(TraceError, "RLHFLESS_LIMITS=max_line_mib"):
        read(tmp_path)


def trace_folder(folder: Path) -> Path:
    """A trace of eight responses."""
    log = import_log(GOLDEN / "table" / "log.csv")
    return log.save(folder)


@pytest.mark.parametrize("name", ["rollouts.parquet", "plans.jsonl", "meta.json", "recording.jsonl", "scalars.parquet"])
def test_every_file_of_a_trace_folder_has_limits(name: str, tmp_path: Path) -> None:
    folder = trace_folder(tmp_path / "trace")
    if name.endswith(".parquet"):
        frame = pd.DataFrame({"step": np.zeros(1001, dtype=np.int64), "step_s": 1.0})
        frame.to_parquet(folder / name)
        named = ("1,000 rows", "RLHFLESS_LIMITS=max_rows")
    else:
        (folder / name).write_bytes(b'{"a": "' + b"7" * 2**20 + b'"}\n')
        named = ("1 MiB", "RLHFLESS_LIMITS=max_line_mib")
    with refused(TraceError, name, *named):
        open_log(folder, ImportOptions(limits=SMALL))
    if name != "scalars.parquet":
        with refused(TraceError, name, *named):
            read_trace(folder, SMALL)


CHILD = """
import resource, sys
import rlhfless.trace, pandas, pyarrow.parquet, pyarrow.compute
from rlhfless.trace import ImportOptions, Limits, TraceError, import_log, read_rollouts
limits = Limits(line_bytes=2**22, rows=1_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    for reader in (lambda path: import_log(path, ImportOptions(limits=limits)), lambda path: read_rollouts(path, limits)):
        try:
            reader(path)
            print("read")
        except TraceError as error:
            print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_refusing_takes_little_memory(tmp_path: Path) -> None:
    many = pa.table({"step": pa.array(np.zeros(1_100_000, dtype=np.int8))})
    pq.write_table(many, tmp_path / "many.parquet", row_group_size=1_100_000)
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, dtype=np.int32)), ["x" * 2**20])
    rows = {"step": [1] * 20_000, "prompt_id": ["p"] * 20_000, "sample": list(range(20_000)), "text": text}
    pq.write_table(pa.table({**rows, "response_tokens": [5] * 20_000}), tmp_path / "text.parquet", store_schema=False)
    line = packed(tmp_path / "line.csv.gz", HEADER, b"1,p,0,", *[LONG] * 40)
    paths = [tmp_path / "many.parquet", line, tmp_path / "text.parquet"]
    done = subprocess.run([sys.executable, "-c", CHILD, *map(str, paths)], capture_output=True, text=True, check=True)
    *said, grown = done.stdout.splitlines()
    assert [name for one in said for name in OPTIONS.values() if name in one] == ["RLHFLESS_LIMITS=max_rows"] * 2 + [
        "RLHFLESS_LIMITS=max_line_mib"
    ] * 2
    assert said[4:] == ["read", "read"], "one long text for all rows is one object"
    assert int(grown) < 150e6, f"{int(grown) / 1e6:.0f} MB more"


@pytest.mark.parametrize("command", ["convert", "report", "simulate", "plan", "router", "profile"])
def test_every_command_that_reads_a_log_has_the_limits_of_the_environment(command: str, tmp_path: Path) -> None:
    options = {
        "convert": ["--preview"],
        "report": ["-o", tmp_path / "r.html"],
        "simulate": ["--gpus", 8, "--profile", "l40s-qwen2.5-3b-tp2"],
        "plan": ["--gpus", 8, "--profile", "l40s-qwen2.5-3b-tp2"],
        "router": [
            "--to",
            "verl-router",
            "-o",
            tmp_path / "router",
            "--gpus",
            8,
            "--profile",
            "l40s-qwen2.5-3b-tp2",
            "--tokenizer",
            "x",
        ],
        "profile": [],
    }[command]
    log = GOLDEN / "table" / "log.csv"
    where = ["--from-log", log, "--base", "l40s-qwen2.5-3b-tp2", "-o", tmp_path / "p.json"] if command == "profile" else [log]
    asked = ["convert" if command == "router" else command, *map(str, [*where, *options])]
    told = run_rlhfless(*asked, RLHFLESS_LIMITS="max_rows=3")
    refused_command(told, str(log), "3 rows", "RLHFLESS_LIMITS=max_rows", "Limits(rows=...)")
    told = run_rlhfless(*asked, RLHFLESS_LIMITS="rows=3")
    refused_command(told, "RLHFLESS_LIMITS", "'rows=3'", "max_rows=")


def test_a_higher_limit_reads_what_a_lower_one_refuses(tmp_path: Path) -> None:
    path = packed(tmp_path / "log.csv.gz", HEADER, b"".join(b"1,p,%d,5\n" % i for i in range(1001)))
    with refused(TraceError, "RLHFLESS_LIMITS=max_rows"):
        read_rollouts(path, SMALL)
    assert len(read_rollouts(path, Limits(rows=1001))) == 1001
    given = {"RLHFLESS_LIMITS": "max_rows=1001,max_unpacked_gib=0.1"}
    done = run_rlhfless("convert", str(path), "--preview", **given)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"line_bytes": -1}, {"unpacked_bytes": 1.5}, {"rows": True}])
def test_a_limit_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with refused(InputError, next(iter(wrong))):
        Limits(**wrong)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", Limits()),
        ("max_rows=5", Limits(rows=5)),
        (" max_line_mib = 0.5 , max_unpacked_gib=2, ", Limits(line_bytes=2**19, unpacked_bytes=2**31)),
        ("max_rows=1,max_rows=20_000_000", Limits(rows=20_000_000)),
    ],
)
def test_limits_of_the_environment_hold_for_every_reader_but_those_with_limits_of_their_own(
    text: str, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHFLESS_LIMITS", text)
    assert Limits.of_environment() == Guard().limits == ImportOptions().limits == limits
    assert Guard(SMALL).limits == SMALL
    assert Limits() == Limits(64 * 2**20, 10_000_000, 16 * 2**30)
    log = GOLDEN / "table" / "log.csv"
    for read_log in (read_rollouts, import_log):
        if limits.rows > 5:
            read_log(log)
        else:
            with refused(TraceError, "5 rows", "RLHFLESS_LIMITS=max_rows"):
                read_log(log)


@pytest.mark.parametrize(
    "wrong",
    ["5", "rows=5", "max_rows", "max_rows=", "max_rows=0", "max_rows=3.5", "max_rows=1e6", "max_line_mib=nan",
     "max_line_mib=inf", "max_unpacked_gib=-1", "max_rows=5;max_line_mib=1"],
)  # fmt: skip
def test_a_wrong_variable_is_refused_with_what_is_right(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHFLESS_LIMITS", f"max_line_mib=1,{wrong}")
    with refused(InputError, "RLHFLESS_LIMITS", repr(wrong), "max_rows=", "max_line_mib=", "max_unpacked_gib="):
        read_rollouts(GOLDEN / "table" / "log.csv")


# --- csv in blocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [3, 4, 5, 7, 64])
def test_blocks_of_a_csv_are_read_as_the_whole_is(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        b'\xef\xbb\xbf\n  \na,"b\nc",d\n', b'1,"x, ""y""\nz",2\n', b'"",,""\n', b'5" pipe,a""b,3\n', b'"q""",\'"\',4\r\n',
        b'\n', b'6,"\n\n",7\n', b'"8" ,"""",9',
    ]  # fmt: skip
    content = b"".join(rows)
    monkeypatch.setattr("rlhfless.trace.csv_blocks.PIECE_BYTES", piece)
    monkeypatch.setattr("rlhfless.trace.csv_blocks.BLOCK_BYTES", 1)
    frames = list(csv_frames(Guard(), Path("log.csv"), io.BytesIO(content), ["a", "b\nc", "d"]))
    assert len(frames) > 2
    whole = pd.read_csv(io.BytesIO(content), dtype=str, index_col=False, encoding="utf-8-sig")
    pd.testing.assert_frame_equal(pd.concat(frames), whole, check_index_type=False)


def test_rows_may_end_early_and_later_blocks_may_have_other_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """As spreadsheets write them. pyarrow's reader refuses such rows and types of later blocks, and reads dates as such."""
    monkeypatch.setattr("rlhfless.trace.csv_blocks.BLOCK_BYTES", 1)
    monkeypatch.setattr("rlhfless.trace.csv_blocks.PIECE_BYTES", 4)
    content = b"a,b,at\n1,2,2024-01-01\n3\n4.5,x,12:30:00\n"
    frame = pd.concat(csv_frames(Guard(), Path("log.csv"), io.BytesIO(content), []))
    assert frame["a"].tolist() == [1.0, 3.0, 4.5]
    assert frame["b"].fillna("").tolist() == [2, "", "x"]
    assert frame["at"].fillna("").tolist() == ["2024-01-01", "", "12:30:00"]


def test_an_error_in_a_late_block_names_the_line_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhfless.trace.csv_blocks.BLOCK_BYTES", 1)
    monkeypatch.setattr("rlhfless.trace.csv_blocks.PIECE_BYTES", 4)
    content = b"a,b\n" + b"1,2\n" * 20 + b'1,"x'
    with refused(TraceError, "row 21"):
        list(csv_frames(Guard(), Path("log.csv"), io.BytesIO(content), []))


def test_a_header_of_very_many_columns_is_refused() -> None:
    with refused(TraceError, "20,001"):
        list(csv_blocks(Guard(), Path("log.csv"), io.BytesIO(b"," * 20_000 + b"\n1\n")))
