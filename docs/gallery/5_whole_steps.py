"""Whole steps

Generation, rewards, references and learning in one plan: which GPUs each model call has, and what overlaps.
"""

# %%
from dataclasses import replace

import rlhfless as rl
import solver
from rlhfless import plots
from rlhfless.latency import CallTable, StepBatch
from rlhfless.scheduling.published import published_plans
from rlhfless.simulate import fusion_front, simulate_steps
from solver.layouts import plan_step, ppo
from solver.pipeline import fused, schedule_pipeline, serial
from solver.step.cut import choose_cut
from solver.step.work import Learner, TokenWork

cluster = solver.Cluster(2, 8, 1, "h100")
models = {"actor": "llama2-13b", "reference": "llama2-13b", "critic": "llama2-7b", "reward": "llama2-7b"}
costs = CallTable("h100", models, StepBatch(256, 128, 384, 4))
plan = plan_step(ppo(), cluster, costs, memory_bytes=costs.gpu_memory_bytes)
others = published_plans(
    ["verl", "real"], ppo(), cluster, costs, lower_bound_s=plan.lower_bound_s, memory_bytes=costs.gpu_memory_bytes
)
plans = {**others, "this plan": plan}

# %% plot_step_plan: which GPUs every model call of a step runs on
plots.plot_step_plan(plans, memory_bytes=costs.gpu_memory_bytes)

# %% plot_step_comparison: plans of a step, by what they spend GPU-seconds on
plots.plot_step_comparison(plans)

# %% plot_step_search: how the search for a plan came down to its bound
plots.plot_step_search(plans)

# %% plot_pipeline: two models trained in one pipeline
problem = fused(actor=(4, 2, 8), critic=(4, 1, 8), activations=(1, 1))
plots.plot_pipeline({"serial": serial(problem), "fused": schedule_pipeline(problem)})

# %% plot_step_fusion: learning from finished responses while others are decoded
planned = rl.load("data/traces/arithmetic-grpo", 16, "l40s-qwen2.5-3b-tp2", verbose=False).plan()
work = TokenWork(2e-5, 8e-5)
setting = replace(planned.setting, work=work, objective=solver.Objective(time_weight=1.0))
plots.plot_step_fusion(simulate_steps([planned.logged], setting, ("rlhfuse+stream",)).traces["rlhfuse+stream"])

# %% Comparison.plot: batch and streamed learning by time and cost
fusion_front(planned.logged, replace(setting, learner=Learner(own=2, grows=False, place="released"))).plot()

# %% plot_cut_surface: when to cut generation, and on how many replicas to go on
last = setting.problem(planned.logged.truth)
plots.plot_cut_surface(choose_cut(solver.random_split(last), last, work))

# %% PlannedWholeStep.plot: replicas, assignment, learner and layouts in one plan
whole = rl.load("data/traces/reasoning-static", 16, "l40s-qwen2.5-3b-tp2", verbose=False).plan_step(algorithm="grpo")
whole.plot()

# %% plot_side_by_side: numbers of several schedules, in groups of bars
used = whole.savings[whole.savings["used"]].set_index("lever")[["expected", "saved"]]
plots.plot_side_by_side(used, "Saved by each lever, leave one out", "share of weighted time and cost", groups="lever")
