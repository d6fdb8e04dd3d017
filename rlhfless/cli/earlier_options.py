"""Options of earlier versions, and where each is now: what is said of one that is typed by habit.

``docs/command_line.md`` has the same table, with the options of commands that are gone.
"""

from __future__ import annotations

import re

from rlhfless.cli.log_options import PLACEHOLDERS
from rlhfless.gone_options import FLAT

READING = {option: f"`convert {option}`, whose trace is named in place of LOG" for option in PLACEHOLDERS}
"""The options of reading a log, which ``report`` and ``convert`` have alone."""

CONVERTED = ("plan", "simulate", "step", "profile")
"""Commands that had them, too; now they read what ``convert`` wrote."""

ALONE = "else it is generation alone"

EARLIER: dict[str, dict[str, str]] = {
    "convert": {
        "--max-requests": "Python: `write_perfetto(trace, out, max_requests=1000)`",
    },
    "figures": {
        "--png": "`figures --pictures` `png`, or `none` for `--no-png`",
        "--pdf": "`figures --pictures` `png,pdf`",
    },
    "layouts": {
        "--kind": "`layouts --gpu`",
        "--gpus-per-node": "`layouts --gpus` `2x4`",
        "--deadline-s": "`layouts --limit` `90s`",
        "--budget-gpu-s": "`layouts --limit` `5000gpu-s`",
        "--budget-usd": "`layouts --limit` `0.5usd`",
    },
    "plan": {
        **READING,
        "--gpus-per-node": "`plan --gpus` `2x4`",
        "--admission": 'Python: `replace(run, admission="preempt")`; hardly ever chosen',
        "--prepare-s": "Python: `replace(problem, phases=NonGenerationPhases(prepare_s=3.0))`; " + ALONE,
        "--learn-s": "Python: `replace(problem, phases=NonGenerationPhases(learn_s=20.0))`; " + ALONE,
        "--learner-gpus": "Python: `replace(problem, phases=NonGenerationPhases(learner_gpus=8))`; " + ALONE,
        "--prepare-per-token-s": "Python: `TokenWork(...)`, and notebook 07",
        "--learn-per-token-s": "Python: `TokenWork(...)`, and notebook 07",
        "--fuse": "Python: `choose_cut(plan, problem, work)`, and notebook 07",
        "--deadline-s": "`plan --limit` `90s`",
        "--budget-gpu-s": "`plan --limit` `5000gpu-s`",
        "--budget-usd": "`plan --limit` `0.5usd`",
        "--cost": 'Python: `Objective(cost="usd")`; `--limit 0.5usd` implies it',
        "--cvar-alpha": "Python: `Objective(cvar_alpha=0.1)`",
        "--keep-together": "Python: `replace(problem, keep_together=True)`",
        "--deduplicate-prefill": "Python: `deduplicate(plan, problem, ...)`, and the cookbook",
        "--prefix-tokens": "Python: `deduplicate(plan, problem, ...)`, and the cookbook",
        "--prompt-ids": "Python: `deduplicate(plan, problem, ...)`, and the cookbook",
        "--learner-node": "Python: `deduplicate(plan, problem, ...)`, and the cookbook",
        "--share-prefill": "Python: `replace(problem, share_prefill=True)`",
        "--min-actors": "Python: `replace(problem, min_actors=2)`",
        "--max-actors": "Python: `replace(problem, max_actors=4)`",
        "--prewarmed": "Python: `replace(problem, cluster=replace(problem.cluster, prewarmed=1))`",
        "--release": 'Python: `replace(problem, release="step")`',
        "--calibrate": "Python: `rl.load(LOG, assumptions=Assumptions(calibrate=False))`",
        "--seed": "Python: `replace(planned.setting, seed=1)`; a plan hardly depends on it",
    },
    "profile": {
        **READING,
        "--rounds": "Python: `measure_profile(..., grid=MeasurementGrid(rounds=30))`",
    },
    "report": {
        "--gpus-per-node": "`report --gpus` `2x4`",
        "--gpus-generate": "`report --gpus`, as those of `report --learner-gpus` are beside them",
        "--gpus-train": "`report --learner-gpus`",
        "--tensor-parallel": "`report --gpus-per-actor`",
        "--gpu-memory-gib": "Python: `rl.load(LOG, known=Stated(gpu_memory_gib=40.0))`",
        "--memory-share": "`report --gpu-memory-utilization`",
        "--price": "`report --usd-per-gpu-hour` `spot=1.90`",
        "--calibrate": "Python: `rl.load(LOG, assumptions=Assumptions(calibrate=False))`",
    },
    "simulate": {
        **READING,
        "--gpus-per-node": "`simulate --gpus` `2x4`",
        "--admission": 'Python: `replace(run.calibrated, admission="preempt")`',
        "--predictor": 'Python: `simulate(..., predictor=make_predictor("inflight"))`',
        "--tau": "Python: `replace(run.calibrated, tau=0.5)`; Figure 15 sweeps it",
        "--static-actors": "Python: `replace(run.calibrated, static_actors=4)`",
        "--hold": 'Python: `replace(run.calibrated, hold="step")`',
        "--draft-length": 'Python: `Speculative(Drafting(...), make_policy("static"))`; policies `spec...` draft by name',
        "--prepare-s": "Python: `replace(run.calibrated, phases=NonGenerationPhases(prepare_s=3.0))`; " + ALONE,
        "--learn-s": "Python: `replace(run.calibrated, phases=NonGenerationPhases(learn_s=20.0))`; " + ALONE,
        "--learner-gpus": "Python: `replace(run.calibrated, phases=NonGenerationPhases(learner_gpus=8))`; " + ALONE,
        "--prepare-per-token-s": "Python: `replace(run.calibrated, work=TokenWork(...))`",
        "--learn-per-token-s": "Python: `replace(run.calibrated, work=TokenWork(...))`",
        "--fuse": "Python: `replace(run.calibrated, work=TokenWork(...), learner=Learner(streams=True, overlaps=True))`",
        "--learner-start": 'Python: `replace(run.calibrated, work=TokenWork(...), learner=Learner(4), learner_start="needed")`',
        "--migration": 'Python: `replace(run.calibrated, migration="move")`',
        "--calibrate": "Python: `rl.load(LOG, assumptions=Assumptions(calibrate=False))`",
    },
    "step": {
        **READING,
        "--responses": "`layouts --responses`",
        "--prompt-tokens": "`layouts --prompt-tokens`",
        "--response-tokens": "`layouts --response-tokens`",
        "--kind": "`step --gpu` and `layouts --gpu`",
        "--gpus-per-node": "`step --gpus` and `layouts --gpus` `2x4`",
        "--lengths": "the LOG of `step`; `layouts` has no log",
        "--deadline-s": "`step --limit` and `layouts --limit` `90s`",
        "--budget-gpu-s": "`step --limit` and `layouts --limit` `5000gpu-s`",
        "--budget-usd": "`step --limit` and `layouts --limit` `0.5usd`",
        "--cost": 'Python: `Objective(cost="usd")`; `--limit 0.5usd` implies it',
        "--held": "gone: GPUs count while calls hold them, and where all are paid for the shortest step is the cheapest",
        "--compare": "`layouts --compare`",
        "--gap": "Python: `plan_step(..., gap=0.1)`",
        "--work": "Python: `plan_step(..., work=20_000)`",
        "--seed": "Python: `plan_step(..., seed=1)`; a plan hardly depends on it",
    },
}
"""Command -> option -> where it is now: options of a command in backticks, or what is written in Python."""

MODULES = {
    "replace": "dataclasses",
    "Assumptions": "rlhfless.analysis",
    "Stated": "rlhfless.diagnosis",
    "MeasurementGrid": "rlhfless.latency.measure",
    "measure_profile": "rlhfless.latency.measure",
    "make_predictor": "rlhfless.predict",
    "make_policy": "rlhfless.scheduling",
    "Speculative": "rlhfless.scheduling.speculative",
    "simulate": "rlhfless.simulate",
    "write_perfetto": "rlhfless.trace.perfetto",
    "Objective": "solver",
    "NonGenerationPhases": "solver",
    "plan_step": "solver.layouts.planner",
    "Drafting": "solver.model.drafting",
    "deduplicate": "solver.prefix_sharing.deduplicate",
    "choose_cut": "solver.step.cut",
    "Learner": "solver.step.work",
    "TokenWork": "solver.step.work",
}
"""What ``EARLIER`` names of Python -> its module."""

TRAIN = {
    "--task": "task.name", "--reward": "task.rewards", "--algorithm": "algorithm.name", "--optimizer": "optimizer.name",
    "--lora-target": "optimizer.lora_targets", "--no-whiten": "algorithm.whiten",
    "--model": "model", "--steps": "steps", "--seed": "seed", "--save-every": "save_every",
    "--save-total-limit": "save_total_limit", "--eval-every": "eval_every",
}  # fmt: skip
"""Flags of ``train`` whose key has another name or no section; all others are in ``FLAT``."""
OPTIONS_OF_TRAIN = {
    "--resume-from": "it is --resume STEPS",
    "--gpus-per-actor": "the profile states the GPUs of an actor, and cluster.tensor_parallel those of vLLM",
}


def now(command: str, option: str) -> str | None:
    """Return where an option of an earlier version is now, as a clause; None where there was none."""
    if command == "train":
        return _of_train(option)
    of_command = EARLIER.get(command, {})
    text = of_command.get(option) or of_command.get(option.replace("--no-", "--", 1))
    if text is None:
        return None
    own = re.sub(rf"(`{command} --[a-z-]+`) and `[a-z]+ --[a-z-]+`", r"\1", text)  # without other commands that have it, too
    said = own.replace(f"`{command} --", "`--").replace("` `", " ").replace("`", "")
    if not said.startswith("Python: "):
        return f"it is {said}"
    names = dict.fromkeys(re.findall(r"(?<![.\w])[A-Za-z_]+(?=\()", said))
    imports = "; ".join(f"from {MODULES[name]} import {name}" for name in names)
    return f"in Python it is {said.removeprefix('Python: ')}{imports and f' ({imports})'}{_where(said)}"


def _where(said: str) -> str:
    """Return where the objects come from that a line of Python changes."""
    planned = "planned = rl.load(LOG).plan()"
    if "(problem," in said:
        return f", where {planned}, and problem, _ = planned.logged.inputs(planned.setting)"
    if "(planned." in said:
        return f", where {planned}"
    return ", where run = rl.load(LOG), for simulate(run.rollouts, ...)" if "(run." in said else ""


def _of_train(option: str) -> str | None:
    """Return the key that a flag of ``train`` is now."""
    if option in OPTIONS_OF_TRAIN:
        return OPTIONS_OF_TRAIN[option]
    name = option.removeprefix("--").replace("-", "_")
    key = TRAIN.get(option) or next((f"{section}.{name}" for section, names in FLAT.items() if name in names), None)
    return key and f"it is a key now: {key}=VALUE"
