"""How fast a step is simulated, and how much of a real iteration is neither forward pass nor sampling.

    python tests/benchmarks/executor_speed.py [--json FILE] [--rounds 5] [--against FOLDER ...] [--only simulated]
        [--rules tau fold] [--markdown]

Simulated: 16,384 and 2,048 responses (8 of each prompt, lognormal lengths, at most 2,048 tokens) on Qwen2.5-3B on two L40S per
actor. ``engine`` is ``SimulatedEngine.add`` and ``advance``: all responses on one engine, and split over as many engines as the
plan has actors. With the tau rule the engines are driven by ``run_step``, so what is attributed to them is the time inside
``add``, ``advance``, ``cut`` and the views on them. ``run_step`` is the whole step. ``read`` adds reading what a trace is made
of: every completion, span and event; without it these wait as columns. Requests are made, and turned into rows, beforehand, as
for all policies of a simulated step; what that takes is a row of its own. Rows with a rule that moves responses start from
random splits over a given number of actors.

Seconds are CPU seconds of one process (``time.process_time``), best of the rounds: other work on the machine is not counted,
but slows caches down. With ``--against`` every tree has a process of its own, and they run each row in turn. The ratio is
their seconds to this tree's: above 1, this tree is faster. See ``executor_rows.py``.

Torch: Qwen2 with random weights in float32 on the CPU, one thread, forced lengths, charged by a profile, so that no clock is
read inside. The time inside the ``DecodeStep`` call (forward pass and sampling) against that of all ``advance``, prefill's
iteration left out, medians over rounds: iterations of a batch that nobody joins or leaves.

Torch steps: see ``executor_steps.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executor_rows import AIMS, Row, inputs, least_us, measured
from executor_steps import PROMPTS as STEP_PROMPTS
from executor_steps import torch_steps
from transformers import Qwen2Config, Qwen2ForCausalLM

import rlhfless
from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.model import DecoderModel
from solver import LatencyModel
from solver.model.admission import Admission

PROMPTS = 2048
BATCHES, ITERATIONS, WARM_UP = (8, 64), 200, 20
SIZES = {"0.5M": (128, 2, 4, 2), "17M": (512, 6, 8, 2)}  # hidden, layers, heads, KV heads
RESULTS = Path(__file__).parent / "results" / "executor_speed.json"
SLOWER = 0.05  # than another tree: rows that are slower by more are named


def torch_overhead(size: str, batch: int, rounds: int, iterations: int = ITERATIONS) -> dict[str, Any]:
    """Seconds of a decode iteration, inside the ``DecodeStep`` call and in all."""
    hidden, layers, heads, kv_heads = SIZES[size]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=4 * hidden, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    model = DecoderModel(Qwen2ForCausalLM(config).eval())
    rng, length, prompt = np.random.default_rng(0), WARM_UP + iterations + 10, 32
    shares, totals = [], []
    for _ in range(rounds):
        engine = TorchEngine(model, Admission(batch, 1 << 30), LatencyModel("one", 1, 1.0, 0.0), eos_id=0)
        engine.add(
            [
                Request(i, prompt, length, target_tokens=length, prompt_ids=rng.integers(1, 512, prompt), seed=i)
                for i in range(batch)
            ]
        )
        engine.advance(float(WARM_UP))
        inner, inside = engine._loop.step, [0.0]

        class Watched:
            """The engine's step with a stopwatch around it."""

            prepare = inner.prepare

            def __call__(self, *args: Any, inner: Any = inner, inside: list[float] = inside) -> Any:
                began = time.perf_counter()
                drawn = inner(*args)
                inside[0] += time.perf_counter() - began
                return drawn

        engine._loop.step = Watched()  # type: ignore[assignment]
        began = time.perf_counter()
        engine.advance(float(WARM_UP + iterations))
        total = time.perf_counter() - began
        totals.append(total / iterations)
        shares.append(1 - inside[0] / total)
    return {"model": size, "batch": batch, "iteration_s": float(np.median(totals)), "outside": float(np.median(shares))}


def per_s(row: Row, tree: int = 0) -> str:
    """Return the responses per second of a row, rounded to three digits."""
    seconds = row["seconds"][tree]
    if seconds is None:
        return "cannot run"
    value = row["responses"] / seconds
    return f"{round(value, 2 - math.floor(math.log10(value))):,.0f}"


def named(row: Row) -> str:
    """Return what a row runs."""
    actors = "" if row["actors"] is None else f", {row['actors']} actors"
    return f"{row['rule']:>13} {row['responses']:>6,}{actors}, {row['level']}"


def told(row: Row) -> None:
    """Print a row with the ratios of other trees' seconds to this tree's."""
    ours, *others = row["seconds"]
    ratios = [f"{theirs / ours:.2f}" if theirs else "cannot run" for theirs in others]
    print(f"{named(row):<60} {1e3 * ours:>9.1f} ms {per_s(row):>11}/s", *ratios, flush=True)


def slower(rows: Sequence[Row], against: Sequence[Path]) -> list[str]:
    """Return a sentence for each row in which this tree is slower than another by more than ``SLOWER``."""
    return [
        f"{named(row).strip()}: {row['seconds'][0] / theirs - 1:.0%} slower than {folder}"
        for row in rows
        for theirs, folder in zip(row["seconds"][1:], against, strict=True)
        if theirs and row["seconds"][0] > (1 + SLOWER) * theirs
    ]


def markdown(rows: Sequence[Row], against: Sequence[Path]) -> str:
    """Return the table of details/executor.md."""
    columns = [
        "rule",
        "responses",
        "actors",
        "moves",
        "looks",
        "level",
        "ms",
        "responses/s",
        "aim",
        *(f"{p.name}, ms" for p in against),
    ]
    lines = [columns, ["---"] * len(columns)]
    for row in rows:
        ms = ["" if s is None else f"{1e3 * s:,.0f}" for s in row["seconds"]]
        what = [
            row["rule"],
            f"{row['responses']:,}",
            row["actors"] or "",
            row["moves"][0] or "",
            row["looks"][0] or "",
            row["level"],
        ]
        lines.append([*what, ms[0], per_s(row), f"{AIMS[row['rule']]:,}", *ms[1:]])
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--against", type=Path, nargs="*", default=[], help="folders of other trees that run the same rows in turn"
    )
    parser.add_argument("--only", choices=("simulated", "torch"), help="leave out the other part; its raw numbers stay")
    parser.add_argument("--rules", nargs="+", choices=tuple(AIMS), default=tuple(AIMS), help="rules of the simulated rows")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/executor.md in the end")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.json.read_text()) if options.only and options.json.exists() else {}
    found |= {"machine": platform.machine(), "cores": os.cpu_count(), "numpy": np.__version__}
    if options.only != "torch":
        folders = [Path(rlhfless.__file__).parent.parent, *options.against]
        rows: list[Row] = []
        found |= {"against": [folder.name for folder in options.against], "simulated": rows, "least_us": least_us()}
        steps = [step for step in inputs(32 if options.tiny else PROMPTS) if step.rule in options.rules]
        for row in measured(steps, folders, options.rounds):
            told(row)
            rows.append(row)
            options.json.write_text(json.dumps(found, indent=1) + "\n")  # what is measured stays if it is interrupted
        print(*(f"{name}: at least {us:.2f} us" for name, us in found["least_us"].items()), sep="\n")
        print(*slower(rows, options.against), sep="\n")
    if options.only != "simulated":
        found |= torch_rows(options.rounds, options.tiny)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.markdown:
        print(markdown(found.get("simulated", []), options.against))


def torch_rows(rounds: int, tiny: bool) -> Row:
    """Return the rows of the torch engine."""
    torch.set_num_threads(1)
    sizes = ["0.5M"] if tiny else list(SIZES)
    iterations = [torch_overhead(s, batch, rounds, 10 if tiny else ITERATIONS) for s in sizes for batch in BATCHES]
    for one in iterations:
        name, ms = f"torch {one['model']}, batch {one['batch']}", 1e3 * one["iteration_s"]
        print(f"{name:>44} {ms:>8.2f} ms an iteration, {one['outside']:.1%} outside")
    steps = torch_steps(rounds, 2 if tiny else STEP_PROMPTS)
    for one in steps:
        name = f"torch step, {one['policy']}, {'given lengths' if one['forced'] else 'end of text'}, {one['moves']} moves"
        per_iteration = f"{one['iterations']} iterations on {one['actors']} actors"
        print(f"{name:>50} {1e3 * one['seconds']:>8.1f} ms, {per_iteration}, {one['outside']:.1%} outside")
    return {"torch": torch.__version__, "torch_iterations": iterations, "torch_steps": steps}


if __name__ == "__main__":
    main()
