"""Speculative decoding

What drafts from a run's own texts would have accepted, and what that is worth.
"""

# %%
from dataclasses import replace

import rlhfless as rl
from rlhfless import plots
from rlhfless.analysis import study_drafts, text_encoder
from rlhfless.simulate import STRONG, DrawnDrafts, draft_fronts

run = rl.load("data/traces/arithmetic-grpo", 16, "l40s-qwen2.5-3b-tp2", verbose=False)
study = study_drafts(run.rollouts, *text_encoder("data/models/arithmetic-grpo"), max_tokens=4)

# %% plot_acceptance: how far drafts are accepted
plots.plot_acceptance(study)

# %% plot_speedup_map: what drafts are worth, by batch and draft length
plots.plot_speedup_map(run.setting.latency, study.context_tokens, study.best.acceptance)

# %% Comparison.plot: policies with and without drafts, above the bound
planned = run.plan()
setting = replace(planned.setting, drafts=DrawnDrafts(STRONG))
draft_fronts(planned.logged, setting, time_weights=[0.0, 0.5, 1.0]).plot()
