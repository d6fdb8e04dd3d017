"""The command ``rlhfless`` that all commands belong to, and how it refuses.

Knows the exceptions that are for people; nothing of the commands. Wrong input ends with exit code 2 and one line on standard
error: what is wrong, where, and what would be right. So does a device without room, and a model whose logits are no numbers.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from rlhfless import __version__
from rlhfless.errors import InputError, MissingExtra


def user_errors() -> tuple[type[Exception], ...]:
    """The exceptions whose message is one sentence for people."""
    from rlhfless.latency import PriceError, ProfileError
    from rlhfless.predict import PredictionError
    from rlhfless.scheduling import PolicyError
    from rlhfless.trace import TraceError
    from rlhfless.training.config import TrainError
    from solver.model.errors import PlanningError

    ours = (PlanningError, TraceError, ProfileError, PriceError, PredictionError, PolicyError, TrainError)
    return (*ours, MissingExtra, InputError)


class OneLineGroup(click.Group):
    """A command group whose refusals are one line and exit code 2, click's own included."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line."""
        kwargs["standalone_mode"] = False
        try:
            result = super().main(*args, **kwargs)
        except click.exceptions.Exit as stop:
            sys.exit(stop.exit_code)
        except click.Abort:
            click.echo("rlhfless: interrupted", err=True)
            sys.exit(130)
        except click.ClickException as error:
            self._refuse(error.format_message())
        except user_errors() as error:
            self._refuse(str(error))
        except (MemoryError, FloatingPointError) as error:  # ours say it in a sentence; Python's own say nothing
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


@click.group(
    cls=OneLineGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
    epilog="The manual is the notebooks of the repository: begin with notebooks/01_one_step.ipynb (`make lab`). "
    "notebooks/README.md has all of them, docs/guide.md the recipes of this command.",
)
@click.version_option(__version__, prog_name="rlhfless")
@click.pass_context
def main(context: click.Context) -> None:
    """Plan RLHF generation with a lower bound, run the plan, see time, cost and idle GPUs."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
