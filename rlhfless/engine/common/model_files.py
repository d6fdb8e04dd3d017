"""Writes a model as transformers' ``save_pretrained`` does, in a number format of choice. Does not load torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any


def write_model(model: Any, folder: Path, dtype: Any = None) -> None:
    """Write weights, configuration and generation config of a model into a folder; the model stays as it is.

    Args:
        model: a transformers model.
        dtype: number format of torch in which the weights are written; the configuration names it. None: the model's.
    """
    given = getattr(model, "generation_config", None)
    weights = None if dtype is None or dtype == model.dtype else _in_format(model, dtype)
    try:
        if given is not None:  # transformers refuses to write some that it loads, as one with a temperature of greedy decoding
            model.generation_config = type(given)()
        model.save_pretrained(folder, state_dict=weights, safe_serialization=True)
    finally:
        if given is not None:
            model.generation_config = given
    if given is not None and model.can_generate():
        given.to_json_file(folder / "generation_config.json", keys_to_pop=["compile_config"])  # as save_pretrained does
    if weights is not None:
        config = copy.deepcopy(model.config)
        for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
            if part is not None:
                part.dtype = dtype
        config.save_pretrained(folder)


def _in_format(model: Any, dtype: Any) -> dict[str, Any]:
    """Return a model's state with its weights in a number format, on the CPU; tied ones are one tensor, as in the model."""
    copies = {id(weight): weight.detach().to("cpu", dtype) for weight in model.parameters()}
    return {name: copies.get(id(value), value) for name, value in model.state_dict(keep_vars=True).items()}
