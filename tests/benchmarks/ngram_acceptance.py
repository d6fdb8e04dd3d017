"""What vLLM's ngram lookup and our suffix drafter accept on the texts of a public log, token by token, without a model.

    python tests/benchmarks/ngram_acceptance.py [--prompts 100] [--lengths 2 4 8] [--json FILE]

The texts are answers to MATH-500 by one model before and after 50 GRPO steps (``../shared/data/reasoning-eval-lengths``). The
later ones are decoded again on paper: a drafted token is accepted if it equals the logged one. vLLM's drafts come from the
function with which its method ``ngram`` looks up the longest match of 2 to 12 tokens in the prompt and the response so far.
Ours come from the same tokens (own), or from the earlier answer to the prompt, too (earlier). The model's tokenizer is not at
hand. Texts are split into words, digits and signs, for all alike: compare rows, not numbers with those of other logs.
CPU seconds of drafting are those of the whole count; vLLM's function is compiled by numba, ours is Python.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from turns import ratio, told

from rlhfless.analysis.draft_acceptance import measure_drafts
from rlhfless.analysis.draft_groups import DraftSource

LOG = Path(__file__).parents[3] / "shared" / "data" / "reasoning-eval-lengths"
BEFORE, AFTER = "base_deepseek_r1_distill_15b_math500", "reproduce_openrs_rs2_42_step50_v2_math500"
SHORTEST, LONGEST = 2, 12  # of a match, for everybody
PIECE = re.compile(r" ?[^\W\d_]+|\d| ?[^\w\s]|\s+|_")
SOURCES = {"ours, own": DraftSource("none", False), "ours, earlier": DraftSource("last", False)}


def log(prompts: int) -> pd.DataFrame:
    """The answers to the first prompts: step 0 before, step 1 after."""
    asked = [json.loads(line)["problem"] for line in (LOG / "math500_prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = []
    for step, name in enumerate((BEFORE, AFTER)):
        with gzip.open(LOG / "raw" / f"{name}.json.gz", "rt", encoding="utf-8") as file:
            texts = json.load(file)["responses"]
        rows += [
            {
                "step": step,
                "prompt_id": str(i),
                "sample": 0,
                "prompt": asked[i],
                "response": texts[i],
                "finish_reason": "length",
            }
            for i in range(min(prompts, len(texts)))
        ]
    return pd.DataFrame(rows)


class Pieces:
    """Numbers for the pieces of texts."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> list[int]:
        """The text's tokens."""
        return [self.numbers.setdefault(piece, len(self.numbers)) for piece in PIECE.findall(text)]


def vllm_passes(prompt: list[int], response: list[int], most: int, lookup: Callable[..., Any]) -> int:
    """Passes that a response takes with drafts of vLLM's lookup; a pass commits what was right and one token more."""
    tokens, at, passes = np.array(prompt + response, dtype=np.int32), len(prompt), 0
    while at < len(tokens):
        drafted = lookup(tokens[:at], SHORTEST, LONGEST, len(tokens) + most, most)
        right = 0
        while right < min(len(drafted), len(tokens) - at - 1) and drafted[right] == tokens[at + right]:
            right += 1
        at, passes = at + right + 1, passes + 1
    return passes


def measured(rows: pd.DataFrame, lengths: list[int]) -> list[dict[str, Any]]:
    """Tokens per pass of every drafter by draft length, and passes of a response against vLLM's, as geometric means."""
    from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens as lookup

    encode, found = Pieces(), []
    later = rows[rows["step"] == 1]
    texts = [(encode(prompt), encode(text)) for prompt, text in zip(later["prompt"], later["response"], strict=True)]
    vllm_passes(*texts[0], 1, lookup)  # numba compiles
    for most in lengths:
        began = time.process_time()
        passes = {"vLLM's ngram": [vllm_passes(prompt, text, most, lookup) for prompt, text in texts]}
        seconds = {"vLLM's ngram": time.process_time() - began}
        for name, source in SOURCES.items():
            began = time.process_time()
            drafted = measure_drafts(rows, encode, source, most, steps=[1], min_match=SHORTEST).responses
            passes[name] = drafted.set_index("prompt_id").loc[later["prompt_id"], "passes"].tolist()
            seconds[name] = time.process_time() - began
        tokens = [len(text) for _, text in texts]
        found += [
            {
                "draft_tokens": most, "drafts": name, "tokens_per_pass": sum(tokens) / sum(counts),
                "of_a_response": ratio(tokens, counts), "fewer_passes": ratio(passes["vLLM's ngram"], counts),
                "cpu_s": seconds[name], "tokens": sum(tokens),
            }
            for name, counts in passes.items()
        ]  # fmt: skip
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of details/drafts.md."""
    lines = ["| draft tokens | drafts | tokens per pass | passes of vLLM's ngram / this, per response |", "|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['draft_tokens']} | {row['drafts']} | {row['tokens_per_pass']:.2f} | {told(row['fewer_passes'])} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--lengths", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if LOG.exists():
        rows = measured(log(given.prompts), given.lengths)
        print(markdown(rows))
    else:
        rows = []
        print(f"left out: the public log is not at {LOG}")
    if given.json is not None:
        about = {"device": f"{platform.machine()} CPU", "prompts": given.prompts}
        given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
