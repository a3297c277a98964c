"""PyTorch's own DDP tests as a class, whose processes may attach gradwire to every model that they wrap."""

from __future__ import annotations

import inspect
import json
import os
import re
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from cpu_for_gpus import FOLDER, cpu_for_gpus  # before PyTorch's tests, which ask for devices when imported
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

import gradwire

_ABOUT_DDP = re.compile("ddp|distributeddataparallel", re.IGNORECASE)
_LEFT_OUT = {
    "test_ddp_compile_static_graph": "a forked process cannot start the compiler's own",
    "test_ddp_uneven_inputs": "400 seconds are not enough for it on CPUs; two smaller ones are about join",
}


@dataclass(frozen=True)
class Outcome:
    """How a test ended: ``passed``, ``skipped`` or ``failed``, what it said, and what gradwire exchanged."""

    ending: str
    text: str = ""
    exchanges: int = 0


class Foreign(TestDistBackend, DistributedTest._DistTestBase):
    """The tests without gradwire. Processes are forked, for importing all this takes longest."""

    codec: str | None = None
    notes = FOLDER

    def setUp(self) -> None:
        """Start the test's processes."""
        super().setUp()  # type: ignore[no-untyped-call]
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank: int, *args: Any, **kwargs: Any) -> None:
        attached: list[Any] = []
        for stream in (1, 2):  # what a test says reaches the parent through its pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        try:
            with cpu_for_gpus(), _attaching(cls.codec, attached):
                super()._run(rank, *args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            exchanges = sum(each.ledger.summary().total.exchanges for each in attached)
            (cls.notes / f"rank{rank}").write_text(json.dumps(exchanges), encoding="utf-8")


class ForeignAttached(Foreign):
    """The tests with gradwire."""

    codec = "identity"


@contextmanager
def _attaching(codec: str | None, attached: list[Any]) -> Iterator[None]:
    """Attach to every model that is wrapped meanwhile; a refusal is the constructor's."""
    init = DistributedDataParallel.__init__

    def wrapped(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if codec is not None:
            attached.append(gradwire.attach(self, codec, timeout_s=20.0))

    DistributedDataParallel.__init__ = wrapped  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def names() -> list[str]:
    """Return the tests that are about DDP."""
    found = [name for name in vars(DistributedTest._DistTestBase) if name.startswith("test_")]
    return sorted(name for name in found if name not in _LEFT_OUT and _is_about_ddp(name))


def _is_about_ddp(name: str) -> bool:
    source = inspect.getsource(inspect.unwrap(getattr(DistributedTest._DistTestBase, name)))
    return _ABOUT_DDP.search(source) is not None


def run(kind: type[Foreign], name: str) -> Outcome:
    """Run one test in processes of its own."""
    result = unittest.TestResult()
    for note in Foreign.notes.glob("rank*"):
        note.unlink()
    kind(name).run(result)  # type: ignore[no-untyped-call]
    exchanges = sum(json.loads(note.read_text(encoding="utf-8")) for note in Foreign.notes.glob("rank*"))
    for _, text in (*result.failures, *result.errors):
        return Outcome("failed", text, exchanges)
    for _, text in result.skipped:
        return Outcome("skipped", text)
    return Outcome("passed", "", exchanges)
