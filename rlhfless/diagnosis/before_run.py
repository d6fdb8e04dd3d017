"""The question before a run: time, GPU-hours and dollars of N steps of M responses of about L tokens, on several clusters.

Arithmetic on a latency profile, without a simulation. Generation of a step takes

- no less than the longest response alone, and no less than all tokens spread evenly over all replicas with full batches;
- no more than the longest response behind a chunk of the others, where prompts are divided into equal chunks: a replica with n
  responses and S slots needs at most ``tokens / S + longest`` iterations (Graham 1966). Its tokens are taken to be above the
  mean by at most two standard deviations of the sum of n lengths; lengths between 0 and the longest with that mean have a
  variance of at most ``mean * (longest - mean)`` (Bhatia and Davis 2000).

Where the longest response is unknown, it is the median longest one of so many lognormal lengths. Their spread, the standard
deviation of the logarithm, is between that of the 10th and the 90th percentile of public serving windows of DeepSeek-R1
(ServeGen, Xiang et al. 2025: log of the 90th over the 50th percentile of output lengths, over 1.28).

With the GPU-seconds of learning a step, every division of a cluster into GPUs that generate and GPUs that train is a row, and
all GPUs that do both in turns. Batches are generated one after another. Where they are at least one update ahead, a step takes
the longer of generation and learning: each step is between the ends, so its steady state is (``analysis.split``).

Both ends include the errors that the profile states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.diagnosis.numbers import counted, digits
from rlhfless.errors import InputError
from rlhfless.latency.gpus import PriceError, list_prices, usd_per_gpu_hour
from rlhfless.latency.profile import list_profiles, load_profile, read_profile

if TYPE_CHECKING:
    from solver.model.latency import LatencyModel

SIZES = (8, 16, 32)
SPREADS = (0.22, 0.77)  # standard deviations of the logarithm of a response's length, lowest and highest
DEVIATIONS = 2.0
LITTLE = 1 / 3  # of a step, below which the most that more GPUs can win is said to be little
HOUR_S = 3600.0
RANGES = {"step_s": "generation of a step (s)", "run_h": "run (h)", "gpu_hours": "GPU-hours", "usd": "USD"}


@dataclass(frozen=True)
class PlannedRun:
    """Description of a run before it begins.

    Attributes:
        steps, responses: number of steps, and of responses per step.
        mean_tokens: mean length of a response.
        longest_tokens: length of a step's longest response, mean over steps.
        limit_tokens: limit on response length. Either may be unknown.
        prompt_tokens: mean length of a prompt; None: prompts are not counted.
        other_s: seconds of a step outside generation (learning, rewards, weight sync); None: unknown, and not counted.
        learn_gpu_s: GPU-seconds of preparation and learning per step, assumed to be the same on any number of GPUs. If given,
            the GPUs are divided into generation and training, and ``other_s`` excludes learning.
        staleness: number of weight updates by which a batch may be old when it is learned, on divided GPUs. 0: generation and
            training take turns; None: no limit.

    Raises:
        InputError: a number is not above 0, or the longest response is shorter than the mean.
    """

    steps: int
    responses: int
    mean_tokens: float
    longest_tokens: float | None = None
    limit_tokens: int | None = None
    prompt_tokens: float | None = None
    other_s: float | None = None
    learn_gpu_s: float | None = None
    staleness: int | None = 1

    def __post_init__(self) -> None:
        from_0 = ("prompt_tokens", "other_s", "learn_gpu_s", "staleness")
        for name in ("steps", "responses", "mean_tokens", "longest_tokens", "limit_tokens", *from_0):
            value, least = getattr(self, name), 0 if name in from_0 else 1
            if value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not (math.isfinite(value) and value >= least):
                raise InputError(f"{name} is {value!r:.80}; a finite number of at least {least} is needed")
        if self.staleness is not None and self.staleness != int(self.staleness):
            raise InputError(f"staleness is {self.staleness}; a whole number of updates, or None for any, is needed")
        for name in ("longest_tokens", "limit_tokens"):
            value = getattr(self, name)
            if value is not None and value < self.mean_tokens:
                raise InputError(
                    f"{name} is {value:g}, below the mean of {self.mean_tokens:g} tokens; a larger number is needed"
                )

    @property
    def longest(self) -> tuple[float, float]:
        """Lowest and highest mean length of a step's longest response."""
        if self.longest_tokens is not None:
            return self.longest_tokens, self.longest_tokens
        normal = NormalDist().inv_cdf(0.5 ** (1 / self.responses))
        limit = math.inf if self.limit_tokens is None else float(self.limit_tokens)
        low, high = (self.mean_tokens * max(math.exp(spread * normal - spread**2 / 2), 1.0) for spread in SPREADS)
        return min(low, limit), min(max(low, high), limit)


@dataclass(frozen=True, eq=False)
class Estimate:
    """Time and cost of a planned run, as ranges; prints itself as a table.

    Attributes:
        run: that was asked for. profile: its name.
        frame: one row per size of cluster: ``gpus, replicas``, the low and high end of ``step_s`` (generation of a step),
            ``run_h``, ``gpu_hours`` and ``usd`` (absent without a price), and ``longest_share``: the longest response alone, as
            a share of the low end of a step, which more GPUs do not shorten. With the GPU-seconds of learning, one row per
            division: also ``gpus_generate, gpus_train`` (all GPUs in both where they take turns on the same ones), and
            ``step_s`` is of the whole step.
        notes: what the ranges include, and what they do not; sentences.
        with_longest: high over low end of a step on the smallest cluster, if the longest response were known; None where it is,
            and where GPUs are divided.
    """

    run: PlannedRun
    profile: str
    frame: pd.DataFrame
    notes: tuple[str, ...]
    with_longest: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return rows and notes for JSON."""
        return {
            "headline": self.headline,
            "profile": self.profile,
            "clusters": self.frame.to_dict("records"),
            "notes": list(self.notes),
        }

    @property
    def headline(self) -> str:
        """What was asked, in one line."""
        run, (low, high) = self.run, self.run.longest
        longest = f"{low:,.0f}" if f"{low:,.0f}" == f"{high:,.0f}" else f"{low:,.0f} to {high:,.0f}"
        asked = (
            f"{counted(run.steps, 'step')} of {counted(run.responses, 'response')} of about "
            f"{counted(round(run.mean_tokens), 'token')} (longest {longest}), profile {self.profile}"
        )
        if self.with_longest is None:
            return asked
        wide = self.frame["step_s_high"].iloc[0] / self.frame["step_s_low"].iloc[0]
        return (
            f"{asked}; the high end is {wide:.1f} times the low one, with `longest-tokens` about {self.with_longest:.1f} times"
        )

    def table(self) -> pd.DataFrame:
        """Return the rows as they are shown: both ends of a range in one text; of divisions those that may be the fastest."""
        frame = self.frame
        titles, sides = RANGES, {"GPUs": frame["gpus"]}
        if "gpus_train" in frame:
            best = frame.groupby("gpus")["step_s_high"].transform("min")
            frame = frame[frame["step_s_low"] <= best]
            titles = {**RANGES, "step_s": "a step (s)"}
            sides = {"GPUs": frame["gpus"], "generate": frame["gpus_generate"], "train": frame["gpus_train"]}
        shown = pd.DataFrame({**sides, "replicas": frame["replicas"]})
        for name, title in titles.items():
            if f"{name}_low" in frame:
                ends = zip(frame[f"{name}_low"], frame[f"{name}_high"], strict=True)
                shown[title] = [f"{digits(a)} to {digits(b)}" for a, b in ends]
        shown["longest alone"] = [f"{share:.0%}" for share in frame["longest_share"]]
        return shown

    def __str__(self) -> str:
        return "\n".join([self.headline, self.table().to_string(index=False), *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<p>{escape(self.headline)}</p>{self.table().to_html(index=False)}<ul>{notes}</ul>"


def before_run(
    run: PlannedRun,
    profile: str | Path,
    gpus: Sequence[int] = SIZES,
    *,
    usd_per_hour: float | None = None,
) -> Estimate:
    """Estimate time, GPU-hours and dollars of a run on clusters of several sizes, as ranges.

    Args:
        profile: name of a shipped latency profile, or a JSON file, for the GPUs and the model of the run.
        gpus: numbers of GPUs to compare.
        usd_per_hour: price of a GPU for an hour; by default the list price of the profile's GPU kind.

    Raises:
        ProfileError: there is no such profile.
        InputError: a cluster is smaller than a replica, or the longest response does not fit into a replica's KV cache.

    Example:
        >>> from rlhfless.diagnosis.before_run import PlannedRun, before_run
        >>> found = before_run(PlannedRun(100, 512, 800, longest_tokens=4096), "h100-qwen2.5-3b-tp1", (8,), usd_per_hour=2.0)
        >>> found.frame[["gpus", "replicas"]].to_dict("records")
        [{'gpus': 8, 'replicas': 8}]
        >>> bool((found.frame["usd_low"] == 2 * found.frame["gpu_hours_low"]).all())
        True
    """
    model, stored = load_profile(profile), read_profile(profile)
    if not gpus or any(size < model.gpus_per_actor for size in gpus):
        fitting = [name for name in list_profiles() if load_profile(name).gpus_per_actor == 1]
        raise InputError(
            f"--gpus {','.join(map(str, gpus))}: a replica of profile {model.name} has {model.gpus_per_actor} GPUs; larger "
            f"clusters, or a profile of one GPU ({', '.join(fitting)}), are needed"
        )
    if usd_per_hour is not None and not (math.isfinite(usd_per_hour) and usd_per_hour >= 0):
        raise InputError(f"usd_per_hour is {usd_per_hour}; a finite number of 0 or more is needed")
    error = _stated_error(model, stored)
    price, of_price = _price(model.kind, usd_per_hour)
    rows = []
    for size, replicas, sides in _divisions(run, sorted(set(gpus)), model.gpus_per_actor):
        alone, low, high = _step_range(model, run, replicas)
        ends = {"low": low / (1 + error), "high": high / max(1 - error, 0.1)}
        if sides:
            ends = {end: _with_learning(run, value, size, sides["gpus_train"]) for end, value in ends.items()}
        row: dict[str, float] = {
            "gpus": size, **sides, "replicas": replicas, **{f"step_s_{end}": value for end, value in ends.items()}
        }  # fmt: skip
        hours = {end: run.steps * (value + (run.other_s or 0.0)) / HOUR_S for end, value in ends.items()}
        row |= {f"run_h_{end}": value for end, value in hours.items()}
        row |= {f"gpu_hours_{end}": value * size for end, value in hours.items()}
        if price is not None:
            row |= {f"usd_{end}": value * size * price for end, value in hours.items()}
        rows.append({**row, "longest_share": min(alone / (1 + error) / ends["low"], 1.0)})
    frame = pd.DataFrame(rows)
    known: float | None = None
    if run.longest_tokens is None and not run.learn_gpu_s:
        middle = replace(run, longest_tokens=math.sqrt(math.prod(run.longest)), limit_tokens=None)
        _, low, high = _step_range(model, middle, min(gpus) // model.gpus_per_actor)
        known = high / max(1 - error, 0.1) / (low / (1 + error))
    enough = () if run.learn_gpu_s else _enough(frame)
    return Estimate(run, model.name, frame, (*enough, *_notes(run, model, error, of_price)), known)


def _divisions(run: PlannedRun, sizes: Sequence[int], per_replica: int) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Yield sizes of clusters with their replicas, and the GPUs of both sides where learning is known: all shared first."""
    for size in sizes:
        if not run.learn_gpu_s:
            yield size, size // per_replica, {}
            continue
        yield size, size // per_replica, {"gpus_generate": size, "gpus_train": size}
        for replicas in range(1, (size - 1) // per_replica + 1):
            generate = replicas * per_replica
            yield size, replicas, {"gpus_generate": generate, "gpus_train": size - generate}


def _with_learning(run: PlannedRun, generate_s: float, gpus: int, train: int) -> float:
    """Return the seconds of a step with learning: in turns on shared GPUs and without staleness, else the longer of both."""
    learn_s = (run.learn_gpu_s or 0.0) / train
    return generate_s + learn_s if train == gpus or run.staleness == 0 else max(generate_s, learn_s)


def _step_range(model: LatencyModel, run: PlannedRun, replicas: int) -> tuple[float, float, float]:
    """Return seconds of the longest response alone, and the low and high end of the generation of a step, by the affine fit."""
    prompt, mean, (shortest, longest) = run.prompt_tokens or 0.0, run.mean_tokens, run.longest
    used = min(replicas, run.responses)
    each = math.ceil(run.responses / used)
    slots = min(model.max_batch, int(model.kv_capacity_tokens / (prompt + longest)))
    if slots < 1:
        raise InputError(
            f"a response of {longest:,.0f} tokens does not fit into the {model.kv_capacity_tokens:,} KV tokens of a replica of "
            f"profile {model.name}; a shorter limit, or a profile with more memory, is needed"
        )
    fed_s = float(model.charged_tokens(prompt)) * model.prefill_per_token_s + model.join_s
    alone = _alone_s(model, prompt, shortest)
    tokens = run.responses * mean / used
    squares = run.responses * mean**2 / 2 / used
    fewest = max(tokens / min(each, model.max_batch), shortest if used == 1 else 0.0)
    low = (
        model.base_s * fewest
        + model.per_response_s * tokens
        + model.per_kv_token_s * (prompt * tokens + squares)
        + fed_s * run.responses / used
    )
    most = each * mean + DEVIATIONS * math.sqrt(each * mean * (longest - mean))
    most = min(most, each * longest, run.responses * mean)
    iterations = longest if each <= slots else most / slots + longest
    calls = 1 if each <= slots else each - slots + 1
    high = (
        model.base_s * (iterations + model.feeding_iterations(prompt * each))
        + model.per_response_s * most
        + model.per_kv_token_s * (prompt + longest / 2) * most
        + fed_s * each + model.prefill_base_s * calls + model.start_s + model.sync_s
    )  # fmt: skip
    return alone, max(alone, low), max(high, alone)


def _alone_s(model: LatencyModel, prompt: float, tokens: float) -> float:
    """Return the seconds of a response that runs alone from its first token to its last."""
    per_token = model.base_s + model.per_response_s
    return per_token * tokens + model.per_kv_token_s * (prompt * tokens + tokens**2 / 2)


def _stated_error(model: LatencyModel, stored: Mapping[str, Any]) -> float:
    """Return the relative error that the profile states: of its fit, and of held-out times where it was measured from a log."""
    error = model.fit_max_error
    for name in ("engine_lines", "calibration"):
        if isinstance(stored.get(name), Mapping):
            error = (1 + error) * (1 + float(stored[name]["p90_relative_error"])) - 1
    return error


def _price(kind: str, usd: float | None) -> tuple[float | None, str]:
    """Return dollars of a GPU-hour, None where the price is unknown, and where they come from."""
    if usd is not None:
        return usd, f"{usd:g} USD a GPU-hour, as stated"
    try:
        price = usd_per_gpu_hour(kind)
    except PriceError:
        return None, f"the price of a GPU of kind {kind} is unknown; --usd-per-gpu-hour states it"
    source = next((row["source"] for row in list_prices() if row["kind"] == kind and row["market"] == "on-demand"), "")
    return price, f"{price:g} USD a GPU-hour: list price of {kind} ({source})"


def _enough(frame: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence on the smallest size beyond which more GPUs can win little, where there is one."""
    at_most = 1 - frame["step_s_low"] * frame["longest_share"] / frame["step_s_high"]
    enough = frame[at_most <= LITTLE]
    if enough.empty:
        return ()
    first = enough.index[0]
    return (
        f"more GPUs than {frame['gpus'][first]:g} shorten a step by at most {at_most[first]:.0%}: its longest response alone "
        f"takes {digits(frame['step_s_low'][first] * frame['longest_share'][first])} s or more",
    )


def _notes(run: PlannedRun, model: LatencyModel, error: float, of_price: str) -> tuple[str, ...]:
    notes = [
        "ranges: from the longest response or even packing, whichever takes longer, to the longest response behind an equal "
        f"chunk of prompts; widened by the {error:.0%} that the profile states as its error",
        f"price: {of_price}",
    ]
    if run.longest_tokens is None:
        low, high = run.longest
        notes.append(
            f"longest response: unknown, so {low:,.0f} to {high:,.0f} tokens, an assumption: lognormal lengths as spread as "
            f"those of public serving logs (standard deviation of the logarithm {SPREADS[0]:g} to {SPREADS[1]:g}), none "
            "above a limit; `longest-tokens` states it"
        )
    if run.learn_gpu_s:
        ahead = "any number of updates" if run.staleness is None else counted(run.staleness, "update")
        notes.append(
            f"divisions: learning takes {run.learn_gpu_s:g} GPU-seconds a step on any number of GPUs and fits into their "
            f"memory; on divided GPUs the weights of a batch lack at most {ahead}; divisions that another one surely beats "
            "are left out"
        )
    if run.prompt_tokens is None:
        notes.append("prompts are not counted; `prompt-tokens` states their mean length")
    if run.other_s is None:
        counted_only = "generation and learning are" if run.learn_gpu_s else "generation is"
        notes.append(f"only {counted_only} counted; `other-s` states the seconds of a step that learn, reward and send weights")
    if model.table is not None and run.longest[1] + (run.prompt_tokens or 0) > float(model.table.context_tokens[-1]):
        notes.append(
            f"contexts above {model.table.context_tokens[-1]:,.0f} tokens are longer than the profile's; its fit is continued"
        )
    return tuple(notes)
