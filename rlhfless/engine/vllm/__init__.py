"""vLLM behind the engine protocol: start-up, weights, KV transfer between actors."""
