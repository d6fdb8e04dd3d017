"""Main functions of processes that work together, and wait for each other for ever where one does not come."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from rlhfless.training.worker_group import DONE, READY, report


def main(connection: Connection, rank: int) -> None:
    """Answer orders: ``first`` is answered by the first process only, ``wrong`` ends in its error; the others hang."""
    connection.send((READY, None))
    try:
        while True:
            order, _, _ = connection.recv()
            if rank:
                time.sleep(3600)
            if order == "wrong":
                raise RuntimeError("shapes differ")
            connection.send((DONE, rank))
    except Exception as error:
        report(connection, error)
