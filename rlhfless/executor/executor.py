"""``Executor``: runs the steps of a training run one after another on either clock, with a progress bar.

Closing it, or leaving its ``with`` statement, ends processes and frees the memory of the weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

import rlhfless
from rlhfless.engine.protocol import Request
from rlhfless.errors import ClosedError, InputError
from rlhfless.executor.distributed.local.pool import ProcessPool
from rlhfless.executor.distributed.ray.pool import RayPool
from rlhfless.executor.distributed.worker.backend import pool_engines
from rlhfless.executor.step.progress import OnProgress, OnStepEnd, StepProgress
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.requests import encoded, workload_of
from rlhfless.executor.step.step_state import check_migration
from rlhfless.executor.step.work_items import WorkItem
from rlhfless.executor.virtual.actors import Closing, EngineFactory
from rlhfless.executor.virtual.executor import OnReplayProgress, check_charging, run_step
from rlhfless.scheduling import PlanningOptions, PolicyError, PolicyFunction, SchedulingPolicy, as_policy
from rlhfless.system.cleanup import clean_up
from solver.model.admission import check_rule
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import as_given
from solver.model.objective import TIME_WEIGHT, NonGenerationPhases, Objective
from solver.model.offers import Latencies
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem

GUESS = "All lengths are a guess: half of max_response_tokens. Give lengths of an earlier step, if there is one."


class Executor:
    """Run plans, one step after another, on the same engine factory and cluster.

    An interrupt ends only the running step. Its engines are closed, earlier steps stay valid, and the next step can run in the
    same kernel. ``StepFailed.of(error).record`` has the completed part of the step, whose rows are a valid trace.

    Args:
        engine: the engine factory, as for ``run_step``; ``rlhfless.TorchEngine.from_pretrained`` makes one from a model's
            folder.
        cluster, latency: as for ``run_step``.
        actor_pool: run in the pool's processes or Ray actors and measure times; None: emulate the plan's GPUs on this device,
            on the virtual clock.
        charging: source of times on the virtual clock, ``profile`` or ``measured``.
        admission, migration: as for ``run_step``.
        progress: show a progress bar of completed responses, and of replays if times are measured (needs tqdm).

    Attributes:
        clock_s: start of the next step in seconds; next_step: its number. run_name: name of the run in traces. on_progress:
            progress callback of every step, or None. An exception in it ends the step like an interrupt.
        on_step_end: called with the record of every complete step, or with the error that ended it; or None.

    Raises:
        InputError: ``engine`` is not an engine factory, or ``actor_pool`` is a class. InputTypeError: the pool's processes
            cannot make these engines. PlanningError: charging, admission or migration is unknown.
            MissingExtra: a progress bar needs tqdm, which is not installed.
    """

    def __init__(
        self,
        engine: EngineFactory,
        cluster: Cluster | MixedCluster,
        *,
        latency: Latencies,
        actor_pool: ProcessPool | RayPool | None = None,
        charging: str = "profile",
        admission: str = "reserve",
        migration: str = "cheaper",
        progress: bool = False,
    ) -> None:
        if not callable(engine):
            raise InputError(
                f"engine is {as_given(engine)}; an engine factory is needed, such as that of "
                "rlhfless.TorchEngine.from_pretrained(FOLDER)"
            )
        if isinstance(actor_pool, type):
            name = actor_pool.__name__
            raise InputError(f"actor_pool is the class {name}; give a pool, which it makes: actor_pool={name}()")
        if isinstance(actor_pool, ProcessPool | RayPool):
            pool_engines(engine)
        check_charging(charging)
        check_migration(migration)
        check_rule(admission)
        self._closed = False
        self.engines, self.latency, self.cluster, self.actor_pool = engine, latency, cluster, actor_pool
        self._how = {"admission": admission, "migration": migration}
        self._charging, self._progress = charging, progress
        self.run_name, self.clock_s, self.next_step = "run", 0.0, 0
        self.on_progress: OnProgress | None = None
        self.on_step_end: OnStepEnd | None = None

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        clean_up(self.close, after=error)

    def problem(
        self, requests: Sequence[Request], *, lengths: ArrayLike | None = None, time_weight: float = TIME_WEIGHT
    ) -> PlanningProblem:
        """Return the planning problem of a step on this cluster, as input for ``solver.plan_of`` and other functions of
        ``solver``.

        Args:
            requests: requests of the step, as ``rlhfless.requests`` makes them.
            lengths: (R,) expected tokens of each response, such as those of an earlier step, or (S, R) scenarios. None: half of
                the response limit for each, as a guess.
            time_weight: w in ``T^w C^(1-w)``, which plans minimise: 1 is time only, 0 is cost only.

        Raises:
            InputError: a prompt cannot be encoded, or the lengths are not one for each response.
            PlanningError: a number is out of its range, or no actor can hold a response.

        Example:
            >>> import rlhfless as rl, solver
            >>> cluster, latency = rl.Hardware(gpus=2, profile="cpu-tiny-qwen2").cluster()
            >>> requests = rl.requests([[5, 6, 7], [8, 9]], samples_per_prompt=4, max_response_tokens=64)
            >>> executor = rl.Executor(rl.TorchEngine.from_pretrained("data/models/arithmetic-grpo"), cluster, latency=latency)
            >>> mine = solver.plan_of([[0, 1, 2, 3], [4, 5, 6, 7]], executor.problem(requests), policy="by prompt")
            >>> len(executor.run(mine, requests).trace.rollouts)
            8
            >>> executor.close()
        """
        workload = workload_of(encoded(requests, self.engines), lengths)
        return PlanningProblem(workload, self.cluster, self.latency, Objective(time_weight))

    def plan(
        self,
        requests: Sequence[Request],
        policy: str | SchedulingPolicy | PolicyFunction = "solver",
        *,
        lengths: ArrayLike | None = None,
        time_weight: float = TIME_WEIGHT,
        seed: int = 0,
    ) -> Plan:
        """Return a policy's plan of a step; ``run`` executes it with the same requests.

        Args:
            policy: a name, an object, or a function ``(problem, options) -> Plan``.
            requests, lengths, time_weight: as for ``problem``. Without lengths the plan's times are guesses, which
                ``notes["lengths"]`` states; the record has the real times.
            seed: seed of policies that use random numbers.

        Raises:
            InputError, PlanningError: as ``problem``.
            PolicyError: the policy is unknown, or needs the true lengths.

        Example:
            >>> import rlhfless as rl
            >>> cluster, latency = rl.Hardware(gpus=2, profile="cpu-tiny-qwen2").cluster()
            >>> requests = rl.requests(["1+2=", "3+4="], samples_per_prompt=4, max_response_tokens=64)
            >>> engine = rl.TorchEngine.from_pretrained("data/models/arithmetic-grpo")
            >>> with rl.Executor(engine, cluster, latency=latency) as executor:
            ...     record = executor.run(executor.plan(requests), requests)
            >>> len(record.trace.rollouts)
            8
        """
        chosen = as_policy(policy)
        if chosen.clairvoyant:
            raise PolicyError(f"policy {chosen.name!r} needs the true lengths, which are unknown before a step; choose another")
        problem = self.problem(requests, lengths=lengths, time_weight=time_weight)
        plan = chosen.plan(problem, PlanningOptions(seed=seed))
        return plan if lengths is not None else replace(plan, notes={**plan.notes, "lengths": GUESS})

    def run(
        self,
        plan: Plan,
        requests: Sequence[Request],
        *,
        phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008
        work: Sequence[WorkItem] = (),
    ) -> StepRecord:
        """Run the next step and return its record; see ``run_step``.

        Args:
            requests: as ``rlhfless.requests`` makes them; texts are encoded with the engine's tokenizer.
            work: work items that run in addition to decoding, see ``rlhfless.WorkItem``; their times and results are in
                ``StepRecord.work``.

        Raises:
            InputError: a prompt is a text, and the engine has no tokenizer.
            ClosedError: the executor was closed.

        Example:
            >>> import rlhfless as rl, solver
            >>> from rlhfless.engine import Request, SimulatedEngine
            >>> latency, cluster = rl.load_profile("cpu-tiny-qwen2"), solver.Cluster(1, 2, 1, "cpu")
            >>> workload = solver.Workload([6], [0, 0, 0], [40, 50, 90], max_response_tokens=100)
            >>> plan = solver.random_split(solver.PlanningProblem(workload, cluster, latency), actors=1)
            >>> requests = [Request(i, 6, 100, target_tokens=tokens) for i, tokens in enumerate([40, 50, 90])]
            >>> with rl.Executor(SimulatedEngine, cluster, latency=latency) as executor:
            ...     record = executor.run(plan, requests)
            >>> record.trace.rollouts["response_tokens"].tolist()
            [40, 50, 90]
        """
        if self._closed:
            raise ClosedError("this executor is closed; create a new one to run more steps")
        about = {"run": self.run_name, "step": self.next_step, "start_s": self.clock_s, "phases": phases, "work": work}
        try:
            record = self._run(plan, encoded(requests, self.engines), {**self._how, **about})
        except BaseException as error:
            if self.on_step_end is not None:
                self.on_step_end(error)
            raise
        self.clock_s, self.next_step = record.end_s, self.next_step + 1
        if self.on_step_end is not None:
            self.on_step_end(record)
        return record

    def live(self, work: Sequence[tuple[Plan, Sequence[Request]]] = ()) -> Any:
        """Return a view for a notebook: timeline, cost and idle share of the steps while they run; see ``rlhfless.live``.

        Args:
            work: plans with their requests, which the buttons run; without any, the view shows the steps that cells run.
        """
        return rlhfless.live(self, work)

    def _run(self, plan: Plan, requests: Sequence[Request], options: dict[str, Any]) -> StepRecord:
        with self._watching(len(requests)) as (on_progress, on_replay_progress):
            if self.actor_pool is not None:
                return self.actor_pool.run_step(
                    plan, requests, self.engines, self.latency, self.cluster, on_progress=on_progress, **options
                )
            return run_step(
                plan, requests, self.engines, self.latency, self.cluster, charging=self._charging, on_progress=on_progress,
                on_replay_progress=on_replay_progress, **options,
            )  # fmt: skip

    def close(self) -> None:
        """Stop processes and free the memory of the weights. Idempotent; nothing can be run afterwards."""
        self._closed = True
        ends = [] if self.actor_pool is None else [self.actor_pool.close]
        if isinstance(self.engines, Closing) and not isinstance(self.engines, type):  # an engine class closes its own
            ends.append(self.engines.close)
        clean_up(*ends)

    @contextlib.contextmanager
    def _watching(self, responses: int) -> Iterator[tuple[OnProgress | None, OnReplayProgress | None]]:
        if not self._progress:
            yield self.on_progress, None
            return
        from tqdm.auto import tqdm

        step, seconds = f"step {self.next_step}", "s" if self.actor_pool is not None else "virtual s"
        with contextlib.ExitStack() as bars:
            bar = bars.enter_context(tqdm(total=responses, desc=step, unit="response"))
            replays: list[Any] = []  # a bar of their own, once there are any

            def on_progress(progress: StepProgress) -> None:
                bar.update(progress.completed - bar.n)
                bar.set_postfix_str(f"{progress.now_s - self.clock_s:.1f} {seconds}")
                if self.on_progress is not None:
                    self.on_progress(progress)

            def on_replay_progress(done: int, of: int) -> None:
                if not replays:
                    replays.append(bars.enter_context(tqdm(total=of, desc=f"{step} measured", unit="replay")))
                replays[0].update(done - replays[0].n)

            yield on_progress, on_replay_progress
