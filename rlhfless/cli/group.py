"""The command group ``rlhfless`` and its error messages.

Wrong input ends with exit code 2 and one line on standard error that says what is wrong, where, and what would be right.
The same holds for a device without enough memory and for a model whose logits are not finite. A warning is one line, too.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from rlhfless import __version__
from rlhfless.errors import UserError
from solver.model.errors import PlanningError


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


class OneLineGroup(click.Group):
    """A command group whose errors, click's own included, end with one line and exit code 2; interrupts end with 130.

    ``context.meta["arguments"]`` is the list of what was typed. The message of a ``click.Abort`` is shown.
    """

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        """Keep the arguments, which parsing consumes."""
        typed = list(args)
        context = super().make_context(info_name, args, *rest, **extra)
        context.meta["arguments"] = typed
        return context

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Find the command; a file in its place is probably a log."""
        if args and self.get_command(ctx, args[0]) is None and Path(args[0]).exists():
            ctx.fail(f"{args[0]}: is a file and no command; rlhfless report {args[0]} says what limits the run")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line."""
        kwargs["standalone_mode"] = False
        try:
            with warnings_in_one_line():
                result = super().main(*args, **kwargs)
        except click.exceptions.Exit as stop:
            sys.exit(stop.exit_code)
        except click.Abort as stop:
            click.echo("; ".join(filter(None, ("rlhfless: interrupted", str(stop)))), err=True)
            sys.exit(130)
        except click.ClickException as error:
            self._refuse(_sentence(error))
        except (UserError, PlanningError) as error:
            self._refuse(str(error))
        except (MemoryError, FloatingPointError) as error:  # ours have a sentence; Python's own have no message
            if not str(error):
                raise
            self._refuse(str(error))
        except OSError as error:
            self._refuse(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(result if isinstance(result, int) else 0)

    @staticmethod
    def _refuse(message: str) -> None:
        click.echo("rlhfless: " + " ".join(message.split()), err=True)
        sys.exit(2)


def _sentence(error: click.ClickException) -> str:
    """Return the sentence of an error of the command line; for an option that is missing it says what to give."""
    sentence = error.format_message()
    wanted = error.param.help if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option) else None
    return f"{sentence.rstrip('.')} ({wanted[0].lower()}{wanted[1:].rstrip('.')})" if wanted else sentence


@click.group(
    cls=OneLineGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
    epilog="The notebooks of the repository are the manual. Begin with notebooks/01_quick_start.ipynb (`make lab`); "
    "notebooks/README.md lists all. docs/guide.md has recipes for this command.",
)
@click.version_option(__version__, prog_name="rlhfless")
@click.pass_context
def main(context: click.Context) -> None:
    """Say what limits an RLHF run from its log, and plan its generation with a bound. Begin with `rlhfless report LOG`."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
