"""Profiles: what is shipped, what a model reads from it, and every refusal."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused

from rlhfless.latency import ProfileError, list_profiles, load_profile, read_profile, save_profile
from rlhfless.latency.fit import fit_changes, fit_prompt_tokens, fit_table, held_points, residuals
from rlhfless.latency.profile import kv_capacity
from rlhfless.latency.timing import TimedChange
from rlhfless.system.installation import data_folders
from solver.model.latency import LatencyModel

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
GPU_PROFILES = ("h100-qwen2.5-3b-tp1", "h100-qwen2.5-3b-tp2", "l40s-qwen2.5-3b-tp2", "l40s-qwen2.5-7b-tp4")
NAMES = (*GPU_PROFILES, "cpu-tiny-qwen2")

needs_shared = pytest.mark.skipif(
    not (SHARED / "data").is_dir(), reason="the independent measurements lie outside the repository"
)


def test_the_shipped_profiles_are_known() -> None:
    assert set(NAMES) <= set(list_profiles())
    assert list_profiles() == sorted(list_profiles())


@pytest.mark.parametrize("name", list_profiles())
def test_a_shipped_profile_says_what_and_where_from(name: str) -> None:
    profile, model = read_profile(name), load_profile(name)
    assert isinstance(model, LatencyModel)
    assert model.name == name == profile["name"]
    assert model.table is not None
    assert (model.kind, model.gpus_per_actor) == (profile["kind"], profile["gpus_per_actor"])
    for field in ("origin", "command", "date", "licence", "precision", "model"):
        assert profile[field].strip()
    assert profile["command"].startswith(("python -m rlhfless.latency.", "rlhfless profile "))
    assert profile["assumptions"]
    assert model.affine.table is None
    assert not re.search(r"\b1 GPUs", read_profile(name)["origin"])


@pytest.mark.parametrize("name", list_profiles())
def test_the_table_is_read_exactly_at_its_grid_points(name: str) -> None:
    profile, model = read_profile(name), load_profile(name)
    batch = np.array(profile["table"]["batch"], dtype=float)[:, None]
    context = np.array(profile["table"]["context_tokens"], dtype=float)[None, :]
    np.testing.assert_allclose(model.iteration_s(batch, batch * context), profile["table"]["step_s"], rtol=1e-12)


@pytest.mark.parametrize("name", list_profiles())
def test_the_stored_fits_are_those_of_the_stored_numbers(name: str) -> None:
    profile, model = read_profile(name), load_profile(name)
    assert model.table is not None
    fit = fit_table(model.table, model.max_batch, model.kv_capacity_tokens)
    stored = profile["fit"]
    for field in ("base_s", "per_response_s", "per_kv_token_s", *residuals(np.ones(1)), "points"):
        assert stored[field] == pytest.approx(getattr(fit, field), rel=1e-9)
    # The residuals by the model itself: affine against table.
    batch, context = np.broadcast_arrays(model.table.batch[:, None], model.table.context_tokens[None, :])
    held = held_points(model.table, model.max_batch, model.kv_capacity_tokens)
    errors = np.abs(model.affine.iteration_s(batch, batch * context) / model.table.iteration_s - 1.0)[held]
    assert stored["mean_relative_error"] == pytest.approx(errors.mean(), rel=1e-9)
    assert stored["max_relative_error"] == pytest.approx(errors.max(), rel=1e-9)
    assert stored["points"] == held.sum()
    stored = dict(profile["prefill"])
    if mixed := stored.pop("mixed", None):
        sizes = model.max_batch, mixed["token_budget"], model.kv_capacity_tokens
        per_token_s, errors = fit_prompt_tokens(model.table, fit, *sizes)
        assert mixed == pytest.approx({"token_budget": 2048, "per_token_s": per_token_s} | residuals(errors), rel=1e-9)
    changes = fit_changes([TimedChange(*one) for one in zip(*stored.pop("samples").values(), strict=True)])
    of_changes = {name: getattr(changes, name) for name in ("base_s", "per_token_s", "per_join_s", "per_end_s")}
    assert stored == pytest.approx(of_changes | residuals(changes.errors), rel=1e-9)
    assert model.join_s == pytest.approx(stored["per_join_s"] + stored["per_end_s"])


def test_a_profile_from_before_changes_were_measured_charges_nothing_for_them(tmp_path: Path) -> None:
    profile = read_profile("cpu-tiny-qwen2")
    for name in ("per_join_s", "per_end_s"):
        del profile["prefill"][name]
    assert load_profile(save_profile(tmp_path / "old.json", profile)).join_s == 0
    for wrong in (None, 3.0):
        (tmp_path / "wrong.json").write_text(json.dumps(profile | {"prefill": wrong}))
        with refused(ProfileError, "the field prefill"):
            load_profile(tmp_path / "wrong.json")
    (tmp_path / "wrong.json").write_text(json.dumps({name: value for name, value in profile.items() if name != "prefill"}))
    with refused(ProfileError, "the field prefill"):
        load_profile(tmp_path / "wrong.json")
    with refused(ProfileError, "prefill.per_end_s"):
        save_profile(tmp_path / "wrong.json", profile | {"prefill": profile["prefill"] | {"per_end_s": -1}})


@pytest.mark.parametrize("name", list_profiles())
def test_derived_numbers_follow_from_their_stated_inputs(name: str) -> None:
    profile = read_profile(name)
    link, stated = profile["link"], profile["kv_capacity"]
    assert profile["transfer_per_kv_token_s"] == pytest.approx(link["kv_bytes_per_token"] / link["bytes_per_s"])
    inputs = {key: value for key, value in stated.items() if key not in ("formula", "tokens")}
    assert kv_capacity(**inputs) == stated
    assert eval(stated["formula"], {}, dict(inputs)) == pytest.approx(stated["tokens"], abs=1.0)
    assert profile["kv_capacity_tokens"] == stated["tokens"]


@pytest.mark.parametrize("name", list_profiles())
def test_an_iteration_never_gets_faster_with_more_work(name: str) -> None:
    """Up to measurement noise: operator times of a database wobble by 8 %, one CPU by more."""
    model = load_profile(name)
    assert model.table is not None
    noise = 0.25 if model.kind == "cpu" else 0.08
    iteration_s = model.table.iteration_s
    for axis in (0, 1):
        best_so_far = np.maximum.accumulate(iteration_s, axis=axis)
        assert np.all(iteration_s >= (1.0 - noise) * best_so_far)
    assert iteration_s[-1, -1] > iteration_s[0, 0]
    assert model.per_response_s > 0
    assert model.per_kv_token_s > 0


def test_l40s_agrees_with_the_known_constants() -> None:
    """a, b and c of Qwen2.5-3B on two L40S (milliseconds), and single iterations of the same database."""
    model = load_profile("l40s-qwen2.5-3b-tp2")
    known = (5.59, 0.0223, 2.49e-5)
    assert np.array([model.base_s, model.per_response_s, model.per_kv_token_s]) * 1e3 == pytest.approx(known, rel=0.05)
    assert model.fit_mean_error == pytest.approx(0.027, abs=0.005)
    table = {1: (5.5, 5.6, 5.6), 64: (7.4, 7.8, 9.9), 128: (8.8, 9.8, 15.4), 256: (12.4, 14.6, 25.2)}
    for batch, times_ms in table.items():
        for context, ms in zip((128, 512, 2048), times_ms, strict=True):
            assert float(model.iteration_s(batch, batch * context)) * 1e3 == pytest.approx(ms, abs=0.051)


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_no_iteration_is_faster_than_reading_the_weights(name: str) -> None:
    profile = read_profile(name)
    bytes_per_s = {"l40s": 864e9, "h100": 3350e9}[profile["kind"]]  # GPU memory bandwidth by data sheet
    least_s = profile["kv_capacity"]["weight_bytes"] / profile["gpus_per_actor"] / bytes_per_s
    assert least_s < profile["fit"]["base_s"] < 5 * least_s
    assert profile["max_batch"] == 256
    assert profile["start_s"] < 0.2
    assert profile["sync_s"] <= profile["start_s"]


@needs_shared
def test_h100_lies_below_measured_runs_of_a_bigger_model() -> None:
    """Llama-3.1-8B on one H100, measured end to end with prefills in between: 2.6 times the weights of Qwen2.5-3B."""
    with open(SHARED / "data/aiconfigurator-measured/silicon_llama_h100_h200.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if "8B" in row["model_path"] and row["system"] == "h100_sxm"]
    model, checked = load_profile("h100-qwen2.5-3b-tp1"), 0
    for row in rows:
        batch, prompt, response = (int(float(row[key])) for key in ("batch_size", "isl", "osl"))
        if float(row["tp_size"]) == 1 and batch <= 64 and response >= 512:
            ours_ms = float(model.iteration_s(batch, batch * (prompt + response / 2))) * 1e3
            assert 1.5 < float(row["silicon_tpot_ms"]) / ours_ms < 5.0
            checked += 1
    assert checked >= 6


def test_loading_needs_numpy_only() -> None:
    code = (
        "import sys\n"
        "from rlhfless.latency import load_profile, usd_per_gpu_hour\n"
        "load_profile('l40s-qwen2.5-3b-tp2'), usd_per_gpu_hour('l40s')\n"
        "heavy = {'pandas', 'torch', 'transformers', 'ortools', 'plotly', 'pyarrow', 'scipy', 'aiconfigurator_core'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_profile_is_written_and_read_back(tmp_path: Path) -> None:
    profile = read_profile("l40s-qwen2.5-3b-tp2")
    path = save_profile(tmp_path / "new" / "mine.json", profile)
    assert read_profile(path) == read_profile(str(path)) == profile
    assert [file.name for file in path.parent.iterdir()] == ["mine.json"]
    assert load_profile(path).iteration_s(64, 64 * 512) == load_profile("l40s-qwen2.5-3b-tp2").iteration_s(64, 64 * 512)
    original = (ROOT / "data/profiles/l40s-qwen2.5-3b-tp2.json").read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8") == original


def test_data_lies_in_the_checkout_or_the_package() -> None:
    folders = data_folders()
    assert folders[0] == ROOT / "data"
    assert folders[-1] == ROOT / "rlhfless" / "_data"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with refused(ProfileError, "'l40s'", "40", "qwen2.5"):
        load_profile("l40s")
    with refused(ProfileError, "absent.json", "40", "qwen2.5"):
        load_profile("absent.json")
    assert issubclass(ProfileError, ValueError)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schema", "other", ("'other'", "'rlhfless-latency-profile'")),
        ("schema_version", 99, ("schema_version", "99")),
        ("name", "", ()),
        ("origin", None, ()),
        ("licence", ..., ()),
        ("assumptions", [], ()),
        ("gpus_per_actor", 0, ("gpus_per_actor",)),
        ("gpus_per_actor", True, ("gpus_per_actor",)),
        ("max_batch", 1.5, ("max_batch", "1.5")),
        ("kv_capacity_tokens", -4, ("kv_capacity_tokens",)),
        ("start_s", -1, ("start_s",)),
        ("sync_s", float("nan"), ("sync_s",)),
        ("transfer_base_s", "5 ms", ("transfer_base_s", "'5 ms'")),
        ("transfer_per_kv_token_s", ..., ("transfer_per_kv_token_s",)),
        ("fit.per_kv_token_s", -1e-9, ("fit.per_kv_token_s", "-09")),
        ("fit", 3, ()),
        ("fit", {"base_s": 0, "per_response_s": 0, "per_kv_token_s": 0, "mean_relative_error": 0, "max_relative_error": 0},
         ()),
        ("prefill.mixed.per_token_s", [], ("prefill.mixed.per_token_s",)),
        ("prefill.mixed.token_budget", 4096, ("4096",)),
        ("table.batch", [1, 2, 2], ()),
        ("table.step_s", [[1, 2], [3]], ("table.step_s",)),
        ("table.context_tokens", ["a", "b"], ("table.context_tokens",)),
        ("table.step_s", [[float("inf")]], ("table.step_s",)),
        ("table", ..., ("table.batch",)),
    ],
)  # fmt: skip
def test_a_broken_profile_is_refused_by_file_and_field(
    tmp_path: Path, field: str, value: Any, message: tuple[str, ...]
) -> None:
    profile = deepcopy(read_profile("l40s-qwen2.5-3b-tp2"))
    *parents, last = field.split(".")
    holder = profile
    for parent in parents:
        holder = holder[parent]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(profile))
    with refused(ProfileError, *message) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with refused(ProfileError, *message):
        save_profile(tmp_path / "copy.json", profile)
    assert not (tmp_path / "copy.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{\n  'name': 1}", ("broken.json", "line 2")),
        (b"[1, 2]", ("broken.json",)),
        (b"\xff\xfe", ("broken.json",)),
        (b"{}", ("broken.json",)),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: bytes, message: tuple[str, ...]) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    with refused(ProfileError, *message):
        load_profile(path)
