"""How many GPUs generate and how many train: every division of a run's GPUs, in steady state, beside a lower bound.

A run that divides its GPUs generates the batches of coming steps on some of them and learns on the others. Its inputs here are
seconds of generation of every step, simulated on so many actors of some size, and seconds of learning on the run's own learner
GPUs. From both follow the seconds of a step under a bound on staleness k: a batch is generated with weights that lack at most
k updates when the batch is learned. 0 takes turns on divided GPUs; None is no bound.

**Recursion.** Batch j takes ``g_j`` s of generation, its update ``u_j`` s of learning and ``s`` s to send the new weights::

    start_j = max(end_{j-1}, sent_{j-1-k})
    end_j   = start_j + g_j + (seconds in which weights are sent meanwhile)
    sent_j  = max(end_j, sent_{j-1}) + u_j + s

While weights are sent, generation pauses and goes on with the KV caches that it has (in-flight weight updates: NeMo-RL's
``grpo.async_grpo.in_flight_weight_updates``, AReaL, prime-rl). The batches of the log come again and again, so what filling the
pipeline takes is not counted. With lending, GPUs of generation that wait for new weights help to learn until these are there.

A batch begins when the one before it is complete (verl's one-step-off policy, OpenRLHF's ``--async_train``, slime's
``train_async.py``). Frameworks that start the next responses in free slots (AReaL, prime-rl, verl's fully async policy) lose
less time to stragglers: for them, batches that may start run together, response by response, in the loop of
``what_ifs.asynchronous.with_interrupts``.

**Assumed.** Learning is data-parallel: its seconds times its GPUs stay the same,
unless an efficiency is stated. Nobody checks whether the learner fits into the memory of its GPUs.

**Bound.** A step takes at least the learning and sending of its update, and at least the GPU-seconds of the bound
on any schedule of generation, evenly over the GPUs that generate. Where both take turns, it takes at least the sum of their
least times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlhfless.analysis.own_times import evenly
from rlhfless.analysis.what_ifs.asynchronous import with_interrupts
from rlhfless.analysis.what_ifs.outcome import RunToChange, Took
from rlhfless.analysis.what_ifs.prompt_pool import PromptPool
from rlhfless.analysis.what_ifs.whole_steps import checked, gpus_of, learner_gpus_of, step_tokens
from rlhfless.errors import InputError
from rlhfless.latency.counts import gpu_number, gpu_numbers
from rlhfless.simulate import execute_steps
from rlhfless.trace.schema.prices import dollars
from solver.bounds.schedules import ScheduleBound
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.latency import LatencyModel
from solver.model.plurals import counted
from solver.model.workload import FloatArray

SHARED, DIVIDED, LENT = "shared", "divided", "divided, idle GPUs lent"
"""Ways to use the GPUs: all generate, then all train; some do each; and those that generate help to learn where they wait."""

BOUNDS = (0, 1)
"""Updates that the weights of a batch may lack, in reports: in turns, and one step ahead."""

MOST_DIVISIONS = 24  # of one number of GPUs and one size of actors; of more, evenly chosen ones are simulated
APART, TOGETHER = "apart", "together"
"""How batches follow each other: one begins when the one before is complete, or all that may start run together."""

LEAST_STEPS = 100  # of the steady state
LONG_S = 1e9  # longer than any run
ROUNDING = 1e-9  # relative: by so much less than its bound, a sum of the same seconds may be rounded
COLUMNS = ("gpus", "gpus_generate", "gpus_train", "gpus_per_actor", "actors", "way", "step_s", "least_step_s", "generate_s",
           "learn_s", "generation_busy_share", "learner_busy_share", "gpu_s", "usd")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Learning:
    """Seconds of preparation and learning of each step, and how they change with the number of GPUs.

    Attributes:
        seconds: (K,) on ``gpus`` GPUs. sync_s: to send the weights of an update, on any GPUs.
        efficiency: share of a doubled speed that doubling the GPUs gives, 0.5 (none of it) to 1 (seconds times GPUs stay the
            same).
    """

    seconds: FloatArray
    gpus: int
    sync_s: float = 0.0
    efficiency: float = 1.0

    def on(self, gpus: int) -> FloatArray:
        """Return (K,) seconds on another number of GPUs."""
        return np.asarray(self.seconds * (self.gpus / gpus) ** (1.0 + math.log2(self.efficiency)))


def sent_times(
    generate_s: Sequence[float], learn_s: Sequence[float], sync_s: float, staleness: int, lent: float = 1.0
) -> list[float]:
    """Return when the weights of every update have been sent, by the recursion of this module, from the first batch on.

    Args:
        generate_s, learn_s: (N,) seconds of every batch and of its update. staleness: k.
        lent: how many times as fast learning is while GPUs that generate wait for new weights and help.
    """
    sent: list[float] = []
    ends: list[float] = []
    now, left = 0.0, float(generate_s[0])  # of the generation: its time, and what the running batch still takes

    def generate_until(until_s: float) -> None:
        nonlocal now, left
        while len(ends) < len(generate_s) and len(ends) <= len(sent) + staleness:
            if now + left > until_s:
                now, left = until_s, left - (until_s - now)
                return
            now += left
            ends.append(now)
            left = float(generate_s[len(ends)]) if len(ends) < len(generate_s) else 0.0

    for update, seconds in enumerate(learn_s):
        if len(ends) <= update:
            generate_until(now + left)
        begin = max(ends[update], sent[-1] if sent else 0.0)
        waits_from = now + left + sum(generate_s[len(ends) + 1 : len(sent) + staleness + 1])
        if len(ends) > len(sent) + staleness:
            waits_from = now
        alone_s = max(0.0, waits_from - begin)
        done = begin + (seconds if alone_s >= seconds else alone_s + (seconds - alone_s) / lent)
        generate_until(done)
        now = done + sync_s
        sent.append(now)
    return sent


def steady_step_s(
    generate_s: Sequence[float], learn_s: Sequence[float], sync_s: float, staleness: int | None, lent: float = 1.0
) -> float:
    """Return the seconds of a step in steady state, when the batches come again and again.

    Args: as ``sent_times``; without a bound on staleness (None) generation never waits, and its slower side sets the pace.
    """
    if staleness is None:
        return max(float(np.mean(generate_s)), float(np.mean(learn_s))) + sync_s
    steps = len(generate_s)
    laps, ahead = 2 * math.ceil(max(LEAST_STEPS, 2 * (staleness + 1)) / steps), math.ceil((staleness + 1) / steps)
    sent = sent_times(list(generate_s) * (laps + ahead), list(learn_s) * laps, sync_s, staleness, lent)
    half = laps // 2 * steps
    return (sent[-1] - sent[half - 1]) / (len(sent) - half)


def splits(
    run: RunToChange,
    models: Sequence[LatencyModel],
    learning: Learning,
    totals: Sequence[int],
    staleness: int | None,
    *,
    batches: str = APART,
    lend_idle: bool = False,
) -> pd.DataFrame:
    """Return every way to use every number of GPUs, for every size of actors that has a latency model.

    Args:
        run: its steps come again and again; its own dispatch assigns responses. models: one per size of actors.
        learning: of the same steps. totals: numbers of GPUs. staleness: most updates that a batch's weights lack; None: any.
        batches: ``apart`` or ``together``. lend_idle: also those ways where generating GPUs that wait help to learn.

    Returns:
        One row per way: ``gpus, gpus_generate, gpus_train, gpus_per_actor, actors, way``, ``step_s`` in steady state and
        ``least_step_s``, a lower bound on it; ``generate_s`` and ``learn_s`` of a step by itself, the shares of the step in
        which each side works, ``generation_busy_share`` (not a number where batches run together) and ``learner_busy_share``;
        ``gpu_s`` and ``usd`` (not a number without a price) of a step. A size of actors that cannot hold a response has no
        rows.

    Raises:
        InputError: the run cannot be changed, or no number of GPUs has room for actors and a learner.
        PlanningError: a response fits on no actor of any size.
    """
    checked(run)
    rows: list[dict[str, object]] = []
    refusal: PlanningError | None = None
    for model in models:
        try:
            for total in totals:
                rows += _of_size(run, model, learning, total, staleness, batches, lend_idle=lend_idle)
        except PlanningError as error:
            refusal = error
    if not rows and refusal is not None:
        raise refusal
    if not rows:
        sizes = ", ".join(str(model.gpus_per_actor) for model in models)
        raise InputError(
            f"gpus is {as_given(list(totals))} with {sizes} GPUs per actor; GPUs for one actor and at least one more to learn "
            "are needed"
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of_size(
    run: RunToChange,
    model: LatencyModel,
    learning: Learning,
    total: int,
    staleness: int | None,
    batches: str,
    *,
    lend_idle: bool,
) -> Iterator[dict[str, object]]:
    """Yield the rows of one number of GPUs and one size of actors: all GPUs shared, then every division."""
    size, sync_s = model.gpus_per_actor, learning.sync_s
    price = run.setting.cluster.usd_per_gpu_hour / 3600.0
    generation = _Generation(run, model)

    together = batches == TOGETHER and bool(staleness)

    def row(way: str, actors: int, train: int, step_s: float, least_s: float) -> dict[str, object]:
        generate_s, learn_s = float(generation.seconds(actors).mean()), float(learning.on(train).mean())
        return {
            "gpus": total, "gpus_generate": total if way == SHARED else actors * size, "gpus_train": train,
            "gpus_per_actor": size, "actors": actors, "way": way, "step_s": step_s,
            "least_step_s": min(least_s, step_s) if least_s <= step_s * (1 + ROUNDING) else least_s,
            "generate_s": generate_s, "learn_s": learn_s,
            "generation_busy_share": math.nan if together and way == DIVIDED else _share(generate_s, step_s),
            "learner_busy_share": _share(learn_s, step_s),
            "gpu_s": total * step_s, "usd": float(dollars(total * step_s, price)),
        }  # fmt: skip

    if total >= size:
        actors, learn_s = total // size, learning.on(total)
        step_s = float(generation.seconds(actors).mean() + learn_s.mean()) + sync_s
        yield row(SHARED, actors, total, step_s, generation.least_s(actors, alone=True) + float(learn_s.mean()) + sync_s)
    for actors in evenly(range(1, (total - 1) // size + 1), MOST_DIVISIONS):
        train = total - actors * size
        generate_s, learn_s = generation.seconds(actors), learning.on(train)
        lent = float(learn_s.sum() / learning.on(total).sum()) if learn_s.sum() else 1.0
        turns = staleness == 0
        least_generation_s = generation.least_s(actors, alone=turns)
        for way, times in ((DIVIDED, 1.0), *(((LENT, lent),) if lend_idle else ())):
            least_learn_s = float(learn_s.mean()) / times
            least_s = least_generation_s + least_learn_s if turns else max(least_generation_s, least_learn_s)
            if together and staleness:
                step_s = max(generation.together_s(actors, learn_s, staleness), least_s + sync_s)
            else:
                step_s = steady_step_s(generate_s.tolist(), learn_s.tolist(), sync_s, staleness, times)
            yield row(way, actors, train, step_s, least_s + sync_s)


def _share(seconds: float, step_s: float) -> float:
    return min(1.0, seconds / step_s) if step_s else 0.0


class _Generation:
    """Seconds of generation of the steps of a run, by the number of actors of one size; simulated once for each.

    The dispatch of a run (``framework_defaults.DISPATCHES``) keeps the samples of a prompt together. So actors beyond the
    prompts have nothing to do, and no more actors than prompts are simulated.
    """

    def __init__(self, run: RunToChange, model: LatencyModel) -> None:
        self._run, self._model = run, model
        self._prompts = int(PromptPool.of(run.logged).prompts_of_step.max())
        self._seconds: dict[int, FloatArray] = {}
        self._least_s: dict[tuple[int, bool], float] = {}

    def seconds(self, actors: int) -> FloatArray:
        """Return (K,) seconds of generation of each step."""
        actors = min(actors, self._prompts)
        if actors not in self._seconds:
            fixed = self._run.setting.static_actors
            static = None if fixed is None else min(fixed, actors)
            setting = replace(
                self._run.setting, cluster=self._cluster(actors), latency=self._model, static_actors=static, bound_work=0
            )
            (executed,) = execute_steps(self._run.logged, setting, [self._run.setup.dispatch]).values()
            self._seconds[actors] = np.array([record.end_s - record.start_s for record, _ in executed])
        return self._seconds[actors]

    def together_s(self, actors: int, learn_s: FloatArray, staleness: int) -> float:
        """Return the seconds of a step where batches that may start run together: what the steps take once more, after as many
        as fill the pipeline. As these are few, that may be a little less than the bound of a steady state.

        Args:
            learn_s: (K,) seconds of learning each step.
        """
        steps = tuple(self._run.logged)
        actors = min(actors, (staleness + 1) * self._prompts)  # of the steps that may run at the same time
        setting = replace(self._run.setting, cluster=self._cluster(actors), latency=self._model)
        laps = 1 + math.ceil(staleness / len(steps))
        fewer, more = (
            with_interrupts(
                replace(self._run, logged=steps * n, setting=setting), actors, staleness, np.tile(learn_s, n)
            ).time_s
            for n in (laps, laps + 1)
        )
        return (more - fewer) / len(steps)

    def least_s(self, actors: int, *, alone: bool) -> float:
        """Return the least seconds of generation per step.

        Args:
            alone: of steps of which none begins before the one before it is complete.
        """
        if (actors, alone) not in self._least_s:
            latency = replace(self._model, start_s=0.0, sync_s=0.0, join_s=0.0)  # of actors that run already
            setting = replace(self._run.setting, cluster=self._cluster(actors), latency=latency)
            if alone:
                problems = (setting.problem(step.truth) for step in self._run.logged)
                least = float(np.mean([ScheduleBound(problem, lp_work=0).shortest_s() for problem in problems]))
            else:
                pool = PromptPool.of(self._run.logged)
                every = np.arange(len(pool.length))
                problem = setting.problem(pool.workload(every, np.zeros_like(every), pool.length))
                gpu_s = ScheduleBound(problem, lp_work=0).gpu_seconds(LONG_S)
                least = gpu_s / (actors * self._model.gpus_per_actor * len(self._run.logged))
            self._least_s[actors, alone] = least
        return self._least_s[actors, alone]

    def _cluster(self, actors: int) -> Cluster:
        size = self._model.gpus_per_actor
        return replace(self._run.setting.cluster, nodes=actors, gpus_per_node=size, gpus_per_actor=size)


def learning_of(run: RunToChange, learn_s: float | None = None, efficiency: float = 1.0) -> Learning:
    """Return the learning of a run's steps, in proportion to their tokens.

    Args:
        learn_s: mean seconds of preparation and learning of a step on the run's own learner GPUs; its phases' when None.
        efficiency: see ``Learning``.

    Raises:
        InputError: the seconds or GPUs of learning are unknown, or an argument makes no sense.
    """
    seconds = run.phases.prepare_s + run.phases.learn_s if learn_s is None else learn_s
    if not is_number(seconds, 0) or not 0 < seconds < math.inf:
        given = "is unknown or 0" if learn_s is None else f"is {as_given(learn_s)}"
        raise InputError(
            f"learn_s, the seconds of learning of a step, {given}; seconds above 0 on the run's learner GPUs are needed, as in "
            "run.split(learn_s=20)"
        )
    gpus = learner_gpus_of(run)
    if not gpus:
        raise InputError(
            "the number of GPUs that learn is unknown; rl.load(..., assumptions=Assumptions(learner_gpus=N)) is needed"
        )
    if not is_number(efficiency, 0.5) or efficiency > 1:
        raise InputError(
            f"efficiency is {as_given(efficiency)}; 0.5 (more GPUs do not help to learn) to 1 (seconds times GPUs stay the "
            "same) is needed"
        )
    tokens = np.array([float(step_tokens(step).sum()) for step in run.logged])
    shares = tokens / tokens.mean() if tokens.mean() else np.ones(len(tokens))
    return Learning(seconds * shares, gpus, run.phases.sync_s, float(efficiency))


def splits_by_bound(run: RunToChange) -> pd.DataFrame:
    """Return the divisions of a run's own GPUs and size of actors for every bound of ``BOUNDS``, with a column ``staleness``.

    Without rows where the learner has no GPUs of its own, or their number or the seconds of learning are unknown.
    """
    if run.setup.colocated or not run.setup.learner_gpus or not run.phases.prepare_s + run.phases.learn_s:
        return pd.DataFrame(columns=[*COLUMNS, "staleness"])
    models, learning, totals = [run.setting.latency], learning_of(run), [gpus_of(run)]
    tables = (splits(run, models, learning, totals, bound, batches=batches_of(run)) for bound in BOUNDS)
    return pd.concat([table.assign(staleness=bound) for table, bound in zip(tables, BOUNDS, strict=True)])


def batches_of(run: RunToChange) -> str:
    """Return how batches of the run's framework follow each other: together where it learns from whatever is complete."""
    return APART if run.setup.synchronous else TOGETHER


def own_split(run: RunToChange, table: pd.DataFrame) -> pd.Series | None:
    """Return the row of the run's own division of its GPUs.

    Of an executed run it is what the steps took, without a least time, on the GPUs that learned: some of those that generate,
    which no row of the table has, or others. Of a logged run it is one of the table; None where that does not have it.
    """
    cluster = run.setting.cluster
    way = SHARED if run.setup.colocated else DIVIDED
    if run.executed:
        return None if run.took is None else _as_executed(run, run.took, way)
    own = table[
        (table["gpus"] == gpus_of(run)) & (table["gpus_per_actor"] == cluster.gpus_per_actor)
        & (table["actors"] == cluster.max_actors) & (table["way"] == way)
    ]  # fmt: skip
    return None if own.empty else own.iloc[0]


def _as_executed(run: RunToChange, took: Took, way: str) -> pd.Series:
    """Return what the steps of an executed run took, as a row of ``splits``."""
    cluster, generate_s, learn_s = run.setting.cluster, float(np.mean(took.generation_s)), run.phases.seconds
    step_s, gpu_s = generate_s + learn_s, took.gpu_s / len(run.logged)
    return pd.Series({
        "gpus": gpus_of(run), "gpus_generate": cluster.gpus, "gpus_train": learner_gpus_of(run),
        "gpus_per_actor": cluster.gpus_per_actor, "actors": cluster.max_actors, "way": way, "step_s": step_s,
        "least_step_s": math.nan, "generate_s": generate_s, "learn_s": learn_s,
        "generation_busy_share": _share(generate_s, step_s), "learner_busy_share": _share(learn_s, step_s),
        "gpu_s": gpu_s, "usd": float(dollars(gpu_s, cluster.usd_per_gpu_hour / 3600.0)),
    })  # fmt: skip


def assumptions(run: RunToChange, learning: Learning, staleness: int | None, batches: str) -> tuple[str, ...]:
    """Return what a table of divisions assumes, one sentence each."""
    bound = "any number of updates" if staleness is None else counted(staleness, "update")
    scaled = (
        "seconds times GPUs stay the same" if learning.efficiency == 1
        else f"doubling its GPUs makes it {2 * learning.efficiency:.3g} times as fast"
    )  # fmt: skip
    follow = {APART: "each batch after the one before it", TOGETHER: "batches that may start run together"}[batches]
    learns = f"{learning.seconds.mean():.4g} s a step on {counted(learning.gpus, 'GPU')}"
    return (
        f"the weights of a batch lack at most {bound}",
        f"learning takes {learns} and is data-parallel: {scaled}",
        f"sending weights takes {learning.sync_s:.4g} s a step on any GPUs, and generation pauses meanwhile",
        f"generation is simulated on {counted(len(run.logged), 'step')} of the log, {follow}",
        f"responses are assigned by {run.setup.dispatch}",
        "the learner fits into the memory of its GPUs",
    )


def totals_of(gpus: object, run: RunToChange) -> list[int]:
    """Return the numbers of GPUs that a user states: one, several, or None for those of the run.

    Raises:
        InputError: one is no number of GPUs, or is there twice.
    """
    if gpus is None:
        return [gpus_of(run)]
    return [gpu_number("gpus", gpus)] if is_number(gpus) else gpu_numbers("gpus", gpus)


def check_staleness(staleness: object) -> int | None:
    """Return a bound on staleness; None is no bound.

    Raises:
        InputError: it is neither a whole number of 0 or more nor None.
    """
    if staleness is None or is_whole(staleness, 0):
        return None if staleness is None else int(staleness)  # type: ignore[call-overload]
    raise InputError(f"staleness is {as_given(staleness)}; a whole number of updates of 0 or more, or None for any, is needed")
