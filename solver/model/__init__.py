"""The nouns of planning: workload, cluster, latency model, objective, plan, runtime rules, errors."""
