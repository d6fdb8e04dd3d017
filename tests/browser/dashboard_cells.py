"""Cells of a notebook that show every dashboard but ``explore``: compared runs, a trace near and far, a run that has ended."""

from __future__ import annotations

COMPARED = """
from rlhfless.simulate import simulate
from rlhfless.trace import read_rollouts
from rlhfless.widgets import Settings, compare
setting = Settings("cpu-tiny-qwen2", gpus=8, time_weight=0.3, usd_per_gpu_hour=1.5).setting
result = simulate(read_rollouts("hostile.jsonl"), setting, ["static", "rlhfless", "solver"])
compare(result.traces)
"""
ZOOMED = "from rlhfless.widgets import zoom\nzoom(result.traces['solver'])"
ZOOMED_FAR = "zoom(result.traces['solver'], max_spans=0)"
LIVE = """
import solver
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import Executor
from rlhfless.widgets import live
one = result.logged[-1]
plan = solver.plan(setting.problem(one.predicted.points))
view = live(Executor(SimulatedEngine, setting.cluster, latency=setting.latency), [(plan, one.requests())])
view.run.run()
view.run.wait()
view
"""
DASHBOARDS = {"compare": COMPARED, "zoom": ZOOMED, "zoom_far": ZOOMED_FAR, "live": LIVE}
DRAWN_PANES = 2 + 1 + 1 + 3  # of them, in this order
ALL_DRAWN = "(count) => document.querySelectorAll('.rlhfless-panes [data-drawn]').length === count"
