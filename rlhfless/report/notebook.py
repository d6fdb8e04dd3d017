"""Writes a logged run's report as a notebook: its cells call the functions that make the page, as a starting point.

The notebook is written, not executed, and nothing is computed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhfless.errors import MissingExtra
from rlhfless.plots.export.html_page import page_path
from rlhfless.report.study import Assumptions
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import Limits, TraceError
from rlhfless.trace.storage import absolute, write_text

CELLS = (
    ("markdown", "# What this run wasted, and what other schedules would have saved\n\nThe findings of `rlhfless report`, by "
     "the functions that it calls. Change the cell below, run all, go on from there."),
    ("parameters", ""),
    ("code", "import pandas as pd\n\nfrom rlhfless import plots\nfrom rlhfless.latency import load_profile\n"
     "from rlhfless.report.logged_run import at_prices, configured, in_short\n"
     "from rlhfless.report.simulated import ladder_figure, predicted_front, weights_figure\n"
     "from rlhfless.report.study import Assumptions, study_log\n"
     "from rlhfless.simulate import SimulationConfig\nfrom rlhfless.trace import ImportOptions, Limits, open_log\n"
     "from rlhfless.trace.metrics.cross_check import checks_frame\nfrom solver import Cluster, Objective\n\n"
     "options = ImportOptions(TOKENIZER, COLUMNS, RESPONSE_LIMIT, limits=Limits(**LIMITS))\n"
     "log = open_log(LOG, options, FORMAT).of_run(RUN)\n"
     "print(log.summary or log.trace.source)"),
    ("code", "latency = load_profile(PROFILE)\ncluster = Cluster(NODES, GPUS_PER_NODE, GPUS_PER_ACTOR, latency.kind, "
     "USD_PER_GPU_HOUR)\nsetting = SimulationConfig(cluster, latency, Objective(TIME_WEIGHT), "
     "max_response_tokens=RESPONSE_LIMIT)\n"
     "stated = Assumptions(DISPATCH, LEARNER_GPUS, PREPARE_S, LEARN_S, CALIBRATE, PRICES, NOT_STATED)\n"
     "study = study_log(log, setting, stated, STEPS)\nfound = study.findings\n"
     "print(*in_short(found), sep='\\n\\n')"),
    ("markdown", "What the log measured, beside what is counted or simulated:"),
    ("code", "checks_frame(found.checks)"),
    ("markdown", "What nobody stated, and is assumed:"),
    ("code", "print(*found.setup.assumed, sep='\\n')"),
    ("markdown", "## Where the GPU-seconds went"),
    ("code", "plots.plot_account(found.account.lines)"),
    ("code", "found.account.steps  # the response that everybody waited for, step by step"),
    ("markdown", "## What other schedules would have saved\n\nShares of the run's own whole steps: first of schedules that "
     "want the least time on GPUs that are paid for in any case, then of schedules that give GPUs back when an actor is done."),
    ("code", "found.reserved.filter(regex='policy|time').set_index('policy').style.format('{:.1%}')"),
    ("code", "found.given_back.set_index('policy').style.format('{:.1%}')"),
    ("code", "plots.plot_plane(study.schedules.results(list(study.schedules.policies)))"),
    ("markdown", "From the run's own way of dealing responses to the bound, one idea at a time."),
    ("code", "ladder_figure(study.schedules)"),
    ("markdown", "## What if\n\nOne thing changed at a time; then the steps as they were, at other prices."),
    ("code", "found.what_if.drop(columns='missing').round(3)"),
    ("code", "at_prices(found, PRICES)"),
    ("markdown", "## Actor sizes\n\nAnd the framework's own configuration lines for them, where they are known."),
    ("code", "pd.DataFrame(found.advice.sizes)"),
    ("code", "for advised in configured(found):\n"
     "    print(f'# {advised.what}: {advised.replicas} replicas of {advised.gpus_per_actor}', *advised.lines, sep='\\n')"),
    ("markdown", "## Time against cost\n\nPlans of the last step, computed beforehand: the slider runs nothing."),
    ("code", "weights_figure(study.schedules, study.setting, predicted_front(study.schedules, study.setting))"),
)  # fmt: skip


def write_report_notebook(
    source: str | Path,
    out: str | Path,
    profile: str,
    setting: SimulationConfig,
    assumptions: Assumptions,
    *,
    framework: str = "auto",
    tokenizer: str | None = None,
    columns: dict[str, str] | None = None,
    run: str | None = None,
    limits: Limits | None = None,
    max_steps: int = 8,
) -> Path:
    """Write a notebook whose cells make the report of a logged run; it is not executed.

    Args:
        source: path of the log. out: the .ipynb file; replaced in one go. profile: name or file of the latency profile.
        setting, assumptions, framework, tokenizer, columns, max_steps: as for the page.
        run: the run to report, where the log holds several. limits: of the amount of data read; the defaults when None.

    Raises:
        MissingExtra: nbformat is not installed.
        TraceError: the file cannot be written.
    """
    try:
        from nbformat import v4, writes
    except ImportError as error:
        raise MissingExtra("notebooks need nbformat, which is not installed: pip install 'rlhfless[notebook]'") from error
    path = page_path(out, TraceError)
    cluster = setting.cluster
    values: dict[str, Any] = {
        "LOG": str(Path(source).resolve()), "FORMAT": framework, "TOKENIZER": absolute(tokenizer), "COLUMNS": columns or {},
        "RUN": run, "RESPONSE_LIMIT": setting.max_response_tokens, "NODES": cluster.nodes,
        "GPUS_PER_NODE": cluster.gpus_per_node,
        "GPUS_PER_ACTOR": cluster.gpus_per_actor, "USD_PER_GPU_HOUR": cluster.usd_per_gpu_hour, "PROFILE": absolute(profile),
        "TIME_WEIGHT": setting.objective.time_weight, "STEPS": max_steps, "DISPATCH": assumptions.dispatch,
        "LEARNER_GPUS": assumptions.learner_gpus, "PREPARE_S": assumptions.prepare_s,
        "LEARN_S": assumptions.learn_s, "CALIBRATE": assumptions.calibrate, "PRICES": dict(assumptions.prices),
        "NOT_STATED": assumptions.not_stated, "LIMITS": vars(limits or Limits()),
    }  # fmt: skip
    cells = []
    for i, (kind, text) in enumerate(CELLS):
        if kind == "markdown":
            cell = v4.new_markdown_cell(text)
        elif kind == "parameters":
            cell = v4.new_code_cell("\n".join(f"{name} = {value!r}" for name, value in values.items()))
            cell.metadata["tags"] = ["parameters"]
        else:
            cell = v4.new_code_cell(text)
        cell["id"] = f"cell-{i}"
        cells.append(cell)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{path.parent}: cannot be made ({error.strerror}); a writable folder is needed") from None
    write_text(path, writes(v4.new_notebook(cells=cells, metadata=kernel)) + "\n")
    return path
