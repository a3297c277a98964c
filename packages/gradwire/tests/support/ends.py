"""Ranks that end as programs do: by the end of the script, by an exception or by Ctrl-C; run as a program.

``multiprocessing`` ends its processes past the interpreter's own end. So this one imports what ranks need and
forks them; each goes on at the end of this file, and from there the way of any script.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Timer

import torch
import torch._dynamo  # what optimizers import when they are first made
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire._native import _core
from gradwire.codecs import Quantize
from gradwire.costs import ExchangeCost
from gradwire.errors import LinkError
from gradwire.exchange import Exchange
from gradwire.links.base import Link
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync import daemon
from gradwire.sync.context import SyncContext
from gradwire.sync.thread import CallWork, CommunicationThread

WORLD = 2
LIMIT_S = 60.0
HUNG = "hung"
"""What stands in the place of the exit code of a process that had to be ended."""
_STEPS = 3
_WIDTH = 400


@dataclass(frozen=True)
class RankContext:
    """Which rank a process is; the ranks of its world meet at ``store``."""

    rank: int
    store: str


def forked(worlds: int, world: int, together: int = 2) -> tuple[RankContext | None, list[int | str]]:
    """Return the context in every child; and in the parent None, and how all of them have ended."""
    codes: list[int | str] = []
    waited_for: dict[int, float] = {}
    for number in range(worlds):
        folder = tempfile.mkdtemp()
        for rank in range(world):
            child = os.fork()
            if child == 0:
                return RankContext(rank, f"{folder}/store"), []
            waited_for[child] = time.monotonic() + LIMIT_S
        while len(waited_for) > (together - 1) * world or (number == worlds - 1 and waited_for):
            codes += _ended(waited_for)
    return None, codes


def _ended(waited_for: dict[int, float]) -> list[int | str]:
    child, status = os.waitpid(-1, os.WNOHANG)
    if child:
        return [os.waitstatus_to_exitcode(status) if waited_for.pop(child) else HUNG]
    for other, until in waited_for.items():
        if 0 < until < time.monotonic():
            os.kill(other, signal.SIGKILL)
            waited_for[other] = 0.0
    time.sleep(0.01)
    return []


def train(context: RankContext, method: str, end: str) -> None:
    """Train a few steps, and end without closing anything."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    store, minute = FileStore(context.store, WORLD), timedelta(minutes=1)
    dist.init_process_group("gloo", store=store, rank=context.rank, world_size=WORLD, timeout=minute)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
    take_step = _METHODS[method](model)
    for _ in range(_STEPS):
        take_step()
    if end == "by Ctrl-C":
        Timer(0.005 * context.rank, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            take_step()
    if end == "by an exception in a hook":
        next(model[1].parameters()).register_hook(_raise)  # type: ignore[no-untyped-call]
        take_step()
    if end == "in an exit handler":  # handlers run in reverse order
        atexit.unregister(_core.hold_threads)
        atexit.register(take_step)
        atexit.register(_core.hold_threads)
    if end == "by an exception":
        _raise()


def _raise(_: object = None) -> None:
    raise ZeroDivisionError("the script's own")


def _loss(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(8, _WIDTH)).square().mean()
    return loss


def _pipe(model: nn.Module) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pipe = gradwire.PipeSGD(model, optimizer, gradwire.Plan(Quantize(8), pipeline=2), timeout_s=20)
    return lambda: pipe.step(lambda: _loss(model))


def _ddp(model: nn.Module, plan: gradwire.Plan | str = "quantize:8") -> Callable[[], object]:
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5)
    gradwire.attach(wrapped, plan, timeout_s=20)
    return lambda: torch.autograd.backward(_loss(wrapped))


def _ddp_backend(model: nn.Module) -> Callable[[], object]:
    return _ddp(model, gradwire.Plan(gradwire.parse("identity"), algorithm="backend"))


def _ddp_in_lanes(model: nn.Module) -> Callable[[], object]:
    return _ddp(model, gradwire.Plan(gradwire.parse("fp8"), lanes=3))


def _all_reduce(_: nn.Module) -> Callable[[], object]:
    return lambda: gradwire.all_reduce(torch.ones(1 << 16), Quantize(8), timeout_s=20)


_METHODS: dict[str, Callable[[nn.Module], Callable[[], object]]] = {
    "pipe": _pipe,
    "ddp": _ddp,
    "ddp, backend": _ddp_backend,
    "ddp, lanes": _ddp_in_lanes,
    "all_reduce": _all_reduce,
}
WAYS = {
    "finished": 0,
    "by an exception": 1,
    "by an exception in a hook": 1,
    "by Ctrl-C": -signal.SIGINT,
    "in an exit handler": 0,
}
"""How a rank ends, and its exit code then."""
# The other methods exchange in a thread, which ends before exit handlers run.
KINDS = {
    f"{method}, {way}": (method, way)
    for method in _METHODS
    for way in WAYS
    if (method == "all_reduce") == (way == "in an exit handler")
}


def in_a_kernel(_: RankContext) -> None:
    """End while the thread encodes, for half a second more."""
    _encode_for(0.5)


def in_a_kernel_for_long(_: RankContext) -> None:
    """End while the thread encodes, for longer than anybody waits, but not once it is broken off."""
    daemon.FINISH_S = 0.2
    _encode_for(20.0)


def _encode_for(seconds: float) -> None:
    begun, closed, gradient = Event(), Event(), torch.randn(1 << 18)

    def work() -> ExchangeCost:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not closed.is_set():
            Quantize(8).encode(gradient)
            begun.set()
        return ExchangeCost()

    link = loopback(1)[0]
    link.close = closed.set  # type: ignore[method-assign]
    _do(link, work)
    begun.wait(10)


def waiting_for_a_peer(_: RankContext) -> None:
    """End while the thread waits for a peer that is alive and never comes; then it is in kernels again."""
    daemon.FINISH_S = 0.2
    link, _silent = loopback(2, timeout_s=20.0)
    gradient = torch.randn(1 << 18)

    def work() -> ExchangeCost:
        try:
            return ExchangeCost(frames=link.irecv(1, torch.empty(8, dtype=torch.uint8)).wait().numel())
        except LinkError:
            for _ in range(100):
                Quantize(8).encode(gradient)
            raise

    _do(link, work)
    time.sleep(0.1)


def _do(link: Link, work: Callable[[], ExchangeCost]) -> None:
    context = SyncContext(Exchange(link, Plan()))
    CommunicationThread(context).put(CallWork(context, "the work", lambda _: work(), None))


ALONE = {each.__name__: each for each in (in_a_kernel, in_a_kernel_for_long, waiting_for_a_peer)}


if __name__ == "__main__":
    gc.freeze()  # children need not look at what they share
    repeats, *kinds = sys.argv[1:]
    for kind in kinds:
        context, codes = forked(int(repeats), 1 if kind in ALONE else WORLD)
        if context is not None:
            break
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()
    if context is not None:
        if kind in ALONE:
            ALONE[kind](context)
        else:
            train(context, *KINDS[kind])
