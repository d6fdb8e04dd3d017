"""The validation predicts what follows its own form without error, never sees what it predicts, and signs its errors.

Extracts of the public data are made here; what is said of the whole data is checked where they are beside the project.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import validation_errors as errors
import validation_operators as operators
import validation_points as points
import validation_runs as runs
import validation_steps as steps

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not (DATA / points.FILE).is_file(), reason="the public data are not beside the project")

WEIGHTS = np.array([1e-5, 2e-6, 1.3, 1.6, 2.0, 4e-6, 2.5, 3.0])
FIRST = np.array([0.02, 2.0, 3.0, 0.4, 1.0, 0.3])


def made_points() -> list[points.Point]:
    """Points of four pairs whose times are exactly sums of the terms."""
    made = []
    for i, (model, gpu) in enumerate((m, g) for m in points.SHAPES for g in points.GPUS):
        for tokens, concurrency, degree in (
            (512, 4, 2),
            (1024, 64, 2),
            (2048, 16, 4),
            (1024, 128, 8),
            (4096, 32, 8),
            (256, 8, 4),
        ):
            bare = points.Point(
                f"{i}, {tokens}, {concurrency}", "vllm", model, gpu, 1 + i % 2, tokens, 256, concurrency, degree, 1.0, 1.0
            )
            tpot_s = float(np.array(list(points.terms(bare).values())) @ WEIGHTS)
            ttft_s = float(np.array(list(points.first_token_terms(bare, tpot_s).values())) @ FIRST)
            made.append(replace(bare, tpot_s=tpot_s, ttft_s=ttft_s))
    return made


def test_errors_are_signed_and_summed_up_by_group():
    assert errors.signed_error(1.1, 1.0) == pytest.approx(0.1)
    cases = [{"error": e, "of": name} for name, e in (("a", -0.2), ("a", 0.1), ("a", -0.1), ("b", 0.0))]
    said = errors.by_group(cases, "error", lambda case: case["of"])
    assert list(said) == ["a", "b", "all"]
    assert said["a"] == {
        "cases": 3,
        "median_signed": -0.1,
        "median_size": 0.1,
        "p90_size": pytest.approx(0.18),
        "worst_size": 0.2,
    }
    assert [errors.meets_aim(said[name]) for name in ("a", "b")] == [False, True]
    assert "| a | 3 | -10.0% | 10.0% | 18.0% | 20% | no |" in errors.table("what", said)


def test_points_of_the_models_own_form_are_predicted_from_other_pairs():
    cases = points.validate(made_points())
    assert len(cases) == len(made_points())
    assert max(abs(case["tpot_error"]) for case in cases) < 1e-6
    assert max(abs(case["ttft_error"]) for case in cases) < 1e-6


def test_what_is_predicted_is_not_fitted_on():
    """Other times of a pair change no prediction of it, and those of the others do."""
    made = made_points()
    pair = made[0].pair

    def predicted(of: list[points.Point]) -> list[float]:
        pairs = zip(points.validate(of), of, strict=True)
        return [(1 + case["tpot_error"]) * point.tpot_s for case, point in pairs if point.pair == pair]

    longer = [replace(p, tpot_s=3 * p.tpot_s) if p.pair == pair else p for p in made]
    assert predicted(longer) == pytest.approx(predicted(made))
    others = [replace(p, tpot_s=3 * p.tpot_s) if p.pair != pair else p for p in made]
    assert predicted(others) == pytest.approx([3 * s for s in predicted(made)])


def test_no_prediction_hangs_on_rounding():
    """Every server has points of one model only, so whatever cannot be told apart there would be decided by the last digits."""
    of_model = {"8B": "sglang", "70B": "vllm"}
    made = [replace(p, backend=of_model[p.model]) for p in made_points()]
    rng = np.random.default_rng(0)
    nudged = [replace(p, tpot_s=p.tpot_s * (1 + 1e-9 * rng.standard_normal())) for p in made]
    for one, other in zip(points.validate(made), points.validate(nudged), strict=True):
        assert one["tpot_error"] == pytest.approx(other["tpot_error"], abs=1e-6)


def test_a_constant_beside_the_layers_is_found_where_both_models_were_measured():
    made = [replace(p, backend="trtllm") for p in made_points()]
    made += [replace(p, tensor_parallel=1) for p in made if p.model == "8B"]  # else layers and all-reduces are one
    times = [float(np.array(list(points.terms(p).values())) @ WEIGHTS) for p in made]
    of_layers_s = points.SHAPES["8B"].layers * WEIGHTS[0]
    same = [replace(p, tpot_s=t) for p, t in zip(made, times, strict=True)]
    assert points.constant_share(same) == pytest.approx(0.0, abs=1e-6)
    more = [replace(p, tpot_s=t + of_layers_s) for p, t in zip(made, times, strict=True)]
    assert points.constant_share(more) == pytest.approx(0.5)


def test_sets_that_beat_the_data_sheet_teach_nothing():
    """Points that are too fast to have read their weights: predicted, and said to be what they are, but not fitted on."""
    made = made_points()
    pair = made[0].pair
    cached = [replace(p, tpot_s=0.1 * p.tpot_s) if p.pair == pair else p for p in made]
    cases = points.validate(cached)
    assert {case["set"] for case in cases if not case["explained"]} == {f"{pair}, vllm"}
    without = {case["case"] + case["set"]: case for case in points.validate([p for p in made if p.pair != pair])}
    for case in cases:
        if case["explained"]:
            assert case["tpot_error"] == pytest.approx(without[case["case"] + case["set"]]["tpot_error"], abs=1e-9)


def test_a_batch_is_what_the_kv_cache_holds():
    point = points.Point("x", "vllm", "70B", "h200_sxm", 1, 8192, 1024, 128, 1, 1.0, 1.0)
    room = 0.9 * 151.4e9 - 4e9 - 70.6e9
    assert point.batch == pytest.approx(room / (2 * 2 * 80 * 8 * 128 * (8192 + 512)))
    assert replace(point, tensor_parallel=8).batch == 128
    assert points.first_token_terms(point, 0.1)["waits"] > 0
    assert points.first_token_terms(replace(point, tensor_parallel=8), 0.1)["waits"] == 0


def decode_us(batch: int, context: int) -> float:
    """Attention of a batch that decodes."""
    return 5 + 1e-4 * batch * context


def write_kernels(folder: Path, scale: float) -> None:
    """Kernels of a GPU ``scale`` times as slow as another."""
    folder.mkdir(parents=True)
    layers = ("embedding", "final_layernorm", *runs.PER_LAYER)
    tables = {
        "dense.csv": [("layer", "tokens", "time_us"), *((n, t, scale * (20 + 0.2 * t)) for n in layers for t in (1, 64, 2048))],
        "per_sequence.csv": [("layer", "sequences", "time_us"), *(("lm_head", s, scale * (100 + s)) for s in (1, 256))],
        "attention.csv": [
            ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
            *((0, 0, b, c, scale * decode_us(b, c)) for b in runs.BATCHES for c in runs.CONTEXTS),
            *((chunk, 0, 0, 0, scale * 0.06 * chunk) for chunk in runs.CHUNKS),
            *(
                (chunk, 0, b, c, scale * (0.06 * chunk + 1.5 * decode_us(b, c)))
                for chunk in runs.CHUNKS
                for b in runs.MIXED_BATCHES
                for c in runs.CONTEXTS
            ),
        ],
    }
    for name, rows in tables.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)


def write_run(data: Path, gpu: str, host_s: float) -> None:
    """A run as the simulated engine has it, in the form of the public logs."""
    draw, folder = np.random.default_rng(3), data / runs.FOLDER / "vllm-runs" / runs.RUNS[gpu]
    folder.mkdir(parents=True)
    arrives = np.cumsum(draw.exponential(0.25, 160))
    requests = [
        {"queued_ts": 100.0 + at, "input_toks": int(draw.integers(50, 400)), "output_toks": int(draw.integers(20, 300))}
        for at in arrives
    ]
    (folder / "requests.jsonl").write_text("")
    (folder / "timeseries.csv").write_text("")
    kernels = runs.Kernels(data / runs.FOLDER / "profiles" / gpu / "Llama-3.1-8B" / "tp1")
    served = runs.serve(kernels.latency(host_s, 6000, 32, 1024, usual_batch=20.0), requests)
    for row, first, end in zip(requests, served.first_token_s, served.end_s, strict=True):
        row |= {"first_token_ts": requests[0]["queued_ts"] + first, "last_token_ts": requests[0]["queued_ts"] + end}
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, requests)))
    with (folder / "timeseries.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("t", "running", "gen_throughput"))
        out.writerows(zip(range(1, len(served.running) + 1), served.running, served.tokens_per_s, strict=True))
    meta = {"engine_kwargs": {"max_num_seqs": 32, "max_num_batched_tokens": 1024}, "kv_cache": {"num_kv_tokens": 6000}}
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.fixture(scope="module")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("runs")
    for gpu, scale in (("RTX4090", 2.0), ("RTXPRO6000", 1.0)):
        write_kernels(data / runs.FOLDER / "profiles" / gpu / "Llama-3.1-8B" / "tp1", scale)
        write_run(data, gpu, host_s=0.004)
    return data


@pytest.mark.full
def test_runs_are_predicted_with_what_was_fitted_on_the_other(made_runs):
    results = {(row["gpu"], row["way"]): row for row in runs.validate(made_runs)}
    for gpu, other in (("RTX4090", "RTXPRO6000"), ("RTXPRO6000", "RTX4090")):
        own = results[gpu, "as modelled"]
        assert own["fitted_on"] == other
        assert own["host_s"] == pytest.approx(0.004, abs=5e-5)
        assert abs(own["makespan_error"]) < 0.01
        assert max(abs(row["latency_error"]) for row in own["requests"]) < 0.05
        assert own["windows"]
        assert max(abs(w["tokens_error"]) for w in own["windows"]) < 0.05
        assert results[gpu, "without the host"]["makespan_error"] < own["makespan_error"]
        assert results[gpu, "without interference"]["makespan_error"] <= own["makespan_error"] + 1e-3
        assert results[gpu, "with all the memory"]["mean_latency_error"] <= own["mean_latency_error"] + 1e-9


def test_seconds_of_a_run_are_counted_at_their_ends(made_runs):
    case = runs.Case.of(made_runs, "RTX4090")
    served = case.run(0.004)
    total = sum(row["output_toks"] for row in case.requests)
    assert served.tokens_per_s.sum() == total
    assert (served.running <= 32).all()
    assert served.running[-1] == 0


def test_interference_is_what_attention_takes_longer_together(made_runs):
    kernels = runs.Kernels(made_runs / runs.FOLDER / "profiles" / "RTXPRO6000" / "Llama-3.1-8B" / "tp1")
    together, apart = (kernels.iteration_s(32, 1024, 256, how) for how in (True, False))
    assert together - apart == pytest.approx(runs.LAYERS * 0.5e-6 * decode_us(32, 1024))
    table = kernels.latency(0.0, 6000, 32, 1024, 20.0).table
    assert table(32 + 256, 32 * 1024) == pytest.approx(together)
    assert table(32, 32 * 1024) == pytest.approx(kernels.iteration_s(32, 1024))


def test_the_second_half_of_a_run_is_predicted_from_the_first():
    tokens = np.linspace(100, 900, 40)
    run = steps.StepTimes("made", 8 * tokens, tokens, 3.0 + 0.01 * 8 * tokens + 1e-6 * 8 * tokens**2)
    assert len(run.errors()) == 20
    assert max(map(abs, run.errors())) < 1e-6
    slower = steps.StepTimes("made", run.tokens, run.mean_tokens, np.r_[run.seconds[:20], 2 * run.seconds[20:]])
    assert slower.errors() == pytest.approx([-0.5] * 20)


def test_layers_are_predicted_from_other_gpus_and_read_between_sizes():
    weights = np.array([3e-5, 1.4, 0.5, 30.0])
    made = []
    for gpu in operators.BYTES_PER_S:
        for model, size in (("small", 1e8), ("large", 8e8)):
            for tokens in (1, 3, 8, 16, 100, 128, 256, 500, 512):
                bare = operators.LayerTime(gpu, model, 2, tokens, size, 1.0)
                made.append(replace(bare, seconds=float(np.array(bare.terms) @ weights)))
    for split in (lambda one: one.gpu, lambda one: one.model):
        assert max(abs(case["error"]) for case in operators.across(made, split)) < 1e-6
    between = operators.between(made)
    assert {case["tokens"] for case in between} == {3, 100, 500}
    assert all(case["error"] <= 1e-9 for case in between if case["tokens"] == 3)


@needs_data
def test_every_public_point_is_predicted_once():
    cases = points.validate(points.read_points(DATA / points.FILE))
    assert len(cases) == len({case["case"] for case in cases}) == 421
    assert {case["set"].split(",")[0] for case in cases} == {"8B on H100", "8B on H200", "70B on H100", "70B on H200"}
    assert {case["set"] for case in cases if not case["explained"]} == {"8B on H200, vllm"}
