"""What if

The same log on other GPUs, with another policy, or learned from while it is generated.
"""

# %%
import rlhfless as rl
from rlhfless.analysis import Assumptions

run = rl.load(rl.example(), verbose=False)
log = "data/traces/reasoning-static/rollouts.parquet"
learns = rl.load(log, 16, "h100-qwen2.5-3b-tp2", assumptions=Assumptions(prepare_s=3, learn_s=20), verbose=False)

# %% Comparison.plot: GPUs, time weights and policies by time and cost
run.sweep(gpus=[8, 16, 32], policies=["static", "solver"]).plot()

# %% Comparison.plot: other ways to generate and to learn
learns.what_ifs().plot()

# %% Split.plot: how many GPUs generate and how many train
divided = rl.load(log, 16, "h100-qwen2.5-3b-tp1", assumptions=Assumptions(learner_gpus=8, learn_s=20), verbose=False)
divided.split(staleness=1).plot()
