"""Names and values that other frameworks have for our options; the error for such a name states ours.

The tables are those of docs/from_trl_and_verl.md, which a test compares with them.
"""

from __future__ import annotations

from typing import Any

THEIRS: dict[str, str] = {
    # TRL's GRPOConfig and GRPOTrainer
    "reward_funcs": "rewards", "train_dataset": "dataset", "num_generations": "samples_per_prompt",
    "max_completion_length": "max_response_tokens", "beta": "kl_coef",
    "epsilon_high": "clip_ratio_high", "num_iterations": "num_updates", "max_steps": "steps",
    "output_dir": "folder", "save_steps": "save_every", "eval_steps": "eval_every", "report_to": "callbacks",
    "resume_from_checkpoint": "resume", "loss_type": "loss_aggregation", "scale_rewards": "advantage_std",
    "mask_truncated_completions": "mask_truncated", "dataloader_drop_last": "drop_last",
    "vllm_gpu_memory_utilization": "gpu_memory_utilization", "vllm_tensor_parallel_size": "tensor_parallel",
    "vllm_importance_sampling_cap": "importance_ratio_cap", "vllm_importance_sampling_clip_max": "importance_ratio_cap",
    "vllm_max_model_length": "max_model_len", "optim": "optimizer", "use_cpu": "device", "data_seed": "seed",
    # TRL's PPOConfig
    "cliprange_value": "value_clip", "value_model": "critic",
    # verl
    "rollout_n": "samples_per_prompt", "lr": "learning_rate", "total_training_steps": "steps",
    "actor_rollout_ref.model.path": "model", "data.train_max_samples": "prompts", "data.train_files": "dataset",
    "data.val_files": "eval_dataset", "data.prompt_key": "prompt_column", "data.max_prompt_length": "max_prompt_tokens",
    "custom_reward_function.path": "rewards", "actor_rollout_ref.rollout.n": "samples_per_prompt",
    "data.max_response_length": "max_response_tokens", "data.train_batch_size": "prompts_per_step",
    "actor_rollout_ref.rollout.temperature": "temperature", "actor_rollout_ref.rollout.top_p": "top_p",
    "actor_rollout_ref.rollout.top_k": "top_k", "actor_rollout_ref.rollout.name": "engine",
    "actor_rollout_ref.hybrid_engine": "executor",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "tensor_parallel",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "gpu_memory_utilization",
    "actor_rollout_ref.rollout.max_model_len": "max_model_len", "actor_rollout_ref.rollout.dtype": "generation_dtype",
    "actor_rollout_ref.actor.loss_agg_mode": "loss_aggregation", "algorithm.norm_adv_by_std_in_grpo": "advantage_std",
    "actor_rollout_ref.actor.clip_ratio_low": "clip_ratio_low", "actor_rollout_ref.actor.clip_ratio_high": "clip_ratio_high",
    "actor_rollout_ref.actor.kl_loss_coef": "kl_coef", "actor_rollout_ref.actor.ppo_epochs": "num_updates",
    "algorithm.rollout_correction.rollout_is_threshold": "importance_ratio_cap",
    "actor_rollout_ref.actor.optim.optimizer": "optimizer", "actor_rollout_ref.actor.optim.lr": "learning_rate",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "lr_scheduler_type",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "warmup_steps",
    "actor_rollout_ref.actor.optim.total_training_steps": "lr_scheduler_steps",
    "actor_rollout_ref.actor.optim.weight_decay": "weight_decay", "actor_rollout_ref.actor.grad_clip": "max_grad_norm",
    "actor_rollout_ref.actor.fsdp_config.dtype": "learner_dtype",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "max_tokens_per_micro_batch",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "gradient_checkpointing",
    "actor_rollout_ref.model.lora_rank": "lora_rank", "actor_rollout_ref.model.lora_alpha": "lora_alpha",
    "actor_rollout_ref.model.target_modules": "lora_targets",
    "actor_rollout_ref.ref.fsdp_config.param_offload": "offload_reference",
    "actor_rollout_ref.actor.fsdp_config.fsdp_size": "learner_processes", "trainer.device": "device",
    "trainer.total_training_steps": "steps", "data.seed": "seed",
    "trainer.default_local_dir": "folder", "trainer.save_freq": "save_every",
    "trainer.max_actor_ckpt_to_keep": "save_total_limit", "trainer.resume_mode": "resume", "trainer.test_freq": "eval_every",
    "trainer.logger": "callbacks", "critic.cliprange_value": "value_clip", "critic.model.path": "critic",
    "critic.optim.lr": "critic_learning_rate", "algorithm.kl_ctrl.kl_coef": "kl_coef",
}  # fmt: skip
"""Another framework's name of an option -> ours. Those of verl are as it is configured; ``ALONE`` has their last parts."""

_TOKENIZER = "a model's folder has its own tokenizer; in Python model=(model, tokenizer) is taken, too"
_BATCH = "give prompts_per_step, which counts prompts and not responses"
_CORRECTION = (
    "it is on where engine and learner differ; importance_ratio_cap caps it, and old_logprobs_from='engine' turns it off"
)
_CLIPPED = "give clip_ratio_low and clip_ratio_high"
_NODES = "give gpus, the number on all nodes, and gpus_per_node"
_EPOCHS = "give steps; an epoch has as many as there are prompts divided by prompts_per_step"
_GPUS = "give gpus, the number of all; learner_processes are those that the learner's weights are sharded over"
_RECORDED = "texts, lengths, rewards and times are always in the run's folder"
_LOGGED = "every step is logged by the loggers of callbacks, on the command line --log"
_SLEEP = "vLLM's actors always sleep between steps, where vLLM can"
_LAUNCHED = "a launcher sets it, and it is no option here; learner_processes=N starts the processes of the learner"
_SHARDED = "give learner_processes, over which the weights are sharded"
_ROWS = "rows are read into memory once, and there is nothing to set"
_PUSHED = "nothing is pushed to the hub; save_model(folder) writes a folder of transformers"
_DISTRIBUTED = "the processes of the learner set up themselves; learner_processes is their number"
_PLAIN_MODEL = "there is none here: the model is loaded as its folder says; in Python give model=(model, tokenizer)"
_PLAIN_LOSS = "there is none here: the loss has no such term"
_SERVER = "there is none here: with engine='vllm' vLLM runs in the actors, in this process or where executor says"
_CONTINUOUS = "all engines batch continuously"
_ALWAYS_LOGGED = "every number of every step is logged"
_EVALUATED = "an evaluation has one response of each prompt, its rewards and its length, and there is nothing else to set"
_EXACT = "a checkpoint always has all that an exact continuation needs"

EXPLAINED: dict[str, str] = {
    "args": "options are given by their names, such as learning_rate=1e-6",
    "processing_class": _TOKENIZER,
    "tokenizer": _TOKENIZER,
    "peft_config": "give lora_rank=16, and lora_alpha and lora_targets where they differ from the usual",
    "per_device_train_batch_size": f"{_BATCH}; max_tokens_per_micro_batch limits what is computed at once",
    "generation_batch_size": _BATCH,
    "gradient_accumulation_steps": "prompts_per_step is the size of a step; max_tokens_per_micro_batch is that of a part of it",
    "steps_per_generation": "give num_mini_batches, the updates that a step takes",
    "num_train_epochs": _EPOCHS,
    "max_prompt_length": "give max_prompt_tokens; longer prompts are left out",
    "bf16": "give learner_dtype='bfloat16'",
    "fp16": "give learner_dtype='bfloat16'",
    "dtype": "give generation_dtype, the format of generation, or learner_dtype, that of learning",
    "use_vllm": "give engine='vllm'",
    "vllm_mode": "give engine='vllm'; executor says where it runs",
    "vllm_enable_sleep_mode": _SLEEP,
    "vllm_importance_sampling_correction": _CORRECTION,
    "vllm_importance_sampling_mode": "factors are truncated per token, as with token_truncate, at importance_ratio_cap",
    "use_bias_correction_kl": "the penalty of kl_coef is never multiplied by the ratio, as with False",
    "num_generations_eval": "evaluation takes one response of each prompt",
    "eval_strategy": "give eval_every, a number of steps",
    "save_strategy": "give save_every, a number of steps",
    "logging_steps": _LOGGED,
    "logging_strategy": _LOGGED,
    "log_completions": _RECORDED,
    "disable_tqdm": "give progress=False in Python",
    "fsdp": _SHARDED,
    "deepspeed": _SHARDED,
    "num_processes": _GPUS,
    "local_rank": _LAUNCHED,
    "world_size": _LAUNCHED,
    "optimizers": "give optimizer and lr_scheduler_type, their names",
    "warmup_ratio": "give warmup_steps, their number",
    "reward_processing_classes": "a reward model model:FOLDER has its own tokenizer",
    "epsilon": f"{_CLIPPED}: TRL's epsilon is both unless epsilon_high is given",
    "cliprange": _CLIPPED,
    "actor_rollout_ref.model.tokenizer_path": _TOKENIZER,
    "data.filter_overlong_prompts": "prompts longer than max_prompt_tokens are always left out",
    "reward_model.model.path": "give rewards, of which model:FOLDER is a model",
    "actor_rollout_ref.rollout.free_cache_engine": _SLEEP,
    "actor_rollout_ref.rollout.enable_prefix_caching": "vLLM caches prefixes by itself, and the plan shares prompts",
    "algorithm.adv_estimator": "give algorithm: grpo, rloo, ppo (gae), or one of your own",
    "importance_sampling_level": "give algorithm: gspo is 'sequence', grpo is 'token'",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "give algorithm: gspo, or grpo for vanilla",
    "actor_rollout_ref.actor.use_kl_loss": "give kl_coef; 0 is without a penalty",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "give num_mini_batches, their number",
    "algorithm.rollout_correction.rollout_is": _CORRECTION,
    "algorithm.rollout_correction.bypass_mode": "give old_logprobs_from='engine', which is that mode",
    "actor_rollout_ref.actor.clip_ratio": _CLIPPED,
    "trainer.n_gpus_per_node": _NODES,
    "trainer.nnodes": _NODES,
    "trainer.total_epochs": _EPOCHS,
    "trainer.rollout_data_dir": _RECORDED,
    "algorithm.use_kl_in_reward": "with PPO and RLOO the penalty of kl_coef is always in the reward",
    # TRL's and transformers' other arguments
    "eval_on_start": "give eval_every; the weights before the first step are then evaluated, too",
    "eval_delay": "give eval_every; evaluation begins before the first step",
    "do_eval": "give eval_every, a number of steps",
    "do_train": "call train()",
    "do_predict": "call evaluate()",
    "run_name": "a run is called after its folder",
    "project": "callbacks='wandb' and 'trackio' log into the project rlhfless; log in a callback of your own for another",
    "remove_unused_columns": "reward functions get all columns of the data set, as with False",
    "num_completions_to_print": "read the columns prompt, response and reward of trainer.train().rollouts",
    "log_unique_prompts": _RECORDED,
    "log_completions_hub_repo": f"{_RECORDED}, and none is pushed to the hub",
    "log_multimodal": "there is none here: prompts are text",
    "save_only_model": f"{_EXACT}; save_model(folder) writes the model alone",
    "ignore_data_skip": "a resumed run goes on with the prompts that come next, and never begins its data anew",
    "restore_callback_states_from_checkpoint": "loggers go on where their log ends",
    "enable_jit_checkpoint": "an interrupted run keeps its complete steps; give save_every for one that is killed",
    "load_best_model_at_end": "there is none here: keep checkpoints by save_total_limit, and resume=STEPS from the best one",
    "metric_for_best_model": "there is none here: every evaluation is in metrics, as eval_reward_mean and eval_reward_NAME",
    "greater_is_better": "there is none here: every evaluation is in metrics, as eval_reward_mean and eval_reward_NAME",
    "ref_model": "there is none here: the reference of kl_coef is the model with which training begins",
    "ref_model_mixup_alpha": "there is none here: the reference stays the first model",
    "ref_model_sync_steps": "there is none here: the reference stays the first model",
    "cast_lm_head_to_fp32": "the learner's weights are in float32, and so are its logits",
    "attn_implementation": _PLAIN_MODEL,
    "quantization_config": _PLAIN_MODEL,
    "trust_remote_code": "there is none here: a model's own code is never run",
    "use_cache": "generation always has a cache, and learning none",
    "cache_implementation": "there is none here: the engine has a cache of its own",
    "dataset_text_field": "give prompt_column",
    "train_sampling_strategy": "there is none here: every epoch is shuffled, by seed",
    "auto_find_batch_size": "there is none here: max_tokens_per_micro_batch limits what is computed at once",
    "pad_to_multiple_of": "rows of like lengths are computed together, and padded to the longest",
    "optim_args": "there is none here: optimizer, learning_rate and weight_decay are what can be set",
    "optim_target_modules": "there is none here: optimizer is adamw, sgd or adafactor",
    "full_determinism": "a run on the CPU is the same to the bit; there is nothing to set",
    "tf32": "there is none here: the setting of torch counts",
    "debug": "there is none here: the trace has what every step did, see rlhfless report",
    "skip_memory_metrics": "there is none here: memory is not among the metrics",
    "include_num_input_tokens_seen": "prompt_tokens and response_tokens of every response are in the run's folder",
    "vllm_model_impl": "give engine='vllm' for vLLM's own models, or engine='transformers'",
    "vllm_structured_outputs_regex": "there is none here: responses are not constrained",
    "max_tool_calling_iterations": "there is none here: responses have one turn without tools",
    "router_aux_loss_coef": _PLAIN_LOSS,
    "label_smoothing_factor": _PLAIN_LOSS,
    "neftune_noise_alpha": "there is none here: embeddings get no noise",
    "label_names": "there is none here: a batch has prompts and responses only",
    "length_column_name": "lengths are counted with the model's tokenizer",
    "liger_kernel_config": "there is none here: give max_tokens_per_micro_batch where memory is short",
    "torch_empty_cache_steps": "there is none here: give max_tokens_per_micro_batch where memory is short",
    "fsdp_config": _SHARDED,
    "ds3_gather_for_generation": f"there is no DeepSpeed here; {_SHARDED}",
    "accelerator_config": _DISTRIBUTED,
    "parallelism_config": _DISTRIBUTED,
    "average_tokens_across_devices": "the loss counts the tokens of all processes, as with True",
    **dict.fromkeys(
        ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend",
         "ddp_timeout", "save_on_each_node", "log_on_each_node", "log_level_replica"), _DISTRIBUTED,
    ),
    **dict.fromkeys(
        ("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor",
         "dataloader_multiprocessing_context", "dataloader_in_order"), _ROWS,
    ),
    **dict.fromkeys(
        ("hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision",
         "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"), _PUSHED,
    ),
    **dict.fromkeys(
        ("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout", "vllm_group_port"), _SERVER,
    ),
    **dict.fromkeys(
        ("use_transformers_continuous_batching", "transformers_continuous_batching_config", "use_transformers_paged"),
        _CONTINUOUS,
    ),
    **dict.fromkeys(
        ("sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
        "there is none here: loss_aggregation has the losses of GRPO, BNPO, DAPO and Dr. GRPO",
    ),
    **dict.fromkeys(
        ("use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"),
        "there is none here: the loss has no term of entropy",
    ),
    **dict.fromkeys(
        ("bf16_full_eval", "fp16_full_eval"), "evaluation generates in the format of the engines, generation_dtype",
    ),
    **dict.fromkeys(
        ("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object", "include_for_metrics",
         "batch_eval_metrics", "compute_metrics"), _EVALUATED,
    ),
    **dict.fromkeys(("logging_first_step", "logging_nan_inf_filter"), _ALWAYS_LOGGED),
    **dict.fromkeys(
        ("torch_compile", "torch_compile_backend", "torch_compile_mode"), "there is none here: nothing is compiled",
    ),
    "log_level": "give progress=False in Python for a run that prints nothing",
}  # fmt: skip
"""Another framework's name of an option -> what is given in its place, as a clause."""

MISSING = (
    "shuffle_dataset", "chat_template_kwargs", "environment_factory", "tools", "rollout_func", "generation_kwargs", "delta",
    "multi_objective_aggregation", "sync_ref_model", "entropy_coef", "top_entropy_quantile",
    "off_policy_mask_threshold", "disable_dropout", "adam_beta1", "adam_beta2", "adam_epsilon", "use_liger_kernel",
    "push_to_hub", "whiten_rewards", "missing_eos_penalty", "lr_scheduler_kwargs", "gradient_checkpointing_kwargs",
    "vllm_importance_sampling_clip_min", "model_init_kwargs", "per_device_eval_batch_size", "eval_accumulation_steps",
    "data.shuffle", "data.apply_chat_template_kwargs", "data.image_key", "actor_rollout_ref.rollout.multi_turn",
    "actor_rollout_ref.rollout.engine_kwargs", "actor_rollout_ref.rollout.mode", "actor_rollout_ref.rollout.over_sample_rate",
    "actor_rollout_ref.actor.clip_ratio_c",
    "actor_rollout_ref.actor.entropy_coeff", "algorithm.rollout_correction.rollout_rs", "algorithm.filter_groups",
    "actor_rollout_ref.actor.optim.betas", "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size", "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.model.use_fused_kernels",
)  # fmt: skip
"""Other frameworks' options that this project has nothing for."""

VERL_SECTIONS = ("actor_rollout_ref", "critic", "custom_reward_function", "data", "reward_model", "trainer")
"""Sections of verl's configuration that this one does not have."""

VALUES: dict[str, dict[str, str | None]] = {
    "algorithm.name": {
        "gae": "'ppo'", "PPO": "'ppo'", "PPOTrainer": "'ppo'", "GRPO": "'grpo'", "GRPOTrainer": "'grpo'",
        "dapo": "'grpo' with loss_aggregation 'token'", "dr_grpo": "'grpo' with loss_aggregation 'constant'",
        **dict.fromkeys(
            ("reinforce_plus_plus", "remax", "opo", "gpg", "grpo_passk", "dpo", "DPOTrainer")
        ),
        "RLOO": "'rloo'", "RLOOTrainer": "'rloo'",
    },
    "algorithm.loss_aggregation": {
        "grpo": "'sequence'", "bnpo": "'token'", "dapo": "'token'", "dr_grpo": "'constant'",
        "seq-mean-token-mean": "'sequence'", "token-mean": "'token'", "seq-mean-token-sum-norm": "'constant'",
        "cispo": None, "sapo": None, "luspo": None, "vespo": None,
    },
    "algorithm.advantage_std": {"group": "'sample'", "True": "'sample'", "False": "'none'", "batch": None},
    "optimizer.name": {"adamw_torch": "'adamw'", "adamw_torch_fused": "'adamw'", "adamw_hf": "'adamw'", "AdamW": "'adamw'"},
    "optimizer.lr_scheduler_type": {
        "constant_with_warmup": "'constant', with warmup_steps", "cosine_with_restarts": None, "polynomial": None,
    },
    "rollout.top_k": {"-1": "0"},
}  # fmt: skip
"""Key of ours -> another framework's value of it, as text -> ours; None is one that this project has nothing for."""

TRL_TRAINERS = {
    "gae": "PPOTrainer", "PPO": "PPOTrainer", "GRPO": "GRPOTrainer", "RLOO": "RLOOTrainer",
    "dapo": "GRPOTrainer with loss_type='dapo'", "dr_grpo": "GRPOTrainer with loss_type='dr_grpo'", "dpo": "DPOTrainer",
}  # fmt: skip
"""Algorithm as it is named elsewhere -> what it is in TRL."""

ON_COMMAND_LINE: dict[str, str] = {
    "folder": "-o FOLDER", "dataset": "task.name", "eval_dataset": "task.eval_prompts", "callbacks": "--log NAME",
    "resume": "--resume last", "reward_weights": "a factor in task.rewards, such as 0.5*exact",
}  # fmt: skip
"""Argument of ``Trainer`` that is no key of the configuration -> what is typed in its place on the command line."""

OF_TRAINER: dict[str, str] = {
    "add_callback": "give callbacks=[...] to Trainer", "remove_callback": "give callbacks=[...] to Trainer",
    "pop_callback": "give callbacks=[...] to Trainer", "save_pretrained": "save_model(folder) writes a folder of transformers",
    "save_state": "a run with a folder writes checkpoints, by save_every", "push_to_hub": _PUSHED,
    "args": "its options are in trainer.config", "processing_class": "here it is trainer.tokenizer",
    "train_dataset": "give dataset=... to Trainer", "eval_dataset": "give eval_dataset=... to Trainer",
    "reward_funcs": "here it is trainer.rewards",
}  # fmt: skip
"""Attribute of TRL's trainers and models that ``Trainer`` does not have -> what to do in its place, as a clause."""

_PAGE = "the page From TRL and verl of the documentation"
NAMES = (*THEIRS, *EXPLAINED, *MISSING)
"""Names of others that are answered."""


def _alone() -> dict[str, str]:
    """Return verl's names by their last parts, where one part is not of several names; ours and those above are left out."""
    parts = [name.rpartition(".")[2] for name in NAMES]
    return {
        part: name for name in NAMES
        if "." in name and parts.count(part := name.rpartition(".")[2]) == 1 and THEIRS.get(name) != part
    }  # fmt: skip


ALONE = _alone()
"""Last part of a name of verl's -> the whole name."""


def of_others(name: str, *, python: bool) -> str | None:
    """Return what to give in place of another framework's option, as a sentence; None if its name is not known.

    Args:
        name: as it is typed: alone, or with the sections of verl.
        python: as an argument of ``Trainer``; else as a key of a configuration, which the command line takes.
    """
    whole = ALONE.get(name, name)
    if whole in THEIRS:
        ours = THEIRS[whole]
        here = ours if python or ours not in ON_COMMAND_LINE else in_python_only(ours)
        return f"{name} is another framework's name; here it is {here}"
    if whole in EXPLAINED:
        return f"{name} is another framework's name; {EXPLAINED[whole]}"
    if whole in MISSING:
        return f"{name} is another framework's option, and there is none here; leave it out ({_PAGE})"
    if name.partition(".")[0] in VERL_SECTIONS:
        return f"{name} is in a section of verl's; {_PAGE} has what its options are called here"
    return None


def in_python_only(argument: str) -> str:
    """Return what is typed on the command line in place of an argument of ``Trainer``, and that argument."""
    return f"{ON_COMMAND_LINE[argument]} on the command line, and {argument}=... of Trainer in Python"


def value_of_others(key: str, value: Any) -> str | None:
    """Return what to give in place of another framework's value of a key, as a clause; None if it is not known."""
    known = VALUES.get(key, {})
    if str(value) not in known:
        return None
    ours = known[str(value)]
    in_trl = f" ({TRL_TRAINERS[str(value)]} in TRL)" if key == "algorithm.name" and str(value) in TRL_TRAINERS else ""
    here = f", and there is none here ({_PAGE})" if ours is None else f"; here it is {ours}"
    return f"another framework's value{in_trl}{here}"
