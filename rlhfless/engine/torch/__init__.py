"""A continuous-batching engine in PyTorch, for one model replica."""
