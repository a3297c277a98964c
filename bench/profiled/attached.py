"""Run a script unchanged, or with gradwire attached from outside, and write its step time.

torchrun ... bench/profiled/attached.py RESULT PLAN SCRIPT [WORDS ...]; PLAN is "-" for none, RESULT a file.
"""

from __future__ import annotations

import json
import runpy
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import gradwire

WARM_UP = 8
ends: list[float] = []
kept: list[Any] = []
sharded: list[Any] = []


def put_in(plan: str) -> None:
    """Attach to every DDP model at its construction, and to an FSDP2 model when its optimizer is made."""
    init, begin, shard = DistributedDataParallel.__init__, Optimizer.__init__, fsdp.fully_shard

    def wrapped(self: Any, *words: Any, **options: Any) -> None:
        init(self, *words, **options)
        if plan != "-":
            kept.append(gradwire.attach(self, plan))

    def optimizer(self: Any, *words: Any, **options: Any) -> None:
        begin(self, *words, **options)
        self.register_step_post_hook(lambda *_: ends.append(perf_counter()))
        if sharded and plan != "-" and not kept:
            kept.append(gradwire.attach_fsdp(sharded[-1], plan))

    def fully_shard(module: Any, **options: Any) -> Any:
        sharded.append(shard(module, **options))
        return sharded[-1]

    DistributedDataParallel.__init__ = wrapped  # type: ignore[method-assign]
    Optimizer.__init__ = optimizer  # type: ignore[method-assign]
    fsdp.fully_shard = fully_shard


def main() -> None:
    """Run the script, and write its median step time."""
    result, plan, script, *words = sys.argv[1:]
    put_in(plan)
    destroy = dist.destroy_process_group

    def ended(*_: Any) -> None:
        if dist.get_rank() == 0:
            seconds = [after - before for before, after in pairwise(ends)][WARM_UP:]
            Path(result).write_text(json.dumps({"step_s": statistics.median(seconds)}), encoding="utf-8")
        for each in kept:
            each.close()
        destroy()

    dist.destroy_process_group = ended  # type: ignore[assignment]
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
