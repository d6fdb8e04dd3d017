"""Exceptions that several packages share; the message is one sentence for users.

Each package defines its own further ones (``TraceError``, ``ProfileError``, ...). All of them are a ``UserError``, so that the
command line prints their sentence, and a notebook shows it without a traceback. ``PlanningError`` of the solver, which knows
nothing of this package, is shown alike.
"""

from __future__ import annotations

import difflib
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

NOT_THE_USERS = (
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parents[1] / "solver"),
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
)
"""Folders of code that a user did not write: ours, and that of installed packages."""
A_USERS = (Path(__file__).anchor, "<ipython-input")
"""How files and cells of a user begin; compiled modules have relative paths."""


class UserError(Exception):
    """An error whose message is one sentence for users: what is wrong, where, and what to type.

    The command line prints the sentence and ends with exit code 2. In a notebook, IPython shows the sentence without a
    traceback, as frames of ours tell a user nothing.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows; frames are of functions of the user's that failed, such as a reward."""
        cause = self.__cause__
        frames = [] if cause is None else traceback.extract_tb(cause.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(A_USERS) and not frame.filename.startswith(NOT_THE_USERS)]
        lines = [f"{type(self).__name__}: {self}"]
        return lines if not own else [*lines, "", "".join(traceback.format_list(own)).rstrip()]


NO_SUCH_LOG = (
    "there is no such file or folder; a log is needed, for example the one that `rlhfless doctor` names, or rlhfless.example() "
    "in Python"
)
"""What is said of a path to a log at which nothing is."""


class MissingExtra(UserError, ImportError):
    """An optional package is needed; the message names the extra to install."""


EXTRAS = {
    "notebook": ("jupyterlab", "ipywidgets", "anywidget", "nbclient", "nbformat", "papermill"),
    "torch": ("torch", "transformers", "safetensors", "accelerate"),
    "logs": ("tokenizers",),
    "vllm": ("vllm",),
    "ray": ("ray",),
    "profiles": ("aiconfigurator_core",),
    "export": ("kaleido",),
    "lora": ("peft",),
    "pipeline": ("numba",),
    "datasets": ("datasets",),
    "loggers": ("tensorboard",),
}
"""The modules that each extra of the package installs for what it is named after."""


def missing_extra(what: str, package: str | None, extra: str) -> MissingExtra:
    """Return the error for an optional package that is not installed; its message names the extra to install."""
    return MissingExtra(f"{what} needs {package}, which is not installed: pip install 'rlhfless[{extra}]'", name=package)


def missing_module(what: str, error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the error for a module that an import did not find, or None where no extra has it.

    Example:
        >>> print(missing_module("rlhfless.live", ModuleNotFoundError(name="ipywidgets")))
        rlhfless.live needs ipywidgets, which is not installed: pip install 'rlhfless[notebook]'
    """
    package = str(error.name).partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return None if extra is None else missing_extra(what, package, extra)


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters, or its type's name where it has no message.

    Messages for users quote it in brackets.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]


def other_version(what: str, found: object, known: int) -> str:
    """Return the end of a sentence that refuses a file of another version than this one reads.

    Args:
        what: what the file is, such as "a latency profile".

    Example:
        >>> other_version("a trace", 2, 1)
        'is a trace of version 2, and this rlhfless reads version 1; install a newer one: pip install --upgrade rlhfless'
    """
    newer = isinstance(found, int) and found > known
    advice = "install a newer one: pip install --upgrade rlhfless" if newer else "write it again with this one"
    return f"is {what} of version {found!r}, and this rlhfless reads version {known}; {advice}"


LIKE = 0.7
"""From this ratio of ``difflib`` on a name is taken for a misspelt one; less like ones mislead."""


def likely_meant(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is likely meant by a misspelt one, or by one with a word more or less; None if there is none.

    Example:
        >>> known = ["temperature", "max_response_tokens", "max_steps"]
        >>> likely_meant("temprature", known), likely_meant("max_tokens", known)
        ('temperature', 'max_response_tokens')
        >>> likely_meant("max", known)  # one as well as the other
    """
    names = list(known)
    if close := difflib.get_close_matches(name, names, 1, LIKE):
        return close[0]
    words = _words(name)
    similar = [one for one in names if words < _words(one) or _words(one) < words]
    return similar[0] if len(similar) == 1 and len(words ^ _words(similar[0])) == 1 else None


def _words(name: str) -> set[str]:
    return set(re.split(r"[-_.]+", name.strip("-")))


class InputError(UserError, ValueError):
    """An option, argument or file is wrong."""


class InputTypeError(UserError, TypeError):
    """An argument is of a kind that a function does not take."""


class InputIndexError(UserError, IndexError):
    """An index names nothing that is there."""


class ClosedError(UserError, RuntimeError):
    """Something is used after it was closed or released."""
