"""Prompts: said where generation is mostly their prefill, and not where their time is small and known."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from rlhfless.diagnosis import Finding, Lever, Stated
from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.engine_speed import shipped_ms
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected
from rlhfless.trace.importers.engine_lines import engine_frame


def found_in(steps: dict[str, Any], framework: str = "verl", engine: pd.DataFrame | None = None, **stated: Any) -> Collected:
    """Return what all sections find in steps."""
    lines = pd.DataFrame() if engine is None else engine
    return collect(LoggedRun("log", framework, pd.DataFrame({"step": [1, 2], **steps}), engine=lines, stated=Stated(**stated)))


def of_prompts(found: Collected) -> tuple[list[Finding], list[Lever]]:
    """Return the findings and levers of prompts."""
    return [one for one in found.findings if one.kind == "prompts"], [one for one in found.levers if one.kind == "prompts"]


LONG_PROMPTS = {
    "step_s": 100.0, "generate_s": 60.0, "learn_s": 35.0, "prompt_tokens_mean": 19_000.0, "response_tokens_mean": 100.0,
    "response_tokens_max": 400.0,
}  # fmt: skip


def lines(prompt: list[float], generated: list[float], running: list[int], **more: Any) -> pd.DataFrame:
    """Return an engine's lines, ten seconds apart."""
    return engine_frame(
        {"engine": "0", "time_s": 10.0 * k, "running": r, "waiting": 0, "prompt_tokens_per_s": p,
         "generated_tokens_per_s": g, **more}
        for k, (p, g, r) in enumerate(zip(prompt, generated, running, strict=True))
    )  # fmt: skip


def test_most_tokens_are_of_prompts_and_generation_takes_most_of_the_step() -> None:
    found = found_in(LONG_PROMPTS)
    (finding,), (lever,) = of_prompts(found)
    assert set(finding.proof) <= set(found.numbers)
    assert "99%" in finding.sentence
    assert "60%" in finding.sentence
    least_s = 400 * shipped_ms(1)[0] / 1000
    assert finding.at_stake == pytest.approx(0.6 * (1 - least_s / 60)), "what decoding the longest response leaves, at most"
    assert finding.of == "time"
    assert lever.at_most == pytest.approx(finding.at_stake)


def test_sharing_a_prompt_among_its_samples_leaves_one_prefill() -> None:
    (finding,), (lever,) = of_prompts(found_in(LONG_PROMPTS, samples_per_prompt=8))
    assert lever.at_most == pytest.approx(finding.at_stake * 7 / 8)
    assert "8 samples" in lever.name
    (_,), (alone,) = of_prompts(found_in(LONG_PROMPTS, samples_per_prompt=1))
    assert "shorter prompts" in alone.name, "one sample shares its prompt with nobody"
    assert alone.line == ""


@pytest.mark.parametrize(
    ("framework", "line"),
    [
        ("verl", "actor_rollout_ref.rollout.enable_prefix_caching=True"),
        ("nemo-rl", "vllm_cfg.enable_prefix_caching"),
        ("vLLM", "--enable-prefix-caching"),
        ("x", ""),
    ],
)
def test_the_lever_has_the_line_of_the_framework(framework: str, line: str) -> None:
    (_,), (lever,) = of_prompts(found_in(LONG_PROMPTS, framework))
    assert (line in lever.line) if line else lever.line == ""


def test_where_decoding_explains_generation_prompts_are_not_the_verdict() -> None:
    found = found_in(LONG_PROMPTS | {"response_tokens_max": 3_000.0})
    assert of_prompts(found) == ([], []), "20 ms per token is a healthy pace of some models"
    assert any("prefill" in text for text in found.cannot_say)


def test_without_any_time_prompts_are_no_verdict() -> None:
    found = found_in({key: value for key, value in LONG_PROMPTS.items() if key.endswith(("_mean", "_max"))})
    assert of_prompts(found) == ([], [])
    assert any("prompts are 99%" in text for text in found.cannot_say)


@pytest.mark.parametrize(
    "less",
    [{"prompt_tokens_mean": 150.0}, {"generate_s": 1.0, "learn_s": 94.0}, {"prompt_tokens_mean": float("nan")}],
    ids=["few prompt tokens", "generation is short", "prompts are not logged"],
)
def test_other_logs_do_not_blame_prompts(less: dict[str, float]) -> None:
    found = found_in(LONG_PROMPTS | less)
    assert of_prompts(found) == ([], [])
    assert not any("prefill" in text for text in found.cannot_say)


def test_lines_of_an_engine_tell_what_prefill_takes() -> None:
    """Time per token is 20 ms, and 0.05 ms more for each prompt token that is read meanwhile."""
    running = [64, 60, 50, 40, 30, 20, 10, 5]
    fed = [12_000.0, 11_000.0, 9_000.0, 8_000.0, 6_000.0, 4_000.0, 3_000.0, 0.0]
    generated = [b * (1 - 0.05e-3 * p) / 0.020 for b, p in zip(running, fed, strict=True)]
    found = found_in({}, engine=lines(fed, generated, running))
    took = found.numbers["engine_prefill_s"]
    assert took.value == pytest.approx(sum(fed) * 10 * found.numbers["engine_prefill_token_ms"].value / 1000)
    (finding,), (lever,) = of_prompts(found)
    assert finding.at_stake == pytest.approx(took.value / found.numbers["engine_s"].value)
    assert finding.of == lever.of == "time of generation"
    assert "at most" not in finding.sentence, "it is measured"


def test_many_prompt_tokens_whose_time_is_small_and_known_are_not_blamed() -> None:
    running = [64, 60, 56, 52, 48, 44, 40, 36, 32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 5, 4]
    fed = [150_000.0, *[0.0] * 23]
    generated = [b / 0.020 for b in running]
    found = found_in(LONG_PROMPTS, engine=lines(fed, generated, running))
    assert found.numbers["engine_prompt_token_share"].value > 0.8
    assert of_prompts(found) == ([], [])


def test_a_prefix_cache_that_is_on_is_not_advised() -> None:
    found = found_in({}, engine=lines([20_000.0] * 8, [100.0] * 8, [8] * 8, prefix_hit_share=0.4))
    (finding,), (lever,) = of_prompts(found)
    assert "at most" in finding.sentence
    assert lever.line == ""
    assert "40%" in lever.name
