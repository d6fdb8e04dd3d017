"""Console text as people have it: colours, prefixes, bars, restarts, several runs, cut and hostile lines, and no log at all."""

from __future__ import annotations

import io
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from importer_samples import GOLDEN

from rlhfless.trace import ImportedLog, ImportOptions, TraceError, import_log
from rlhfless.trace.importers import recognise
from rlhfless.trace.importers.console import steps as collected
from rlhfless.trace.importers.console.lines import LONGEST_LINE, Quantity, console_lines, parse_dict, quantity
from rlhfless.trace.importers.console.progress import ProgressBar

FRAMEWORKS = (
    "verl-console",
    "slime-console",
    "skyrl-console",
    "roll-console",
    "openrlhf",
    "nemo-rl-console",
    "prime-rl-console",
    "areal-console",
)
VERL = "step:{} - response_length/mean:{:.3f} - timing_s/gen:4.000 - timing_s/step:9.000"


def read(folder: Path, text: str | bytes) -> ImportedLog:
    (folder / "run.log").write_bytes(text.encode() if isinstance(text, str) else text)
    return import_log(folder / "run.log")


def lines_of(content: bytes) -> list[tuple[int, str, bool]]:
    found = console_lines(io.BytesIO(content), note=pytest.fail)
    return [(line.number, line.text, line.ended) for line in found]


def means(log: ImportedLog) -> list[tuple[int, float]]:
    return list(zip(log.scalars["step"].tolist(), log.scalars["response_tokens_mean"].tolist(), strict=True))


# --- lines ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"\x1b[36m(TaskRunner pid=12)\x1b[0m step:1\n", ["step:1"]),
        (b"[36m(TaskRunner pid=12)[0m step:1\n", ["step:1"]),
        (b"\x1b[1;31;40m(Worker(rank=3) pid=7, ip=10.0.0.9) \x1b[0mone\x1b[K\n", ["one"]),
        (b"(a b pid=3) x [repeated 7x across cluster] (Ray deduplicates logs by default.)\n", ["x"]),
        (b"(no process) stays [12:30] [3/4]\n", ["(no process) stays [12:30] [3/4]"]),
        (b" 1/9 [00:01<00:08]\r 2/9 [00:02<00:07]\r\nnext", [" 1/9 [00:01<00:08]", " 2/9 [00:02<00:07]", "next"]),
        (b"\xff\xfe\x00\n", ["\ufffd\ufffd\x00"]),
        (b"", []),
    ],
)
def test_colours_prefixes_and_carriage_returns_are_taken_away(content: bytes, texts: list[str]) -> None:
    assert [text for _, text, _ in lines_of(content)] == texts


def test_lines_are_numbered_as_an_editor_does_and_the_last_one_may_be_cut() -> None:
    assert lines_of(b"a\rb\r\nc\n\nd") == [(1, "a", True), (1, "b", True), (2, "c", True), (3, "", True), (4, "d", False)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r", b"\r\n"]), max_size=30), st.integers(1, 7))
@example([b"a", b"\r\n", b"bb"], 2)
def test_where_a_block_ends_does_not_matter(pieces: list[bytes], size: int) -> None:
    content = b"".join(pieces)

    class Small(io.BytesIO):
        def read(self, most: int | None = -1) -> bytes:
            return super().read(size)

    found = list(console_lines(Small(content), note=pytest.fail))
    assert found == list(console_lines(io.BytesIO(content), note=pytest.fail))
    assert "".join(line.text for line in found) == content.decode().replace("\r", "").replace("\n", "")


def test_a_line_without_end_is_left_out_and_named() -> None:
    notes: list[str] = []
    content = b"one\n" + b"x" * (3 * LONGEST_LINE) + b"y\nthree\n"
    found = [(line.number, line.text) for line in console_lines(io.BytesIO(content), notes.append)]
    assert found == [(1, "one"), (3, "three")]
    assert len(notes) == 1
    assert "line 2 " in notes[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.5s", Quantity(12.5, "s")), (" 1,024 tokens/s", Quantity(1024, "tokens/s")), ("-3e-4", Quantity(-3e-4, "")),
        ("45.1%)", Quantity(45.1, "%")), (".5 GiB", Quantity(0.5, "GiB")), ("nan", None), ("", None), ("x 3", None),
    ],
)  # fmt: skip
def test_a_number_with_a_unit(text: str, value: Quantity | None) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': tensor(0.5, device='cuda:0')}", {"a": 0.5}), ("{'a': torch.tensor(2, grad_fn=<MeanBackward0>)}", {"a": 2}),
        ("{'a': np.float64(nan), 'b': numpy.int64(3)}", {"a": None, "b": 3}), ("{'a': os.system('true')}", None),
    ],
)  # fmt: skip
def test_numbers_of_torch_and_numpy_in_a_dict(text: str, value: dict[str, Any] | None) -> None:
    assert parse_dict(text) == value


# --- progress ---------------------------------------------------------------------------------------------------------------


def facts(before: str | None, *states: str) -> dict[str, float]:
    bar = ProgressBar(before)
    for state in states:
        bar.see(state)
    return bar.facts()


def test_the_bar_of_steps_is_the_one_that_ran_longest() -> None:
    found = facts(
        "",
        "  0%|          | 0/1000 [00:00<?, ?it/s]",
        "100%|██████████| 50/50 [01:40<00:00, 2.00s/it]",  # an evaluation
        "Loading weights: 100%|██████████| 4/4 [3:00:00<00:00, 40.00s/it]",
        " 12%|█▏        | 120/1000 [1:02:03<7:35:00, 31.02s/it, loss=0.1]",
        "  2%|▏         | 1/50 [00:02<01:38, 2.00s/it]",
    )
    assert found == {"planned_steps": 1000.0, "steps_done": 120.0, "elapsed_s": 3723.0, "seconds_per_step": 31.02}


def test_steps_per_second_are_turned_round_and_an_unknown_rate_is_left_out() -> None:
    assert facts("Steps", "Steps:  5%|▌ | 5/100 [00:02<00:38, 2.50it/s]")["seconds_per_step"] == 0.4
    assert "seconds_per_step" not in facts("Steps", "Steps:  1%| | 1/100 [00:00<?, ?it/s]")


def test_what_a_person_printed_in_bold_is_a_bar_still() -> None:
    assert facts("", "  0%|          | 1/1000 [04:41<**78:02:42, 281.24s/it]**")["seconds_per_step"] == 281.24


def test_a_bar_before_the_first_step_tells_the_plan_alone() -> None:
    assert facts("Steps", "Steps:  0%| | 0/100 [00:00<?, ?it/s]") == {"planned_steps": 100.0}


def test_a_bar_with_another_text_is_not_the_runs() -> None:
    assert facts("Training", "Map: 100%|██| 9/9 [00:01<00:00, 9.0it/s]") == {}
    assert facts("", "Map: 100%|██| 9/9 [00:01<00:00, 9.0it/s]") == {}
    assert facts(None, " 50%|█ | 5/10 [00:01<00:01, 9.0it/s]") == {}


# --- steps ------------------------------------------------------------------------------------------------------------------


def test_after_a_restart_the_later_attempt_counts(tmp_path: Path) -> None:
    log = read(tmp_path, "\n".join(VERL.format(step, 10 * at) for at, step in enumerate((1, 2, 3, 4, 3, 4, 5), start=1)))
    assert means(log) == [(1, 10), (2, 20), (3, 50), (4, 60), (5, 70)]
    assert any("restarts: 2 records" in note for note in log.summary.notes)


def test_a_line_that_is_there_twice_is_one_step(tmp_path: Path) -> None:
    log = read(tmp_path, f"{VERL.format(1, 10)}\n{VERL.format(1, 10)}\n")
    assert means(log) == [(1, 10)]
    assert not any("runs" in note or "restarts" in note for note in log.summary.notes)


def test_steps_out_of_order_are_sorted(tmp_path: Path) -> None:
    assert means(read(tmp_path, "\n".join(VERL.format(step, step) for step in (3, 1, 2)) + "\n")) == [(1, 1), (2, 2), (3, 3)]


def test_steps_that_begin_again_are_said_to_be_another_run(tmp_path: Path) -> None:
    log = read(tmp_path, "\n".join(VERL.format(step, mean) for step, mean in ((1, 10), (2, 20), (1, 30), (2, 40))) + "\n")
    assert any("2 runs" in note for note in log.summary.notes)


def test_a_record_of_another_process_may_come_after_the_next_step(tmp_path: Path) -> None:
    """slime's trainer is a rollout behind its manager, where both work at the same time."""
    manager = "x - perf {}: {{'perf/rollout_time': 4.0, 'rollout/response_len/mean': {}.5}}"
    trainer = "y - perf {}: {{'perf/train_wait_time': 1.0, 'perf/step_time': {}.0}}"
    log = read(tmp_path, "\n".join([manager.format(0, 7), manager.format(1, 8), trainer.format(0, 5), trainer.format(1, 6)]))
    assert log.scalars[["step", "response_tokens_mean", "step_s"]].to_numpy().tolist() == [[0, 7.5, 5], [1, 8.5, 6]]
    assert not any("restarts" in note for note in log.summary.notes)


# --- what is wrong ----------------------------------------------------------------------------------------------------------


def test_a_number_that_the_end_of_the_file_cuts_is_not_read(tmp_path: Path) -> None:
    """74.0 of 74.020 is right within rounding; 7 of 74.020, or 43 of 4312: nobody can tell, and a note says so."""
    whole = "step:1 - response_length/mean:5.000 - timing_s/step:90.000 - timing_s/gen:74.020"
    for cut in range(3):
        log = read(tmp_path, whole[: len(whole) - cut])
        assert log.scalars["generate_s"].tolist() == pytest.approx([74.02], rel=1e-3)
        assert not any("left out" in note for note in log.summary.notes)
    for cut in range(3, 9):
        log = read(tmp_path, whole[:-cut])
        assert "generate_s" not in log.scalars.columns
        assert log.scalars["step_s"].tolist() == [90]
        assert any(note.startswith("left out: 'timing_s/g") for note in log.summary.notes)
    assert read(tmp_path, f"{whole[:-4]}\n").scalars["generate_s"].tolist() == [74]


@pytest.mark.parametrize("end", ["np.float64(7.5)", "7.5`", "7.5 "])
def test_a_number_with_something_after_it_is_whole(end: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"step:1 - timing_s/step:90 - timing_s/gen:{end}").scalars["generate_s"].tolist() == [7.5]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_log_that_is_cut_anywhere_is_read_up_to_there(framework: str, tmp_path: Path) -> None:
    content = (GOLDEN / framework / "console.log").read_bytes()
    whole = import_log(GOLDEN / framework / "console.log").scalars.iloc[0]
    for at in range(len(content), len(content) // 2, -53):
        first = read(tmp_path, content[:at]).scalars.iloc[0]
        assert all(whole[name] == value for name, value in first.dropna().items()), at


def test_numbers_that_cannot_be_are_left_out_and_named(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "step:1 - response_length/mean:inf - timing_s/gen:-4.000 - timing_s/step:nan - critic/score/mean:-0.500 - "
        "prompt_length/mean:many\nstep:99999999999999999999 - timing_s/gen:4.000\nstep:1 - nothing\n",
    )
    assert {"generate_s", "step_s", "response_tokens_mean", "prompt_tokens_mean"}.isdisjoint(log.scalars.columns)
    assert log.scalars["reward_mean"].tolist() == [-0.5]
    (note,) = [note for note in log.summary.notes if note.startswith("left out")]
    for name in ("response_length/mean", "generate_s", "timing_s/step", "prompt_length/mean"):
        assert name in note
    assert "1 value of" in note


def test_hostile_names_are_left_out_or_kept_as_text(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "x" * 5000, "__import__('os').system('true')", "\u202e\ud7ff"]
    log = read(tmp_path, f"step:1 - timing_s/gen:4.000 - {' - '.join(f'{name}:1.000' for name in names)} - a:2.000\n")
    assert "<script>alert(1)</script>" in log.scalars.columns
    assert max(map(len, log.scalars.columns)) <= collected.LONGEST_NAME
    assert any("names of more than" in note for note in log.summary.notes)
    log.save(tmp_path / "out")


def test_lines_of_a_second_framework_are_left_out_and_named(tmp_path: Path) -> None:
    other = (GOLDEN / "slime-console" / "console.log").read_bytes()
    log = read(tmp_path, VERL.format(7, 10).encode() + b"\n" + other)
    assert (log.framework, means(log)) == ("verl", [(7, 10)])
    assert any("verl" in note and "slime" in note for note in log.summary.notes)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a\nINFO timing_s/gen is slow\x1b[0m\n", ("verl", "line 2", "timing_s/gen is slow", "step:N - ", ".jsonl")),
        ("perf/rollout_time: ?\nperf/step_time: 29ms\ntiming_s/gen\n", ("slime", "line 1", "perf N: ", "--dump-details")),
        ("pipeline step 3 finished\n", ("ROLL", "line 1", "metrics_tag", "track_with")),
        ("Generation Buffer Progress: 3/4\n", ("SkyRL", "line 1", "Step N:")),
        ("global step 4 done\n", ("OpenRLHF", "line 1", "Global step N: {...}")),
        ("  * exposed_generation: 32.52s\n", ("NeMo-RL", "line 1", "Step N/M", "train_data_step")),
        ("Step 3 | Reward: 0.5\n", ("prime-rl", "line 1", "Step N | Time: ", "traces.jsonl")),
        ("x 'completion_length': 4\n", ("TRL", "line 1", "'epoch'", "trainer_state.json")),
        ("(AReaL) StatsLogger INFO: ready\n", ("AReaL", "line 1", "Train step N/M", "rollout.dump_to_file")),
        ("Dear diary\n", ("AReaL", "verl", "slime", "OpenRLHF", "SkyRL", "ROLL", "NeMo-RL", "prime-rl", "TRL")),
    ],
)
def test_a_text_that_is_no_log_is_refused_with_what_it_lacks(text: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text(text)
    for framework in ("auto", "console"):
        with refused(TraceError, "run.txt", *parts):
            import_log(tmp_path / "run.txt", ImportOptions(), framework)


def test_a_text_of_no_known_framework_is_refused_briefly_and_given_to_none(tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("Trainer INFO: Epoch 2/10 Step 12/58 is done.\nloss 0.3\n")
    with refused(TraceError, "run.txt", "NeMo-RL", "vLLM") as refusal:
        import_log(tmp_path / "run.txt")
    text = str(refusal.value).removeprefix(str(tmp_path))
    assert "nearly" not in text
    assert len(text) < 300


def test_a_file_that_is_no_text_is_not_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR timing_s/gen \0")
    with pytest.raises(TraceError) as refusal:
        import_log(tmp_path / "plot.png")
    assert "step:N" not in str(refusal.value)


def test_a_text_whose_steps_are_all_cut_is_refused(tmp_path: Path) -> None:
    with refused(TraceError, "run.log", "OpenRLHF", "Global step N: {...}"):
        read(tmp_path, "Global step 1: {'timing/generation': 4.0, 'timing/ppo")


def test_the_former_name_of_the_format_is_answered_with_the_new_one() -> None:
    with refused(TraceError, "--from openrlhf", "console"):
        import_log(GOLDEN / "openrlhf" / "console.log", framework="openrlhf")


@pytest.mark.parametrize("name", ["run.json", "run.jsonl", "run.csv", "run.parquet", "run.CSV.gz"])
def test_files_of_other_kinds_are_no_console_text(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(VERL.format(1, 2))
    try:
        assert recognise(tmp_path / name).name != "console"
    except TraceError as error:
        assert "console text" not in str(error)  # noqa: PT017 (some of them are another format, whose reader refuses them)


# --- amounts ----------------------------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    def peak(noise: int) -> tuple[int, int]:
        path = tmp_path / f"{noise}.log"
        with open(path, "w") as file:
            for step in range(20):
                file.write(VERL.format(step, step) + "\n")
                for at in range(noise):
                    file.write(f"(WorkerDict pid={at}) INFO something that nobody needs, {'.' * 80}\r {at}/9 [00:01<00:02]\n")
        tracemalloc.start()
        try:
            assert len(import_log(path).scalars) == 20
            return path.stat().st_size, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    _, few = peak(400)
    size, many = peak(2400)
    assert size > 6 * 2**20
    assert many < few + 2 * 2**20, "a block of the file is in memory, not the file"


def test_amounts_of_steps_names_and_numbers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "MOST_STEPS", 5)
    monkeypatch.setattr(collected, "MOST_NAMES", 3)
    monkeypatch.setattr(collected, "MOST_NUMBERS", 20)
    lines = [VERL.format(step, step) + "".join(f" - x{step}{name}:1.000" for name in range(4)) for step in range(9)]
    log = read(tmp_path, "\n".join(lines) + "\n")
    assert log.scalars["step"].tolist() == [0, 1, 2, 3, 4]
    assert log.scalars["generate_s"].tolist() == [4.0] * 5
    assert len([name for name in log.scalars.columns if name.startswith("x")]) == 3
    assert any(note.startswith("left out") and "steps" in note for note in log.summary.notes)


# --- fuzzing ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "piece",
    [
        " ", "step:1 - ", "'a': 1 ", "{'", "\x1b[1", "[1;", "(x pid=1", " 1/2 [", "5%|", "np.", "np.float64(1", "tensor(1, ",
        "perf/a", "perf 1: {", "rollout/", "Step 1: ", "'timing/a': '1.0000' ", "metrics_tag: {", '{"step": 1', "9", ":",
        " - a:", "[repeated 3x across ", "Global step 1: {",
    ],
)  # fmt: skip
def test_a_long_line_of_anything_takes_no_longer_than_its_length(piece: str, tmp_path: Path) -> None:
    """Patterns that try every beginning against every end would take hours here."""
    long = piece * (90_000 // len(piece)) + "} across ]"
    log = read(tmp_path, f"{VERL.format(1, 10)}\n{long}\nx - Step 4: \n{{'timing/step': '1.0000',\n{long}\n")
    assert (1, 10.0) in means(log)
    (tmp_path / "text.txt").write_text(long)
    try:
        import_log(tmp_path / "text.txt")
    except TraceError as error:
        assert len(str(error)) < 1500  # noqa: PT017 (some of these are a log, most are none)


PIECES = (
    b"\r", b"\n", b"\x1b[36m", b"[36m", b"(x pid=1) ", b"step:3 - ", b"step:3 - a:", b" - ", b":", b"np.float64(", b")" * 40,
    b"(" * 200, b"{'" * 90, b"perf 1: {'", b"'timing/step': '3',", b"Step 4: \n", b"{'a': 1}", b'metrics_tag: {"step": 1',
    b"Global step 7: {'timing/generation': (1).__class__}", b"nan", b"-inf", b"1e999", b"9" * 3000, b"\xff", "✨".encode(),
    b"={25} Step 3/9 ====".replace(b"{25}", b"=" * 25), b"* Total step time: 3.00s\n", b"Step 3 | Time: 4s | Loss: 3\n",
    b"{'loss': 3, 'epoch': 1}", b" 9/9 [00:01<00:00]\n", b" 3/4 [00:01<", b"tensor(0.5, device='cuda:0')" * 3, b", " * 300,
    b"\x00",
)  # fmt: skip


def mutated(content: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randrange(1, 5)):
        a, b = sorted((chance.randrange(len(content) + 1), chance.randrange(len(content) + 1)))
        what = chance.randrange(5)
        if what == 0:
            content = content[:a]
        elif what == 1:
            content = content[:a] + content[min(b, a + 60) :]
        elif what == 2:
            content = content[:b] + content[a:]
        else:
            content = content[:a] + chance.choice(PIECES) + content[a + chance.choice((0, 0, 3)) :]
    return content


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "trl-console"])
@settings(max_examples=60, deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_a_malformed_text_is_scalars_or_one_sentence(
    framework: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "run.log").write_bytes(mutated((GOLDEN / framework / "console.log").read_bytes(), chance))
    try:
        log = import_log(folder / "run.log", framework=chance.choice(("auto", "console")))
    except TraceError as error:
        assert "\n" not in str(error)  # noqa: PT017 (a refusal is as good as scalars)
        assert len(str(error)) < 1500  # noqa: PT017
        return
    assert len(log.scalars) or log.facts
    if len(log.scalars):
        log.save(folder / "out")
    assert str(log.summary)
