"""Plans and bounds

The plan of the demonstration log's last step, alternatives to it, and the bound that no plan is below.
"""

# %%
from dataclasses import replace

import rlhfless as rl
import solver
from rlhfless import plots
from rlhfless.analysis import forecasts_of, value_of_information
from rlhfless.latency import usd_per_gpu_hour
from solver.prefix_sharing.deduplicate import deduplicate

run = rl.load(rl.example(), verbose=False)
step = run.plan(step=-1).logged
latency = run.calibrated.latency.affine
problem = solver.PlanningProblem(step.predicted.points, run.calibrated.cluster, latency, run.calibrated.objective)
front = solver.pareto_front(problem, points=15)

# %% plot_plan_bars: what each number of replicas would take
counts = range(1, problem.cluster.max_actors + 1)
plans = {n: solver.plan(replace(problem, min_actors=n, max_actors=n), quick=True) for n in counts}
plots.plot_plan_bars(plans, problem.workload, latency, of="number of actors")

# %% plot_gap_history: how plan and bound come together
plots.plot_gap_history(
    {64: solver.plan(replace(problem, latency=replace(latency, max_batch=64)))}, {64: front}, of="slots per actor"
)

# %% plot_front: what less time costs
weighed = {w: solver.plan(replace(problem, objective=solver.Objective(w)), quick=True) for w in (0.1, 0.4, 0.7, 1.0)}
outcomes = {w: solver.evaluate(plan, replace(problem, workload=step.truth)) for w, plan in weighed.items()}
plots.plot_front(front, weighed, outcomes, start=0.7)

# %% plot_plan_bars: the plan of each time weight, and its place on the front
plots.plot_plan_bars(weighed, problem.workload, latency, front=front, of="time weight (1: time only, 0: cost only)", start=0.7)

# %% plot_value_of_information: what a better forecast of lengths is worth
plots.plot_value_of_information(
    value_of_information(step, run.calibrated, forecasts_of(step, sds=(0.1,)), ("random", "solver", "oracle"), draws=1)
)

# %% plot_kinds: a plan on GPUs of several kinds
names = ("l40s-qwen2.5-3b-tp2", "h100-qwen2.5-3b-tp1", "h100-qwen2.5-3b-tp2")
models = {(model.kind, model.gpus_per_actor): model.affine for model in map(rl.load_profile, names)}
pools = [solver.GpuPool("h100", 1, 4, usd_per_gpu_hour("h100")), solver.GpuPool("l40s", 2, 8, usd_per_gpu_hour("l40s"))]
cheapest = solver.Objective(deadline_s=110.0, cost="usd")
mixed = solver.plan(solver.PlanningProblem(problem.workload, solver.MixedCluster(pools), models, cheapest))
plots.plot_kinds({"list price": mixed}, problem.workload, of="price of the L40S")

# %% plot_prefill: prompt tokens that replicas compute, before and after deduplication
split = solver.random_split(problem)
shared = {"random": deduplicate(split, run.setting.problem(step.predicted), learner_node=0)}
plots.plot_prefill(shared, int(step.predicted.prompt_tokens.sum()))

# %% plot_two_step_gain: how long a response stands still when it moves
plots.plot_two_step_gain(rl.load_profile("l40s-qwen2.5-3b-tp2"), context_tokens=2000)
