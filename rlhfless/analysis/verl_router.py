"""Writes a verl router that plans every batch, and simulates what it would have saved on the log.

The router uses verl's interface for custom routers (``actor_rollout_ref.rollout.router_config_path``; checked with the router
of verl 0.9.1) and the planning model's times. The log of verl has a prompt's text, not its tokens. So prompts are identified by
the hash of their decoded text, both in the log and in the running system.

verl shuffles its data every epoch, so no batch of the log comes again. The router waits a moment until the requests of the
batch have arrived and assigns them by the lengths that the log predicts (``assign_longest_first``). A prompt that the log does
not hold goes to the replica with the fewest requests in flight, as in verl itself. So does every request of a batch that cannot
be planned.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rlhfless.analysis.savings import saved_range
from rlhfless.simulate import SimulationConfig
from rlhfless.system.hub_names import may_be_on_hub
from rlhfless.trace import TraceError
from rlhfless.trace.storage import absolute, write_text
from solver.model.plurals import counted
from solver.model.workload import Workload
from solver.timing.build_plan import assemble

MODULE, EXPECTED, ROUTER = "planned_router.py", "expected_tokens.json", "router.yaml"
HELD_OUT_EPOCHS = 2  # the last ones, each expected from the epochs before it
SHUFFLES = 3  # of every held-out epoch into batches
MAX_RESPONSES = 30_000  # that are simulated
MAX_WAITING = 20_000  # requests of a batch that may wait for its plan at a time
QUIET_S = 0.05  # a batch is complete when no request came for so long; it is part of the simulated time

ROUTER_CODE = '''"""verl router: assigns the requests of a batch by response lengths predicted from a log.

Written by rlhfless. Use: PYTHONPATH=<this folder> ... actor_rollout_ref.rollout.router_config_path=<this folder>/router.yaml
"""
import asyncio, hashlib, json, logging
import ray
from transformers import AutoTokenizer
from verl.workers.rollout.router import GlobalRequestLoadBalancer

QUIET_S = {quiet_s}  # a batch is complete when no request came for this long ...
LONGEST_S = 1.0  # ... or its first request has waited for this long
MAX_WAITING = {max_waiting:_}  # requests at a time; Ray itself lets 1,000 in, and would cut a batch into parts


{assign_longest_first}

class PlannedRouter(GlobalRequestLoadBalancer):
    def __init__(self, servers, router_kwargs):
        super().__init__(servers, max_cache_size=10 * MAX_WAITING)
        self._tokenizer = AutoTokenizer.from_pretrained(router_kwargs["tokenizer"], trust_remote_code=False)
        with open(router_kwargs["expected_tokens"]) as file:
            self._expected = json.load(file)
        self._times = [router_kwargs[name] for name in ("pass_s", "token_s", "context_token_s")]
        self._usual = sum(self._expected.values()) / max(1, len(self._expected))
        self._at_work = {{}}  # request: replica, tokens of its prompt, tokens that are expected
        self._waiting, self._dealing, self._last = [], None, 0.0

    def require_acquire_fields(self):
        return ["prompt_ids"]

    def require_release_fields(self):
        return ["request_id"]

    async def acquire_server(self, request_id, prompt_ids=()):
        prompt_ids = list(prompt_ids or ())
        text = self._tokenizer.decode(prompt_ids, skip_special_tokens=True)
        name = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
        tokens = self._expected.get(name)
        if tokens is not None and request_id not in self._request_id_to_server:
            assigned = asyncio.get_running_loop().create_future()
            self._waiting.append((request_id, len(prompt_ids), tokens, assigned))
            self._last = asyncio.get_running_loop().time()
            if self._dealing is None:
                self._dealing = asyncio.ensure_future(self._deal_when_quiet())
            await assigned
        server, handle = super().acquire_server(request_id)
        self._at_work[request_id] = server, len(prompt_ids), self._usual if tokens is None else tokens
        return server, handle

    def release_server(self, server_id, request_id=None):
        self._at_work.pop(request_id, None)
        super().release_server(server_id)

    async def _deal_when_quiet(self):
        clock = asyncio.get_running_loop().time
        began = clock()
        while (left := min(self._last + QUIET_S, began + LONGEST_S) - clock()) > 0:
            await asyncio.sleep(left)
        batch, self._waiting, self._dealing = self._waiting, [], None
        try:
            self._deal(batch)
        except Exception:
            logging.getLogger(__name__).exception("a batch could not be planned; verl's own router assigns its requests")
        finally:
            for *_, assigned in batch:
                if not assigned.done():
                    assigned.set_result(None)

    def _deal(self, batch):
        servers = list(self._servers)
        if not servers:
            return
        busy = [[one[1:] for one in self._at_work.values() if one[0] == server] for server in servers]
        chosen = assign_longest_first([one[1:3] for one in batch], busy, self._times)
        for (request_id, prompt, tokens, _), replica in zip(batch, chosen):
            self._request_id_to_server[request_id] = servers[replica]
            self._at_work[request_id] = servers[replica], prompt, tokens


Router = ray.remote(max_concurrency=MAX_WAITING)(PlannedRouter)
'''


def assign_longest_first(
    requests: list[tuple[int, float]], busy: list[list[tuple[int, float]]], times: tuple[float, float, float]
) -> list[int]:
    """Return the replica of every request: the longest first, each to the replica that would be done earliest with it.

    Args:
        requests: pairs of prompt tokens and expected response tokens.
        busy: of every replica the same pairs of what it decodes already.
        times: seconds of a pass, of each response in a pass, and of each token of its context.
    """
    pass_s, token_s, context_s = times

    def work_s(prompt: int, tokens: float) -> float:
        return tokens * (token_s + context_s * (prompt + tokens / 2))

    longest = [max([tokens for _, tokens in pairs], default=0) for pairs in busy]
    work = [sum(work_s(*pair) for pair in pairs) for pairs in busy]
    chosen = [0] * len(requests)
    for at in sorted(range(len(requests)), key=lambda at: -requests[at][1]):
        prompt, tokens = requests[at]
        done = [pass_s * max(length, tokens) + seconds for length, seconds in zip(longest, work)]  # noqa: B905 (the same length)
        best = min(range(len(busy)), key=done.__getitem__)
        longest[best], work[best] = max(longest[best], tokens), work[best] + work_s(prompt, tokens)
        chosen[at] = best
    return chosen


@dataclass(frozen=True)
class RouterEffect:
    """Share of the generation time that the router would have saved, against verl's own router.

    Attributes:
        low, mean, high: shares; negative where the router loses. The range is that of resampled batches.
        batches, epochs: numbers of simulated batches and epochs; each epoch is predicted from those before it. 0: the log has
            one epoch only.
    """

    low: float = 0.0
    mean: float = 0.0
    high: float = 0.0
    batches: int = 0
    epochs: int = 0

    @property
    def is_recommended(self) -> bool:
        """Whether the whole range is a gain."""
        return self.batches > 0 and self.low > 0

    def __str__(self) -> str:
        if not self.batches:
            return (
                "The router cannot be tested on this log, because no prompt appears in a second epoch; it is not recommended."
            )
        verdict = "" if self.is_recommended else " The gain is not certain, so the router is not recommended."
        low, high = _change(self.low), _change(self.high)
        spread = "" if low == high else f" ({low} to {high})"
        return (
            f"Simulated on {counted(self.batches, 'shuffled batch', 'shuffled batches')} of "
            f"{counted(self.epochs, 'held-out epoch')}, generation takes {_change(self.mean)} than with verl's own router"
            f"{spread}.{verdict}"
        )


def _change(saved: float) -> str:
    return f"{abs(saved):.1%} {'less' if saved >= 0 else 'more'} time"


def text_names(rollouts: pd.DataFrame) -> pd.Series:
    """Return (R,) name of each response's prompt by its text, where the log has that name in addition to the prompt's own."""
    column = "prompt_text_id" if "prompt_text_id" in rollouts.columns else "prompt_id"
    return rollouts[column].astype(str)


def expected_tokens(rollouts: pd.DataFrame) -> dict[str, float]:
    """Predicted length of a response to each prompt, by the prompt's name: the mean of its last visit."""
    visits = rollouts.groupby([text_names(rollouts).rename("name"), "step"], sort=True)["response_tokens"].mean()
    return {str(name): float(tokens) for name, tokens in visits.groupby(level="name", sort=True).last().items()}


def router_effect(rollouts: pd.DataFrame, setting: SimulationConfig) -> RouterEffect:
    """Simulate what the router would have saved on held-out epochs, with the prompts in other batches than before.

    Args:
        rollouts: of one run. setting: the cluster, whose actors are verl's replicas, and their latencies.

    Raises:
        PlanningError: a response fits on no actor.
    """
    times: list[tuple[float, float]] = []
    simulated = epochs = 0
    for epoch in sorted(rollouts["epoch"].unique())[1:][-HELD_OUT_EPOCHS:]:
        of_epoch, expected = rollouts[rollouts["epoch"] == epoch], expected_tokens(rollouts[rollouts["epoch"] < epoch])
        epochs += 1
        for rows in _batches(of_epoch, int(epoch)):
            if times and simulated + len(rows) > MAX_RESPONSES * epochs / HELD_OUT_EPOCHS:
                break
            simulated += len(rows)
            times.append(_both_s(rows, expected, setting, len(times)))
    if not times:
        return RouterEffect()
    theirs_s, ours_s = np.array(times).T
    return RouterEffect(*saved_range(ours_s, theirs_s), len(times), epochs)


def _batches(rows: pd.DataFrame, seed: int) -> Iterator[pd.DataFrame]:
    """Return the responses of an epoch in new batches: its prompts shuffled and cut into as many batches as it had steps."""
    names = text_names(rows)
    prompts, count = names.unique(), rows["step"].nunique()
    for shuffle in range(SHUFFLES):
        order = np.random.default_rng((seed, shuffle)).permutation(len(prompts))
        for part in np.array_split(order, count):
            yield rows[names.isin(set(prompts[part]))]


def _both_s(rows: pd.DataFrame, expected: Mapping[str, float], setting: SimulationConfig, seed: int) -> tuple[float, float]:
    """Return the seconds of generation of a batch with its true lengths, under verl's own router and under the planned one.

    verl's router sends every request alone to the replica with the fewest in flight. Requests arrive in random order and
    before any has ended, so that is round-robin. (The policy ``least-loaded`` keeps the samples of a prompt together.)
    """
    names, replicas = text_names(rows), setting.cluster.max_actors
    owner, _ = pd.factorize(names)
    first = np.unique(owner, return_index=True)[1]
    prompt_tokens = rows["prompt_tokens"].fillna(0).to_numpy(dtype=np.int64)
    limit = setting.max_response_tokens or max(1, int(rows["response_tokens"].max()))
    work = Workload(prompt_tokens[first], owner, rows["response_tokens"].to_numpy(dtype=np.int64), max_response_tokens=limit)
    arrival = np.random.default_rng(seed).permutation(len(rows))
    theirs = np.empty(len(rows), dtype=np.int64)
    theirs[arrival] = np.arange(len(rows)) % replicas
    is_known = names.isin(expected.keys()).to_numpy()
    ours = np.empty(len(rows), dtype=np.int64)
    new = arrival[~is_known[arrival]]
    ours[new] = np.arange(len(new)) % replicas
    usual = float(np.mean(list(expected.values())))
    busy = [[(int(prompt_tokens[i]), usual) for i in new[ours[new] == replica]] for replica in range(replicas)]
    predicted = np.flatnonzero(is_known)
    pairs = [(int(prompt_tokens[i]), expected[names.iloc[i]]) for i in predicted]
    ours[predicted] = assign_longest_first(pairs, busy, _times(setting))

    problem = setting.problem(work)

    def seconds(chosen: np.ndarray) -> float:
        groups = [group for replica in range(replicas) if len(group := np.flatnonzero(chosen == replica))]
        return assemble("router", groups, problem).makespan_s

    return seconds(theirs), seconds(ours) + (QUIET_S if len(predicted) else 0.0)


def _times(setting: SimulationConfig) -> tuple[float, float, float]:
    fit = setting.latency.affine
    return fit.base_s, fit.per_response_s, fit.per_kv_token_s


def write_router(folder: str | Path, rollouts: pd.DataFrame, setting: SimulationConfig, tokenizer: str) -> list[Path]:
    """Write the router's code, its predicted lengths and its configuration.

    Args:
        folder: new, or empty. rollouts: of one run; prompts are named by the hash of their text. setting: see
            ``router_effect``. tokenizer: of the run's model. It is a local folder, whose absolute path is written, or a hub
            name.

    Raises:
        TraceError: prompts are not named by their text, or the folder is not empty or cannot be written.
    """
    if not text_names(rollouts).str.fullmatch("[0-9a-f]{16}").all():
        raise TraceError(
            "the log does not name prompts by the hash of their text, by which the router recognises them; verl's own dumps "
            "(trainer.rollout_data_dir) are needed"
        )
    if not Path(tokenizer).exists() and not may_be_on_hub(tokenizer):
        raise TraceError(f"--tokenizer {tokenizer}: there is no such folder; the tokenizer of the run's model is needed")
    folder = Path(folder).resolve()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise TraceError(f"{folder}: exists and is not empty; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be made ({error.strerror}); a writable folder is needed") from error
    pass_s, token_s, context_token_s = _times(setting)
    configuration = {
        "router_class": f"{Path(MODULE).stem}.Router", "expected_tokens": str(folder / EXPECTED),
        "tokenizer": absolute(tokenizer), "pass_s": pass_s, "token_s": token_s, "context_token_s": context_token_s,
    }  # fmt: skip
    texts = {
        MODULE: ROUTER_CODE.format(
            assign_longest_first=inspect.getsource(assign_longest_first), quiet_s=QUIET_S, max_waiting=MAX_WAITING
        ),
        EXPECTED: json.dumps({name: round(tokens, 1) for name, tokens in expected_tokens(rollouts).items()}, indent=0),
        ROUTER: "".join(f"{key}: {json.dumps(value)}\n" for key, value in configuration.items()),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]
