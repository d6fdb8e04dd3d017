"""What a user states about a logged run, and what is assumed where nothing is stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhfless.errors import InputError
from solver.model.errors import as_given, is_number, is_whole

PROFILE, PRICE, RESPONSES, PROMPTS = "profile", "usd_per_gpu_hour", "responses_per_step", "prompt_id"
"""What may be assumed: the keys of ``Assumptions.not_stated``."""


@dataclass(frozen=True)
class Assumptions:
    """Facts that a user states about a logged run. Omitted values are assumed, and the report lists the assumptions.

    Attributes:
        dispatch, learner_gpus: see ``analysis.run_setup``.
        prepare_s, learn_s: seconds per step of preparation and learning; None: as logged, or unknown.
        calibrate: scale the latency profile so that generation takes as long as logged or executed, if that is known.
        prices: further prices by name, in USD per GPU-hour.
        tokenizer: folder or hub name of the tokenizer that counts texts where drafts are measured; None: texts are counted in
            bytes.
        not_stated: fact that was not stated -> what is assumed (``report.not_stated``).

    Raises:
        InputError: a value is of another type, or seconds or a price are negative.
    """

    dispatch: str | None = None
    learner_gpus: int | None = None
    prepare_s: float | None = None
    learn_s: float | None = None
    calibrate: bool = True
    prices: Mapping[str, float] = field(default_factory=dict)
    not_stated: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        for name in ("prepare_s", "learn_s"):
            if (value := getattr(self, name)) is not None and not is_number(value, 0):
                raise InputError(f"{name} is {as_given(value)}; seconds of 0 or more are needed")
        if self.learner_gpus is not None and not is_whole(self.learner_gpus):
            raise InputError(f"learner_gpus is {as_given(self.learner_gpus)}; a whole number of GPUs is needed")
        if not isinstance(self.calibrate, bool):
            raise InputError(f"calibrate is {as_given(self.calibrate)}; True or False is needed")
        if self.tokenizer is not None and not isinstance(self.tokenizer, str | Path):
            raise InputError(f"tokenizer is {as_given(self.tokenizer)}; a folder or a name is needed")
        if not isinstance(self.prices, Mapping) or not all(is_number(price, 0) for price in self.prices.values()):
            raise InputError(f"prices is {as_given(self.prices)}; USD per GPU-hour by name are needed, such as {{'spot': 1.9}}")
        if not isinstance(self.not_stated, Mapping):
            raise InputError(f"not_stated is {as_given(self.not_stated)}; sentences by name are needed")
