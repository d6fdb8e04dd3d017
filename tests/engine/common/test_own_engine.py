"""An engine of one's own: the page's code runs in the processes of a pool, and what its record denies is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import plan_of

pytest.importorskip("torch")
pytest.importorskip("transformers")

import rlhfless as rl
from rlhfless.engine import Capabilities, PoolEngines, Sampling
from rlhfless.executor import ProcessPool
from solver import Cluster, LatencyModel, PlanningError

ROOT = Path(__file__).parents[3]
ENGINE, USE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "add_an_engine.md").read_text("utf-8"), flags=re.S)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the second block defines, with the first one as a file that processes can import."""
    (tmp_path / "my_engine.py").write_text(ENGINE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_engine", raising=False)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(USE, "add_an_engine.md", "exec", dont_inherit=True), names)
    return names


@pytest.mark.full
def test_the_page_decodes_what_other_engines_decode(page: dict[str, Any]) -> None:
    record, requests = page["record"], page["requests"]
    engine = rl.TorchEngine.from_pretrained(page["folder"], sampling=Sampling(temperature=0))
    with rl.Executor(engine, page["cluster"], latency=page["latency"]) as executor:
        expected = executor.run(executor.plan(requests), requests)
    for response, completion in expected.completions.items():
        assert np.array_equal(record.completions[response].token_ids, completion.token_ids)
        assert record.completions[response].finish_reason == completion.finish_reason
    decoded = sum(span["tokens"] for span in record.spans if span["phase"] == "decode")
    assert decoded == sum(c.response_tokens for c in record.completions.values())


class OneGpu(PoolEngines):
    capabilities = Capabilities("an engine of one GPU", one_gpu=True, moves=False)

    def __call__(self, *_: Any) -> None:
        raise AssertionError("nothing starts")


def test_what_a_record_denies_is_refused_before_anything_starts() -> None:
    latency = LatencyModel("tiny", 1, 2e-3, 40e-6, max_batch=4, kv_capacity_tokens=1 << 20)
    with refused(PlanningError, "'by hand'", "an engine of one GPU"), ProcessPool(["cpu"]) as pool:
        pool.run_step(plan_of([[0]], rule=object()), [], OneGpu(), latency, Cluster(1, 1, 1))  # type: ignore[arg-type]


def test_every_field_of_the_record_is_on_the_page() -> None:
    page = (ROOT / "docs" / "add_an_engine.md").read_text("utf-8")
    fields = re.findall(r"^\| `(\w+)` \|", page, flags=re.M)
    assert fields == list(Capabilities.__dataclass_fields__)
