"""Prefill tokens with and without deduplication, the paper's fixed length beside the choice from the prefix tree.

Two batches: 512 synthetic prompts (a system prompt, one of 8 few-shot blocks in two versions, a question) of about 1,000
tokens, and 512 GSM8K questions, a token per word, behind a common instruction. Every prompt has 4 samples, split at random
over 8 actors that compute a prompt for each response.
The paper's rule (RLHFless, arXiv 2602.22718, deduplicated prefill) computes prefixes of one length once: the largest of which
at most as many differ as the prefill batch holds (here 64). It stands beside the tree's choice of as many tokens, and as many
are given to a prefill actor alone, without sharing in actors. All of it is the planner's arithmetic; what enters a model is
counted by a hook on it in ``tests/executor/virtual/test_torch_prefill.py``.
Run: ``python tests/benchmarks/prefixes.py [--markdown] [--json FILE] [--gsm8k FILE] [--tiny]``
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

import solver
from rlhfless.latency import load_profile
from solver.prefix_sharing.choose_prefixes import PrefixCosts, choose_prefixes
from solver.prefix_sharing.deduplicate import computations, deduplicate
from solver.prefix_sharing.prefix_tree import PrefixTree
from solver.timing.build_plan import assemble

PROFILE, ACTORS, SAMPLES, PROMPTS, BATCH = "l40s-qwen2.5-3b-tp2", 8, 4, 512, 64
FIXED = "prefill actor alone, as many tokens as the fixed length"
GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "train.jsonl"
INSTRUCTION = (
    "Solve the following problem. Think step by step, write down every intermediate result, and give the final answer as a "
    "number after four hash signs on the last line. Problem:"
)


def synthetic(rng: np.random.Generator, count: int = PROMPTS) -> list[np.ndarray]:
    """Prompts of 400 common tokens, 300 + 150 of a few-shot block and its version, and 50 to 250 of a question."""
    common = rng.integers(1000, 50_000, 400)
    blocks = [(rng.integers(1000, 50_000, 300), rng.integers(1000, 50_000, (2, 150))) for _ in range(8)]
    prompts = []
    for _ in range(count):
        block, versions = blocks[rng.integers(8)]
        question = rng.integers(1000, 50_000, rng.integers(50, 251))
        prompts.append(np.concatenate([common, block, versions[rng.integers(2)], question]))
    return prompts


def gsm8k(path: Path) -> list[list[int]]:
    """The first 512 questions behind the instruction, a token per word or sign."""
    lines = path.read_text(encoding="utf-8").splitlines()[:PROMPTS]
    known: dict[str, int] = {}
    words = [re.findall(r"\w+|[^\w\s]", f"{INSTRUCTION} {json.loads(line)['question']}") for line in lines]
    return [[known.setdefault(word, len(known)) for word in row] for row in words]


def timed(function: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
    """The result and the least seconds of three calls."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        result = function(*arguments, **options)
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def fixed_length(prompts: list[Any], tree: PrefixTree, counts: np.ndarray, costs: PrefixCosts) -> dict[str, Any]:
    """The paper's rule: prefixes of the largest length of which at most ``BATCH`` differ, sent to every actor that has them.

    A shorter prompt counts with all its tokens.
    """
    rows = [np.asarray(prompt, dtype=np.uint32).tobytes() for prompt in prompts]
    lengths = range(int(tree.prompt_tokens.max()), 0, -1)
    length = next((n for n in lengths if len({row[: 4 * n] for row in rows}) <= BATCH), 0)
    tokens = tree.covered(range(len(rows)), np.minimum(length, tree.prompt_tokens))
    compute_s, base_s, token_s = costs.of_actors(len(counts))
    passing = tree.below(counts)
    avoided, received = (passing * tokens).sum(axis=1), ((passing > 0) * tokens).sum(axis=1)
    once, before = int(tokens.sum()), int((counts * tree.prompt_tokens).sum())
    net_s = float((compute_s * avoided - token_s * received - base_s * (received > 0)).sum())
    return {
        "tokens_before": before, "tokens_after": before - int(avoided.sum()) + once, "computed_once": once,
        "net_s": net_s - costs.prefill_actor_base_s - costs.prefill_actor_per_token_s * once,
    }  # fmt: skip


def measure(name: str, prompts: list[Any]) -> dict[str, Any]:
    """One batch: every choice with its tokens, net seconds, bound and planning time."""
    rng = np.random.default_rng(1)
    latency = load_profile(PROFILE)
    cluster = solver.Cluster(2, 8, 2, node_bytes_per_s=32e9, network_bytes_per_s=12.5e9)
    lengths = [len(p) for p in prompts]
    tokens = np.clip(rng.lognormal(5.5, 0.6, (len(prompts), SAMPLES)), 1, 2048).astype(int)
    workload = solver.Workload.grid(lengths, tokens, max_response_tokens=2048)
    problem = solver.PlanningProblem(workload, cluster, latency)
    plan = assemble("random", np.array_split(rng.permutation(len(workload)), ACTORS), problem)
    tree, tree_s = timed(PrefixTree.of_token_ids, prompts)
    counts = computations(plan, workload)
    costs = PrefixCosts(
        latency.prefill_per_token_s, latency.transfer_base_s, latency.kv_bytes_per_token / cluster.network_bytes_per_s,
        latency.prefill_base_s, latency.prefill_per_token_s,
    )  # fmt: skip
    rule, seconds = timed(fixed_length, prompts, tree, counts, costs)
    rows = [{"choice": f"fixed length, {BATCH} prefixes", "bound_s": None, "seconds": seconds, **rule}]
    for label, capacity in (("tree, as many tokens", rule["computed_once"]), ("tree", None)):
        choice, seconds = timed(choose_prefixes, tree, counts, costs, capacity_tokens=capacity)
        rows.append(
            {
                "choice": label, "bound_s": choice.bound_s, "seconds": seconds, "tokens_before": choice.tokens_before,
                "tokens_after": choice.tokens_after, "computed_once": choice.computed_tokens, "net_s": choice.net_s,
            }
        )  # fmt: skip
    plans = []
    for label, options in (
        ("shared in actors", {"prefill_actor": False}),
        ("prefill actor", {}),
        ("prefill actor, late start", {"late_start": True}),
        (FIXED, {"capacity_tokens": rule["computed_once"], "share_in_actors": False}),
    ):
        found, seconds = timed(deduplicate, plan, problem, prompts, learner_node=0, **options)
        plans.append(
            {
                "plan": label, "how": found.how, "tokens_after": found.tokens_after, "makespan_s": found.plan.makespan_s,
                "gpu_seconds": found.plan.gpu_seconds, "seconds": seconds,
            }
        )  # fmt: skip
    return {
        "batch": name, "prompts": len(prompts), "prompt_tokens": sum(lengths), "distinct_tokens": tree.tokens, "tree_s": tree_s,
        "makespan_s": plan.makespan_s, "gpu_seconds": plan.gpu_seconds, "choices": rows, "plans": plans,
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    print(
        f"\n{result['batch']}: {result['prompts']} prompts of {result['prompt_tokens']:,} tokens, "
        f"{result['distinct_tokens']:,} of them distinct; tree in {result['tree_s'] * 1e3:.1f} ms"
    )
    print(f"{'choice':28}{'before':>12}{'after':>12}{'once':>10}{'net s':>9}{'bound s':>9}{'ms':>8}")
    for r in result["choices"]:
        bound = "-" if r["bound_s"] is None else f"{r['bound_s']:.3f}"
        print(
            f"{r['choice']:28}{r['tokens_before']:>12,}{r['tokens_after']:>12,}{r['computed_once']:>10,}{r['net_s']:>9.3f}"
            f"{bound:>9}{r['seconds'] * 1e3:>8.1f}"
        )
    print(f"as it is: makespan {result['makespan_s']:.3f} s, {result['gpu_seconds']:.2f} GPU-seconds")
    for r in result["plans"]:
        print(
            f"{r['plan']:58}{r['how']:18}{r['tokens_after']:>12,} tokens, makespan {r['makespan_s']:.3f} s, "
            f"{r['gpu_seconds']:.2f} GPU-seconds, planned in {r['seconds'] * 1e3:.0f} ms"
        )


def markdown(results: list[dict[str, Any]]) -> str:
    """The table of ``details/planning.md``."""

    def took(row: dict[str, Any]) -> str:
        return f"{row['makespan_s']:.2f} s, {row['gpu_seconds']:.1f} GPU-s"

    lines: dict[str, list[str]] = {}
    for result in results:
        rule, same, tree = result["choices"]
        plans = {plan["plan"]: took(plan) for plan in result["plans"]}
        cells = {
            "prefill tokens: every response its own": f"{rule['tokens_before']:,}",
            "the paper's fixed length, batch of 64": f"{rule['tokens_after']:,}, {rule['net_s']:.2f} s saved",
            "prefix tree, as many tokens computed once": f"{same['tokens_after']:,}, {same['net_s']:.2f} s saved",
            "prefix tree": f"{tree['tokens_after']:,}, {tree['net_s']:.2f} s saved",
            "as it is": took(result),
            **{name: plans[name] for name in ("shared in actors", "prefill actor", FIXED)},
        }
        for name, cell in cells.items():
            lines.setdefault(name, []).append(cell)
    head = ["", *(result["batch"] for result in results)]
    return "\n".join("| " + " | ".join(c) + " |" for c in (head, ["---"] * len(head), *([n, *c] for n, c in lines.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--gsm8k", type=Path, default=GSM8K, help="GSM8K's train.jsonl")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/planning.md in the end")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    results = [measure("synthetic few-shot tree", synthetic(np.random.default_rng(0), 32 if options.tiny else PROMPTS))]
    if options.tiny:
        print("the GSM8K batch is left out")
    elif options.gsm8k.is_file():
        results.append(measure("GSM8K questions", gsm8k(options.gsm8k)))
    else:
        print(f"{options.gsm8k} is not there; the GSM8K batch is left out")
    for result in results:
        show(result)
    if options.markdown:
        print(f"\n{markdown(results)}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
