"""Writes a logged run's report as a notebook: ``notebooks/02_your_log.ipynb`` with its parameters filled in by papermill.

The notebook is written, not executed, and nothing is computed here. It reads the log again, so the user can change any value.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhfless.analysis import Assumptions
from rlhfless.errors import InputError, missing_extra
from rlhfless.plots.export.html_page import page_path, write_page
from rlhfless.simulate import SimulationConfig
from rlhfless.system.installation import PACKAGE, clone
from rlhfless.trace import ImportOptions, TraceError
from rlhfless.trace.storage import absolute

TEMPLATE = "02_your_log.ipynb"
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)[^)]+\)")
"""A link of Markdown that leads nowhere outside the project's folder."""


@dataclass(frozen=True)
class LogSource:
    """A log and how it is read: ``open_log(path, options, framework).of_run(run)``."""

    path: str | Path
    options: ImportOptions = field(default_factory=ImportOptions)
    framework: str = "auto"
    run: str | None = None


def template_path() -> Path:
    """Return the notebook that is filled in: the clone's, or the installed package's."""
    return (clone() or PACKAGE / "_data") / "notebooks" / TEMPLATE


def write_report_notebook(
    log: LogSource,
    out: str | Path,
    profile: str,
    setting: SimulationConfig,
    assumptions: Assumptions,
    *,
    max_steps: int = 8,
) -> Path:
    """Write a notebook whose cells make the report of a logged run; it is not executed.

    Args:
        log: the log of one run. out: the .ipynb file; replaced atomically. profile: name or file of the latency profile.
        setting, assumptions, max_steps: as for the page.

    Raises:
        MissingExtra: papermill is not installed.
        InputError: a value has no literal in Python, a price that is not a number for example.
        TraceError: the file cannot be written.
    """
    try:
        import nbformat
        from papermill.iorw import load_notebook_node
        from papermill.parameterize import parameterize_notebook
    except ImportError:
        raise missing_extra("a report as a notebook", "papermill", "notebook") from None
    path = page_path(out, TraceError).resolve()
    book = load_notebook_node(str(template_path()))
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = RELATIVE_LINK.sub(r"\1", cell.source)
    book = parameterize_notebook(book, _checked(_parameters(log, path, profile, setting, assumptions, max_steps)))
    filled = next(cell for cell in book.cells if "injected-parameters" in cell.metadata.get("tags", []))
    filled["id"] = "filled-in"  # papermill's is random
    return write_page(path, nbformat.writes(book) + "\n", TraceError)


def _parameters(
    log: LogSource, out: Path, profile: str, setting: SimulationConfig, stated: Assumptions, max_steps: int
) -> dict[str, Any]:
    """Return the notebook's parameters; paths are absolute, so that the notebook can be moved."""
    cluster, options = setting.cluster, log.options
    return {
        "LOG": str(Path(log.path).resolve()),
        "FORMAT": log.framework,
        "TOKENIZER": None if options.tokenizer is None else absolute(str(options.tokenizer)),
        "COLUMNS": dict(options.mapping),
        "WHERE": options.where,
        "RUN": log.run,
        "MAX_RESPONSE_TOKENS": setting.max_response_tokens,
        "GPUS": cluster.gpus,
        "GPUS_PER_NODE": cluster.gpus_per_node,
        "GPUS_PER_ACTOR": cluster.gpus_per_actor,
        "PROFILE": absolute(profile),
        "USD_PER_GPU_HOUR": cluster.usd_per_gpu_hour,
        "PRICES": dict(stated.prices),
        "DISPATCH": stated.dispatch,
        "LEARNER_GPUS": stated.learner_gpus,
        "PREPARE_S": stated.prepare_s,
        "LEARN_S": stated.learn_s,
        "CALIBRATE": stated.calibrate,
        "NOT_STATED": dict(stated.not_stated),
        "TIME_WEIGHT": setting.objective.time_weight,
        "STEPS": max_steps,
        "PAGE": str(out.with_name(f"{out.stem}_page.html")),
    }


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values if papermill's text of each is read back as the value; it writes other types as texts.

    Raises:
        InputError: naming the first that is not.
    """
    from papermill.translators import PythonTranslator

    for name, value in values.items():
        try:
            same = ast.literal_eval(PythonTranslator.translate(value)) == value
        except (SyntaxError, ValueError):
            same = False
        if not same:
            needed = "None, texts, finite numbers, and lists and dicts of these are needed"
            raise InputError(f"{name} is {value!r}: cannot be a parameter of a notebook; {needed}")
    return values
