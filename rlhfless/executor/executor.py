"""``Executor``: one object for the steps of a run, with a progress bar, on either clock; frees everything on exit.

Knows ``run_step``, pools and tqdm; nothing of what happens inside a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from rlhfless.engine.protocol import Request
from rlhfless.errors import missing_extra
from rlhfless.executor.actors import EngineFactory
from rlhfless.executor.processes import ProcessPool
from rlhfless.executor.ray_pool import RayPool
from rlhfless.executor.record import StepRecord
from rlhfless.executor.virtual import Watch, run_step
from solver.cluster import Cluster, MixedCluster
from solver.objective import StepRest
from solver.offers import Latencies
from solver.plan import Plan


class Executor:
    """Runs plans, step after step, on the same engines and cluster.

    An interrupt ends the step under way and nothing else: its engines are closed, the steps before it stand, and the next one
    can run in the same kernel.

    Args:
        engines: makes engines, as for ``run_step``. latency, cluster: as there.
        pool: run on the wall clock, in these processes or Ray actors; None emulates the plan's GPUs on this device, on the
            virtual clock.
        charging: of the virtual clock, ``profile`` or ``measured``. admission, migration: as for ``run_step``.
        progress: show a bar of completed responses on the virtual clock (needs tqdm).

    Attributes:
        clock_s: where the next step starts; next_step: its number.

    Raises:
        MissingExtra: a bar is wanted and tqdm is not installed.
    """

    def __init__(
        self,
        engines: EngineFactory,
        latency: Latencies,
        cluster: Cluster | MixedCluster,
        *,
        pool: ProcessPool | RayPool | None = None,
        run: str = "run",
        charging: str = "profile",
        admission: str = "reserve",
        migration: str = "cheaper",
        progress: bool = False,
    ) -> None:
        if progress:
            _bar_class()
        self.engines, self.latency, self.cluster, self.pool = engines, latency, cluster, pool
        self._how = {"run": run, "admission": admission, "migration": migration}
        self._charging, self._progress = charging, progress
        self.clock_s, self.next_step = 0.0, 0

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, plan: Plan, requests: Sequence[Request], *, rest: StepRest = StepRest()) -> StepRecord:  # noqa: B008 (frozen)
        """Run one step after the last one; see ``run_step``."""
        given = {**self._how, "step": self.next_step, "start_s": self.clock_s, "rest": rest}
        if self.pool is not None:
            record = self.pool.run_step(plan, requests, self.engines, self.latency, self.cluster, **given)  # type: ignore[arg-type]
        else:
            with self._watching(len(requests)) as watch:
                record = run_step(
                    plan, requests, self.engines, self.latency, self.cluster, charging=self._charging, watch=watch,
                    **given,  # type: ignore[arg-type]
                )  # fmt: skip
        self.clock_s, self.next_step = record.end_s, self.next_step + 1
        return record

    def close(self) -> None:
        """End processes and give back the memory of the weights. Idempotent; nothing can be run afterwards."""
        if self.pool is not None:
            self.pool.close()
        free = None if isinstance(self.engines, type) else getattr(self.engines, "close", None)  # an engine's own is another
        if free is not None:
            free()

    @contextlib.contextmanager
    def _watching(self, responses: int) -> Iterator[Watch | None]:
        if not self._progress:
            yield None
            return
        with _bar_class()(total=responses, desc=f"step {self.next_step}", unit="response") as bar:

            def watch(complete: int, now_s: float) -> None:
                bar.update(complete - bar.n)
                bar.set_postfix_str(f"{now_s - self.clock_s:.1f} virtual s")

            yield watch


def _bar_class() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise missing_extra("a progress bar", "tqdm", "notebook") from None
    return tqdm
