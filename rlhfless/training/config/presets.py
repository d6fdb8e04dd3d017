"""Named sets of values: ``preset: demo`` in a file, ``preset=demo`` on the command line, ``Trainer(preset="demo")``."""

from __future__ import annotations

from typing import Any

from rlhfless.training.config.errors import TrainError
from solver.model.errors import as_given

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        "steps": 60,
        "save_every": 1,
        "task": {"name": "arithmetic"},
        "rollout": {"samples_per_prompt": 8, "max_response_tokens": 320},
        "algorithm": {"old_logprobs_from": "engine"},
        "optimizer": {"learning_rate": 6e-5, "learner_dtype": "float32"},
        "cluster": {"executor": "virtual", "engine": "torch", "gpus": 16, "gpus_per_node": 8, "profile": "cpu-tiny-qwen2"},
    },
}
"""Name of a preset -> its values, over the defaults.

- demo: the shipped run: a tiny model that learns arithmetic in minutes on a laptop, on 16 emulated GPUs.
"""


def preset(name: Any) -> dict[str, Any]:
    """Return the values of a preset.

    Raises:
        TrainError: there is none of that name.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise TrainError(f"preset is {as_given(name)}; {' or '.join(PRESETS)} is needed")
    return {key: {**value} if isinstance(value, dict) else value for key, value in PRESETS[name].items()}
