"""What tests of engines share: one process with a running vLLM for all that only decode, as its start takes most of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def vllm_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder under which the weights lie that the running vLLM starts with."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def call(vllm_weights: Path) -> Iterator[Callable[..., Any]]:
    """``call(function, *arguments)`` runs a function in the process in which vLLM runs."""
    from vllm_samples import vllm_process

    yield from vllm_process(vllm_weights)
