"""A process that was started here, as one rank: it works, reports through its pipe and never outlives us."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from threading import Lock, Thread
from typing import Any

from gradwire.errors import LOSSY_LOGGER
from gradwire.launch.context import Event, Failed, Finished, Options, RankContext, Warned, describe_failure
from gradwire.launch.rendezvous import join_store


def main(
    work: Callable[[RankContext[Event], Options], None],
    options: Options,
    rank: int,
    world: int,
    port: int,
    timeout_s: float,
    connection: Connection[Event | Finished | Failed | Warned, None],
) -> None:
    """Be a rank: everything it has to say goes through ``connection``."""
    Thread(target=_end_with_parent, name="gradwire lifeline", daemon=True).start()
    send = _one_at_a_time(connection.send)
    telling = _Telling(send)
    logging.getLogger(LOSSY_LOGGER).addHandler(telling)
    context: RankContext[Event] = RankContext(rank, world, send, lambda: join_store(port, timeout_s))
    try:
        work(context, options)
        send(Finished(rank))
    except BaseException as error:
        send(describe_failure(context, error))
        connection.close()
        os._exit(1)  # not sys.exit: a thread that waits for a peer must not keep the process
    finally:
        logging.getLogger(LOSSY_LOGGER).removeHandler(telling)  # the pipe ends before the process


class _Telling(logging.Handler):
    """Sends the lossy warnings of this process to its starter."""

    def __init__(self, send: Callable[[Warned], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(Warned(record.getMessage()))


def _one_at_a_time(send: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a function that sends from any thread."""
    sending = Lock()

    def send_alone(message: object) -> None:
        with sending:
            send(message)

    return send_alone


def _end_with_parent() -> None:
    """Leave at once when the parent is gone, however it went: nobody is left to report to."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
