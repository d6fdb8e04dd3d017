"""One step of generation

The last step of the demonstration log on 16 H100, as it ran and as planned, and the same step under other schedules.
"""

# %%
import rlhfless as rl
from rlhfless import plots

run = rl.load(rl.example(), verbose=False)
planned = run.plan(step=-1)
comparison = planned.compare("static")

# %% plot_before_after: a step before and after, on one time axis
comparison.plot()

# %% plot_timeline: who holds which GPUs, and how full each replica is
plots.plot_timeline(comparison.traces["solver"])

# %% plot_timelines: several schedules of a step on one time axis
plots.plot_timelines(comparison.traces)

# %% plot_responses: the responses of one replica, in the order in which they joined
plots.plot_responses(comparison.traces["solver"])

# %% plot_lengths: predicted against true lengths
plots.plot_lengths(comparison.traces["solver"], run.steps[-1])

# %% plot_plane: schedules by time and cost, above the bound
results = run.simulate(["static", "fold", "rlhfless", "solver"], steps=run.steps[-1:])
plots.plot_plane(results.table)

# %% plot_waterfall: what each idea adds
plots.plot_waterfall(results.table)
