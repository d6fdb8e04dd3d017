"""What a user can change, by kind of lever, with the line of each framework that changes it.

Lines are those of the frameworks' own documentation. Where a framework has none, the table says nothing rather than something
that nobody can follow.
"""

from __future__ import annotations

from dataclasses import replace

from rlhfless.diagnosis.engine_speed import SLOW_ENGINE
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected, Lever, Part
from rlhfless.diagnosis.phases import synchronous

LINES: dict[str, dict[str, str]] = {
    "asynchrony": {
        "nemo-rl": "grpo.async_grpo.enabled=true",
        "openrlhf": "--async_train",
        "prime-rl": "max_async_level = 2",
        "slime": "train_async.py instead of train.py",
    },
    "partial rollout": {"slime": "--partial-rollout"},
    "over-sampling": {"slime": "--over-sampling-batch-size N"},
    "groups": {
        "slime": "--dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
        "verl": "algorithm.filter_groups.enable=True",
    },
    "engine": {"verl": "actor_rollout_ref.rollout.enforce_eager=False", "trl": "use_vllm=True"},
}
"""Kind of lever -> framework -> the line of its configuration or command."""


def whole_step_levers(run: LoggedRun, found: Collected) -> Part:
    """Return the levers that need phases of a step alone: asynchrony, a healthy engine, and groups that are filtered."""
    levers = []
    share = found.numbers.value("generate_share")
    after = found.numbers.value("learner_share") or found.numbers.value("learn_share")
    if share and after and synchronous(run):
        price = "responses are one version of the weights late; generation and learning need GPUs of their own"
        levers.append(Lever("asynchrony", "generate while learning", min(share, after), price))
    for finding in found.findings:
        if finding.kind == "engine":
            name = "make the engine faster (CUDA graphs, a serving engine, memory for the KV cache)"
            levers.append(Lever("engine", name, finding.at_stake, "none for the data"))
        elif finding.kind == "learner":
            name = "make learning and log probabilities faster (packing, larger micro-batches, more GPUs)"
            levers.append(Lever("learner", name, finding.at_stake, "none for the data"))
        elif finding.kind == "groups" and after:
            price = "prompts without a signal are generated again or dropped, so the data change"
            levers.append(Lever("groups", "filter groups without a signal", finding.at_stake * after, price))
        elif finding.kind == "beside the step" and any(key.startswith(RARER) for key in finding.proof):
            name = "validate, write checkpoints or send weights less often"
            price = "fewer validations and checkpoints, or older weights"
            levers.append(Lever("beside the step", name, finding.at_stake, price))
    return Part(levers=tuple(levers))


RARER = ("validation", "checkpoint", "sync")
SCHEDULES = ("partial rollout", "over-sampling", "release", "assignment")
AFTER_THE_ENGINE = "What schedules win is not shown: the engine is slow, or the model is larger than any that we measured."


def without_schedules(found: Collected) -> None:
    """Take levers of schedules away where the engine is slow: no schedule mends it, and its pace is no basis for them."""
    if any(one.kind == "engine" and SLOW_ENGINE in one.proof for one in found.findings):
        if any(lever.kind in SCHEDULES for lever in found.levers):
            found.notes.append(AFTER_THE_ENGINE)
        found.levers = [lever for lever in found.levers if lever.kind not in SCHEDULES]


def with_lines(levers: list[Lever], framework: str) -> list[Lever]:
    """Return the levers with the lines of a framework, those that save most first."""
    told = [replace(lever, line=LINES.get(lever.kind, {}).get(framework, "")) for lever in levers]
    return sorted(told, key=lambda lever: -lever.at_most)
