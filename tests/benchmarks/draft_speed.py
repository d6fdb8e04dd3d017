"""Tokens per second of the torch engine with drafts of adaptive length, against without, by responses in the batch.

The shipped model decodes responses to prompts of its own run, up to eight per prompt. Drafts come from the last visit of each
prompt, which the shipped trace holds, and from siblings. Lengths are chosen by the shipped profile of this model,
corrected by measured passes. Both ways decode the same tokens, which is checked, in turns on one thread. Seconds are the
process's CPU time, so that other programs change little; of ``--repeats`` turns the fastest counts.
Making engines, prefill and filling tries are included.

With ``--device cuda`` seconds are those of the clock, captures of graphs left out. There a pass over several tokens may round
otherwise than one over one token, so the share of responses with the same tokens is reported instead of checked.

Reported by number of responses: the geometric mean over seeds of the ratio of tokens per second, tokens per pass, and the
share of a step's seconds that drafting takes (choosing lengths, drafting, noting what was committed), which is measured in one
more turn.
Run: ``python tests/benchmarks/draft_speed.py [-o results.json] [--seeds 5] [--repeats 3] [--lengths adaptive 0 2]
[--most 8] [--sizes 1 4 16 64] [--device cuda] [--tiny]``
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhfless.engine.common.engine_drafts import Drafts, EngineDrafts
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.pretrained import load_model
from rlhfless.latency import load_profile
from rlhfless.trace import read_trace
from solver import Admission, Drafting

DATA = Path(__file__).parents[2] / "data"
SIZES, LIMIT, PER_PROMPT = (1, 4, 16, 64), 320, 8
AIMS = {1: 3.0, 4: 1.8, 16: 1.3, 64: 1.0}


class TimedDrafts(EngineDrafts):
    """Drafts that measure the seconds that they take."""

    seconds = 0.0

    def plan(self, batch: Sequence[SequenceState], kv_tokens: int) -> Drafts:
        begin = time.process_time()
        drafts = super().plan(batch, kv_tokens)
        self.seconds += time.process_time() - begin
        return drafts

    def undrafted_passes(self, batch: Sequence[SequenceState], kv_tokens: int) -> int:
        begin = time.process_time()
        passes = super().undrafted_passes(batch, kv_tokens)
        self.seconds += time.process_time() - begin
        return passes

    def observe_seconds(self, batch: int, kv_tokens: int, drafted: int, seconds: float) -> None:
        begin = time.process_time()
        super().observe_seconds(batch, kv_tokens, drafted, seconds)
        self.seconds += time.process_time() - begin

    def commit(self, committed: Mapping[SequenceState, tuple[int, list[int]]]) -> None:
        begin = time.process_time()
        super().commit(committed)
        self.seconds += time.process_time() - begin


class Contest:
    """The shipped model and run, decoded with and without drafts."""

    def __init__(self, device: str = "cpu") -> None:
        self.on_gpu = device != "cpu"
        self.now_s = time.perf_counter if self.on_gpu else time.process_time
        model, self.tokenizer = load_model(str(DATA / "models" / "arithmetic-grpo"), device)
        self.rows, self.latency = DecoderModel(model, LIMIT + 80), load_profile("cpu-tiny-qwen2")
        rollouts = read_trace(DATA / "traces" / "arithmetic-grpo").rollouts
        last = rollouts[rollouts["epoch"] == rollouts["epoch"].max()]
        end = [self.tokenizer.eos_token_id]
        self.groups = [
            (self._ids(visit["prompt"].iloc[0]), [self._ids(text, end) for text in visit["response"]])
            for _, visit in last.groupby("prompt_id")
        ]

    def _ids(self, text: str, end: Sequence[int] = ()) -> np.ndarray:
        return np.array([*self.tokenizer.encode(text), *end], dtype=np.int64)

    def requests(self, count: int, seed: int) -> list[Request]:
        """Up to eight responses to each of some prompts, with new noise."""
        chosen, per_prompt = np.random.default_rng(seed).permutation(len(self.groups)), min(count, PER_PROMPT)
        asked = []
        for i in range(count):
            prompt, history = self.groups[chosen[i // per_prompt]]
            asked.append(
                Request(
                    i, len(prompt), LIMIT, prompt_ids=prompt, prompt=i // per_prompt, seed=1000 * seed + i, history=history,
                    shares_prompt=True,
                )
            )  # fmt: skip
        return asked

    def turn(
        self, asked: Sequence[Request], drafting: Drafting | None, kind: type[EngineDrafts] = EngineDrafts
    ) -> tuple[float, float, dict[int, Completion]]:
        """Seconds, those of drafting among them where they are measured, and the completions."""
        admission, drafts = Admission(max(*SIZES, len(asked)), 1 << 30), None
        if drafting is not None:
            drafts = kind(drafting, self.latency, admission, self.rows.vocabulary, self.tokenizer.eos_token_id)
        begin = self.now_s()
        engine = TorchEngine(self.rows, admission, MEASURED, eos_id=self.tokenizer.eos_token_id, drafting=drafts)
        engine.add(asked)
        done = engine.advance(math.inf).completions
        seconds = self.now_s() - begin - (engine.journal.prepare_s if self.on_gpu else 0.0)
        return seconds, drafts.seconds if isinstance(drafts, TimedDrafts) else 0.0, {c.response: c for c in done}

    def compared(self, count: int, seed: int, drafting: Drafting, repeats: int) -> dict[str, float]:
        """The fastest turns with and without drafts of the same responses."""
        asked = self.requests(count, seed)
        turns = [(self.turn(asked, None), self.turn(asked, drafting)) for _ in range(repeats)]
        same = 0
        for (_, _, plain), (_, _, drafted) in turns:
            for i, c in plain.items():
                assert c.token_ids is not None
                same += np.array_equal(c.token_ids, drafted[i].token_ids)
                assert self.on_gpu or np.array_equal(c.logprobs, drafted[i].logprobs), "drafts changed a log-probability"
        assert self.on_gpu or same == len(turns) * count, "drafts changed a token"
        off_s, (on_s, _, drafted) = min(t[0][0] for t in turns), min((t[1] for t in turns), key=lambda t: t[0])
        timed_s, drafting_s, _ = self.turn(asked, drafting, TimedDrafts)
        tokens = sum(c.response_tokens for c in drafted.values())
        off_tokens = sum(c.response_tokens for c in turns[0][0][2].values())
        return {
            "ratio": off_s / off_tokens * tokens / on_s, "drafting_share": drafting_s / timed_s,
            "tokens_per_pass": tokens / sum(c.passes or 0 for c in drafted.values()),
            "off_tokens_per_s": off_tokens / off_s, "on_tokens_per_s": tokens / on_s, "same_share": same / len(turns) / count,
        }  # fmt: skip


def geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.log(values).mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lengths", nargs="+", default=["adaptive"])
    parser.add_argument("--most", type=int, default=8, help="longest draft of adaptive lengths")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tiny", action="store_true", help="one short turn: tries the script, its numbers say nothing")
    options = parser.parse_args()
    sizes, seeds, repeats = ((1, 2), 1, 1) if options.tiny else (options.sizes, options.seeds, options.repeats)
    torch.set_num_threads(1)
    contest, rows = Contest(options.device), []
    contest.compared(2, 99, Drafting(length=2), 1)  # warms up
    print("responses    length   ratio  aim  tokens per pass  drafting  tokens/s off -> on")
    for count in sizes:
        for name in options.lengths:
            drafting = Drafting(length=int(name) if name.isdigit() else name, max_draft_tokens=options.most)
            found: list[dict[str, Any]] = [contest.compared(count, seed, drafting, repeats) for seed in range(seeds)]
            mean = {key: geometric([f[key] for f in found]) for key in found[0] if not key.endswith("_share")}
            mean |= {key: float(np.mean([f[key] for f in found])) for key in ("drafting_share", "same_share")}
            rows.append({"responses": count, "length": name, **mean, "seeds": found})
            print(
                f"{count:>9} {name:>9}  {mean['ratio']:6.2f} {AIMS.get(count, 0):4.1f}  {mean['tokens_per_pass']:15.2f}  "
                f"{mean['drafting_share']:8.1%}  {mean['off_tokens_per_s']:,.0f} -> {mean['on_tokens_per_s']:,.0f}"
            )
    if options.output:
        device = torch.cuda.get_device_name() if contest.on_gpu else platform.machine() + " CPU"
        about = {"device": device, "torch": importlib.metadata.version("torch"), "threads": 1}
        options.output.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
