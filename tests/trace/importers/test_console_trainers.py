"""Console text of TRL, NeMo-RL and prime-rl: the frameworks' own lines, and what people paste of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from importer_samples import GOLDEN

from rlhfless.diagnosis import diagnose
from rlhfless.trace import ImportedLog, import_log

ENTRY = (
    "{{'loss': 0.0, 'num_tokens': {tokens}, 'completions/mean_length': {mean}, 'completions/min_length': {low}, "
    "'completions/max_length': 512.0, 'completions/clipped_ratio': 0.25, 'step_time': 10.0, 'epoch': 0.1}}"
)
BAR = " 10%|#         | {}/{} [01:00<09:00, 6.00s/it]"


def read(folder: Path, *lines: str) -> ImportedLog:
    (folder / "run.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return import_log(folder / "run.log")


def entry(mean: float, tokens: object = None, low: float = 5.0) -> str:
    text = ENTRY.format(mean=mean, tokens=tokens, low=low)
    return text.replace("'num_tokens': None, ", "")


def column(log: ImportedLog, name: str) -> list[float]:
    return list(log.scalars[name].tolist())


# --- TRL --------------------------------------------------------------------------------------------------------------------


def test_trls_own_callback_prints_what_its_state_has() -> None:
    """The console has four digits. Step 2 learns from the responses of step 1, so it has no lengths of its own."""
    printed, state = import_log(GOLDEN / "trl-console" / "console.log"), import_log(GOLDEN / "trl" / "trainer_state.json")
    assert printed.framework == state.framework == "trl"
    shared = [name for name in state.scalars.columns if name != "num_tokens"]
    pd.testing.assert_frame_equal(printed.scalars[shared], state.scalars[shared], rtol=1e-3)
    assert printed.scalars["step"].tolist() == [1, 3]
    for name in ("run_s", "samples_per_s", "steps_per_s", "planned_steps", "steps_done", "steps_per_generation"):
        assert printed.facts[name] == pytest.approx(state.facts[name], rel=1e-3)
    assert printed.facts["elapsed_s"] == 72


def test_a_dict_has_the_number_of_the_bar_after_it(tmp_path: Path) -> None:
    log = read(
        tmp_path, "  Total train batch size (w. parallel, distributed & accumulation) = 1,024",
        "  Total optimization steps = 900",
        BAR.format(9, 900), "{'loss': 0.1, 'completion_length': 827.975, 'reward': nan, 'epoch': 0.1}", BAR.format(10, 900),
        BAR.format(19, 900), "[rank0]: {'loss': 0.1, 'completion_length': 900.5, 'epoch': 0.2}", BAR.format(20, 900),
    )  # fmt: skip
    assert (column(log, "step"), column(log, "response_tokens_mean")) == ([10, 20], [827.975, 900.5])
    assert log.facts["responses_per_step"] == 1024
    assert (log.facts["planned_steps"], log.facts["logging_steps"]) == (900, 10)


@pytest.mark.parametrize("text", ["{'completion_length': 12.5}", "0: {'reward': 1.0, 'completions/mean_length': 12.5}"])
def test_a_shortened_dict_is_an_entry_too(text: str, tmp_path: Path) -> None:
    log = read(tmp_path, text)
    assert (log.framework, column(log, "response_tokens_mean")) == ("trl", [12.5])


def test_dicts_without_a_bar_are_counted_and_a_note_says_so(tmp_path: Path) -> None:
    log = read(tmp_path, entry(10), entry(11), entry(11), entry(12))
    assert (column(log, "step"), column(log, "response_tokens_mean")) == ([1, 2, 3], [10, 11, 12])
    assert any("counted" in note for note in log.summary.notes)


def test_dicts_before_one_bar_are_spread_up_to_it(tmp_path: Path) -> None:
    log = read(tmp_path, entry(10), entry(11), BAR.format(20, 900), entry(12), entry(13), entry(14), BAR.format(25, 900))
    assert column(log, "step") == [10, 20, 23, 24, 25]
    assert any("spread" in note for note in log.summary.notes)


@pytest.mark.parametrize(
    "before",
    ["2026-03-01T10:00:00.123Z stdout F ", "2026-03-01 10:00:00,123 - INFO - ", "[INFO:swift] ", "[rank0]: ", "0: ", "> "],
)
def test_what_loggers_and_clusters_put_before_an_entry_is_no_part_of_it(before: str, tmp_path: Path) -> None:
    log = read(tmp_path, before + entry(100.0, 1000.0), before + BAR.format(1, 9), before + entry(200.0, 2000.0))
    assert column(log, "response_tokens_mean") == [100.0, 200.0]


@pytest.mark.parametrize("width", [40, 81, 120])
def test_an_entry_that_a_terminal_wrapped_is_whole_again(width: int, tmp_path: Path) -> None:
    """In the middle of names and numbers, as terminals do; the next entry, a bar or a blank line ends one that is cut."""
    texts = [entry(100.0, 1000.0), entry(200.0, 2000.0)]
    parts = [text[at : at + width] for text in texts for at in range(0, len(text), width)]
    assert column(read(tmp_path, *parts), "response_tokens_mean") == [100.0, 200.0]
    cut = read(tmp_path, texts[0], texts[1][:50], BAR.format(2, 9), "", texts[0][:50], "", texts[1].replace("2000", "3000"))
    assert column(cut, "response_tokens_mean") == [100.0, 200.0]


def test_an_entry_with_a_line_for_each_number_is_one(tmp_path: Path) -> None:
    """As pprint shows it, or as people break it."""
    lines = entry(100.0, 1000.0).replace(", '", ",\n '").split("\n")
    log = read(tmp_path, *lines, *entry(200.0, 2000.0).replace("{", "{\n").replace(", '", ",\n'").split("\n"))
    assert (column(log, "response_tokens_mean"), column(log, "step_s")) == ([100.0, 200.0], [10.0, 10.0])


@pytest.mark.parametrize("quote", ["'", '"'])
def test_ms_swift_prints_the_step_in_the_dict(quote: str, tmp_path: Path) -> None:
    text = (
        "{{'loss': 0.1, 'completions/mean_length': {}, 'epoch': 0.1, 'global_step/max_steps': '{}/500', "
        "'percentage': '2.00%', 'elapsed_time': '{}'}}"
    ).replace("'", quote)
    log = read(tmp_path, text.format(300.5, 10, "59m 30s"), text.format(310.5, 20, "1h 59m 10s"))
    assert (column(log, "step"), column(log, "response_tokens_mean")) == ([10, 20], [300.5, 310.5])
    assert log.facts == {"planned_steps": 500, "steps_done": 20, "elapsed_s": 7150, "logging_steps": 10}


def test_evaluations_and_their_bars_are_no_steps(tmp_path: Path) -> None:
    log = read(
        tmp_path, BAR.format(0, 900), entry(10), BAR.format(1, 900), BAR.format(25, 25),
        "{'eval_loss': 0.1, 'eval_completions/mean_length': 3.0, 'epoch': 0.1}", BAR.format(1, 900), entry(11),
        BAR.format(2, 900),
    )  # fmt: skip
    assert (column(log, "step"), column(log, "response_tokens_mean")) == ([1, 2], [10, 11])


def test_a_cut_dict_is_left_out_and_those_after_it_keep_their_numbers(tmp_path: Path) -> None:
    log = read(
        tmp_path, entry(10), BAR.format(1, 9), entry(11)[:70], BAR.format(2, 9), entry(12), BAR.format(3, 9), entry(13)[:-2]
    )
    assert (column(log, "step"), column(log, "response_tokens_mean")) == ([1, 3], [10, 12])
    assert any("incomplete" in note for note in log.summary.notes)


def test_a_bar_before_the_dict_on_its_line_is_no_part_of_it(tmp_path: Path) -> None:
    log = read(tmp_path, BAR.format(7, 9) + entry(10), BAR.format(7, 9))
    assert column(log, "step") == [7]


def test_a_resumed_run_goes_on_at_its_bar(tmp_path: Path) -> None:
    log = read(
        tmp_path, entry(10), BAR.format(4, 9), entry(11), BAR.format(5, 9), BAR.format(4, 9), entry(12), BAR.format(5, 9)
    )  # fmt: skip
    assert (column(log, "step"), column(log, "response_tokens_mean")) == ([4, 5], [10, 12])


def test_a_second_run_in_the_file_is_another_run(tmp_path: Path) -> None:
    end = "{'train_runtime': 100.0, 'train_samples_per_second': 3.2, 'train_steps_per_second': 0.1, 'epoch': 1.0}"
    log = read(tmp_path, entry(10), BAR.format(1, 2), entry(11), BAR.format(2, 2), end, entry(12), BAR.format(1, 7))
    assert any("2 runs" in note for note in log.summary.notes)
    assert log.facts["run_s"] == 100


# --- TRL's generations ------------------------------------------------------------------------------------------------------


def with_bars(*entries: str) -> list[str]:
    return [line for step, text in enumerate(entries, start=1) for line in (text, BAR.format(step, 900))]


def test_an_entry_whose_tokens_stand_still_generated_nothing(tmp_path: Path) -> None:
    """Its lengths are those of the generation before. Its seconds belong to it."""
    log = read(tmp_path, *with_bars(*(entry(mean, tokens) for mean, tokens in ((10, 700), (10, 700), (11, 1500), (11, 1500)))))
    assert (column(log, "step"), column(log, "tokens_total"), column(log, "step_s")) == ([1, 3], [700, 800], [20, 20])
    assert log.facts["steps_per_generation"] == 2
    assert any("4 entries, 2 generations" in note and "num_tokens" in note for note in log.summary.notes)


def test_equal_lengths_are_no_repetition_where_the_tokens_grow(tmp_path: Path) -> None:
    log = read(tmp_path, *with_bars(entry(10, 700), entry(10, 1400)))
    assert (column(log, "step"), column(log, "step_s")) == ([1, 2], [10, 10])
    assert "steps_per_generation" not in log.facts


@pytest.mark.parametrize(("low", "steps"), [(5.0, [1, 3]), (512.0, [1, 2, 3])])
def test_without_a_count_of_tokens_equal_lengths_are_a_repetition_unless_all_are_equal(
    low: float, steps: list[int], tmp_path: Path
) -> None:
    """Where all lengths are at the limit, two generations have equal numbers."""
    log = read(tmp_path, *with_bars(entry(10, None, low), entry(10, None, low), entry(11, None, low)))
    assert column(log, "step") == steps
    assert any("inferred" in note for note in log.summary.notes) == (low == 5.0)


def test_a_rounded_count_of_tokens_that_stands_still_does_not_decide(tmp_path: Path) -> None:
    """Newer consoles print four digits: 123,400,000 and 123,440,000 look the same."""
    log = read(tmp_path, *with_bars(*(entry(mean, "'1.234e+08'") for mean in (10, 11, 11))))
    assert (column(log, "step"), column(log, "response_tokens_mean")) == ([1, 2], [10, 11])
    assert "tokens_total" not in log.scalars.columns[log.scalars.notna().iloc[1]]


def test_rounded_tokens_are_used_while_their_difference_is_exact_enough(tmp_path: Path) -> None:
    counts = ("'5e+05'", "'1e+06'", "'1.5e+06'", "'9.001e+06'", "'9.003e+06'")
    log = read(tmp_path, *with_bars(*(entry(mean, count) for mean, count in enumerate(counts, start=10))))
    assert log.scalars["tokens_total"].dropna().tolist() == [500_000, 500_000, 500_000, 7_501_000]


def test_entries_over_several_steps_keep_the_mean_of_a_step_where_all_generate(tmp_path: Path) -> None:
    log = read(tmp_path, entry(10, 7000), BAR.format(10, 900), entry(11, 15000), BAR.format(20, 900))
    assert (column(log, "step_s"), column(log, "tokens_total")) == ([10, 10], [700, 800])


def test_seconds_of_entries_over_several_steps_add_up_to_the_run(tmp_path: Path) -> None:
    lines = [
        (entry(mean, tokens), BAR.format(step, 900)) for step, mean, tokens in ((5, 10, 700), (10, 10, 700), (15, 11, 1500))
    ]
    log = read(tmp_path, *(line for pair in lines for line in pair))
    assert (column(log, "step_s"), column(log, "tokens_total")) == ([100, 50], [700, 800])
    assert log.facts["steps_per_generation"] == 10


def test_a_log_that_begins_within_a_run_has_no_tokens_of_its_first_generation(tmp_path: Path) -> None:
    log = read(tmp_path, entry(10, 7000), BAR.format(100, 900), entry(11, 7800), BAR.format(101, 900))
    assert log.scalars["tokens_total"].isna().tolist() == [True, False]


# --- NeMo-RL ----------------------------------------------------------------------------------------------------------------


def test_nemo_rls_own_block_of_a_synchronous_step() -> None:
    log = import_log(GOLDEN / "nemo-rl-console" / "console.log")
    names = [
        "step",
        "step_s",
        "generate_s",
        "prepare_s",
        "learn_s",
        "sync_s",
        "responses",
        "response_tokens_mean",
        "tokens_per_s",
    ]
    assert log.framework == "nemo-rl"
    assert log.scalars[names].to_numpy().tolist() == [
        [1, 12.75, 6.0, 2.25, 3.5, 0.5, 4, 6.25, 3137.25], [2, 12.75, 6.0, 2.25, 3.5, 0.5, 4, 4.5, 3137.25],
    ]  # fmt: skip
    assert log.facts == {"planned_steps": 60, "gpus": 8}
    assert {"wait_s", "gpus_train"}.isdisjoint(log.scalars.columns)  # the same GPUs do both


def test_nemo_rls_own_block_of_an_asynchronous_step() -> None:
    """What is exposed is waiting, and no generation. Two of the eight GPUs generate, by rates per group and per GPU."""
    log = import_log(GOLDEN / "nemo-rl-console" / "async.log")
    first = log.scalars.iloc[0]
    assert (first["wait_s"], first["sync_s"], first["off_policy_steps"]) == (6.5, 0.25, 1.0)
    assert (first["gpus_generate"], first["gpus_train"], first["responses"], log.facts["gpus"]) == (2, 6, 4, 8)
    assert "generate_s" not in log.scalars.columns
    assert "response_tokens_mean" not in log.scalars.columns
    assert first["performance/average_token_imbalance"] == pytest.approx(0.0909), "a share, as in TensorBoard"


def block(step: int, seconds: float, *more: str) -> list[str]:
    times = [f"  • Total step time: {seconds:.2f}s", f"  • generation: {seconds / 2:.2f}s (50.0%)"]
    return [f"{'=' * 25} Step {step}/2 {'=' * 25}", *more, "⏱️  Timing:", *times]


def test_steps_of_a_second_epoch_are_numbered_on(tmp_path: Path) -> None:
    epochs = [f"{'=' * 25} Epoch {epoch}/2 {'=' * 25}" for epoch in (1, 2)]
    log = read(tmp_path, epochs[0], *block(1, 10), *block(2, 11), epochs[1], *block(1, 12))
    assert (column(log, "step"), column(log, "step_s")) == ([1, 2, 3], [10, 11, 12])
    assert "planned_steps" not in log.facts  # of an epoch


def test_times_of_validation_are_none_of_the_step(tmp_path: Path) -> None:
    validation = ["📊 Validation Results:", "    • Average response length: 900.0 tokens", "  ⏱️  Validation Timing:"]
    log = read(tmp_path, *block(1, 10, *validation, "    • Total validation time: 30.00s"))
    assert log.scalars[["step_s", "timing/validation/total_validation_time"]].to_numpy().tolist() == [[10, 30]]


def test_blocks_without_their_headers_are_numbered(tmp_path: Path) -> None:
    log = read(tmp_path, *block(1, 10)[2:], *block(1, 11)[1:])
    assert (column(log, "step"), column(log, "step_s"), column(log, "generate_s")) == ([1, 2], [10, 11], [5, 5.5])
    assert any("numbered" in note for note in log.summary.notes)


def test_a_block_that_is_cut_keeps_its_whole_lines(tmp_path: Path) -> None:
    text = "\n".join([*block(1, 10), *block(2, 12.5)])
    for cut in (" (50.0%)", "s (50.0%)", "25s (50.0%)"):
        (tmp_path / "run.log").write_text(text.removesuffix(cut), encoding="utf-8")
        log = import_log(tmp_path / "run.log")
        assert column(log, "step_s") == [10, 12.5]
        assert log.scalars["generate_s"].dropna().tolist() == ([5, 6.25] if cut == " (50.0%)" else [5])


def test_seconds_without_bullets_and_headings_are_a_block_too(tmp_path: Path) -> None:
    """As people copy it into notes; other lines with a name and seconds are none of it."""
    log = read(
        tmp_path, "Total step time: 200.00s", "  policy_training:        80.00s (40.0%)", "  generation:   60.50s (30.3%)",
        "worker 3: compiled in 12.00s", "loading: 7.00s", "  policy_and_reference_logprobs: 40.00s (20.0%)",
    )  # fmt: skip
    columns = ["step_s", "generate_s", "prepare_s", "learn_s"]
    assert log.scalars[columns].to_numpy().tolist() == [[200, 60.5, 40, 80]]
    assert not any("loading" in name or "worker" in name for name in log.scalars)


def test_parts_of_a_phase_are_not_added_to_it(tmp_path: Path) -> None:
    log = read(
        tmp_path, "===== Step 1/9 =====", "Timing:", "  • Total step time: 100.00s", "  • policy_training: 70.00s (70.0%)",
        "  • prepare_for_generation/total: 20.00s (20.0%)",
        "  • prepare_for_generation/transfer_and_update_weights: 8.00s (8.0%)",
    )  # fmt: skip
    assert column(log, "sync_s") == [20]
    found = diagnose(tmp_path / "run.log")
    assert found.numbers["unnamed_s"].value == pytest.approx(10)
    assert "prepare_for_generation 20%" in str(found)


def test_rates_that_are_rounded_too_much_tell_no_gpus(tmp_path: Path) -> None:
    rates = ["🔍 Performance Metrics:", "    - E2E (Tokens/sec/gpu): 0.04", "    - E2E (Tokens/sec): 3.37"]
    assert "gpus" not in read(tmp_path, *block(1, 10), *rates).facts


def test_a_header_that_is_cut_is_no_step(tmp_path: Path) -> None:
    assert column(read(tmp_path, *block(1, 10), "===== Step 2/", "= Step 3/4 ="), "step") == [1]


# --- prime-rl ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["console.log", "old.log"])
def test_prime_rls_own_lines_of_the_orchestrator(name: str) -> None:
    log = import_log(GOLDEN / "prime-rl-console" / name)
    assert log.framework == "prime-rl"
    assert log.scalars["step"].tolist() == [1, 2]
    assert log.scalars["step_s"].tolist() == ([72.25, 132.25] if name == "old.log" else [72.0, 132.0])
    assert log.scalars[["responses", "off_policy_steps", "reward_mean"]].to_numpy().tolist() == [[4, 0, 0.375], [4, 1, 1.375]]


def test_prime_rls_lengths_are_of_prompt_and_response() -> None:
    old = import_log(GOLDEN / "prime-rl-console" / "old.log")
    assert old.scalars["sequence_tokens_mean"].tolist() == [10.8, 9.0]
    assert old.scalars["tokens_per_s"].tolist() == [4321.5, 4321.5]
    assert "response_tokens_mean" not in old.scalars.columns
    new = import_log(GOLDEN / "prime-rl-console" / "console.log").scalars
    assert (new["truncation_rate"].tolist(), new["no_signal_rate"].tolist()) == ([0.25, 0.0], [0.25, 0.25])


def test_prime_rls_trainer_has_numbers_of_its_own(tmp_path: Path) -> None:
    trainer = (GOLDEN / "prime-rl-console" / "trainer.log").read_text()
    alone = import_log(GOLDEN / "prime-rl-console" / "trainer.log")
    assert alone.scalars["step_s"].tolist() == [72.0, 132.0]
    assert "tokens_per_s" not in alone.scalars.columns  # of forward and backward passes
    both = read(tmp_path, trainer + (GOLDEN / "prime-rl-console" / "old.log").read_text())
    assert both.scalars[["step_s", "tokens_per_s", "trainer/Throughput"]].iloc[0].tolist() == [72.25, 4321.5, 4322]


LINE = "{} SUCCESS Step {} | Time: {:.2f}s | Reward: 0.2938 | Seq. Length: 328.5 tokens/sample"


def test_time_between_the_steps_is_reported_also_over_midnight(tmp_path: Path) -> None:
    log = read(tmp_path, LINE.format("23:59:00", 0, 40), LINE.format("23:59:40", 1, 40), LINE.format("00:02:20", 2, 40))
    assert log.scalars["clock_s"].diff().tolist()[1:] == [40, 160]
    assert any("120 s of 200 s" in note for note in log.summary.notes)
    assert not any(
        "times of day" in note for note in read(tmp_path, *(LINE.format("1", step, 40) for step in (0, 1))).summary.notes
    )


def test_a_line_of_prime_rl_that_is_cut_loses_its_last_field(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(LINE.format("02:00:58", 0, 42.77)[:-19])
    scalars = import_log(tmp_path / "run.log").scalars
    assert scalars["step_s"].tolist() == [42.77]
    assert "sequence_tokens_mean" not in scalars.columns


ROLLOUTS = "Generating rollouts ({}): {:3.0%}|##| {}/64 [{}<00:00,  3.20it/s]"


def test_the_bar_of_its_rollouts_tells_a_steps_seconds_of_generation(tmp_path: Path) -> None:
    lines = [
        LINE.format("02:00:00", 4, 50),
        ROLLOUTS.format("train", 0.5, 32, "00:11"), ROLLOUTS.format("train", 1, 64, "00:31"),
        ROLLOUTS.format("eval", 1, 64, "00:07"), LINE.format("02:00:40", 5, 40.2),
        ROLLOUTS.format("train", 1, 64, "01:02"), LINE.format("02:02:00", 6, 80.5),
    ]  # fmt: skip
    log = read(tmp_path, *lines)
    assert log.scalars["generate_s"].isna().tolist() == [True, False, False]
    assert column(log, "generate_s")[1:] == [31, 62]
    assert any("Generating rollouts" in note for note in log.summary.notes)


@pytest.mark.parametrize(
    "bar", [ROLLOUTS.format("train", 0.5, 32, "00:31"), ROLLOUTS.format("train", 1, 64, "00:51")], ids=["part", "longer"]
)
def test_a_bar_that_is_not_of_its_step_alone_tells_no_generation(bar: str, tmp_path: Path) -> None:
    assert "generate_s" not in read(tmp_path, bar, LINE.format("02:00:40", 5, 40.2)).scalars.columns


def test_rollouts_of_evaluations_are_none_of_the_step(tmp_path: Path) -> None:
    bars = [f"Generating rollouts ({which}): 100%|#| {count}/{count} [00:14<00:00, 35.1it/s]" for which, count in
            (("train", 512), ("eval", 90), ("val", 70))]  # fmt: skip
    assert column(read(tmp_path, *bars, LINE.format("02:00:58", 0, 42.77)), "responses") == [512]
    assert "responses" not in read(tmp_path, *bars[1:], LINE.format("02:00:58", 0, 42.77)).scalars.columns
