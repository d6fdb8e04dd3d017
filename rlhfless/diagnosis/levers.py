"""What a user can change, by kind of lever, with the line of each framework that changes it.

Lines are those of the frameworks' own documentation. Where a framework has none, the table says nothing rather than something
that nobody can follow.
"""

from __future__ import annotations

from dataclasses import replace

from rlhfless.diagnosis.engine_speed import generation_of_run
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import GENERATION_TIME, RESPONSES, TIME, Collected, Finding, Lever, Part
from rlhfless.diagnosis.phases import ordinary_share, step_seconds, synchronous

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
    "limit": {
        "nemo-rl": "grpo.reward_shaping.enabled=true",
        "openrlhf": "--reward.overlong_buffer_len N (before 0.10.2: --overlong_buffer_len N)",
        "trl": "reward_funcs=[..., trl.rewards.get_soft_overlong_punishment(max_completion_len, soft_punish_cache)]",
        "verl": "reward_model.reward_kwargs.overlong_buffer_cfg.enable=True, with reward_manager=dapo",
    },
    "engine": {"verl": "actor_rollout_ref.rollout.enforce_eager=False", "trl": "use_vllm=True"},
}
"""Kind of lever -> framework -> the line of its configuration or command."""

PREFIX_CACHING = {
    "nemo-rl": "policy.generation.vllm_cfg.enable_prefix_caching=true",
    "openrlhf": "--vllm.enable_prefix_caching (before 0.10.2: --enable_prefix_caching)",
    "roll": "actor_infer.strategy_args.strategy_config.enable_prefix_caching=true",
    "skyrl": "generator.inference_engine.enable_prefix_caching=true",
    "slime": "no --sglang-disable-radix-cache",
    "trl": "trl vllm-serve --enable_prefix_caching true",
    "verl": "actor_rollout_ref.rollout.enable_prefix_caching=True",
    "vLLM": "--enable-prefix-caching",
    "SGLang": "no --disable-radix-cache",
}
"""Framework, or engine whose lines alone are the log -> the line that computes the common prefix of prompts once."""

LENGTH_LIMIT = {
    "nemo-rl": "policy.generation.max_new_tokens",
    "openrlhf": "--rollout.max_new_tokens, before 0.10.2 --generate_max_len",
    "prime-rl": "--orchestrator.sampling.max-completion-tokens, before --orchestrator.sampling.max-tokens",
    "skyrl": "generator.sampling_params.max_generate_length",
    "slime": "--rollout-max-response-len",
    "trl": "max_completion_length",
    "verl": "data.max_response_length",
}
"""Framework -> the option that limits the length of a response."""

MASK_CUT = {
    "nemo-rl": "grpo.overlong_filtering=true",
    "skyrl": "generator.apply_overlong_filtering=true",
    "trl": "mask_truncated_completions=True",
}
"""Framework -> the line that leaves cut responses out of the loss."""

REWARDS = {"verl": "reward_model.launch_reward_fn_async=True"}
"""Framework -> the line that computes rewards while log probabilities are computed."""


def whole_step_levers(run: LoggedRun, found: Collected) -> Part:
    """Return the levers that follow from phases and findings: asynchrony, a healthy engine, filtered groups, and so on.

    ``found`` has the numbers and findings of all other sections.
    """
    levers = []
    share, after = found.numbers.value("generate_share"), found.numbers.value("learner_share")
    if share and after and synchronous(run) and not step_seconds(run).overlap.any():
        price = "responses are one version of the weights late; generation and learning need GPUs of their own"
        levers.append(Lever("asynchrony", "generate while learning", ordinary_share(found) * min(share, after), price))
    for finding in found.findings:
        if finding.kind == "engine":
            name = "make the engine faster (CUDA graphs, a serving engine)"
            levers.append(Lever("engine", name, finding.at_stake, "none for the data", finding.of))
        elif finding.kind == "memory" and finding.at_stake:
            name = "give the KV cache more memory (a larger share of the GPU, more GPUs per replica, shorter contexts)"
            levers.append(
                Lever("memory", name, finding.at_stake, "none for the data; the learner may need that memory", finding.of)
            )
        elif finding.kind == "learner" and "step_most_s" not in finding.proof:  # a first step that compiles is no slow learner
            levers += _faster_learner(run, found, finding)
        elif finding.kind == "groups" and finding.of == RESPONSES and after:  # not rounds of generation, which filter already
            price = "prompts without a signal are generated again or dropped, so the data change"
            levers.append(Lever("groups", "filter groups without a signal", finding.at_stake * after, price))
        elif finding.kind == "limit":
            levers += _shorter_responses(run, found)
        elif finding.kind == "beside the step" and finding.proof[0] in RARER:
            name, price, lines = RARER[finding.proof[0]]
            levers.append(Lever("beside the step", name, finding.at_stake, price, line=lines.get(run.framework, "")))
    return Part(levers=tuple(levers))


def _faster_learner(run: LoggedRun, found: Collected, learner: Finding) -> list[Lever]:
    """What follows generation, faster: rewards by themselves where they are most of it, and what is left."""
    at_stake = learner.at_stake
    rewards = min(at_stake, ordinary_share(found) * (found.numbers.value("rewards_share") or 0.0))
    levers = []
    if rewards > 0:
        name = "compute rewards and advantages in parallel, or while other responses are generated"
        levers.append(Lever("learner", name, rewards, "CPUs or a service for them", learner.of, REWARDS.get(run.framework, "")))
    if at_stake > rewards:
        name = "make learning and log probabilities faster (packing, larger micro-batches, more GPUs)"
        levers.append(Lever("learner", name, at_stake - rewards, "none for the data", learner.of))
    return levers


def _shorter_responses(run: LoggedRun, found: Collected) -> list[Lever]:
    """What shorter responses win at most; a higher limit, and leaving cut ones out of the loss, win no time."""
    saved, share = found.numbers.value("without_cut_saves_at_most_share"), generation_of_run(run, found)
    if saved is None:
        return []
    limit, mask = LENGTH_LIMIT.get(run.framework, ""), MASK_CUT.get(run.framework, "")
    price = (
        f"answers become short, which changes what is learned; a higher limit{f' ({limit})' if limit else ''} takes more time, "
        f"not less, and leaving cut responses out of the loss{f' ({mask})' if mask else ''} saves none"
    )
    of = GENERATION_TIME if share is None else TIME
    at_most = saved if share is None else share * saved
    return [Lever("limit", "shorten responses until none is cut (a length penalty)", at_most, price, of)]


RARER: dict[str, tuple[str, str, dict[str, str]]] = {
    "validation_s": ("validate less often", "fewer validations", {
        "nemo-rl": "grpo.val_period", "openrlhf": "--eval.steps (before 0.10.2: --eval_steps)",
        "skyrl": "trainer.eval_interval", "slime": "--eval-interval", "trl": "eval_steps", "verl": "trainer.test_freq",
    }),
    "checkpoints_s": ("write checkpoints less often", "a crash loses more", {
        "nemo-rl": "checkpointing.save_period", "openrlhf": "--ckpt.save_steps (before 0.10.2: --save_steps)",
        "skyrl": "trainer.ckpt_interval", "trl": "save_steps", "verl": "trainer.save_freq",
    }),
    "sync_s": ("send weights less often, or faster", "responses of older weights, where it is less often", {}),
}  # fmt: skip
"""Number of a finding -> what could be rarer, its price, and the line of each framework."""
SCHEDULES = ("partial rollout", "over-sampling", "release", "assignment")
AFTER_THE_ENGINE = "What schedules win is not shown: the engine is slow, or the model is larger than any that we measured."


def without_schedules(found: Collected) -> None:
    """Take levers of schedules away where the engine is slow: no schedule mends it, and its pace is no basis for them."""
    if any(one.kind == "engine" for one in found.findings):
        if any(lever.kind in SCHEDULES for lever in found.levers):
            found.notes.append(AFTER_THE_ENGINE)
        found.levers = [lever for lever in found.levers if lever.kind not in SCHEDULES]


def with_lines(levers: list[Lever], framework: str) -> list[Lever]:
    """Return the levers with the lines of a framework, those that save most first."""
    named = [replace(lever, line=lever.line or LINES.get(lever.kind, {}).get(framework, "")) for lever in levers]
    return sorted(named, key=lambda lever: -lever.at_most)
