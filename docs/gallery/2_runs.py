"""A whole run

What the steps of a run took and cost: the demonstration log, and the shipped training run, which was executed.
"""

# %%
import json
from pathlib import Path

import pandas as pd

import rlhfless as rl
from rlhfless import plots
from rlhfless.trace import read_trace
from rlhfless.widgets import LiveRun, steps_of

recorded = read_trace("data/traces/arithmetic-grpo")
findings = rl.load(rl.example(), verbose=False).findings(max_steps=1)

# %% plot_overview: one step by phase
phases = rl.load("tests/trace/importers/golden/nemo-rl-console/async.log", gpus=8, verbose=False)
plots.plot_overview(phases.diagnosis().step)

# %% plot_overview: what the run's GPUs did
plots.plot_overview(findings.account.lines)

# %% plot_steps: lengths and replicas, step by step
plots.plot_steps(findings.planned)

# %% plot_steps: GPU-seconds, time and replicas of every step
plots.plot_steps(recorded)

# %% plot_steps: several schedules, step by step
run = rl.load(rl.example(), verbose=False)
schedules = run.simulate(["static", "random", "fold"])
plots.plot_steps(schedules.traces)

# %% plot_lengths: response lengths of two logs
plots.plot_lengths({"demonstration": rl.example(), "arithmetic": recorded})

# %% plot_curves: what the model learned
plots.plot_curves(json.loads(Path("data/learning/curves.json").read_text("utf-8"))["runs"])

# %% plot_curves: reward, length and replicas of a live run
trainer = rl.Trainer.continue_from(
    recorded, "data/models/arithmetic-grpo", steps=recorded.steps[-1] + 3, prompts_per_step=8, progress=False
)
live = LiveRun(steps_of(trainer))
live.run()
live.wait()
trainer.close()
plots.plot_curves(live.table)

# %% plot_cost_over_time: what a live run has cost so far
plots.plot_cost_over_time(pd.DataFrame(live.costs))
