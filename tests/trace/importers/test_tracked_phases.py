"""Seconds of phases that frameworks log to TensorBoard and wandb: TRL's own profile, NeMo-RL's timers, and damaged files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from importer_samples import GOLDEN, TOKENIZER, sample_rollouts, wandb_file, wandb_row, write_nemo_rl

from rlhfless.diagnosis import diagnose
from rlhfless.trace import ImportOptions, TraceError, import_log, open_log, read_scalars
from rlhfless.trace.importers.event_records import fields

PROFILE = "profiling/Time taken: GRPOTrainer."
RUN = GOLDEN / "trl-profiled" / "run.wandb"


def scalars_of(folder: Path, *rows: dict[str, float]) -> pd.DataFrame:
    """What is read of a run that logged these rows."""
    path = folder / "run.wandb"
    path.write_bytes(wandb_file([wandb_row(row) for row in rows]))
    return import_log(path).scalars


def calls(**seconds: float) -> list[dict[str, float]]:
    names = {"generate": "vLLM.generate", "sync": "sync_weights", "reward": "_calculate_rewards", "whole": "_prepare_inputs"}
    return [{PROFILE + names[name]: value} for name, value in seconds.items()]


def test_phases_of_trls_own_run_add_up_to_its_steps() -> None:
    """Steps 1 and 3 generate. The second step learns again from the first one's responses; evaluations are left out."""
    run, logged = import_log(RUN), import_log(GOLDEN / "trl-profiled" / "trainer_state.json")
    scalars, state = run.scalars.set_index("step"), logged.scalars.set_index("step")
    assert run.facts["steps_per_generation"] == logged.facts["steps_per_generation"] == 2
    assert scalars.index.tolist() == state.index.tolist() == [1, 3]
    assert scalars["step_s"].tolist() == pytest.approx(state["step_s"].tolist())
    phases = scalars[["generate_s", "prepare_s", "learn_s", "sync_s"]]
    assert phases.sum(axis=1).tolist() == pytest.approx(scalars["step_s"].tolist())
    assert (phases[["generate_s", "prepare_s", "learn_s"]] > 0).all(axis=None)
    assert (phases["sync_s"] == 0).all()  # transformers generates with the weights that are learned


def test_trls_profile_goes_beside_its_completions(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
    folder = tmp_path / "run"
    options = ImportOptions(tokenizer=TOKENIZER, max_response_tokens=24)
    import_log(GOLDEN / "trl-profiled", options).save(folder)
    assert "learn_s" not in read_scalars(folder).columns
    import_log(RUN).save(folder)
    log = open_log(folder)
    assert log.framework == "trl"
    scalars = log.scalars.set_index("step")
    assert scalars.loc[[1, 3], "learn_s"].gt(0).all()
    first = log.trace.rollouts.query("step == 1")["response_tokens"]
    assert scalars.loc[1, "response_tokens_mean"] == pytest.approx(first.mean())
    with refused(TraceError, str(folder)):
        import_log(RUN).save(folder)


def test_trls_phases_by_hand(tmp_path: Path) -> None:
    scalars = scalars_of(
        tmp_path, *calls(sync=1.0, generate=5.0, reward=0.5, whole=9.0), {"train/global_step": 1, "train/step_time": 14.0},
        *calls(whole=0.25), {"train/global_step": 2, "train/step_time": 4.25},
        *calls(generate=50.0, reward=5.0, whole=60.0), {"train/global_step": 2, "eval/loss": 1.0},
        *calls(generate=6.0, reward=0.5, whole=8.0), {"train/global_step": 3, "train/step_time": 11.0},
    )  # fmt: skip
    names = ["step", "step_s", "generate_s", "prepare_s", "learn_s", "sync_s"]
    assert scalars[names].to_numpy().tolist() == [[1, 18.25, 5.0, 3.25, 9.0, 1.0], [3, 11.0, 6.0, 2.0, 3.0, 0.0]]


def test_an_entry_of_trl_over_several_generations_is_their_mean(tmp_path: Path) -> None:
    one = calls(generate=4.0, reward=0.5, whole=6.0)
    entry = {"train/global_step": 2, "train/step_time": 10.0, "train/completions/mean_length": 7.0}
    scalars = scalars_of(tmp_path, *one, *one, entry)
    assert scalars[["step", "step_s", "generate_s", "prepare_s", "learn_s"]].to_numpy().tolist() == [[2, 10.0, 4.0, 2.0, 4.0]]
    assert "response_tokens_mean" not in scalars.columns  # of no step's responses


def test_the_first_entry_of_a_resumed_run_is_left_out(tmp_path: Path) -> None:
    one = calls(generate=4.0, reward=0.5, whole=6.0)
    entries = [{"train/global_step": step, "train/step_time": 10.0} for step in (41, 42)]
    assert scalars_of(tmp_path, *one, entries[0], *one, entries[1])["step"].tolist() == [42]


def test_nemo_rls_times_are_read_beside_its_responses(tmp_path: Path) -> None:
    folder = write_nemo_rl(tmp_path / "exp_001", sample_rollouts())
    shutil.copytree(GOLDEN / "tensorboard", folder / "tensorboard")
    log = open_log(tmp_path)
    assert log.scalars["prepare_s"].tolist() == [2.0, 2.0]
    assert len(log.trace.rollouts) == 8
    shutil.move(folder / "tensorboard", tmp_path / "elsewhere")
    run = folder / "wandb" / "wandb" / "run-1"
    run.mkdir(parents=True)
    row = {"timing/train/generation": 3.0, "timing/train/policy_training": 2.0, "_step": 1}
    (run / "run-1.wandb").write_bytes(wandb_file([wandb_row(row)]))
    scalars = open_log(tmp_path).scalars
    assert scalars[["step", "generate_s", "learn_s"]].to_numpy().tolist() == [[1, 3.0, 2.0]]


def test_other_metrics_are_no_phases(tmp_path: Path) -> None:
    with refused(TraceError, "run.wandb"):
        scalars_of(tmp_path, {"train/loss": 0.5, "_step": 1})


def test_scalars_of_trl_need_no_profile_of_its_calls(tmp_path: Path) -> None:
    """TensorBoard has no profile, and wandb has none in some versions. Step 2 learns from the responses of step 1."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'rlhfless[loggers]'")
    from torch.utils.tensorboard import SummaryWriter

    entries = [
        {"train/step_time": 90.0 + step, "train/completions/mean_length": 400.0, "train/completions/clipped_ratio": 0.25,
         "train/num_tokens": 1000.0 * (step + step % 2)}
        for step in (1, 2, 3)
    ]  # fmt: skip
    writer = SummaryWriter(str(tmp_path / "events"))
    for step, entry in enumerate(entries, start=1):
        for name, value in entry.items():
            writer.add_scalar(name, value, step)
    writer.add_scalar("train/train_runtime", 300.0, 3)
    writer.close()
    rows = [{**entry, "train/global_step": step} for step, entry in enumerate(entries, start=1)]
    (tmp_path / "run.wandb").write_bytes(wandb_file([wandb_row(row) for row in rows]))
    assert import_log(tmp_path / "events").facts["run_s"] == 300.0
    for path in (tmp_path / "events", tmp_path / "run.wandb"):
        log = import_log(path)
        assert log.framework == "trl"
        assert log.scalars[["step", "step_s", "truncation_rate"]].to_numpy().tolist() == [[1, 183.0, 0.25], [3, 93.0, 0.25]]


def test_parts_of_a_phase_are_not_counted_beside_it() -> None:
    found = diagnose(GOLDEN / "tensorboard")
    assert found.numbers["sync_s"].value == 0.5
    assert found.numbers["named_s"].value == 9.5, "of which 0.25 s of sending weights are a part"


def test_prime_rls_trainer_logs_its_phases(tmp_path: Path) -> None:
    seconds = {"time/step": 60.0, "time/wait_for_batch": 40.0, "time/forward_backward": 15.0, "time/broadcast_weights": 2.0}
    row = scalars_of(tmp_path, {**seconds, "_step": 4}).iloc[0]
    assert [row[name] for name in ("step", "step_s", "wait_s", "learn_s", "sync_s")] == [4, 60.0, 40.0, 15.0, 2.0]


def test_a_folder_with_several_runs_names_them(tmp_path: Path) -> None:
    for name in ("run-a", "run-b"):
        (tmp_path / name).mkdir()
        shutil.copy(RUN, tmp_path / name / "run.wandb")
    with refused(TraceError, "run-a, run-b"):
        import_log(tmp_path)
    shutil.rmtree(tmp_path / "run-b")
    (tmp_path / "latest-run").symlink_to("run-a")  # as wandb does
    assert len(import_log(tmp_path).scalars) == 2


def test_steps_that_a_restart_undid_are_left_out(tmp_path: Path) -> None:
    """What TensorBoard hides: it was told where the run went on (``purge_step``), in a second file."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'rlhfless[loggers]'")
    from torch.utils.tensorboard import SummaryWriter

    for part, (purge_step, steps) in enumerate([(None, (1, 2, 3, 4)), (3, (3,))]):
        writer = SummaryWriter(str(tmp_path / f"part {part}"), purge_step=purge_step)
        for step in steps:
            writer.add_scalar("timing/train/total_step_time", 10.0 * part + step, step)
            writer.add_scalar("timing/train/generation", 1.0, step)
        writer.close()
        (file,) = (tmp_path / f"part {part}").iterdir()
        (tmp_path / "log").mkdir(exist_ok=True)
        file.rename(tmp_path / "log" / f"events.out.tfevents.{part}")
    scalars = import_log(tmp_path / "log").scalars
    assert scalars[["step", "step_s"]].to_numpy().tolist() == [[1, 1.0], [2, 2.0], [3, 13.0]]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_file_that_ends_within_a_record_is_read_up_to_it(name: str, tmp_path: Path) -> None:
    source = next((GOLDEN / name).iterdir())
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes()[:-5])
    log = import_log(path)
    assert len(log.scalars) == 2
    assert any("the last record is incomplete" in note for note in log.summary.notes)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_flipped_bit_is_noticed(name: str, tmp_path: Path) -> None:
    source = next((GOLDEN / name).iterdir())
    content = bytearray(source.read_bytes())
    content[8 if name == "tensorboard" else 20] ^= 1
    path = tmp_path / source.name
    path.write_bytes(content)
    with refused(TraceError, str(path), "record 1"):
        import_log(path)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=6), st.integers(0, 3))
def test_records_of_any_size_come_back_from_blocks(sizes: list[int], seed: int) -> None:
    import io

    from rlhfless.trace.importers.event_records import wandb_records
    from rlhfless.trace.limits import Guard

    messages = [bytes([seed + at]) * size for at, size in enumerate(sizes)]
    stream = io.BytesIO(wandb_file(messages))
    assert list(wandb_records(Path("run.wandb"), stream, Guard())) == messages


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    try:
        found = list(fields(message))
    except ValueError:
        return
    assert sum(len(field.value) for field in found if isinstance(field.value, bytes)) <= len(message)


def test_a_phase_without_times_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.wandb"
    path.write_bytes(wandb_file([wandb_row({"timing/train/generation": 3.0, "_step": 1})]))
    notes = import_log(path).summary.notes
    assert any("learn_s is unknown" in note and "timing/train/policy_training" in note for note in notes)


def test_nemo_rls_validation_is_beside_its_steps(tmp_path: Path) -> None:
    def row(step: int, **more: float) -> dict[str, float]:
        return {"_step": step, "timing/train/total_step_time": 200.0, "timing/train/exposed_generation": 120.0,
                "timing/train/policy_training": 60.0, **more}  # fmt: skip

    rows = [row(1), row(2, **{"timing/validation/total_validation_time": 150.0}), row(3), row(4)]
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    numbers = diagnose(path).numbers
    assert numbers.value("validation_s") == 150
    assert numbers.value("step_s") == 200
    assert numbers.value("all_steps_s") == pytest.approx(950 / 4)
