"""GRPO and PPO: batches, advantages, losses, the critic, optimizers."""
