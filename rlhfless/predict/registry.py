"""Makes a length predictor by its name on the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rlhfless.predict.errors import PredictionError
from rlhfless.predict.ewma import EwmaPredictor
from rlhfless.predict.inflight import InFlightPredictor
from rlhfless.predict.predictor import Predictor

MAKERS: dict[str, Callable[[], Predictor]] = {"last": EwmaPredictor, "inflight": InFlightPredictor}


def make_predictor(name: str) -> Predictor:
    """Return the predictor with this name.

    Raises:
        PredictionError: there is none.
    """
    if name not in MAKERS:
        raise PredictionError(unknown_predictor(name, MAKERS))
    return MAKERS[name]()


def unknown_predictor(name: str, names: Collection[str]) -> str:
    """Return the error message for an unknown name, with the known ``names``."""
    return f"predictor {name!r} is unknown; choose from {', '.join(names)}"
