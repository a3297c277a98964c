"""``Testbed``: a network that exists for the duration of a ``with`` block."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import gradwire
from gradwire.errors import SpecError, TestbedError
from gradwire.launch.launched import interrupts_held
from gradwire_lab.testbed.delay_line import RelayReport
from gradwire_lab.testbed.layout import Impairment
from gradwire_lab.testbed.namespaces import private_area
from gradwire_lab.testbed.output import CommandRun, Sink, Watch, show
from gradwire_lab.testbed.registry import MARK, Entry, enter, variables
from gradwire_lab.testbed.runner import Channel, Runner, pair
from gradwire_lab.testbed.topology import Topology

if TYPE_CHECKING:
    from typing_extensions import Self

SET_UP_TIMEOUT_S = 60.0
TAKE_DOWN_TIMEOUT_S = 5.0
GRACE_S = 5.0


class Testbed:
    """Hosts in network namespaces on this machine, with rate-limited links, isolated from the real network.

    The testbed exists from the start of the ``with`` block to its end, even if this process is killed.

    Parameters
    ----------
    nic
        The command of a software NIC that forwards all frames between a host and its link, such as ``gradwire
        nic --codec inceptionn:2^-10``; ``--host``, ``--link``, and ``--ready-fd`` are added. Each run starts
        one NIC for every host, and ends it with SIGTERM. The NIC's output is part of the host's standard
        error.
    netem
        Whether the kernel's netem may delay and lose frames. Otherwise, or if the kernel lacks netem, a relay
        delays and loses the frames.

    Examples
    --------
    ::

        with Testbed(Topology.even(4, "1gbit")) as bed:
            run = bed.run(["python", "train.py"])
        print(run.exit_code, run.failure)

    Raises
    ------
    TestbedError
        On entry, if this machine can't create such a testbed.
    """

    def __init__(self, topology: Topology, *, nic: Sequence[str] = (), netem: bool = True) -> None:
        self.topology = topology
        self.nic = tuple(nic)
        self.impairment: Impairment | None = None
        """The mechanism that delays and loses frames, known inside the ``with`` block; None without both."""
        self._may_use_netem = netem
        self._entry: Entry | None = None
        self._channel: Channel | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._set_up_s = 0.0

    def __enter__(self) -> Self:
        began = time.monotonic()
        area = private_area()
        try:
            self._entry = enter()
            self._channel = self._start(area, self._entry)
            self._set_up(self._channel)
        except BaseException:
            self.close()
            raise
        self._set_up_s = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        timeout_s: float | None = None,
        grace_s: float = GRACE_S,
        sinks: tuple[Sink, ...] = (show,),
    ) -> CommandRun:
        """Run a command on every host, and return when all commands and their child processes have ended.

        Parameters
        ----------
        command
            The program and its arguments; no shell is involved.
        environment
            The environment of the hosts, by default this process's environment. The variables of a rank are
            added.
        folder
            The working folder of the command, by default this process's working folder.
        timeout_s
            The time after which running commands are killed; None is no limit.
        grace_s
            The time for the other hosts to end after one host has failed, or after Ctrl-C.
        sinks
            The functions that receive the hosts' output; by default, ``show`` prints it.

        Raises
        ------
        SpecError
            For an empty command.
        TestbedError
            If the command can't be started, or the testbed is closed or was killed.
        KeyboardInterrupt
            After Ctrl-C, once all hosts have ended. As after every exception, the testbed is then closed.
        """
        if self._channel is None or self._entry is None:
            raise TestbedError(
                "expected run() within the testbed's 'with' block, got a call outside; call run() inside "
                "the block"
            )
        inherited = inherited_environment() if environment is None else environment
        folder = Path.cwd() if folder is None else folder
        check_command(command, inherited.get("PATH", os.defpath), folder)
        environments = [
            variables(self.topology, host, self._entry.mark, inherited, self.impairment)
            for host in range(self.topology.hosts)
        ]
        started, began = datetime.now().astimezone(), time.monotonic()
        watch = Watch(self.topology.hosts, began, timeout_s, grace_s)
        runner = Runner(self._channel, watch, sinks)
        try:
            runner.follow(command, environments, folder)
            if watch.interrupts:
                raise KeyboardInterrupt
        except BaseException:
            self.close()
            raise
        return CommandRun(
            topology=self.topology,
            command=tuple(command),
            hosts=tuple(ended for ended in watch.exits if ended is not None),
            started=started,
            set_up_s=self._set_up_s,
            seconds=time.monotonic() - began,
            exit_code=watch.exit_code,
            failure=watch.failure,
            nic=self.nic,
            impairment=self.impairment,
            relay=None if runner.relay is None else RelayReport(**runner.relay),
        )

    def close(self) -> None:
        """End all processes in the testbed and remove the testbed. Repeated calls are allowed."""
        with interrupts_held():
            if self._channel is not None:
                self._channel.close()  # then the supervisor ends, and the kernel removes the namespaces
                self._channel = None
            if self._supervisor is not None:
                try:
                    self._supervisor.wait(TAKE_DOWN_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._supervisor.kill()
                    self._supervisor.wait()
                self._supervisor = None
            if self._entry is not None:
                self._entry.leave()
                self._entry = None

    def _start(self, area: Sequence[str], entry: Entry) -> Channel:
        own, other = pair()
        rooms = dict.fromkeys(str(Path(each).parent.parent) for each in (gradwire.__file__, __file__))
        paths = [*rooms, *filter(None, [os.environ.get("PYTHONPATH")])]
        supervisor = [sys.executable, "-m", "gradwire_lab.testbed.supervisor", str(other.fileno())]
        try:
            self._supervisor = subprocess.Popen(
                [*area, *supervisor, str(entry.path), os.readlink("/proc/self/ns/pid")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), MARK: entry.mark},
                start_new_session=True,  # so that Ctrl-C reaches this process only
            )
        finally:
            other.close()
        return own

    def _set_up(self, channel: Channel) -> None:
        try:
            words = {"topology": self.topology.to_dict(), "nic": list(self.nic)}
            channel.send({**words, "netem": self._may_use_netem})
            received = channel.receive(SET_UP_TIMEOUT_S)
        except BrokenPipeError:
            received = None
        except TimeoutError as error:
            raise TestbedError(
                f"the testbed's network was not ready within {SET_UP_TIMEOUT_S:g} s; try again"
            ) from error
        if received is None:
            raise TestbedError("the testbed's supervisor ended before its network was ready; try again")
        if received[0]["told"] == "failed":
            raise TestbedError(received[0]["reason"])
        self.impairment = received[0]["impairment"]


def inherited_environment() -> dict[str, str]:
    """Return this process's environment, with a default ``PATH``."""
    return {"PATH": os.defpath, **os.environ}


def check_command(command: Sequence[str], path: str, folder: Path) -> None:
    """Raise ``SpecError`` or ``TestbedError`` for a command that hosts cannot start."""
    if not command or not command[0]:
        raise SpecError("expected a command for every host, got none; pass a program and its arguments")
    if not folder.is_dir():
        raise TestbedError(
            f"expected an existing working folder, got {folder}; create the folder, or pass another folder"
        )
    program = command[0]
    found = (
        os.access(folder / program, os.X_OK) and (folder / program).is_file()
        if "/" in program
        else shutil.which(program, path=path) is not None
    )
    if not found:
        raise TestbedError(
            f"the command {program!r} is not found or not executable; pass the path of a program"
        )
