"""The lines of `docs/papers.md` that write the public logs: from files of the sources' form, figures read what they write."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhfless.paper import Sources

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"


def gsm8k_step(step: int) -> str:
    """A line of the log: 16 prompts x 8 samples; prompts 0 to 127 come again from step 32 on. It holds NaN as theirs does."""
    prompts = [(16 * step + i) % 512 for i in range(16)]
    lengths = [[min(512, 100 + prompt + 10 * sample + step) for sample in range(8)] for prompt in prompts]
    return json.dumps({"step": step, "prompt_indices": prompts, "lengths": lengths, "lag1_autocorr": float("nan")})


def source(path: str) -> str:
    """What stands at the end of a source's address."""
    if path.endswith("areal_s0_tensors.jsonl"):
        return "\n".join(map(gsm8k_step, range(40)))
    if path.endswith("_math500.json"):
        words = 4096 if "/base" in path else 7
        return json.dumps({"metadata": {"max_tokens": 4096}, "responses": ["a " * words, "a b", "a b c"]})
    if path.endswith(".csv"):
        return "step,avg_response_len\n1,6.375\n2,7.5\n"
    return '{"length/mean": 419.9, "system/step": 1.0}\n{"length/mean": 433.1, "system/step": 2.0}\n'


def test_figures_read_what_the_lines_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = SimpleNamespace(encode=lambda text, add_special_tokens: text.split())
    made = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=lambda name: words))
    monkeypatch.setitem(sys.modules, "transformers", made)
    monkeypatch.setattr("urllib.request.urlopen", lambda address: io.BytesIO(source(address).encode()))
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.S)
    exec(compile(lines, PAGE.name, "exec"), {})
    sources = Sources.of("logs")
    assert sources.available == ["GSM8K", "MATH-500", "MATH", "instructions"]
    gsm8k, math = sources.gsm8k(8), sources.math500()
    assert gsm8k.measured
    assert (len(gsm8k.rollouts), gsm8k.responses, gsm8k.evaluated) == (40 * 128, 8 * 128, [1])
    assert gsm8k.rollouts["response_tokens"].iloc[0] == 100
    assert math is not None
    assert math.rollouts["response_tokens"].tolist() == [4096, 2, 3, 7, 2, 3]
    assert math.rollouts["finish_reason"].tolist() == ["length", *["stop"] * 5]
    means = sources.mean_lengths()
    assert means["MATH"]["mean_tokens"].tolist() == [6.375, 7.5]
    assert means["instructions"]["mean_tokens"].tolist() == [419.9, 433.1]
