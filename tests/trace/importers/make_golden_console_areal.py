"""Makes the golden console text of AReaL with its own statements that print a step.

    git -C DIR clone https://github.com/inclusionAI/AReaL && pip install tabulate
    python tests/trace/importers/make_golden_console_areal.py DIR/AReaL

``StatsLogger.commit`` and ``tabulate_stats`` are taken out of their sources as they stand there, since the package needs GPUs;
they are under the Apache License 2.0. The logger has their form of a line and our clock, and the numbers are ours.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tabulate

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from importer_samples import GOLDEN, sample_rollouts

LOGGER, PRINTING = "areal/utils/stats_logger.py", "areal/utils/printing.py"
TIMES = {
    "rollout": 4.0, "recompute_logp": 1.0, "ref_logp": 0.75, "compute_advantage": 0.25, "train_step": 3.0,
    "update_weights": 0.5, "save": 0.125, "checkpoint_for_recover": 0.125, "eval": 0.0, "clear_batches": 0.125,
}  # fmt: skip
STEP_S = 10.25


def functions(repository: Path, path: str, *names: str) -> dict[str, Any]:
    """Return functions of a file, defined without the rest of it; what they need besides has a stand-in that does nothing."""
    git = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
    tree = ast.parse(subprocess.run(git, capture_output=True, text=True, check=True).stdout)
    nothing = SimpleNamespace(log=lambda *_, **__: None, is_initialized=lambda: False)
    space: dict[str, Any] = {"tabulate": tabulate.tabulate, "dist": nothing, "wandb": nothing, "swanlab": nothing}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            exec(compile(annotated(node), path, "exec"), space)
    return space


def annotated(function: ast.FunctionDef) -> ast.Module:
    """Return a module of one function, whose annotations are not evaluated."""
    module = ast.parse("from __future__ import annotations")
    module.body.append(function)
    return module


def main(repository: Path) -> None:
    lines: list[str] = []
    clock_s = [0.0]

    def info(text: str) -> None:
        minutes, seconds = divmod(clock_s[0], 60)
        lines.append(f"(AReaL) 20250304-23:{58 + minutes:02.0f}:{seconds:06.3f} StatsLogger INFO: {text}")

    tables = functions(repository, PRINTING, "tabulate_stats")
    space = functions(repository, LOGGER, "commit", "print_stats")
    space |= {"logger": SimpleNamespace(info=info), "tabulate_stats": tables["tabulate_stats"]}
    planned = SimpleNamespace(total_train_epochs=5, steps_per_epoch=10, total_train_steps=50)
    owner = SimpleNamespace(ft_spec=planned, _last_commit_step=-1, _trackio_enabled=False, summary_writer=None)
    owner.print_stats = lambda stats: space["print_stats"](owner, stats)
    for at, (_, rows) in enumerate(sample_rollouts().groupby("step")):
        clock_s[0] = (at + 1) * STEP_S
        stats = {
            "ppo_actor/n_seqs": float(len(rows)), "ppo_actor/n_seqs__count": 1,
            "ppo_actor/seq_len/avg": float((rows["response_tokens"] + rows["prompt_tokens"]).mean()),
            "ppo_actor/prompt_len/avg": float(rows["prompt_tokens"].mean()),
            "ppo_actor/no_eos_ratios/avg": 0.25, "ppo_actor/task_reward/avg": float(rows["reward"].mean()),
            **{f"timeperf/{name}": seconds for name, seconds in TIMES.items()},
        }  # fmt: skip
        space["commit"](owner, 0, at, at, stats)
    folder = GOLDEN / "areal-console"
    folder.mkdir(exist_ok=True)
    (folder / "console.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
