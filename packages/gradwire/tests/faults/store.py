"""The store at which ranks meet, when a fault is to strike it: in a process of its own, with a way there."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from faults.case import WORLD, Case
from faults.rank import attach_and_die
from faults.rows import Moment
from support.processes import forkserver
from support.store_host import Host, connected

_ATTEMPT_S = 30.0


class Way:
    """A port that leads to another one, until it is cut: then nothing passes, and no connection ends."""

    def __init__(self, port: int) -> None:
        self._to, self._cut = port, threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._ends: dict[socket.socket, socket.socket] = {}
        self._carrying = threading.Thread(target=self._carry, name="way to the store", daemon=True)
        self._carrying.start()

    def cut(self) -> None:
        """Let nothing pass any more."""
        self._cut.set()

    def _carry(self) -> None:
        while not self._cut.is_set():
            for ready in select.select([self._listening, *self._ends], [], [], 0.01)[0]:
                if ready is self._listening:
                    here = self._listening.accept()[0]
                    there = socket.create_connection(("127.0.0.1", self._to))
                    self._ends |= {here: there, there: here}
                elif ready in self._ends:
                    self._pass_on(ready)

    def _pass_on(self, ready: socket.socket) -> None:
        other, said = self._ends[ready], b""
        with suppress(OSError):
            said = ready.recv(1 << 16)
            other.sendall(said)
        if not said:
            for each in (ready, other):
                del self._ends[each]
                each.close()

    def close(self) -> None:
        """End all connections."""
        self.cut()
        self._carrying.join()
        for each in (self._listening, *self._ends):
            each.close()


class StoreHost:
    """A store that a process serves for the ranks of ``case``, and what is to happen to it."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case, self._folder, self._struck = case, folder, False
        self._host = Host()
        self._way = Way(self._host.port)
        self.port = self._way.port
        if self._act == "restart":
            self._die_attached(self._host.port)

    @classmethod
    def of(cls, case: Case, folder: Path) -> StoreHost | None:
        """Return the store of a case that has one of this kind."""
        return cls(case, folder) if case.row is not None and case.row.moment is Moment.STORE else None

    @property
    def _act(self) -> str:
        return "" if self._case.row is None else self._case.row.act

    def strike_when_awaited(self) -> None:
        """Let the fault happen as soon as all ranks wait for it."""
        if not self._struck and all((self._folder / f"awaits-{rank}").exists() for rank in range(WORLD)):
            self._struck = True
            if self._act.startswith("stop"):
                self._host.halt()
            elif self._act.startswith("cut"):
                self._way.cut()
            (self._folder / "struck").touch()

    def close(self) -> None:
        """End the process."""
        self._host.kill()
        self._way.close()

    def _die_attached(self, port: int) -> None:
        """Let ranks attach and die, and leave in the store what gradwire has written there, but not torch.

        What torch has left it reads again itself, and then waits for dead processes.
        """
        dying: list[BaseProcess] = [
            forkserver().Process(target=attach_and_die, args=(self._case.method, rank, port))
            for rank in range(WORLD)
        ]
        for process in dying:
            process.start()
        deadline = time.monotonic() + _ATTEMPT_S
        for process in dying:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
        store = connected(port)
        keys = store.list_keys()
        assert any("gradwire" in key for key in keys), keys
        for key in keys:
            if "gradwire" not in key:
                store.delete_key(key.removeprefix("/"))
