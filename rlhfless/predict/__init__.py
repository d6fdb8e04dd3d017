"""Response-length predictors: ``fit`` or ``update`` them with rollouts, then ``predict``, ``sample`` or ``forecast``.

The default is ``EwmaPredictor(window=1)``, which predicts a prompt's mean length in the last epoch. ``InFlightPredictor`` also
updates its forecast while responses are decoded.
"""

from collections.abc import Callable, Collection

from rlhfless.predict.checks import PredictionError
from rlhfless.predict.ewma import EwmaPredictor
from rlhfless.predict.from_truth import SyntheticPredictor
from rlhfless.predict.inflight import InFlightPredictor
from rlhfless.predict.metrics import HistoryQuality, history_quality
from rlhfless.predict.predictor import Predictor, expected_tokens

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


__all__ = [
    "EwmaPredictor",
    "HistoryQuality",
    "InFlightPredictor",
    "PredictionError",
    "Predictor",
    "SyntheticPredictor",
    "expected_tokens",
    "history_quality",
    "make_predictor",
    "unknown_predictor",
]


def __dir__() -> list[str]:
    return sorted(__all__)
