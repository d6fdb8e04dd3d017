"""A router for verl that deals prompts as a plan says: three files beside a run's configuration.

Knows verl's interface for routers of one's own (``actor_rollout_ref.rollout.router_config_path``; tried with the router of
verl 0.9.1) and plans; nothing of how plans are found. verl's log has a prompt's text, not its tokens, so prompts are recognised
by the hash of their decoded text, in the log as in the running system.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from rlhfless.scheduling import make_policy
from rlhfless.simulate import Setting, logged_steps
from rlhfless.trace import TraceError
from rlhfless.trace.storage import absolute, write_text
from solver.objective import Objective

MODULE, PLACEMENT, ROUTER = "planned_router.py", "placement.json", "router.yaml"

ROUTER_CODE = '''"""verl router: a prompt's responses go to the replicas that a plan names, others to the least loaded.

Written by rlhfless. Use: PYTHONPATH=<this folder> ... actor_rollout_ref.rollout.router_config_path=<this folder>/router.yaml
"""
import hashlib, itertools, json
from transformers import AutoTokenizer
from verl.workers.rollout.router import GlobalRequestLoadBalancer


class PlannedRouter(GlobalRequestLoadBalancer):
    def __init__(self, servers, router_kwargs):
        super().__init__(servers)
        self._tokenizer = AutoTokenizer.from_pretrained(router_kwargs["tokenizer"], trust_remote_code=False)
        with open(router_kwargs["placement"]) as file:
            self._replicas = {name: itertools.cycle(own) for name, own in json.load(file)["replicas"].items()}

    def require_acquire_fields(self):
        return ["prompt_ids"]

    def acquire_server(self, request_id, prompt_ids=()):
        text = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=True)
        name = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
        if request_id not in self._request_id_to_server and name in self._replicas and self._servers:
            names = list(self._servers)
            self._request_id_to_server[request_id] = names[next(self._replicas[name]) % len(names)]
        return super().acquire_server(request_id)
'''


def placement(rollouts: pd.DataFrame, setting: Setting, steps: Iterable[int] | None = None) -> dict[str, list[int]]:
    """Replica of every response to every prompt, by the hash of the prompt's text.

    Every step of the last epoch is planned once more from all that the log knows by then, for the least time, as verl holds all
    replicas in any case: by a random split or the solver's groups, whichever the policy ``solver`` takes. A prompt that comes
    in several steps has the last one's.

    Args:
        rollouts: of one run; prompts are named by the hash of their text, in ``prompt_text_id`` or else ``prompt_id``.
        steps: planned; None: those of the last epoch.

    Raises:
        TraceError: prompts are not named by their text.
    """
    names = rollouts["prompt_text_id"] if "prompt_text_id" in rollouts.columns else rollouts["prompt_id"]
    if not names.astype(str).str.fullmatch("[0-9a-f]{16}").all():
        raise TraceError(
            "the log's prompts are not named by the hash of their text, by which a running verl would know them; "
            "verl's own dumps (trainer.rollout_data_dir) are needed"
        )
    chosen = _last_epoch(rollouts) if steps is None else list(steps)
    policy, hasty = make_policy("solver"), replace(setting, objective=Objective(1.0))
    found: dict[str, list[int]] = {}
    for logged in logged_steps(rollouts, response_limit=setting.response_limit, steps=chosen):
        actor = np.zeros(len(logged.rows), dtype=np.int64)
        for i, one in enumerate(policy.plan(logged.given(hasty)).actors):
            actor[np.asarray(one.responses, dtype=np.int64)] = i
        of_rows = pd.DataFrame({"name": names.loc[logged.rows.index].astype(str).to_numpy(), "actor": actor})
        found.update({str(name): own.tolist() for name, own in of_rows.groupby("name", sort=True)["actor"]})
    return found


def write_router(folder: str | Path, placed: dict[str, list[int]], tokenizer: str) -> list[Path]:
    """Write the router's code, its placement and its configuration.

    Args:
        folder: new, or empty. tokenizer: of the run's model, a local folder (its absolute path is written) or a hub name.

    Raises:
        TraceError: the folder is not empty or cannot be written.
    """
    folder = Path(folder).resolve()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise TraceError(f"{folder}: exists and is not empty; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be made ({error.strerror}); a writable folder is needed") from error
    texts = {
        MODULE: ROUTER_CODE,
        PLACEMENT: json.dumps({"replicas": placed}, indent=0),
        ROUTER: "".join(
            f"{key}: {json.dumps(value)}\n"
            for key, value in (
                ("router_class", f"{Path(MODULE).stem}.PlannedRouter"), ("placement", str(folder / PLACEMENT)),
                ("tokenizer", absolute(tokenizer)),
            )
        ),
    }  # fmt: skip
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def _last_epoch(rollouts: pd.DataFrame) -> list[int]:
    steps = rollouts.groupby("step")["epoch"].max()
    return sorted(int(step) for step in steps.index[steps == steps.max()])
