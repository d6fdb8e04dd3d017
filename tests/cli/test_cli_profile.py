"""``rlhfless profile``: a profile that loads, what it says of its fit, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Result, run_rlhfless
from engine_samples import BASE_S, rollout_lines
from error_messages import refusal_line, refused_command

from rlhfless.latency import load_profile, measure, read_profile
from rlhfless.latency.fit import fit_table, residuals
from solver.model.iteration_table import IterationTable

FEW = measure.MeasurementGrid((1, 4), (16, 32), ((1, 16), (1, 256), (3, 64)), 1)


@pytest.fixture(autouse=True)
def _few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "FAST", FEW)


def profile(*arguments: object) -> Result:
    return run_rlhfless("profile", *[str(a) for a in arguments])


def folder_of(path: Path, **changes: object) -> Path:
    path.mkdir()
    config = measure.TINY_CONFIG | {"model_type": "qwen2", "num_hidden_layers": 1, "hidden_size": 64} | changes
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_profile_is_measured_written_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "new" / "here.json"
    done = profile("--model", folder_of(tmp_path / "narrow"), "--device", "cpu", "--fast", "-o", out)
    assert done.exit_code == 0, done.output
    model, written = load_profile(out), read_profile(out)
    assert (model.name, written["model"], written["table"]["batch"]) == ("here", "narrow", [1, 4])
    assert f"--fast -o {out}" in written["command"]
    assert done.output.splitlines()[-1] == f"wrote {out}"
    for what in ("fit", "prefill"):
        fit = written[what]
        shares = [fit[f"{name}_relative_error"] for name in ("median", "p90", "max")]
        assert shares == sorted(shares)
        assert "relative error median {:.1%}, 90th percentile {:.1%}, worst {:.1%}".format(*shares) in done.output
    assert f"{1 / written['prefill']['per_token_s']:,.0f} tokens/s" in done.output


def test_no_larger_batches_are_measured_than_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "here.json"
    done = profile("--fast", "--max-batch", 3, "-o", out)
    assert done.exit_code == 0, done.output
    written = read_profile(out)
    assert (written["table"]["batch"], written["max_batch"], written["fit"]["points"]) == ([1, 3], 3, 4)
    assert "--fast --max-batch 3 -o" in written["command"]


def test_contexts_are_measured_as_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "here.json"
    done = profile("--fast", "--contexts", "700,32,32", "-o", out)
    assert done.exit_code == 0, done.output
    written = read_profile(out)
    assert (written["table"]["context_tokens"], written["fit"]["points"]) == ([32, 700], 4)
    assert "--fast --contexts 700,32,32 -o" in written["command"]


def test_memory_is_what_was_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "here.json"
    done = profile("--fast", "--memory-gib", 0.5, "-o", out)
    assert done.exit_code == 0, done.output
    written = read_profile(out)
    capacity = written["kv_capacity"]
    assert capacity["tokens"] == int((0.9 * 2**29 - capacity["weight_bytes"]) / capacity["kv_bytes_per_token"])
    assert f"{capacity['tokens']:,} KV tokens plus the weights" in done.output
    assert "--fast --memory-gib 0.5 -o" in written["command"]


def test_residuals_are_those_of_the_affine_fit_against_the_table() -> None:
    batch, context = np.array([1.0, 2, 4, 8, 16]), np.array([10.0, 20, 40])
    rng = np.random.default_rng(0)
    step_s = (1e-3 + 1e-4 * batch[:, None] + 1e-6 * batch[:, None] * context) * rng.uniform(0.8, 1.2, (5, 3))
    fit = fit_table(IterationTable(batch, context, step_s), 16, 1 << 30)
    affine = fit.base_s + fit.per_response_s * batch[:, None] + fit.per_kv_token_s * batch[:, None] * context
    errors = np.sort(np.abs(affine / step_s - 1).ravel())
    assert fit.median_relative_error == pytest.approx(errors[7])
    assert fit.p90_relative_error == pytest.approx(np.quantile(errors, 0.9))
    assert residuals(np.array([0.0, 0.1, 0.5])) == pytest.approx(
        {"mean_relative_error": 0.2, "median_relative_error": 0.1, "p90_relative_error": 0.42, "max_relative_error": 0.5}
    )


WRONG_OPTIONS = [
    (["--model", "no/such/folder"], ["'no/such/folder'"]),
    (["--contexts", "16"], ["--contexts", "'16'"]),
    (["--contexts", "16,many"], ["--contexts", "'16,many'"]),
    (["--contexts", "0,16"], ["--contexts", "'0,16'"]),
    (["--contexts", "2000,5000"], ["tiny-qwen2", "1024"]),
    (["--memory-gib", "inf"], ["--memory-gib", "inf"]),
    (["--memory-gib", "nan"], ["--memory-gib", "nan"]),
    (["--memory-gib", "1e300"], ["--memory-gib", "1e300"]),
    (["--memory-gib", "0.001"], ["0.001 GiB", "tiny-qwen2"]),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG_OPTIONS, ids=[" ".join(options) for options, _ in WRONG_OPTIONS])
def test_wrong_options_end_with_one_line(arguments: list[str], named: list[str], tmp_path: Path) -> None:
    refused_command(profile(*arguments, "--fast", "-o", tmp_path / "out.json"), *named)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "abacus"], "'abacus'"),  # the devices that it lists are this machine's
        (["--memory-gib", "0"], "above 0"),
    ],
)
def test_wrong_options_whose_line_is_not_ours_alone(arguments: list[str], says: str, tmp_path: Path) -> None:
    assert says in refusal_line(profile(*arguments, "--fast", "-o", tmp_path / "out.json"))


def test_wrong_models_and_files_end_with_one_line(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    def measured(model: Path) -> Result:
        return profile("--model", model, "--fast", "-o", out)

    refused_command(measured(folder_of(tmp_path / "gelu", hidden_act="gelu")), "gelu", "'qwen2'")
    assert str(tmp_path / "t5") in refusal_line(measured(folder_of(tmp_path / "t5", model_type="t5")))
    assert str(tmp_path / "zzz") in refusal_line(measured(folder_of(tmp_path / "zzz", model_type="zzz")))
    file = tmp_path / "zzz" / "config.json"
    file.write_text("{")
    assert str(tmp_path / "zzz") in refusal_line(measured(tmp_path / "zzz"))
    refused_command(profile("--fast", "-o", file / "x.json"), str(file))
    assert str(tmp_path) in refusal_line(profile("--fast", "-o", tmp_path))
    assert not out.exists()


@pytest.mark.parametrize("error", [MemoryError, FloatingPointError])
def test_no_room_and_no_numbers_end_with_one_line_where_a_sentence_says_so(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["cpu has no room for\na replica: measure a smaller model"]

    def fails(*_: object, **__: object) -> None:
        raise error(*said)

    monkeypatch.setattr(measure, "measure_profile", fails)
    line = refusal_line(profile("-o", tmp_path / "out.json"))
    assert line == "rlhfless: cpu has no room for a replica: measure a smaller model"
    said.clear()
    if error is MemoryError:
        assert "memory of this machine" in refusal_line(profile("-o", tmp_path / "out.json"))
    else:  # Python's own has no message: it is ours to mend, and keeps its traceback
        with pytest.raises(error):
            profile("-o", tmp_path / "out.json")


def engine_log(folder: Path, lines: list[str]) -> Path:
    (folder / "engine.log").write_text("\n".join(lines) + "\n")
    return folder / "engine.log"


def test_a_profile_is_measured_from_the_lines_of_an_engine(tmp_path: Path) -> None:
    log, out = engine_log(tmp_path, rollout_lines()), tmp_path / "engine.json"
    done = profile("--from-log", log, "-o", out)
    assert done.exit_code == 0, done.output
    model, written = load_profile(out), read_profile(out)
    assert (model.base_s, model.max_batch) == (pytest.approx(BASE_S, rel=1e-3), 200)
    assert f"--from-log {log} -o {out}" in written["command"]
    assert "held-out" in done.output
    assert "unknown" in done.output
    with_base = profile("--from-log", log, "--base", "h100-qwen2.5-3b-tp2", "-o", out)
    assert with_base.exit_code == 0, with_base.output
    assert (load_profile(out).kind, load_profile(out).gpus_per_actor) == ("h100", 2)
    refused_command(profile("--from-log", log, "--actors", 2, "-o", out), "--actors")


def test_too_few_lines_of_an_engine_are_refused_without_a_profile_to_scale(tmp_path: Path) -> None:
    log = engine_log(tmp_path, rollout_lines((9, 8)))
    refused_command(profile("--from-log", log, "-o", tmp_path / "engine.json"), str(log), "5")
    assert not (tmp_path / "engine.json").exists()
