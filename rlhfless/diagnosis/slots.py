"""Slots of an engine, each room for one response that it decodes: how many every framework gives it, and the setting of that.

Defaults are those of the frameworks' own code, and change with their versions. A log does not say what a run set, so a default
says when responses *may* wait for a slot, and never that they do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rlhfless.diagnosis.logged_run import LoggedRun


class Slots(NamedTuple):
    """The slots of an engine that nobody configured.

    Attributes:
        least, most: how many, over versions and GPUs; the most is infinite where no response waits by default.
        default: the same as a clause. setting: the line that changes it; empty where we know none.
    """

    least: float
    most: float
    default: str
    setting: str = ""


VLLM = "vLLM's default is 256, and 1,024 on GPUs of 70 GiB or more other than the A100"
SGLANG_MOST = 4096.0
DEFAULTS = {
    "areal": Slots(256, SGLANG_MOST, "AReaL's default is 256 with vLLM, and 2,048 or more with SGLang, as memory allows",
                   "vllm.max_num_seqs=N, or sglang.max_running_requests=N"),
    "nemo-rl": Slots(256, 1024, VLLM, "policy.generation.vllm_kwargs.max_num_seqs=N"),
    "openrlhf": Slots(256, 1024, VLLM),
    "prime-rl": Slots(256, 1024, VLLM, "--inference.vllm.max-num-seqs N"),
    "roll": Slots(128, 128, "ROLL's default is 128", "max_running_requests: N, and strategy_config.max_num_seqs of vLLM"),
    "skyrl": Slots(1024, 1024, "SkyRL's default is 1,024",
                   "generator.inference_engine.max_num_seqs=N (before: generator.max_num_seqs=N)"),
    "slime": Slots(512, 512, "slime's default is 512", "--sglang-server-concurrency N"),
    "trl": Slots(256, math.inf, "TRL gives an engine on the learner's GPUs one for each response, and with trl vllm-serve "
                 "vLLM's default counts, 256 or 1,024"),
    "verl": Slots(256, 1024, "verl's default is 1,024, and 256 from 0.9.0", "actor_rollout_ref.rollout.max_num_seqs=N"),
    "vLLM": Slots(256, 1024, VLLM, "--max-num-seqs N"),
    "SGLang": Slots(2048, SGLANG_MOST, "SGLang's default is 2,048 or more, as memory allows", "--max-running-requests N"),
}  # fmt: skip
"""By framework, or by engine where its own lines are the log. Read in: verl 0.1 to 0.9.0; TRL 1.16 (colocated vLLM has
``per_device_train_batch_size * steps_per_generation`` slots per GPU, all that it generates); vLLM 0.32 ``get_batch_defaults``;
SGLang ``_resolve_max_num_reqs``; the main branches of August 2026 of slime (``--sglang-server-concurrency``, of an engine),
SkyRL, ROLL (``max_running_requests``, of a replica), NeMo-RL, OpenRLHF and prime-rl (these three set none, so vLLM's default
counts), and that of May 2026 of AReaL."""
ANY = Slots(256, 1024, VLLM)
"""Of a framework that we do not know: vLLM is the most common engine."""

SETTINGS = {name: slots.setting for name, slots in DEFAULTS.items() if slots.setting}


def slots_of(run: LoggedRun) -> Slots:
    """Return the slots that an engine of a run's framework has by default."""
    return DEFAULTS.get(run.framework, ANY)
