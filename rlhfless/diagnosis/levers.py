"""What a user can change, by kind of lever, with the line of each framework that changes it.

Lines are those of the frameworks' own documentation and code. Where we know none, a lever has none, and ``line_in_words`` says
so.
"""

from __future__ import annotations

from dataclasses import replace

from rlhfless.diagnosis.engine_speed import generation_of_run
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import GENERATION_TIME, RESPONSES, TIME, Collected, Finding, Lever, Part
from rlhfless.diagnosis.phases import ordinary_share, step_seconds, synchronous
from rlhfless.diagnosis.slots import SETTINGS
from rlhfless.trace.importers.names import NAMES

LINES: dict[str, dict[str, str]] = {
    "asynchrony": {
        "areal": "rollout.max_head_offpolicyness=1",
        "nemo-rl": "grpo.async_grpo.enabled=true",
        "openrlhf": "--async_train",
        "prime-rl": "max_async_level = 2",
        "roll": "async_generation_ratio: 1, with actor_infer.device_mapping on GPUs of its own",
        "skyrl": "python -m examples.train.fully_async.main_fully_async, with trainer.placement.colocate_all=false",
        "slime": "train_async.py instead of train.py, without --colocate",
        "trl": "trl.experimental.async_grpo.AsyncGRPOTrainer, with max_staleness=1",
        "verl": "python3 -m verl.experimental.one_step_off_policy.main_ppo (before: recipe.one_step_off_policy.main_ppo), with "
        "trainer.n_gpus_per_node=N rollout.n_gpus_per_node=M",
    },
    "partial rollout": {
        "slime": "--partial-rollout",
        "verl": "async_training.partial_rollout=True (fully_async_policy)",
    },
    "over-sampling": {
        "roll": "is_use_additional_prompts: true, with max_additional_running_prompts: N",
        "slime": "--over-sampling-batch-size N",
    },
    "slots": SETTINGS,
    "groups": {
        "areal": "actor.dynamic_sampling=true",
        "nemo-rl": "grpo.use_dynamic_sampling=true",
        "skyrl": "trainer.algorithm.dynamic_sampling.type=filter",
        "slime": "--dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
        "verl": "algorithm.filter_groups.enable=True",
    },
    "learner": {
        "areal": "actor.mb_spec.max_tokens_per_mb=N",
        "nemo-rl": "policy.sequence_packing.enabled=true",
        "roll": "actor_train.use_dynamic_batching_in_train: true, with actor_train.max_tokens_per_microbatch_in_train: N",
        "skyrl": "trainer.max_tokens_per_microbatch=N",
        "slime": "--use-dynamic-batch-size --max-tokens-per-gpu N",
        "trl": "per_device_train_batch_size=N, with fewer gradient_accumulation_steps",
        "verl": "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=N",
    },
    "rewards": {"verl": "reward_model.launch_reward_fn_async=True"},
    "limit": {
        "areal": "actor.overlong_reward_penalty=true actor.overlong_tokens=N actor.overlong_penalty_factor=F",
        "nemo-rl": "grpo.reward_shaping.enabled=true",
        "openrlhf": "--reward.overlong_buffer_len N (before 0.10.2: --overlong_buffer_len N)",
        "slime": "--custom-rm-path, a reward function of your own",
        "trl": "reward_funcs=[..., trl.rewards.get_soft_overlong_punishment(max_completion_len, soft_punish_cache)]",
        "verl": "reward_model.reward_kwargs.overlong_buffer_cfg.enable=True, with reward_manager=dapo",
    },
    "engine": {
        "SGLang": "leave out --disable-cuda-graph",
        "areal": "sglang.disable_cuda_graph=false, or vllm.enforce_eager=false",
        "nemo-rl": "policy.generation.vllm_cfg.enforce_eager=false",
        "openrlhf": "leave out --vllm.enforce_eager (before 0.10.2: --enforce_eager)",
        "skyrl": "generator.inference_engine.enforce_eager=false (before: generator.enforce_eager=false)",
        "slime": "leave out --sglang-disable-cuda-graph",
        "trl": "use_vllm=True",
        "vLLM": "leave out --enforce-eager",
        "verl": "actor_rollout_ref.rollout.enforce_eager=False",
    },
    "memory": {
        "SGLang": "--mem-fraction-static SHARE, --tp-size N",
        "areal": "sglang.mem_fraction_static=SHARE, or vllm.gpu_memory_utilization=SHARE",
        "nemo-rl": "policy.generation.vllm_cfg.gpu_memory_utilization=SHARE",
        "roll": "actor_infer.strategy_args.strategy_config.gpu_memory_utilization: SHARE",
        "skyrl": "generator.inference_engine.gpu_memory_utilization=SHARE (before: generator.gpu_memory_utilization=SHARE)",
        "slime": "--sglang-mem-fraction-static SHARE, --rollout-num-gpus-per-engine N",
        "trl": "vllm_gpu_memory_utilization=SHARE, vllm_tensor_parallel_size=N",
        "vLLM": "--gpu-memory-utilization SHARE, --tensor-parallel-size N",
        "verl": "actor_rollout_ref.rollout.gpu_memory_utilization=SHARE, or "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=N",
    },
    "more generation": {
        "areal": "allocation_mode, with more GPUs before the +; rollout.max_concurrent_rollouts=N",
        "nemo-rl": "policy.generation.colocated.resources.gpus_per_node=N on one node, .num_nodes=N on several",
        "openrlhf": "--vllm.num_engines N (before 0.10.2: --vllm_num_engines N)",
        "prime-rl": "deployment.num_infer_gpus = N on one node, num_infer_nodes on several",
        "roll": "actor_infer.device_mapping: list(range(FIRST, LAST + 1))",
        "skyrl": "generator.inference_engine.num_engines=N (before: generator.num_inference_engines=N)",
        "slime": "--rollout-num-gpus N",
        "verl": "rollout.n_gpus_per_node=N",
    },
    "more training": {
        "areal": "allocation_mode, with more GPUs after the +",
        "nemo-rl": "policy.generation.colocated.resources.gpus_per_node=N on one node, .num_nodes=N on several: training has "
        "the rest of the cluster",
        "prime-rl": "deployment.num_train_gpus = N on one node, num_train_nodes on several",
        "roll": "actor_train.device_mapping: list(range(FIRST, LAST + 1))",
        "skyrl": "trainer.placement.policy_num_gpus_per_node=N",
        "slime": "--actor-num-gpus-per-node N",
        "verl": "trainer.n_gpus_per_node=N",
    },
}  # fmt: skip
"""Kind of lever -> framework -> the line of its configuration or command."""

NO_LINE = "we know no setting of {title} for this"

PREFIX_CACHING = {
    "nemo-rl": "policy.generation.vllm_cfg.enable_prefix_caching=true",
    "openrlhf": "--vllm.enable_prefix_caching (before 0.10.2: --enable_prefix_caching)",
    "roll": "actor_infer.strategy_args.strategy_config.enable_prefix_caching=true",
    "skyrl": "generator.inference_engine.enable_prefix_caching=true",
    "slime": "leave out --sglang-disable-radix-cache",
    "trl": "trl vllm-serve --enable_prefix_caching true",
    "verl": "actor_rollout_ref.rollout.enable_prefix_caching=True",
    "vLLM": "--enable-prefix-caching",
    "SGLang": "leave out --disable-radix-cache",
}
"""Framework, or engine whose lines alone are the log -> the line that computes the common prefix of prompts once."""

LENGTH_LIMIT = {
    "areal": "gconfig.max_new_tokens",
    "nemo-rl": "policy.generation.max_new_tokens",
    "openrlhf": "--rollout.max_new_tokens, before 0.10.2 --generate_max_len",
    "prime-rl": "--orchestrator.sampling.max-completion-tokens, before --orchestrator.sampling.max-tokens",
    "roll": "response_length",
    "skyrl": "generator.sampling_params.max_generate_length",
    "slime": "--rollout-max-response-len",
    "trl": "max_completion_length",
    "verl": "data.max_response_length",
}
"""Framework -> the option that limits the length of a response."""

MASK_CUT = {
    "areal": "actor.mask_no_eos_with_zero=true",
    "nemo-rl": "grpo.overlong_filtering=true",
    "skyrl": "generator.apply_overlong_filtering=true",
    "trl": "mask_truncated_completions=True",
}
"""Framework -> the line that leaves cut responses out of the loss."""


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
        levers.append(Lever("rewards", name, rewards, "CPUs or a service for them", learner.of))
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
        "roll": "eval_steps", "skyrl": "trainer.eval_interval", "slime": "--eval-interval", "trl": "eval_steps",
        "verl": "trainer.test_freq",
    }),
    "checkpoints_s": ("write checkpoints less often", "a crash loses more", {
        "nemo-rl": "checkpointing.save_period", "openrlhf": "--ckpt.save_steps (before 0.10.2: --save_steps)",
        "roll": "save_steps", "skyrl": "trainer.ckpt_interval", "trl": "save_steps", "verl": "trainer.save_freq",
    }),
    "sync_s": ("send weights less often, or faster", "responses of older weights, where it is less often", {
        "areal": "actor.weight_update_mode=xccl", "slime": "--update-weights-interval N, with train_async.py",
    }),
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


def line_in_words(lever: Lever, framework: str) -> str:
    """Return the line of a lever, or that we know none of the framework; empty where it is none that has settings."""
    return lever.line or (NO_LINE.format(title=NAMES[framework].title) if framework in NAMES else "")
