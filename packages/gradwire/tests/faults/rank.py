"""What one process of a run does: train, meet its fault, and report what came of it."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from faults import choices
from faults.calls import Calls, announce_all_reduces
from faults.case import WORLD, Case, Report, errors_file, report_file
from faults.methods import METHODS, PLANS, Setup, Training
from faults.model import loss_of, poison
from faults.recovery import recover
from faults.relay import relays
from faults.rows import End, Moment
from faults.wire import Armed, frame_act
from gradwire.errors import GradwireError
from gradwire.exchange.engine import VARIABLE as ENGINE
from gradwire.links import process_group
from gradwire.links.rendezvous import attempt

RENDEZVOUS_S = 30
_calls: list[Calls] = []
_PAUSE_S = 0.03  # in every step, so that what strikes from outside finds steps to strike


def run(case: Case, rank: int, folder: Path, port: int | None) -> None:
    """Train as one rank of ``case`` and leave a report in ``folder``.

    With a ``port`` the ranks meet at the TCP store that the parent serves there, as torchrun's agent does.
    However it ends, it ends as a script does, with the interpreter. What it writes as its last words is in
    ``folder``, for it belongs to the fault.
    """
    gc.freeze()  # or the interpreter's end looks through all that the fork server has imported, for a second
    code = 0
    with errors_file(folder, rank).open("wb") as errors:
        os.dup2(errors.fileno(), 2)
    try:
        _run(case, rank, folder, port)
    except BaseException:
        traceback.print_exc()
        code = 1
    ctypes.pythonapi.Py_Exit(code)  # multiprocessing would leave the interpreter's own end out


def _run(case: Case, rank: int, folder: Path, port: int | None) -> None:
    torch.set_num_threads(1)
    _meet(rank, FileStore(str(folder / "store"), WORLD) if port is None else _store_at(port))
    report = Report(rank)
    training, lines = _begin(case, rank, report)
    if _act(case).endswith("before attaching"):
        _await_strike(folder, rank)
    _train(case, rank, report, training, lines, folder)
    report.chosen = training.chosen()
    report.final, report.nan = training.digest(), training.not_finite()
    report.struck = any([*(line.struck for line in lines), *(calls.struck for calls in _calls)])
    if report.error is None:
        training.close()
    recover(case.method, training, report)
    part = folder / f"part-{rank}"
    part.write_bytes(pickle.dumps(report))
    part.rename(report_file(folder, rank))
    dist.destroy_process_group()


def attach_and_die(method: str, rank: int, port: int) -> None:
    """Be a rank of an attempt that ends when all have attached, as one that is killed."""
    torch.set_num_threads(1)
    store = _store_at(port)
    _meet(rank, store)
    METHODS[method](Setup()).attach()
    _await_all(store, f"rank {rank} has attached", "has attached")
    os._exit(1)


def _meet(rank: int, store: Store) -> None:
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=RENDEZVOUS_S)
    )
    _await_all(store, f"rank {rank} has a group", "has a group")


def _store_at(port: int) -> Store:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=RENDEZVOUS_S))


def _await_strike(folder: Path, rank: int) -> None:
    """Let the store be struck now, and not before."""
    (folder / f"awaits-{rank}").touch()
    deadline = time.monotonic() + RENDEZVOUS_S
    while not (folder / "struck").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _act(case: Case) -> str:
    return "" if case.row is None else case.row.act


def _await_all(store: Store, word: str, done: str) -> None:
    """Let nobody be struck, or end, before every rank has come so far: torch has connected its group, say."""
    store.set(word, "")
    store.wait([f"rank {each} {done}" for each in range(WORLD)], timedelta(seconds=RENDEZVOUS_S))


def _begin(case: Case, rank: int, report: Report) -> tuple[Training, list[Armed]]:
    training = METHODS[case.method](_setup(case, rank))
    if case.plan == "python":
        os.environ[ENGINE] = "python"
    is_struck = case.row is not None and case.row.moment in (Moment.FRAME, Moment.CHOICE)
    lines = relays() if is_struck and rank == case.victim else []  # a kill would lose what a relay holds
    if case.row is not None and case.row.moment is Moment.CALL:
        announce_all_reduces()
    if rank == case.victim:
        _calls.append(Calls())
    if case.plan == "auto":
        choices.script()
    if case.row is not None and case.row.moment is Moment.CHOICE and rank == case.victim:
        choices.strike(case)
    if case.row is not None and rank == case.victim:
        _strike_before_attaching(case.row.act)
    report.history.append(training.digest())
    training.optimizer.register_step_post_hook(lambda *_: report.history.append(training.digest()))
    return training, lines


def _train(
    case: Case, rank: int, report: Report, training: Training, lines: list[Armed], folder: Path
) -> None:
    if not _tried(training.attach, report):
        return
    batch = 0
    for step in range(case.steps):
        if step == case.step and _act(case) in ("stop before a step", "cut before a step"):
            _await_strike(folder, rank)
        call = _with_fault(case, rank, step, batch, training, lines)
        if call is None:
            continue
        batch += 1
        if not _tried(call, report):
            report.again = _another(training, rank, batch)
            return
        if case.row is not None and case.row.end is End.NAN and step == case.step:
            break  # another step would spread it
    _tried(training.finish, report)


def _tried(call: Callable[[], object], report: Report) -> bool:
    """Call it; note an error of whatever kind in the report."""
    started = time.monotonic()
    try:
        call()
    except Exception as error:
        report.seconds = time.monotonic() - started
        report.error, report.named = type(error).__name__, isinstance(error, GradwireError)
        report.text = "\n".join([str(error), *getattr(error, "__notes__", [])])
        return False
    return True


def _another(training: Training, rank: int, batch: int) -> tuple[str, float]:
    """Try one more step after the error: it must fail at once, and by an error of gradwire's."""
    again = Report(rank)
    _tried(lambda: training.step(lambda model: loss_of(model, rank, batch)), again)
    return (
        again.error if again.named and again.error else f"unnamed {again.error}: {again.text}"
    ), again.seconds


def _setup(case: Case, rank: int) -> Setup:
    """Return what this rank attaches with; the victim of a fault at that moment has its own."""
    act = case.row.act if case.row is not None and case.row.moment is Moment.ATTACH else None
    common = replace(PLANS[case.plan], timeout_s=case.timeout_s)
    if act == "sub-group":
        members = sorted({case.victim, (case.victim + 1) % WORLD})
        part = dist.new_group(members)
        return Setup(group=part) if rank == case.victim else common
    if rank != case.victim or act is None:
        return common
    own = {"other bound": Setup(codec="errbound:2^-12"), "other segments": Setup(segment_nbytes=1 << 20)}
    return own.get(act, common)


def _strike_before_attaching(act: str) -> None:
    if act == "other gradwire":
        vars(attempt)["GroupAttempt"] = partial(attempt.GroupAttempt, version="0.0.1")
    elif act == "kill while connecting":
        vars(process_group)["connect_ranks"] = _die
    elif act == "stay away":
        os._exit(0)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _with_fault(
    case: Case, rank: int, step: int, batch: int, training: Training, lines: list[Armed]
) -> Callable[[], object] | None:
    """Return what this rank does as its step, None for nothing; some faults have struck then."""
    act = case.row.act if case.row is not None and (rank, step) == (case.victim, case.step) else None
    moment = None if act is None or case.row is None else case.row.moment
    if moment is Moment.CALL and act is not None:
        return _with_arms(case, rank, batch, training, partial(_calls[0].arm, act))
    if moment is Moment.FRAME:
        return _with_a_frame_struck(case, rank, batch, training, lines)
    if moment is Moment.STEP:
        if act == "skip":
            return None
        if act == "raise":
            raise ZeroDivisionError("a fault of the script's own")
        if act == "end":
            sys.exit()
        if act in ("raise in a hook", "interrupt"):
            return lambda: training.step(lambda model: _ending(model, rank, batch, act))
        if act in ("kill", "stop"):
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[act])
        if act == "nan":
            poison(training.model)
    if case.row is not None and case.row.moment is Moment.OUTSIDE:
        time.sleep(_PAUSE_S)
    return lambda: training.step(lambda model: loss_of(model, rank, batch))


class EndedError(BaseException):
    """Ends the script: whoever catches the errors of a step does not catch it."""


def _ending(model: nn.Module, rank: int, batch: int, act: str) -> torch.Tensor:
    """Let backward end the script, when it has computed a part of the gradients."""

    def end(_: torch.Tensor) -> None:
        if act == "interrupt":
            signal.raise_signal(signal.SIGINT)
        raise EndedError

    def watch(_layer: nn.Module, _inputs: object, out: torch.Tensor) -> None:
        out.register_hook(end)  # type: ignore[no-untyped-call]

    layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
    layers[1].register_forward_hook(watch)
    return loss_of(model, rank, batch)


def _with_a_frame_struck(
    case: Case, rank: int, batch: int, training: Training, lines: list[Armed]
) -> Callable[[], object]:
    """Return a step in which a frame meets the fault; with DDP one of the backward pass.

    DDP's forward passes have no frames but those of one named barrier. Where one of these is lost, some
    ranks are in a broadcast of DDP's own while the others raise, and stay there for the process group's
    timeout.
    """

    def arm() -> None:
        lines[case.line % len(lines)].arm(frame_act(case), case.frame)

    return _with_arms(case, rank, batch, training, arm)


def _with_arms(
    case: Case, rank: int, batch: int, training: Training, arm: Callable[[], None]
) -> Callable[[], object]:
    def loss(model: nn.Module) -> torch.Tensor:
        value = loss_of(model, rank, batch)
        if case.method == "ddp":
            arm()
        return value

    if case.method != "ddp":
        arm()
    return lambda: training.step(loss)
