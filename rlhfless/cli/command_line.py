"""Runs a command: makes its line from the model of its options, and shows what is wrong in one sentence.

pydantic-settings makes the argument parser from the fields of the model, and pydantic checks the values. Wrong input ends with
exit code 2 and one line on standard error that says what is wrong, where, and what would be right. The same holds for a device
without enough memory and for a model whose logits are not finite. A warning is one line, too. An interrupt ends with 130.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rlhfless import __version__
from rlhfless.errors import InputError, UserError, missing_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from rlhfless.cli.options import Options

    Model = TypeVar("Model", bound=Options)

COMMANDS = {
    "report": "Say what limits a run, from its log or trace, and write a page, a notebook or JSON about it.",
    "plan": "Plan one step of a log, and compare the plan with the static schedule and the lower bound.",
    "simulate": "Run every step of a log under several scheduling policies, and compare time and cost.",
    "step": "Plan a whole training step from a log: replicas, responses, learner and layouts in one plan.",
    "layouts": "Place every model call of a training step on GPUs, as ReaL does, from mean lengths alone.",
    "train": "Train a model: every step predicts lengths, plans and runs generation, scores and learns.",
    "profile": "Write a latency profile: measured on this machine, or from the lines and times of a log.",
    "convert": "Write a log as a trace, a trace as a Perfetto timeline, or lengths as a router for verl.",
    "figures": "Reproduce the figures of the papers RLHFless, ReaL and RLHFuse.",
    "doctor": "Say whether RLHFless works here, what is installed, and what each missing part would bring.",
}
"""The commands in the order of the help text, each with its sentence there.

The command ``report`` is the function ``report`` of ``rlhfless.cli.report``, whose argument is a ``ReportOptions`` of the same
module.
"""
GONE = {
    "drafts": "rlhfless report LOG --only drafts",
    "what-if": "rlhfless report LOG --only what-ifs",
    "estimate": "rlhfless report --estimate steps=100,responses=512,mean-tokens=800 --profile PROFILE",
    "import": "rlhfless convert LOG -o TRACE",
    "export": "rlhfless convert TRACE -o timeline.json",
    "pipeline": "solver.pipeline.schedule_pipeline in Python",
    "run-notebook": "python -m rlhfless.report.page NOTEBOOK",
}


class Command(NamedTuple):
    """A command: the model of its options, and the function that takes it."""

    options: type[Options]
    function: Callable[[Any], None]


def command(name: str) -> Command:
    """Return a command of ``COMMANDS``; imports its module."""
    module = importlib.import_module(f"rlhfless.cli.{name}")
    return Command(getattr(module, f"{name.title()}Options"), getattr(module, name))


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        words: what was typed after ``rlhfless``; that of this process when None.
    """
    typed = list(sys.argv[1:] if words is None else words)
    try:
        with warnings_in_one_line():
            _run(typed)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has gone; Python would complain once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print("; ".join(filter(None, ("rlhfless: interrupted", str(stop)))), file=sys.stderr)
        sys.exit(130)
    except MemoryError as error:
        _refuse(str(error) or "the memory of this machine is not enough; give fewer steps or a smaller log")
    except FloatingPointError as error:  # ours have a sentence; Python's own has no message
        if not str(error):
            raise
        _refuse(str(error))
    except OSError as error:
        _refuse(str(error) if isinstance(error, UserError) else f"{error.filename or 'a file'}: {error.strerror or error}")
    except ModuleNotFoundError as error:
        if (missing := missing_module(" ".join(["rlhfless", *typed[:1]]), error)) is None:
            raise
        _refuse(str(missing))
    except Exception as error:
        if not _for_users(error):
            raise
        _refuse(str(error))
    sys.exit(0)


def _for_users(error: Exception) -> bool:
    if isinstance(error, UserError):
        return True
    errors = sys.modules.get("solver.model.errors")  # the solver's, where it was imported
    return errors is not None and isinstance(error, errors.PlanningError)


def _refuse(message: str) -> NoReturn:
    print("rlhfless: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Context manager in which a warning of ours is one line on standard error, without the place in the code."""
    usual = warnings.formatwarning

    def one_line(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
        ours = category.__module__.split(".")[0] in ("rlhfless", "solver")
        return f"rlhfless: warning: {' '.join(str(message).split())}\n" if ours else usual(message, category, *place, **line)

    warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _run(words: list[str]) -> None:
    name, *rest = words or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
    elif name == "--version":
        print(f"rlhfless, version {__version__}")
    elif name in COMMANDS:
        options, function = command(name)
        if (parsed := parse(options, rest, f"rlhfless {name}")) is not None:
            function(parsed)
    else:
        raise InputError(_no_command(name))


def _no_command(name: str) -> str:
    """Return the error for a word that is no command; a file in its place is probably a log."""
    if Path(name).exists():
        return f"{name}: is a file, not a command; rlhfless report {name} says what limits the run"
    if name in GONE:
        return f"{name} is no longer a command; use {GONE[name]}"
    from rlhfless.cli.options import nearest

    kind = "an option" if name.startswith("-") else "a command"
    return f"{name} is not {kind}{nearest(name, COMMANDS) or '; rlhfless --help lists the commands'}"


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: rlhfless COMMAND [OPTIONS]",
            "",
            "Say what limits an RLHF run from its log, and plan its generation with a bound. Begin with `rlhfless report LOG`.",
            "",
            "Commands:",
            *lines,
            "",
            "`rlhfless COMMAND --help` shows the options of a command. In Python, the classes of rlhfless.cli take the same.",
            "`rlhfless doctor` says what works here and where an example log is. The manual is in the repository: its folders",
            "docs and notebooks.",
        ]
    )


def parse(kind: type[Model], words: Sequence[str], program: str) -> Model | None:
    """Return the options that were typed; None where the line asked for help, which is printed.

    Raises:
        InputError: an option is unknown, lacks its value or is not allowed; the message names it and what is needed.
    """
    from rlhfless.cli.parser import parser_of

    parser = parser_of(kind, program)
    if "-h" in words or "--help" in words:
        print(parser.format_help(), end="")
        return None
    return kind(**parser.typed(words))
