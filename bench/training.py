"""A small training on the hosts of a testbed, for the other benchmarks in this folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire_lab.testbed.registry import KEPT_MEMORY


def measure(
    script: str, plan: str, words: Namespace, rate: str, names: Sequence[str], delay: str = "0"
) -> dict[str, Any]:
    """Run a script's ``--worker`` on a testbed, with the options ``names``; return rank 0's measurements."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "seen.json")
        options = [f"--{name}={getattr(words, name)}" for name in names]
        worker = [sys.executable, script, "--worker", plan, str(path), *options]
        bed = [sys.executable, "-m", "gradwire", "testbed", "run", "--hosts", str(words.hosts)]
        subprocess.run(
            [*bed, "--rate", rate, "--delay", delay, "--", *worker], check=True, env=os.environ | KEPT_MEMORY
        )
        seen: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return seen


class Training:
    """One rank's training of a classifier with two wide hidden layers, on the rank's own random data.

    Attributes
    ----------
    model
        The ``DistributedDataParallel``.
    seconds
        The seconds of each step.
    """

    def __init__(self, width: int, batch: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        layers = [
            nn.Linear(256, width),
            nn.ReLU(),
            *(nn.Linear(width, width), nn.ReLU()) * 2,
            nn.Linear(width, 10),
        ]
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._data, self._batch = torch.Generator().manual_seed(dist.get_rank()), batch
        self.seconds: list[float] = []

    def step(self) -> None:
        """Train one step."""
        began = perf_counter()
        x = torch.randn(self._batch, 256, generator=self._data)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), x[:, :10].argmax(1))
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.seconds.append(perf_counter() - began)

    def finish(self, path: str, **seen: Any) -> None:
        """Write rank 0's measurements, and leave the group."""
        if dist.get_rank() == 0:
            Path(path).write_text(json.dumps({"seconds": self.seconds, **seen}), encoding="utf-8")
        dist.destroy_process_group()
