"""A predictor that goes on predicting while responses are decoded, in the loop: its forecast is what re-planning goes by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from test_loop import texts
from training_samples import config

from rlhfless.executor import ProcessPool
from rlhfless.predict import EwmaPredictor, InFlightPredictor
from rlhfless.predict.length_model import InFlightLengths
from rlhfless.scheduling.replan import SolverReplan
from rlhfless.training.loop import Trainer, train
from solver.lengths.forecast import LengthForecast
from solver.model.errors import PlanningError

HISTORY = 2  # steps before the first that has seen all 8 prompts, which is when this predictor says something of its own


@pytest.mark.full
def test_replanning_goes_by_the_predictors_own_forecast(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And learning does not see it: the same texts as with another predictor."""
    plan, own = SolverReplan.plan, list[bool]()

    def noted(self: SolverReplan, problem: Any, options: Any) -> Any:
        own.append(isinstance(options.forecast.remaining, InFlightLengths))
        return plan(self, problem, options)

    monkeypatch.setattr(SolverReplan, "plan", noted)
    options = config(policy="solver+replan", steps=4)
    with Trainer(options, tmp_path / "inflight", model=model, predictor=InFlightPredictor(), progress=False) as trainer:
        trainer.train()
    assert own == [False, False, True, True]
    train(options, tmp_path / "default", model=model)
    assert own[4:] == [False] * 4
    assert texts(tmp_path / "inflight") == texts(tmp_path / "default")


@pytest.mark.parametrize(
    ("predictor", "own"), [(InFlightPredictor, True), pytest.param(EwmaPredictor, False, marks=pytest.mark.full)]
)
def test_a_pool_plans_anew_after_losses_by_the_same_forecast(
    predictor: Any, own: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_step, forecasts = ProcessPool.run_step, list[Any]()

    def noted(*given: Any, **named: Any) -> Any:
        forecasts.append(named["forecast"])
        return run_step(*given, **named)

    monkeypatch.setattr(ProcessPool, "run_step", noted)
    options = config(executor="local", gpus=1, gpus_per_node=1, policy="static", steps=HISTORY + 1)
    with Trainer(options, model=model, predictor=predictor(), progress=False) as trainer:
        trainer.train()
    assert [isinstance(one, InFlightLengths) for one in forecasts] == [False] * HISTORY + [own]
    assert all(one.max_response_tokens == options.rollout.max_response_tokens for one in forecasts)


class Lengths:
    """A predictor of one's own that returns what the test says."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def fit(self, history: Any) -> Lengths:
        """Learn nothing."""
        return self

    def forecast(self, *asked: Any, **named: Any) -> Any:
        """Return it."""
        return self.returned() if callable(self.returned) else self.returned


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        ([5.0, 9.0], "LengthForecast"),
        (lambda: LengthForecast([float("nan")] * 12), "expected[0]"),
        (lambda: LengthForecast([-1.0] * 12), "expected[0]"),
        (LengthForecast([5.0]), "1 length"),
    ],
)
def test_a_forecast_that_makes_no_sense_is_refused(returned: Any, named: str, model: Path) -> None:
    trainer = Trainer(config(), model=model, predictor=Lengths(returned), progress=False)
    with refused(PlanningError, named):
        trainer.step()
