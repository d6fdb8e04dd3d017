"""Wrong options of an executor on the virtual clock end in one sentence, before the step: the one after it is the first."""

from __future__ import annotations

import pytest
from error_messages import refused
from executor_samples import plan_of, random_step

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import Executor


@pytest.mark.parametrize("option", ["charging", "admission", "migration"])
def test_an_unknown_option_is_refused(option: str) -> None:
    step = random_step(3)
    plan = plan_of([range(0, 9), range(9, 18)])
    with (
        refused(ValueError, str(option), "'nonsense'"),
        Executor(SimulatedEngine, step.cluster, latency=step.latency, **{option: "nonsense"}) as executor,  # type: ignore[arg-type]
    ):
        executor.run(plan, step.requests())
    with Executor(SimulatedEngine, step.cluster, latency=step.latency) as executor:
        assert executor.run(plan, step.requests()).step == 0
