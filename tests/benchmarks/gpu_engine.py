"""The torch engine on a GPU: what an iteration takes, what plans are worth there, and how it does beside ``generate``.

    PYTHONPATH=. python tests/benchmarks/gpu_engine.py [--sizes ...] [--only PART,...] [--policies ...] [-o FILE]
    PYTHONPATH=. python tests/benchmarks/gpu_engine.py --prepare [--profile NAME]   # beside the public logs, before; optional
    PYTHONPATH=. python tests/benchmarks/gpu_engine.py --device cpu --tiny   # every path but CUDA itself, no result

Needs numpy, torch and transformers, and pydantic and PyYAML for training steps. ``--prepare`` writes what a machine with so
little lacks: out/gpu_lengths.npz, the lengths of a public log, and out/gpu_plans.json, plans made with the profile NAME (or a
profile's file). Without them lengths are made up, which the result says, and plans are made by the profile measured here. The
policy ``solver`` is then skipped where OR-Tools is not installed. Models of Qwen2.5's shapes with random weights, bfloat16 on a
GPU. Parts, in order:

- ``profile SIZE``: seconds of a decode iteration (TPOT) by batch and context, of prefill calls, and of iterations in which
  responses join others that decode; the profile fitted to the first two; the ratio to the shipped profile of that model, which
  is generated, where there is one (aim, if it is of this GPU: within 1.5x). Contexts are measured as the engine attends over
  them: rounded up to the width of its graphs.
- ``replay``: a step of 512 prompts x 8 samples of known, forced lengths (fewer prompts where time or memory forbid it, see
  "prompts"; never more) on 16 emulated GPUs by the plans of four policies, charged ``measured``; every actor is
  replayed once. Aim: planned within 10 % of executed. "planned" is what the plan takes by the fitted profile of the first size.
  It does not foresee what a rule does, so "simulated" is the same step, rule and all, charged by that profile.
- ``throughput``: useful tokens per second on ragged lengths, the engine with 64 slots (with our own forward
  pass and with transformers'), and ``generate`` in static batches of 64.
- ``reload``: new weights for an engine that runs: nothing is captured again, and tokens are those of the new weights.
- ``greedy``: greedy tokens are those of ``generate``; ``memory``: bytes as plans count them and as tensors take them.
- ``drafts``: tokens per second with drafts of 2, 4 and 8 tokens that are all accepted, against without.
- ``training``: GRPO steps by phase; ``trl``: whole steps beside TRL's GRPOTrainer, where TRL is installed (`gpu_training.py`).
- ``flips``: how often tokens depend on the batch or on recomputation (`flip_rate.py`).

A part that would not end within the budget is skipped. One that fails is noted with its error (so is a policy of ``replay`` or
a contender of ``throughput``), the others stand, and the exit code is 1. The result is written after every part. With
``--only`` the other parts of an existing result are kept, so a long part can have a call of its own. With some policies only,
``replay`` has room for more prompts and is written under their names.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flip_rate import RESPONSES as FLIP_RESPONSES
from flip_rate import print_row, rates
from gpu_checks import drafts, greedy, memory
from gpu_parts import Grid, measured_profile, reloaded, throughput
from gpu_plans import POLICIES, PROFILE
from gpu_plans import PREPARED as PLANS
from gpu_plans import prepare as prepare_plans
from gpu_replay import replayed
from gpu_training import beside_trl, trained
from gpu_workload import LOG, SHIPPED, SIZES, TINY, attempted, known_lengths, write_config
from gpu_workload import prepare as prepare_lengths

from rlhfless.latency.measure import CausalLM

BUDGET_S = 540.0
TRAINED, BESIDE_TRL = 64, 16  # prompts of a training step
RESULTS = Path(__file__).parent / "results"
GRID = Grid(
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256), contexts=(128, 512, 1024),
    joins=((1, 128), (1, 512), (16, 128), (16, 512), (64, 128), (256, 128)), most_rounds=5,
)  # fmt: skip
TINY_GRID = Grid(batches=(1, 4), contexts=(16, 768), joins=((1, 16), (4, 16)), most_rounds=2)
PARTS = (
    "greedy", "memory", "profile", "replay", "throughput", "drafts", "reload", "training", "trl", "flips",
)  # fmt: skip


class Needs(NamedTuple):
    """Seconds after which a part should be done: it is skipped where they are not left."""

    greedy_s: float = 20.0
    memory_s: float = 5.0
    profile_s: float = 100.0
    replay_s: float = 120.0
    throughput_s: float = 40.0
    drafts_s: float = 40.0
    reload_s: float = 20.0
    training_s: float = 60.0
    trl_s: float = 60.0
    flips_s: float = 60.0


class Report:
    """The result file: parts by name, written after every part.

    Args:
        budget_s: seconds since the start by which all parts should be done.
        kept: parts of an earlier result.
    """

    def __init__(self, path: Path, about: dict[str, Any], budget_s: float, kept: dict[str, Any]) -> None:
        self.path, self.about, self.parts = path, about, kept
        self.failed: list[str] = []
        self._start, self._budget_s = time.monotonic(), budget_s

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self._budget_s - (time.monotonic() - self._start)

    def part(self, name: str, needs_s: float, run: Callable[[], dict[str, Any]]) -> None:
        """Run a part, or say why it was not; what goes wrong in it is written down, and the next one runs."""
        print(f"\n{name}", flush=True)
        begin, today = time.monotonic(), datetime.date.today().isoformat()
        if self.left_s < needs_s:
            found = {"skipped": f"{self.left_s:.0f} s of the budget were left, about {needs_s:.0f} s are needed"}
        else:
            _reset_peak()
            found = attempted(run)
        gc.collect()
        self.parts[name] = {**found, "took_s": time.monotonic() - begin, "date": today, **_peak()}
        self.failed += failures(name, found)
        for why in ("skipped", "failed"):
            if why in found:
                print(f"{why}: {found[why]}")
        self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partly = self.path.with_name(self.path.name + ".part")
        partly.write_text(json.dumps({**self.about, "parts": self.parts}, indent=1) + "\n")
        os.replace(partly, self.path)


def failures(name: str, found: dict[str, Any]) -> list[str]:
    """Names of what failed in a part: the part itself, or one of several that it tried."""
    own = [name] if "failed" in found else []
    return own + [
        at for key, value in found.items() if isinstance(value, dict) for at in failures(f"{name}: {key}", value)
    ]  # fmt: skip


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak() -> dict[str, float]:
    """GiB that the part had allocated at most; what is reserved includes what graphs keep."""
    if not torch.cuda.is_available():
        return {}
    peak = {"allocated_gib": torch.cuda.max_memory_allocated(), "reserved_gib": torch.cuda.max_memory_reserved()}
    return {name: value / 2**30 for name, value in peak.items()}


def load(size: str, device: str, tiny: bool) -> CausalLM:
    """The model with random weights, made on its device."""
    with tempfile.TemporaryDirectory() as folder:
        named = Path(folder, f"Qwen2.5-{size}" + ("-tiny" if tiny else ""))
        return CausalLM(write_config(TINY if tiny else SIZES[size], named), device)


def about(device: str, tiny: bool) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{platform.machine()} CPU"
    versions = {"python": platform.python_version(), **{name: version(name) for name in ("numpy", "torch", "transformers")}}
    said = {"tiny": "shapes are not those of the models: nothing here is a result"} if tiny else {}
    return {"device": name, "cuda": torch.version.cuda, "versions": versions, **said}


def lengths_of(tiny: bool) -> tuple[np.ndarray, str]:
    """(prompts, samples) lengths in tokens, and in words where they come from."""
    lengths, where = known_lengths()
    return (lengths[:8] // 24 + 1, f"{where}; scaled down") if tiny else (lengths, where)


def run(
    report: Report, device: str, sizes: list[str], only: list[str], policies: list[str], plans: Path | None, tiny: bool
) -> None:
    """All parts that were asked for."""
    needs = Needs(*[0.0] * len(Needs._fields)) if tiny else Needs()
    lengths, where = lengths_of(tiny)

    @cache
    def model() -> CausalLM:
        return load(sizes[0], device, tiny)

    def profile(size: str) -> dict[str, Any]:
        grid = TINY_GRID if tiny else GRID
        return measured_profile(lambda: load(size, device, tiny), grid, SHIPPED.get(size, {}), 0.7 * needs.profile_s)

    def replay() -> dict[str, Any]:
        fitted = report.parts.get(f"profile {sizes[0]}", {}).get("profile")
        if fitted is None:
            return {"skipped": f"there is no fitted profile: the part profile {sizes[0]} has to run first"}
        seconds = report.left_s if only == ["replay"] or tiny else needs.replay_s
        return {
            "model": model().name,
            **replayed(model(), fitted, lengths, where, plans, policies, time.monotonic() + seconds),
        }

    def beside_generate() -> dict[str, Any]:
        some = lengths[: 1 if tiny else 16].reshape(-1)
        return {"model": model().name, "lengths": where, **throughput(model(), some)}

    def flips() -> dict[str, Any]:
        rows: list[dict[str, Any]] = []

        def all_rows() -> dict[str, Any]:
            for row in rates(device, 4 if tiny else FLIP_RESPONSES):
                rows.append(row)
                print_row(row)
            return {}

        return {"rows": rows, **attempted(all_rows)}

    def training() -> dict[str, Any]:
        until_s = time.monotonic() + needs.training_s / 2
        return {"model": model().name, "lengths": where, **trained(model(), lengths[:TRAINED, :], 10, until_s)}

    parts: list[tuple[str, str, float, Callable[[], dict[str, Any]]]] = [
        ("greedy", "greedy", needs.greedy_s, lambda: {"model": model().name, **greedy(model())}),
        ("memory", "memory", needs.memory_s, lambda: {"model": model().name, **memory(model())}),
        *(("profile", f"profile {size}", needs.profile_s, partial(profile, size)) for size in sizes),
        ("replay", "replay" if policies == list(POLICIES) else f"replay {','.join(policies)}", needs.replay_s, replay),
        ("throughput", "throughput", needs.throughput_s, beside_generate),
        ("drafts", "drafts", needs.drafts_s, lambda: {"model": model().name, **drafts(model(), lengths.reshape(-1))}),
        ("reload", "reload", needs.reload_s, lambda: {"model": model().name, **reloaded(model())}),
        ("training", "training", needs.training_s, training),
        ("trl", "trl", needs.trl_s, lambda: {"model": model().name, **beside_trl(model(), lengths[:BESIDE_TRL, :])}),
        ("flips", "flips", needs.flips_s, flips),
    ]
    for kind, name, needs_s, part in parts:
        if kind in only:
            report.part(name, needs_s, part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--sizes", default="0.5B,3B", help=f"of {', '.join(SIZES)}; profiles of all, the other parts with the first"
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run")
    parser.add_argument("--policies", default=",".join(POLICIES), help="policies to replay")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all parts")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: try the script")
    parser.add_argument("--prepare", action="store_true", help="write lengths (of the public log) and plans, and nothing else")
    parser.add_argument("--profile", default=PROFILE, help="what --prepare plans with: a name or a file")
    parser.add_argument("--plans", type=Path, help=f"file of plans; {PLANS.name} by default, where it was prepared")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    prepared = PLANS.with_stem(PLANS.stem + "_tiny" * options.tiny)
    if options.prepare:
        if LOG.is_file():
            print(prepare_lengths())
        print(prepare_plans(*lengths_of(options.tiny), options.profile, options.plans or prepared))
        return
    plans = options.plans or (prepared if prepared.is_file() else None)
    sizes, only, policies = (given.split(",") for given in (options.sizes, options.only, options.policies))
    for given, known in ((sizes, SIZES), (only, PARTS), (policies, POLICIES)):
        if wrong := [name for name in given if name not in known]:
            parser.error(f"{wrong[0]!r} is unknown; choose of {', '.join(known)}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --tiny tries the script without one")
    if options.device == "cpu" and not options.tiny:
        parser.error("these models are too large for the CPU; add --tiny to try the script")
    facts = about(options.device, options.tiny)
    path = options.output or RESULTS / f"gpu_engine_{facts['device'].lower().replace(' ', '-')}.json"
    kept = json.loads(path.read_text()) if path.is_file() and only != list(PARTS) else {}
    if kept.get("device", facts["device"]) != facts["device"]:
        parser.error(f"{path} is of {kept['device']}, this is {facts['device']}; give another file with -o")
    print(facts["device"], facts["versions"])
    report = Report(path, facts, options.budget, kept.get("parts", {}))
    run(report, options.device, sizes, only, policies, plans, options.tiny)
    print(f"\nwritten: {path}")
    if report.failed:
        sys.exit(f"failed: {', '.join(report.failed)}")


if __name__ == "__main__":
    main()
