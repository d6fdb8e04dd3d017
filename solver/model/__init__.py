"""Data classes of planning: workload, cluster, latency model, objective, plan, runtime rules, errors."""
