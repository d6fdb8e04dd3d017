"""Policy-gradient training: batches, advantages, losses, the critic, optimizers; ``builtin`` has the algorithms."""
