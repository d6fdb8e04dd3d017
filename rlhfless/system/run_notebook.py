"""Executes a notebook without a browser, as ``make run`` does. The page is written by ``plots.export.notebook_page``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhfless.errors import InputError, missing_extra

if TYPE_CHECKING:
    from nbclient import NotebookClient
    from nbformat import NotebookNode


def _client(cells: NotebookNode, **options: Any) -> NotebookClient:
    """Return a client that always receives the kernel's reply.

    nbclient answers output widgets (``interact`` makes one) over the shell socket while it waits there for the reply to the
    cell. Sending without asyncio's knowledge can use up the socket's only notification that the reply has come, and the client
    would wait for ever (nbclient issue 312). Querying the socket for its events makes asyncio check again.
    """
    import zmq
    from nbclient import NotebookClient

    class Client(NotebookClient):  # type: ignore[misc]  # nbclient may be absent
        def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
            output = super().process_message(msg, cell, cell_index)
            self.kc.shell_channel.socket.get(zmq.EVENTS)
            return output

    return Client(cells, **options)


def run_notebook(notebook: str | Path, out: str | Path, timeout_s: int = 900) -> Path:
    """Execute ``notebook`` in its own folder; returns the path of the executed copy.

    Args:
        notebook: the file. out: the copy, or a page beside which it is put: its ending becomes ``.ipynb``.
        timeout_s: the longest that a cell may take.

    Raises:
        InputError: there is no such notebook, a cell failed, or its kernel did not start or died.
        MissingExtra: nbclient is not installed.
    """
    try:
        import nbformat
        from nbclient.exceptions import CellExecutionError, CellTimeoutError
    except ImportError as error:
        raise missing_extra("running a notebook", error.name, "notebook") from None
    source, target = Path(notebook), Path(out).resolve()
    executed = target.with_suffix(".ipynb")
    if source.resolve() in (target, executed):
        raise InputError(f"{source}: would be overwritten; give a page in another folder or with another name")
    if not source.is_file():
        raise InputError(f"{source}: there is no such file; give the path of a notebook (.ipynb)")
    try:
        cells = nbformat.read(source, as_version=4)
    except (ValueError, nbformat.reader.NotJSONError):
        raise InputError(f"{source}: is not a notebook; a file written by Jupyter is needed") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # no page of an earlier run stays beside a copy that failed
    client = _client(
        cells,
        timeout=timeout_s,
        startup_timeout=timeout_s,  # 60 s by itself, which a first start on a busy machine exceeds
        kernel_name="python3",
        resources={"metadata": {"path": source.parent}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors only: the kernel listens on loopback, no need to warn
    )
    try:
        client.execute()
    except CellExecutionError as error:
        what = f"{error.ename}: {error.evalue}"
        raise InputError(f"{source}: a cell failed ({what}); the notebook up to that cell is {executed}") from None
    except CellTimeoutError:
        what = f"more than {timeout_s} s"
        raise InputError(f"{source}: a cell took {what}; the notebook up to that cell is {executed}") from None
    except RuntimeError as error:  # the kernel did not start, or died
        reason = str(error).strip().rstrip(".")
        raise InputError(f"{source}: its kernel failed ({reason}); the notebook up to that cell is {executed}") from None
    finally:
        nbformat.write(cells, executed)
    return executed
